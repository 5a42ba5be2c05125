//! A measured step, by which later steps of its signature are planned.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_tier::codec::Choice;

use crate::identity::{HeldId, SavedIndex};
use crate::making::{Making, OperationAt};
use crate::profile::Profile;
use crate::schedule::{Action, Schedule};

/// Something that ends an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
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
    /// It has been.
    GiveBack {
        id: HeldId,
    },
    /// An operation has been asked for.
    Operation,
}

/// What steps of a signature do.
#[derive(Clone, Default)]
pub(crate) struct Profiled {
    pub(crate) events: Vec<Event>,
    pub(crate) profile: Profile,
    /// The intervals that had operations, in order.
    pub(crate) operated: Vec<usize>,
    /// By index: how what was saved is made, if somebody knows.
    pub(crate) makings: Vec<Option<Arc<Making>>>,
    /// By their index.
    pub(crate) residents: Vec<HeldId>,
    pub(crate) codecs: Vec<Choice>,
    /// Bytes that were held when it began.
    pub(crate) held_bytes: u64,
    /// Whether intervals were timed where nothing waits: a device has times between operations too, as long as the host
    /// has asked for nothing.
    pub(crate) is_timed: bool,
    /// Whether it was estimated. Its sizes are about right then.
    pub(crate) is_estimate: bool,
}

impl Profiled {
    /// Whether an event is the one that was measured at a point, or is like the one that was estimated.
    pub(crate) fn expects(&self, point: usize, event: Event) -> bool {
        match (self.events.get(point), event) {
            (Some(Event::Save { bytes: expected }), Event::Save { bytes }) if self.is_estimate => {
                (expected / 2..=2 * expected).contains(&bytes)
            }
            (expected, event) => expected == Some(&event),
        }
    }

    /// The same, with times of a step that was made by a plan, where they are less. What is computed again takes as much less
    /// as the intervals in which it was made.
    pub(crate) fn timed(&self, times_ns: &[u64]) -> Self {
        let mut timed = Self { is_timed: true, ..self.clone() };
        let before: Vec<u64> = self.profile.times().collect();
        let mut least = before.clone();
        least.iter_mut().zip(times_ns).for_each(|(least, time_ns)| *least = (*least).min(*time_ns));
        timed.profile.set_times(least.iter().copied());
        for (index, making) in self.makings.iter().enumerate() {
            let Some(recipe) = &mut timed.profile.saved_mut(SavedIndex(index)).recipe else { continue };
            let sum = |times: &[u64]| making.as_ref().map_or(0, |making| making.time_ns(times));
            let (before, after) = (sum(&before), sum(&least));
            recipe.time_ns = (recipe.time_ns as f64 * after as f64 / before.max(1) as f64) as u64;
        }
        timed
    }

    /// The operations that make what a schedule gives up, and what that is made of.
    pub(crate) fn repeated(&self, schedule: &Schedule) -> HashSet<OperationAt> {
        let makings = schedule.dropped().filter_map(|index| self.makings.get(index.0)?.as_ref());
        makings.flat_map(|making| making.operations.iter().copied()).collect()
    }

    /// The intervals in which operations are asked for: since the last operation before, as autograd saves what an operation
    /// is given when that is asked for already.
    pub(crate) fn asked_for(&self, operations: &HashSet<OperationAt>) -> HashSet<usize> {
        let intervals = |OperationAt { interval, .. }: &OperationAt| {
            let before = self.operated.partition_point(|operated| operated < interval).checked_sub(1);
            before.map_or(0, |before| self.operated[before])..=*interval
        };
        operations.iter().flat_map(intervals).collect()
    }

    /// Whom actions of a schedule are about, in a step whose first saved is `first`.
    pub(crate) fn ids(&self, actions: &[(usize, Action)], first: HeldId) -> Vec<(HeldId, Action)> {
        let saved = self.profile.saved().len();
        let id = |tensor: usize| match tensor.checked_sub(saved) {
            None => HeldId::in_step(first, SavedIndex(tensor)),
            Some(resident) => self.residents[resident],
        };
        actions.iter().map(|(tensor, action)| (id(*tensor), *action)).collect()
    }
}
