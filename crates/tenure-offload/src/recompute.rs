//! Computing again instead of keeping.

use std::error::Error;
use std::sync::Arc;

use tenure_core::{Generation, Storage};

use crate::error::OffloadError;

/// Which bytes: those of a storage at a version.
pub type Id = (Generation, u64);

/// Looks for bytes that were saved: has them come back, or be computed again, and tells where they are. None if they were
/// not saved, or nobody needs them any more.
pub type Find<'a> = &'a dyn Fn(Id) -> Result<Option<Storage>, OffloadError>;

/// How a front end computes bytes again.
pub trait Recompute: Send + Sync {
    /// Which.
    fn id(&self) -> Id;

    /// What it takes. Asked when a step is over that was measured.
    fn inputs(&self) -> Vec<Input>;

    /// The [interval](crate::Engine::interval) in which they were made, if the engine was not told of the operation.
    fn made_in(&self) -> Option<usize> {
        None
    }

    /// The bytes, in fresh memory, on the thread's current stream: the same as before.
    ///
    /// # Errors
    /// What is found cannot come back; an input is gone, or was written to; the operation fails.
    fn run(&self, find: Find<'_>) -> Result<Storage, Box<dyn Error + Send + Sync>>;
}

/// What bytes are computed again of.
pub struct Input {
    /// Which bytes.
    pub id: Id,
    /// Where they are, if they are in memory now. What is there when a step is over, such as parameters or the batch, is
    /// expected to stay through the next, unless it was saved.
    pub here: Option<Storage>,
    /// How they are computed again themselves.
    pub recompute: Option<Arc<dyn Recompute>>,
}
