//! Computing again instead of keeping.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use tenure_core::{Generation, Storage};

use crate::{OffloadError, Recipe};

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
    /// Whether they are in memory at any time, such as parameters, unless they were saved.
    pub stays: bool,
    /// How they are computed again themselves.
    pub recompute: Option<Arc<dyn Recompute>>,
}

/// What was measured of operations.
#[derive(Default)]
pub(crate) struct Operations {
    /// The interval of each: by what it made.
    intervals: HashMap<Id, usize>,
}

impl Operations {
    pub(crate) fn add(&mut self, id: Id, interval: usize) {
        self.intervals.insert(id, interval);
    }

    /// What it takes to compute something again that is the `number`-th that was saved: through inputs that were not saved
    /// themselves. None if something of it is nowhere.
    pub(crate) fn making(
        &self,
        recompute: &dyn Recompute,
        number: usize,
        saved: &HashMap<Id, usize>,
    ) -> Option<Making> {
        /// Operations that are looked at: what takes more is not worth it.
        const MOST: usize = 64;
        let made_in =
            |recompute: &dyn Recompute| recompute.made_in().or_else(|| self.intervals.get(&recompute.id()).copied());
        let mut making = Making { inputs: Vec::new(), intervals: vec![made_in(recompute)?] };
        let (mut rest, mut known) = (recompute.inputs(), Vec::new());
        while let Some(Input { id, stays, recompute }) = rest.pop() {
            if known.contains(&id) {
                continue;
            }
            known.push(id);
            match saved.get(&id) {
                Some(input) if *input != number => making.inputs.push(*input),
                Some(_) => return None,
                None if stays => {}
                None => {
                    let recompute = recompute?;
                    making.intervals.push(made_in(&*recompute)?);
                    rest.extend(recompute.inputs());
                }
            }
            if known.len() > MOST {
                return None;
            }
        }
        making.inputs.sort_unstable();
        making.inputs.dedup();
        Some(making)
    }
}

/// How something that was saved is made.
pub(crate) struct Making {
    /// Of what, by numbers of what was saved before.
    pub(crate) inputs: Vec<usize>,
    /// The intervals that it took.
    pub(crate) intervals: Vec<usize>,
}

impl Making {
    /// The same, where intervals take these times.
    pub(crate) fn recipe(&self, times_ns: &[u64]) -> Recipe {
        let time_ns = self.intervals.iter().map(|interval| times_ns[*interval]).sum();
        Recipe { inputs: self.inputs.clone(), time_ns }
    }
}
