//! The measurement of a step after it has ended, from which later steps with its signature are planned.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_tier::codec::Choice;

use crate::identity::{HeldId, SavedIndex};
use crate::making::{Making, OperationAt};
use crate::profile::Profile;
use crate::schedule::{OffloadAction, Schedule};

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
        id: HeldId,
    },
    /// The use of a resident is over.
    GiveBack {
        id: HeldId,
    },
    /// The front end has asked for an operation.
    Operation,
}

/// The events and the profile of steps of a signature.
#[derive(Clone, Default)]
pub(crate) struct Profiled {
    pub(crate) events: Vec<StepEvent>,
    pub(crate) profile: Profile,
    /// The intervals that had operations, in order.
    pub(crate) operated: Vec<usize>,
    /// The operations and inputs that make each saved tensor, if they are known, by index.
    pub(crate) makings: Vec<Option<Arc<Making>>>,
    /// The residents, by their index.
    pub(crate) residents: Vec<HeldId>,
    pub(crate) codecs: Vec<Choice>,
    /// The bytes that were held when the step began.
    pub(crate) held_bytes: u64,
    /// Whether the intervals were timed while the device did not wait for the host. Otherwise a device's times include
    /// gaps between operations, in which the host had asked for nothing.
    pub(crate) is_timed: bool,
    /// Whether the profile is an estimate. Its sizes are only about right then.
    pub(crate) is_estimate: bool,
}

impl Profiled {
    /// Returns whether an event is the one that was measured at a point, or is like the one that was estimated.
    pub(crate) fn expects(&self, point: usize, event: StepEvent) -> bool {
        match (self.events.get(point), event) {
            (Some(StepEvent::Save { bytes: expected }), StepEvent::Save { bytes }) if self.is_estimate => {
                (expected / 2..=2 * expected).contains(&bytes)
            }
            (expected, event) => expected == Some(&event),
        }
    }

    /// Returns the measurement with the interval times of a planned step where those are shorter. The time to recompute
    /// a tensor shrinks in proportion to the intervals in which it was made.
    pub(crate) fn timed(&self, times_ns: &[u64]) -> Self {
        let mut timed = Self { is_timed: true, ..self.clone() };
        let before: Vec<u64> = self.profile.times().collect();
        let mut least = before.clone();
        least.iter_mut().zip(times_ns).for_each(|(least, time_ns)| *least = (*least).min(*time_ns));
        timed.profile.set_times(least.iter().copied());
        for (index, making) in self.makings.iter().enumerate() {
            let Some(recipe) = &mut timed.profile.saved_mut(SavedIndex(index)).recipe else { continue };
            let sum = |times: &[u64]| making.as_ref().map_or(0, |making| making.time_ns(times));
            let before = sum(&before);
            let after = sum(&least);
            recipe.time_ns = (recipe.time_ns as f64 * after as f64 / before.max(1) as f64) as u64;
        }
        timed
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
    pub(crate) fn with_ids(&self, actions: &[(usize, OffloadAction)], first: HeldId) -> Vec<(HeldId, OffloadAction)> {
        actions.iter().map(|(tensor, action)| (self.id(*tensor, first), *action)).collect()
    }

    /// Returns the identity of a tensor of the problem, in a step whose first saved tensor is `first`.
    fn id(&self, tensor: usize, first: HeldId) -> HeldId {
        match tensor.checked_sub(self.profile.saved().len()) {
            None => HeldId::in_step(first, SavedIndex(tensor)),
            Some(resident) => self.residents[resident],
        }
    }
}
