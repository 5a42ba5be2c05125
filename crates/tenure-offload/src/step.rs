//! A step: measured, or made by a plan.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tenure_tier::codec::Choice;

use crate::clock::Clock;
use crate::engine::Shared;
use crate::held::Held;
use crate::memory::Peak;
use crate::recompute::{Making, Operations};
use crate::{Action, Id, OffloadError, Profile, Recompute, Schedule, reclaim};

/// What a pass over a batch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Nothing is moved, however much memory it takes: to find out how much that is, and how long it takes.
    Plain,
    /// It keeps to the budget. The first of a signature is measured meanwhile, and everything that may move moves.
    Budgeted,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepReport {
    /// The most that was allocated at once, if that was looked at: in steps that were measured.
    pub peak_bytes: Option<u64>,
    /// The same with what is kept for later allocations.
    pub reserved_bytes: Option<u64>,
    /// Bytes that went out.
    pub spilled_bytes: u64,
    /// Bytes that came back.
    pub fetched_bytes: u64,
    /// Bytes that were computed again.
    pub recomputed_bytes: u64,
    /// How long that takes, as measured when they were computed first.
    pub recomputed: Duration,
    /// How long the host waited for bytes to go or come.
    pub stalled: Duration,
    /// Moves that no plan asked for: there was no room otherwise.
    pub unplanned: u64,
    /// Whether it was made by a plan, to the end.
    pub is_planned: bool,
    /// How long the plan takes, by what was measured: on the device, without an update behind backward. None if there was none.
    pub predicted: Option<Duration>,
    /// By what bytes were encoded on their way to a disk; a lossy one changes what is computed.
    pub codec: Choice,
}

/// A step in the making. If it is dropped before it is [finished](Self::finish), nothing is learned from it.
#[must_use = "it holds for as long as it lives"]
pub struct Step {
    pub(crate) shared: Arc<Shared>,
}

impl Step {
    /// The step is over. After one that was measured, the next of its signature go by a plan.
    ///
    /// # Errors
    /// What went wrong while bytes were moved, if nobody was told yet.
    pub fn finish(self) -> Result<StepReport, OffloadError> {
        self.shared.finish()
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let course = std::mem::take(&mut self.shared.state.lock().course);
        // With nothing locked, as where a step is finished.
        drop(course);
        // A driver that fails tells the next who asks.
        let _ = reclaim::part_with_all(&self.shared);
    }
}

/// Something that ends an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Save {
        bytes: u64,
    },
    Need {
        number: usize,
    },
    /// A resident is about to be used.
    Lend {
        id: u64,
    },
    /// It has been.
    GiveBack {
        id: u64,
    },
    /// An operation has been asked for.
    Operation,
}

/// What a step goes by.
#[derive(Default)]
pub(crate) enum Course {
    /// There is no step.
    #[default]
    None,
    Measured(Box<Measured>),
    Planned {
        profiled: Arc<Profiled>,
        planned: Arc<Planned>,
        /// So many have happened.
        events: usize,
        /// If intervals are to be timed.
        clock: Option<Clock>,
    },
    /// By no plan: it turned out to be another step than was planned.
    Free,
}

/// What is learned of a step.
pub(crate) struct Measured {
    pub(crate) pass: Pass,
    pub(crate) profile: Profile,
    pub(crate) clock: Clock,
    pub(crate) events: Vec<Event>,
    pub(crate) operations: Operations,
    /// What was saved, by number, and how it is computed again.
    pub(crate) saved: HashMap<Id, usize>,
    /// By number.
    pub(crate) residents: Vec<u64>,
    pub(crate) recomputes: Vec<Option<Arc<dyn Recompute>>>,
    /// By what it is encoded, by number.
    pub(crate) codecs: Vec<Choice>,
    /// Bytes in memory of what was saved, when the interval began.
    pub(crate) here_bytes: u64,
    pub(crate) peak: Peak,
}

impl Measured {
    pub(crate) fn new<'a>(pass: Pass, of: impl Iterator<Item = (u64, &'a Held)>, clock: Clock) -> Self {
        let (mut profile, mut residents) = (Profile::new(), Vec::new());
        for (id, held) in of {
            profile.add_resident(&held.name, held.bytes);
            residents.push(id);
        }
        let (events, operations) = (Vec::new(), Operations::default());
        let (saved, recomputes, codecs) = (HashMap::new(), Vec::new(), Vec::new());
        Self {
            pass,
            profile,
            clock,
            events,
            operations,
            saved,
            residents,
            recomputes,
            codecs,
            here_bytes: 0,
            peak: Peak::default(),
        }
    }

    /// A resident is about to be used, after an interval that needed so many bytes beside what is saved.
    pub(crate) fn lend(&mut self, other_bytes: u64, id: u64) {
        match self.residents.iter().position(|resident| *resident == id) {
            Some(resident) => self.profile.lend(other_bytes, resident),
            None => drop(self.profile.end(other_bytes)),
        }
    }

    /// It has been.
    pub(crate) fn give_back(&mut self, other_bytes: u64, id: u64) {
        match self.residents.iter().position(|resident| *resident == id) {
            Some(resident) => self.profile.give_back(other_bytes, resident),
            None => drop(self.profile.end(other_bytes)),
        }
    }

    pub(crate) fn finish(self) -> Result<Profiled, OffloadError> {
        let Self { profile, clock, events, operations, saved, residents, recomputes, codecs, .. } = self;
        let making = |(number, recompute): (usize, &Option<Arc<dyn Recompute>>)| {
            operations.making(&**recompute.as_ref()?, number, &saved).map(Arc::new)
        };
        let makings = recomputes.iter().enumerate().map(making).collect();
        let mut profiled = Profiled { events, profile, makings, residents, codecs, is_timed: false };
        profiled.set_times(&clock.finish()?);
        Ok(profiled)
    }
}

/// What is to be done in them.
pub(crate) struct Planned {
    pub(crate) schedule: Schedule,
    /// How long that takes, if it can be played.
    pub(crate) predicted: Option<Duration>,
    /// The intervals whose operations make what is computed again, and what that is made of.
    pub(crate) repeated: HashSet<usize>,
}

/// What steps of a signature do.
#[derive(Clone)]
pub(crate) struct Profiled {
    pub(crate) events: Vec<Event>,
    pub(crate) profile: Profile,
    /// By number: how what was saved is made, if somebody knows.
    makings: Vec<Option<Arc<Making>>>,
    /// By number.
    residents: Vec<u64>,
    pub(crate) codecs: Vec<Choice>,
    /// Whether intervals were timed where nothing waits: a device has times between operations too, as long as the host
    /// has asked for nothing.
    pub(crate) is_timed: bool,
}

impl Profiled {
    /// The same, with times of a step that was made by a plan, where they are less.
    pub(crate) fn timed(&self, times_ns: &[u64]) -> Self {
        let mut timed = Self { is_timed: true, ..self.clone() };
        let mut least: Vec<u64> = self.profile.times().collect();
        least.iter_mut().zip(times_ns).for_each(|(least, time_ns)| *least = (*least).min(*time_ns));
        timed.set_times(&least);
        timed
    }

    /// The intervals whose operations make what a schedule gives up, and what that is made of.
    pub(crate) fn repeated(&self, schedule: &Schedule) -> HashSet<usize> {
        let makings = schedule.dropped().filter_map(|number| self.makings.get(number)?.as_ref());
        makings.flat_map(|making| making.intervals.iter().copied()).collect()
    }

    fn set_times(&mut self, times_ns: &[u64]) {
        for (number, making) in self.makings.iter().enumerate() {
            self.profile.saved_mut(number).recipe = making.as_ref().map(|making| making.recipe(times_ns));
        }
        self.profile.set_times(times_ns.iter().copied());
    }

    /// Whom actions of a schedule are about, in a step whose first saved is `first`.
    pub(crate) fn ids(&self, actions: &[(usize, Action)], first: u64) -> Vec<(u64, Action)> {
        let saved = self.profile.saved().len();
        let id = |number: usize| match number.checked_sub(saved) {
            None => first + number as u64,
            Some(resident) => self.residents[resident],
        };
        actions.iter().map(|(number, action)| (id(*number), *action)).collect()
    }
}

impl Course {
    /// By what something that was saved is encoded.
    pub(crate) fn codec(&self, number: usize) -> Option<Choice> {
        let codecs = match self {
            Self::Measured(measured) => &measured.codecs,
            Self::Planned { profiled, .. } => &profiled.codecs,
            Self::None | Self::Free => return None,
        };
        codecs.get(number).copied()
    }

    /// How something that was saved is made, as it was measured.
    pub(crate) fn making(&self, number: usize) -> Option<Arc<Making>> {
        let Self::Planned { profiled, .. } = self else { return None };
        profiled.makings.get(number)?.clone()
    }

    /// How long it took to compute something that was saved, where that is known.
    pub(crate) fn recompute_ns(&self, number: usize) -> Option<u64> {
        let Self::Planned { profiled, .. } = self else { return None };
        Some(profiled.profile.saved().get(number)?.recipe.as_ref()?.time_ns)
    }

    /// Whether the operation that is asked for next may be repeated.
    pub(crate) fn is_repeated(&self) -> bool {
        match self {
            Self::Measured(_) => true,
            Self::Planned { planned, events, .. } => planned.repeated.contains(events),
            Self::None | Self::Free => false,
        }
    }

    /// The clock of the intervals that are timed.
    pub(crate) fn clock(&mut self) -> Option<&mut Clock> {
        match self {
            Self::Measured(measured) => Some(&mut measured.clock),
            Self::Planned { profiled, events, clock, .. } if *events < profiled.events.len() => clock.as_mut(),
            Self::None | Self::Planned { .. } | Self::Free => None,
        }
    }

    /// How many points from now something is needed next; none if nobody knows.
    pub(crate) fn needed_in(&self, id: u64, first: u64) -> Option<usize> {
        let Self::Planned { profiled, events, .. } = self else { return None };
        let Profiled { profile, residents, .. } = &**profiled;
        Some(match id.checked_sub(first) {
            Some(number) => profile.saved().get(number as usize)?.needed_in(*events),
            None => profile.resident_needed_in(residents.iter().position(|resident| *resident == id)?, *events),
        })
    }

    /// What is done where an event has happened.
    pub(crate) fn next(&mut self, event: Event, first: u64) -> Vec<(u64, Action)> {
        let Self::Planned { profiled, planned, events, .. } = self else { return Vec::new() };
        let point = *events;
        *events += 1;
        if point >= profiled.events.len() && !matches!(event, Event::Need { .. }) {
            // All that was measured is done: what follows, such as an update, is no part of it.
            return Vec::new();
        }
        if profiled.events.get(point) == Some(&event) {
            return profiled.ids(planned.schedule.at(point), first);
        }
        *self = Self::Free;
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_of_two_times_counts_also_for_what_is_made_then() {
        let mut profile = Profile::new();
        profile.save(0, "first", 1);
        profile.save(0, "second", 1);
        let making = |intervals| Some(Arc::new(Making { intervals, ..Making::default() }));
        let makings = vec![None, making(vec![0, 1])];
        let (events, residents, codecs) = (Vec::new(), Vec::new(), Vec::new());
        let mut measured = Profiled { events, profile, makings, residents, codecs, is_timed: false };
        measured.set_times(&[50, 20]);
        // Of a step's last interval nothing is known.
        let timed = measured.timed(&[30]);
        assert_eq!(timed.profile.times().collect::<Vec<_>>(), [30, 20]);
        assert_eq!(timed.profile.saved()[1].recipe.as_ref().map(|recipe| recipe.time_ns), Some(50));
        assert_eq!(timed.timed(&[90, 10]).profile.times().collect::<Vec<_>>(), [30, 10]);
    }
}
