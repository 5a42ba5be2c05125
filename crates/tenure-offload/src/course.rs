//! The course of a step: a measurement, a plan, or nothing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tenure_tier::codec::Choice;

use crate::clock::Clock;
use crate::identity::{HeldId, ResidentIndex, SavedIndex};
use crate::making::{Making, OperationAt};
use crate::measured::Measured;
use crate::profiled::{Event, Profiled};
use crate::schedule::{Action, Schedule};

/// The course of a step: it says what is done at each point.
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
        /// So many were asked for since the last of these.
        operations: usize,
        /// If intervals are to be timed.
        clock: Option<Clock>,
    },
    /// It fits into the budget as it is, by what is known.
    Unwatched {
        /// Bytes that were held when it began.
        held_bytes: u64,
    },
    /// By no plan: it turned out to be another step than was planned.
    Free,
}

/// The plan of steps of a signature.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) schedule: Schedule,
    /// How long that takes, if it can be played.
    pub(crate) predicted: Option<Duration>,
    /// The operations that make what is computed again, and what that is made of.
    pub(crate) repeated: HashSet<OperationAt>,
    /// The intervals in which these are asked for.
    pub(crate) listened: HashSet<usize>,
    /// Bytes that each interval needs at once.
    pub(crate) needed_bytes: Vec<u64>,
}

impl Course {
    /// By what something that was saved is encoded.
    pub(crate) fn codec(&self, index: SavedIndex) -> Option<Choice> {
        let codecs = match self {
            Self::Measured(measured) => &measured.codecs,
            Self::Planned { profiled, .. } => &profiled.codecs,
            Self::None | Self::Unwatched { .. } | Self::Free => return None,
        };
        codecs.get(index.0).copied()
    }

    /// How something that was saved is made, as it was measured.
    pub(crate) fn making(&self, index: SavedIndex) -> Option<Arc<Making>> {
        match self {
            Self::Planned { profiled, .. } => profiled.makings.get(index.0)?.clone(),
            Self::Measured(measured) => measured.making(index).map(Arc::new),
            Self::None | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// Bytes that the interval needs at once which begins now; none if there is no plan.
    pub(crate) fn needed_bytes(&self) -> Option<u64> {
        let Self::Planned { planned, events, .. } = self else { return None };
        planned.needed_bytes.get(*events).copied()
    }

    /// How long it took to compute something that was saved, where that is known.
    pub(crate) fn recompute_ns(&self, index: SavedIndex) -> Option<u64> {
        let Self::Planned { profiled, .. } = self else { return None };
        Some(profiled.profile.saved().get(index.0)?.recipe.as_ref()?.time_ns)
    }

    /// Whether operations may be repeated that are asked for until something is saved or needed.
    pub(crate) fn listens(&self) -> bool {
        match self {
            Self::Measured(_) => true,
            // Autograd saves what an operation is given when that is under way.
            Self::Planned { planned, events, .. } => {
                [*events, events + 1].iter().any(|at| planned.listened.contains(at))
            }
            Self::None | Self::Unwatched { .. } | Self::Free => false,
        }
    }

    /// Counts an operation that is asked for now. Returns whether it may be repeated.
    pub(crate) fn repeats_next(&mut self) -> bool {
        match self {
            Self::Measured(_) => true,
            Self::Planned { planned, events, operations, .. } => {
                let next = OperationAt { interval: *events, number: *operations };
                *operations += 1;
                planned.repeated.contains(&next)
            }
            Self::None | Self::Unwatched { .. } | Self::Free => false,
        }
    }

    /// The clock of the intervals that are timed.
    pub(crate) fn clock(&mut self) -> Option<&mut Clock> {
        match self {
            Self::Measured(measured) => Some(&mut measured.clock),
            Self::Planned { profiled, events, clock, .. } if *events < profiled.events.len() => clock.as_mut(),
            Self::None | Self::Planned { .. } | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// How many points from now something is needed next; none if nobody knows.
    pub(crate) fn needed_in(&self, id: HeldId, first: HeldId) -> Option<usize> {
        let Self::Planned { profiled, events, .. } = self else { return None };
        let Profiled { profile, residents, .. } = &**profiled;
        Some(match id.index_in_step(first) {
            Some(index) => profile.saved().get(index.0)?.needed_in(*events),
            None => {
                let resident = residents.iter().position(|resident| *resident == id)?;
                profile.resident_needed_in(ResidentIndex(resident), *events)
            }
        })
    }

    /// The actions that follow an event.
    pub(crate) fn next(&mut self, event: Event, first: HeldId) -> Vec<(HeldId, Action)> {
        let Self::Planned { profiled, planned, events, operations, .. } = self else { return Vec::new() };
        let point = *events;
        (*events, *operations) = (point + 1, 0);
        if point >= profiled.events.len() && !matches!(event, Event::Need { .. }) {
            // All that was measured is done: what follows, such as an update, is no part of it.
            return Vec::new();
        }
        if profiled.expects(point, event) {
            return profiled.ids(planned.schedule.at(point), first);
        }
        *self = Self::Free;
        Vec::new()
    }
}
