//! The measurement of a step after it has ended, from which later steps with its signature are planned, and the
//! operations and inputs from which its saved tensors are recomputed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tenure_tier::codec::Choice;

use crate::identity::{SavedIndex, TensorId};
use crate::pace::Pace;
use crate::place::{IntermediateBytes, Recomputation, RecomputeInput, RecomputeInputs, SavedBytesId, SavedHandle};
use crate::profile::{Profile, Recipe};
use crate::schedule::{OffloadAction, Schedule};

/// The most planned steps whose times are measured. In the first ones, the host may be late: libraries are loaded, and
/// the allocator still looks for places.
pub(crate) const TIMED_STEPS: u8 = 3;

/// Times that differ by less than one part in this many are the same.
const SAME_TIME_PART: u64 = 32;

/// An event that ends an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepEvent {
    Save {
        bytes: u64,
    },
    Need {
        index: SavedIndex,
    },
    /// A resident is about to be used.
    Lend {
        id: TensorId,
    },
    /// The use of a resident is over.
    GiveBack {
        id: TensorId,
    },
    /// The front end has asked for an operation.
    Operation,
}

/// The events and the profile of steps of a signature.
#[derive(Clone, Default)]
pub(crate) struct Profiled {
    pub(crate) events: Vec<StepEvent>,
    pub(crate) profile: Profile,
    /// The interval of each operation, in order.
    pub(crate) operated: Vec<usize>,
    /// The pace of the step, if its program's allocations are counted.
    pub(crate) pace: Option<Pace>,
    /// The operations and inputs that make each saved tensor, if they are known, by index.
    pub(crate) makings: Vec<Option<Arc<Making>>>,
    /// The residents, by their index.
    pub(crate) residents: Vec<TensorId>,
    pub(crate) codecs: Vec<Choice>,
    /// The bytes that were allocated when the step began.
    pub(crate) allocated_bytes: u64,
    /// The part of them that is the program's state.
    pub(crate) state_bytes: u64,
    /// The most planned steps that are still to be timed, while the device does not wait for the host. Until one was, a
    /// device's times include gaps between operations, in which the host had asked for nothing.
    pub(crate) untimed_steps: u8,
    /// Whether the profile is an estimate. Its sizes are only about right then.
    pub(crate) is_estimate: bool,
}

impl Profiled {
    /// Returns whether an event is the one that was measured at a point, or is like the one that was estimated.
    pub(crate) fn expects(&self, point: usize, event: StepEvent) -> bool {
        match (self.events.get(point), event) {
            (Some(StepEvent::Save { bytes: expected }), StepEvent::Save { bytes }) => self.is_size(*expected, bytes),
            (expected, event) => expected == Some(&event),
        }
    }

    /// Returns whether a saved tensor has the size that was measured, or one like that which was estimated.
    pub(crate) fn is_size(&self, expected_bytes: u64, bytes: u64) -> bool {
        if self.is_estimate { is_alike(expected_bytes, bytes) } else { bytes == expected_bytes }
    }

    /// Returns the measurement as if the step had begun with so many bytes of the program's state in memory.
    pub(crate) fn with_state(&self, state_bytes: u64) -> Self {
        let mut changed = Self { state_bytes, ..self.clone() };
        changed.allocated_bytes = (self.allocated_bytes + state_bytes).saturating_sub(self.state_bytes);
        changed.profile.replace_other(self.state_bytes, state_bytes);
        changed
    }

    /// Returns the measurement with the interval times of a planned step where those are shorter. The time to recompute
    /// a tensor shrinks in proportion to the intervals in which it was made. Also returns whether the step was much
    /// shorter; if not, no further one is timed.
    pub(crate) fn timed(&self, times_ns: &[u64]) -> (Self, bool) {
        let before: Vec<u64> = self.profile.times().collect();
        let mut least = before.clone();
        least.iter_mut().zip(times_ns).for_each(|(least, time_ns)| *least = (*least).min(*time_ns));
        let (sum_ns, least_sum_ns): (u64, u64) = (before.iter().sum(), least.iter().sum());
        let is_shorter = least_sum_ns < sum_ns - sum_ns / SAME_TIME_PART;
        let untimed_steps = if is_shorter { self.untimed_steps.saturating_sub(1) } else { 0 };
        let mut timed = Self { untimed_steps, ..self.clone() };
        timed.profile.set_times(least.iter().copied());
        for (index, making) in self.makings.iter().enumerate() {
            let Some(recipe) = &mut timed.profile.saved_mut(SavedIndex(index)).recipe else { continue };
            let sum = |times: &[u64]| making.as_ref().map_or(0, |making| making.time_ns(times));
            let before = sum(&before);
            let after = sum(&least);
            recipe.time_ns = (recipe.time_ns as f64 * after as f64 / before.max(1) as f64) as u64;
        }
        (timed, is_shorter)
    }

    /// Returns the measurement with the times of groups of neighbouring intervals in a planned step: each with the number
    /// of events before its end. Within a group, the intervals take their shares of its time.
    pub(crate) fn timed_in_groups(&self, ends: &[usize], times_ns: &[u64]) -> (Self, bool) {
        let before: Vec<u64> = self.profile.times().collect();
        let mut times = before.clone();
        let mut begin = 0;
        for (end, time_ns) in ends.iter().zip(times_ns) {
            let end = (*end).clamp(begin, times.len());
            let sum: u64 = before[begin..end].iter().sum();
            for time in &mut times[begin..end] {
                *time = (*time as f64 * *time_ns as f64 / sum.max(1) as f64) as u64;
            }
            begin = end;
        }
        self.timed(&times)
    }

    /// Returns the operations that make the tensors that a schedule drops, and their inputs that were not saved.
    pub(crate) fn repeated(&self, schedule: &Schedule) -> HashSet<OperationAt> {
        let makings = schedule.dropped().filter_map(|index| self.makings.get(index.0)?.as_ref());
        makings.flat_map(|making| making.operations.iter().copied()).collect()
    }

    /// Returns the intervals in which the engine has to watch for operations. They begin with the interval of the
    /// operation before, because autograd saves the inputs of an operation after the front end has asked for it.
    pub(crate) fn intervals_to_watch(&self, operations: &HashSet<OperationAt>) -> HashSet<usize> {
        operations
            .iter()
            .flat_map(|OperationAt { interval, .. }| {
                let before = self.operated.partition_point(|operated| operated < interval).checked_sub(1);
                before.map_or(0, |before| self.operated[before])..=*interval
            })
            .collect()
    }

    /// Returns a schedule's actions with the identities of their tensors, in a step whose first saved tensor is
    /// `first`.
    pub(crate) fn with_ids(
        &self,
        actions: &[(usize, OffloadAction)],
        first: TensorId,
    ) -> Vec<(TensorId, OffloadAction)> {
        actions.iter().map(|(tensor, action)| (self.id(*tensor, first), *action)).collect()
    }

    /// Returns the identity of a tensor of the problem, in a step whose first saved tensor is `first`.
    fn id(&self, tensor: usize, first: TensorId) -> TensorId {
        match tensor.checked_sub(self.profile.saved().len()) {
            None => TensorId::in_step(first, SavedIndex(tensor)),
            Some(resident) => self.residents[resident],
        }
    }
}

/// Returns whether two sizes may be those of one tensor, in steps whose sizes differ.
pub(crate) fn is_alike(expected_bytes: u64, bytes: u64) -> bool {
    (expected_bytes / 2..=2 * expected_bytes).contains(&bytes)
}

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
    /// It is a saved tensor itself.
    Saved,
    /// It is in memory without the engine, and is expected to stay there, as a parameter is.
    Stays,
    /// It is recomputed itself.
    Made,
}

impl Making {
    /// Returns the inputs, which stay available with it. Returns None if the source of one is not as it was when the step
    /// was measured, since a step that differs may never save it.
    pub(crate) fn find_inputs(
        &self,
        recompute: &dyn Recomputation,
        saved: impl Fn(SavedBytesId) -> Option<Arc<SavedHandle>>,
        made: impl Fn(SavedBytesId) -> Arc<IntermediateBytes>,
    ) -> Option<RecomputeInputs> {
        let mut inputs = RecomputeInputs::default();
        let mut sources = self.sources.iter();
        let mut rest = recompute.inputs();
        let mut seen = Vec::new();
        while let Some(RecomputeInput { id, here, recompute }) = rest.pop() {
            if seen.contains(&id) {
                continue;
            }
            seen.push(id);
            match sources.next()? {
                InputSource::Saved => inputs.saved.push(saved(id)?),
                InputSource::Stays => inputs.unsaved.push(here?),
                InputSource::Made => {
                    inputs.made.push(made(id));
                    rest.extend(recompute?.inputs());
                }
            }
        }
        sources.next().is_none().then_some(inputs)
    }

    /// Returns the recipe for a profile whose intervals take `times_ns`, in nanoseconds. An operation that several tensors
    /// have in common, as `sharing` says, runs again for one of them: each has its part of the time.
    pub(crate) fn recipe(&self, times_ns: &[u64], sharing: &HashMap<OperationAt, u64>) -> Recipe {
        let parts = || self.operations.iter().map(|at| (at, 1.0 / sharing.get(at).copied().unwrap_or(1).max(1) as f64));
        let operations: f64 = parts().map(|(_, part)| part).sum();
        let time_ns: f64 = parts().map(|(at, part)| times_ns[at.interval] as f64 * part).sum();
        Recipe { inputs: self.inputs.clone(), operations: operations.ceil() as u64, time_ns: time_ns as u64 }
    }

    /// Returns the sum of the times of the intervals that have the operations, in nanoseconds.
    pub(crate) fn time_ns(&self, times_ns: &[u64]) -> u64 {
        self.operations.iter().map(|operation| times_ns[operation.interval]).sum()
    }
}
