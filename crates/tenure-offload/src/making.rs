//! Making saved tensors: the operations and inputs from which they can be recomputed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::held::{HeldInputs, Saved};
use crate::identity::SavedIndex;
use crate::profile::Recipe;
use crate::recompute::{Id, Input, Recompute};

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

    /// What it takes to compute something again that was saved: through inputs that were not saved
    /// themselves. None if something of it is nowhere.
    pub(crate) fn making(
        &self,
        recompute: &dyn Recompute,
        index: SavedIndex,
        saved: &HashMap<Id, SavedIndex>,
    ) -> Option<Making> {
        /// Operations that are looked at: what takes more is not worth it.
        const MOST: usize = 64;
        let made_in =
            |recompute: &dyn Recompute| recompute.made_in().or_else(|| self.intervals.get(&recompute.id()).copied());
        let at = |recompute: &dyn Recompute| made_in(recompute).map(|interval| OperationAt { interval, number: 0 });
        let (inputs, operations, sources) = (Vec::new(), vec![at(recompute)?], Vec::new());
        let mut making = Making { inputs, operations, sources };
        let (mut rest, mut known) = (recompute.inputs(), Vec::new());
        while let Some(Input { id, here, recompute }) = rest.pop() {
            if known.contains(&id) {
                continue;
            }
            known.push(id);
            let source = match saved.get(&id) {
                Some(input) if *input != index => {
                    making.inputs.push(*input);
                    Source::Saved
                }
                Some(_) => return None,
                None if here.is_some() => Source::Stays,
                None => {
                    let recompute = recompute?;
                    making.operations.push(at(&*recompute)?);
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

/// Where a step asks for an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OperationAt {
    pub(crate) interval: usize,
    /// How many operations of the interval come before it.
    pub(crate) number: usize,
}

/// How something that was saved is made.
#[derive(Default)]
pub(crate) struct Making {
    /// Of what, all saved before.
    pub(crate) inputs: Vec<SavedIndex>,
    /// By which operations.
    pub(crate) operations: Vec<OperationAt>,
    /// Where each input is from, in the order in which they are looked at.
    pub(crate) sources: Vec<Source>,
}

/// Where an input is from.
pub(crate) enum Source {
    Saved,
    Stays,
    Made,
}

impl Making {
    /// The inputs that it is made of now. None if one is not where it was when that was measured: a step that does something
    /// else may never save it.
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
                Source::Saved => held.saved.push(saved(id)?),
                Source::Stays => held.staying.push(here?),
                Source::Made => rest.extend(recompute?.inputs()),
            }
        }
        sources.next().is_none().then_some(held)
    }

    /// The same, where intervals take these times.
    pub(crate) fn recipe(&self, times_ns: &[u64]) -> Recipe {
        Recipe {
            inputs: self.inputs.clone(),
            operations: self.operations.len() as u64,
            time_ns: self.time_ns(times_ns),
        }
    }

    /// The sum of the times of the intervals that have its operations.
    pub(crate) fn time_ns(&self, times_ns: &[u64]) -> u64 {
        self.operations.iter().map(|operation| times_ns[operation.interval]).sum()
    }
}
