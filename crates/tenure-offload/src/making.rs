//! The operations and inputs from which saved tensors are recomputed.

use std::collections::HashMap;
use std::sync::Arc;

use crate::held::{HeldInputs, SavedHandle};
use crate::identity::SavedIndex;
use crate::profile::Recipe;
use crate::recompute::{Recomputation, RecomputeInput, SavedBytesId};

/// The operations of a measured step.
#[derive(Default)]
pub(crate) struct Operations {
    /// The interval of each operation, by the bytes that it made.
    intervals: HashMap<SavedBytesId, usize>,
}

impl Operations {
    pub(crate) fn add(&mut self, id: SavedBytesId, interval: usize) {
        self.intervals.insert(id, interval);
    }

    /// Returns the operations and inputs from which a saved tensor can be recomputed, through inputs that were not
    /// saved themselves. Returns None if an input is not available, or there are too many.
    pub(crate) fn making(
        &self,
        recompute: &dyn Recomputation,
        index: SavedIndex,
        saved: &HashMap<SavedBytesId, SavedIndex>,
    ) -> Option<Making> {
        /// The most inputs to look at: with more, recomputing is not worth it.
        const MOST: usize = 64;
        let made_in = |recompute: &dyn Recomputation| {
            recompute.made_in().or_else(|| self.intervals.get(&recompute.id()).copied())
        };
        let at = |recompute: &dyn Recomputation| made_in(recompute).map(|interval| OperationAt { interval, number: 0 });
        let inputs = Vec::new();
        let operations = vec![at(recompute)?];
        let mut making = Making { inputs, operations, ..Making::default() };
        let mut rest = recompute.inputs();
        let mut seen = Vec::new();
        while let Some(RecomputeInput { id, here, recompute }) = rest.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            let source = match saved.get(&id) {
                Some(input) if *input != index => {
                    making.inputs.push(*input);
                    InputSource::Saved
                }
                Some(_) => return None,
                None if here.is_some() => {
                    making.stays.push(id);
                    InputSource::Stays
                }
                None => {
                    let recompute = recompute?;
                    making.operations.push(at(&*recompute)?);
                    rest.extend(recompute.inputs());
                    InputSource::Made
                }
            };
            making.sources.push(source);
            if seen.len() > MOST {
                return None;
            }
        }
        making.inputs.sort_unstable();
        making.inputs.dedup();
        Some(making)
    }
}

/// The position of an operation in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct OperationAt {
    pub(crate) interval: usize,
    /// The number of operations before it in the interval.
    pub(crate) number: usize,
}

/// The operations and inputs that make a saved tensor.
#[derive(Default)]
pub(crate) struct Making {
    /// The saved tensors among the inputs.
    pub(crate) inputs: Vec<SavedIndex>,
    /// The operations that make the tensor, and its inputs that were not saved.
    pub(crate) operations: Vec<OperationAt>,
    /// The inputs that are in memory without the engine.
    pub(crate) stays: Vec<SavedBytesId>,
    /// The source of each input, in the order in which the inputs are looked at.
    pub(crate) sources: Vec<InputSource>,
}

/// The source of an input.
pub(crate) enum InputSource {
    /// The engine holds it as a saved tensor.
    Saved,
    /// It is in memory without the engine, and is expected to stay there, as a parameter is.
    Stays,
    /// It is recomputed itself.
    Made,
}

impl Making {
    /// Returns owners that keep the inputs available. Returns None if the source of one is not as it was when the step
    /// was measured, since a step that differs may never save it.
    pub(crate) fn hold(
        &self,
        recompute: &dyn Recomputation,
        saved: impl Fn(SavedBytesId) -> Option<Arc<SavedHandle>>,
    ) -> Option<HeldInputs> {
        let mut held = HeldInputs::default();
        let mut sources = self.sources.iter();
        let mut rest = recompute.inputs();
        let mut seen = Vec::new();
        while let Some(RecomputeInput { id, here, recompute }) = rest.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            match sources.next()? {
                InputSource::Saved => held.saved.push(saved(id)?),
                InputSource::Stays => held.unsaved.push(here?),
                InputSource::Made => rest.extend(recompute?.inputs()),
            }
        }
        sources.next().is_none().then_some(held)
    }

    /// Returns the recipe for a profile whose intervals take `times_ns`, in nanoseconds.
    pub(crate) fn recipe(&self, times_ns: &[u64]) -> Recipe {
        Recipe {
            inputs: self.inputs.clone(),
            operations: self.operations.len() as u64,
            time_ns: self.time_ns(times_ns),
        }
    }

    /// Returns the sum of the times of the intervals that have the operations, in nanoseconds.
    pub(crate) fn time_ns(&self, times_ns: &[u64]) -> u64 {
        self.operations.iter().map(|operation| times_ns[operation.interval]).sum()
    }
}
