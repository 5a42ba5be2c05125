//! Recomputation: how a front end computes saved bytes again instead of keeping them.

use std::error::Error;
use std::sync::Arc;

use tenure_core::{Generation, Storage};

use crate::error::OffloadError;

/// Identifies saved bytes: a storage, and its version.
pub type SavedBytesId = (Generation, u64);

/// Finds saved bytes: fetches or recomputes them, and returns their storage. Returns None if they were not saved, or
/// are not needed any more.
pub type FindSaved<'a> = &'a dyn Fn(SavedBytesId) -> Result<Option<Storage>, OffloadError>;

/// A front end's way to recompute saved bytes.
pub trait Recomputation: Send + Sync {
    /// Returns the identity of the bytes.
    fn id(&self) -> SavedBytesId;

    /// Returns the inputs. The engine asks for them at the end of a measured step, and when it drops the bytes.
    fn inputs(&self) -> Vec<RecomputeInput>;

    /// Returns the [interval](crate::Engine::interval) in which the bytes were made, if the front end did not report
    /// the operation.
    fn made_in(&self) -> Option<usize> {
        None
    }

    /// Computes the bytes in fresh memory, on the thread's current stream. They are the same as before.
    ///
    /// # Errors
    /// An input cannot come back, is gone, or was written to; the operation fails.
    fn run(&self, find: FindSaved<'_>) -> Result<Storage, Box<dyn Error + Send + Sync>>;
}

/// An input from which bytes are recomputed.
pub struct RecomputeInput {
    /// The identity of the input.
    pub id: SavedBytesId,
    /// The storage of the input, if it is in memory now. A storage that is there at the end of a step, such as a
    /// parameter or the batch, is expected to stay through the next step, unless it was saved.
    pub here: Option<Storage>,
    /// The way to recompute the input itself, if there is one.
    pub recompute: Option<Arc<dyn Recomputation>>,
}
