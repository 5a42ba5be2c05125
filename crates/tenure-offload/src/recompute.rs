//! Computing again instead of keeping.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Arc;

use tenure_core::{Generation, Storage};

use crate::{OffloadError, Recipe, Saved};

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
        let (inputs, intervals, sources) = (Vec::new(), vec![made_in(recompute)?], Vec::new());
        let mut making = Making { inputs, intervals, sources };
        let (mut rest, mut known) = (recompute.inputs(), Vec::new());
        while let Some(Input { id, here, recompute }) = rest.pop() {
            if known.contains(&id) {
                continue;
            }
            known.push(id);
            let source = match saved.get(&id) {
                Some(input) if *input != number => {
                    making.inputs.push(*input);
                    Source::Saved
                }
                Some(_) => return None,
                None if here.is_some() => Source::Stays,
                None => {
                    let recompute = recompute?;
                    making.intervals.push(made_in(&*recompute)?);
                    rest.extend(recompute.inputs());
                    Source::Made
                }
            };
            making.sources.push(source);
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
#[derive(Default)]
pub(crate) struct Making {
    /// Of what, by numbers of what was saved before.
    pub(crate) inputs: Vec<usize>,
    /// The intervals that it took.
    pub(crate) intervals: Vec<usize>,
    /// Where each input is from, in the order in which they are looked at.
    pub(crate) sources: Vec<Source>,
}

/// Where an input is from.
pub(crate) enum Source {
    Saved,
    Stays,
    Made,
}

/// What something that was given up is made of, held until it is: another step than was measured might let go of it.
#[derive(Default)]
pub(crate) struct HeldInputs {
    pub(crate) saved: Vec<Arc<Saved>>,
    staying: Vec<Storage>,
}

impl Making {
    /// What it is made of now. None if something is not where it was when that was measured. What is saved later is not
    /// looked for.
    pub(crate) fn hold(
        &self,
        recompute: &dyn Recompute,
        saved: impl Fn(Id) -> Option<Arc<Saved>>,
    ) -> Option<HeldInputs> {
        let (mut held, mut sources) = (HeldInputs::default(), self.sources.iter());
        let (mut rest, mut known) = (recompute.inputs(), Vec::new());
        while let Some(Input { id, here, recompute }) = rest.pop() {
            if known.contains(&id) {
                continue;
            }
            known.push(id);
            match sources.next()? {
                Source::Saved => held.saved.extend(saved(id)),
                Source::Stays => held.staying.push(here?),
                Source::Made => rest.extend(recompute?.inputs()),
            }
        }
        sources.next().is_none().then_some(held)
    }

    /// The same, where intervals take these times.
    pub(crate) fn recipe(&self, times_ns: &[u64]) -> Recipe {
        let time_ns = self.intervals.iter().map(|interval| times_ns[*interval]).sum();
        Recipe { inputs: self.inputs.clone(), time_ns }
    }
}
