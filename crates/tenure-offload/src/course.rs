//! The course of a step: a measurement, a plan, or nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_tier::codec::Choice;

use crate::clock::IntervalClock;
use crate::identity::{ResidentIndex, SavedIndex, TensorId};
use crate::measured::Measured;
use crate::pace::{PaceMeter, Paced, Timetable, Watched};
use crate::profiled::{Making, OperationAt, Profiled, StepEvent};
use crate::schedule::{OffloadAction, Schedule};

/// The way in which the engine handles the current step.
#[derive(Default)]
pub(crate) enum Course {
    /// There is no step.
    #[default]
    None,
    Measured(Box<Measured>),
    Planned {
        profiled: Arc<Profiled>,
        planned: Arc<Planned>,
        /// The number of events so far.
        events: usize,
        pacing: Pacing,
        /// The clock, if the intervals are to be timed.
        clock: Option<IntervalClock>,
    },
    /// The step is known to fit into the budget without any moves.
    Unwatched {
        /// The bytes that were allocated when the step began.
        allocated_bytes: u64,
    },
    /// The step follows no plan, since it turned out to differ from the planned one.
    Free,
}

/// How a planned step knows where it is.
pub(crate) enum Pacing {
    /// The front end reports each event of the step.
    Events {
        /// The number of operations since the last event.
        operations: usize,
    },
    /// The program's allocations are counted, and the front end reports what the timetable asks for.
    Ticks(Box<Paced>),
}

/// The plan for steps of a signature.
#[derive(Default)]
pub(crate) struct Planned {
    pub(crate) schedule: Schedule,
    /// The predicted time of a step, if the plan can be simulated.
    pub(crate) predicted: Option<Duration>,
    /// The operations to recompute: they make the dropped tensors, and their inputs that were not saved.
    pub(crate) repeated: HashSet<OperationAt>,
    /// The intervals in which the engine watches for these operations.
    pub(crate) watched_intervals: HashSet<usize>,
    /// The bytes that each interval needs at once.
    pub(crate) needed_bytes: Vec<u64>,
    /// The bytes that were released within an interval, by the number of events before it: see
    /// [`note_late_release`](Course::note_late_release).
    pub(crate) late_bytes: Mutex<HashMap<usize, u64>>,
    /// The timetable, if the step's pace was measured.
    pub(crate) timetable: Option<Timetable>,
    /// Whether a step has followed the plan.
    pub(crate) is_tried: AtomicBool,
}

impl Course {
    /// Returns the codec for a saved tensor.
    pub(crate) fn codec(&self, index: SavedIndex) -> Option<Choice> {
        let codecs = match self {
            Self::Measured(measured) => &measured.codecs,
            Self::Planned { profiled, .. } => &profiled.codecs,
            Self::None | Self::Unwatched { .. } | Self::Free => return None,
        };
        codecs.get(index.0).copied()
    }

    /// Returns the operations and inputs that make a saved tensor, if they were measured.
    pub(crate) fn making(&self, index: SavedIndex) -> Option<Arc<Making>> {
        match self {
            Self::Planned { profiled, .. } => profiled.makings.get(index.0)?.clone(),
            Self::Measured(measured) => measured.making(index).map(Arc::new),
            Self::None | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// Returns whether the step follows a plan that was tried and whose times are known.
    pub(crate) fn is_settled(&self) -> bool {
        let Self::Planned { profiled, planned, .. } = self else { return false };
        profiled.untimed_steps == 0 && planned.is_tried.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the interval which begins now needs at once. Returns None if there is no plan.
    pub(crate) fn needed_bytes(&self) -> Option<u64> {
        let Self::Planned { planned, events, .. } = self else { return None };
        planned.needed_bytes.get(*events).copied()
    }

    /// Notes that an allocation of a planned interval found no room until so many bytes of spilled tensors were
    /// released. Later steps of the plan release them where the interval begins. Nothing is noted of a step of other
    /// sizes, which needs other bytes, nor of one that is timed, which has shorter intervals.
    pub(crate) fn note_late_release(&self, bytes: u64) {
        let Self::Planned { planned, events, pacing, clock: None, .. } = self else { return };
        if !matches!(pacing, Pacing::Ticks(paced) if paced.has_varied()) {
            *planned.late_bytes.lock().entry(*events).or_default() += bytes;
        }
    }

    /// Returns the bytes that earlier steps released within the interval that begins now.
    pub(crate) fn late_bytes(&self) -> u64 {
        let Self::Planned { planned, events, .. } = self else { return 0 };
        planned.late_bytes.lock().get(events).copied().unwrap_or(0)
    }

    /// Returns the nanoseconds that it takes to recompute a saved tensor, where that is known.
    pub(crate) fn recompute_ns(&self, index: SavedIndex) -> Option<u64> {
        let Self::Planned { profiled, .. } = self else { return None };
        Some(profiled.profile.saved().get(index.0)?.recipe.as_ref()?.time_ns)
    }

    /// Returns the sequence number from which on the plan may recompute operations that come before the next save or
    /// need, if it may.
    pub(crate) fn operations_from(&self) -> Option<u64> {
        match self {
            Self::Measured(_) => Some(0),
            Self::Planned { pacing: Pacing::Ticks(paced), .. } => paced.operations_from(),
            // Autograd saves the inputs of an operation after the front end asked about the operation. So the next
            // interval counts, too.
            Self::Planned { planned, events, pacing: Pacing::Events { .. }, .. } => {
                [*events, events + 1].iter().any(|at| planned.watched_intervals.contains(at)).then_some(0)
            }
            Self::None | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// Counts an operation that the front end asks for now. Returns whether the plan may recompute it.
    pub(crate) fn count_next_operation(&mut self) -> bool {
        match self {
            Self::Measured(measured) => {
                measured.pace.iter_mut().for_each(PaceMeter::begin_operation);
                true
            }
            Self::Planned { planned, pacing: Pacing::Ticks(paced), .. } => {
                planned.timetable.as_ref().is_some_and(|timetable| paced.count_operation(timetable))
            }
            Self::Planned { planned, events, pacing: Pacing::Events { operations }, .. } => {
                let next = OperationAt { interval: *events, number: *operations };
                *operations += 1;
                planned.repeated.contains(&next)
            }
            Self::None | Self::Unwatched { .. } | Self::Free => false,
        }
    }

    /// Returns the clock, if the current interval is timed.
    pub(crate) fn clock(&mut self) -> Option<&mut IntervalClock> {
        match self {
            Self::Measured(measured) => Some(&mut measured.clock),
            Self::Planned { profiled, events, clock, .. } if *events < profiled.events.len() => clock.as_mut(),
            Self::None | Self::Planned { .. } | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// Returns how many points from now a tensor is needed next. Returns None if that is unknown.
    pub(crate) fn needed_in(&self, id: TensorId, first: TensorId) -> Option<usize> {
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

    /// Returns the tick at which the allocation clock's alarm is to ring next, after tick number `tick`, or after the
    /// beginning of the step.
    pub(crate) fn next_alarm(&self, tick: Option<u64>) -> Option<u64> {
        let next = Some(tick.map_or(0, |tick| tick + 1));
        match self {
            Self::Measured(measured) => next.filter(|_| measured.pace.is_some()),
            // Each interval is timed.
            Self::Planned { clock: Some(_), pacing: Pacing::Ticks(_), .. } => next,
            // Ticks are found by their positions, until all events have happened.
            Self::Planned { profiled, events, pacing: Pacing::Ticks(_), .. } if profiled.is_estimate => {
                next.filter(|_| *events < profiled.events.len())
            }
            Self::Planned { planned, pacing: Pacing::Ticks(paced), .. } => paced.next_stop(planned.timetable.as_ref()?),
            _ => None,
        }
    }

    /// Returns the sizes of the program's large allocations, if the step is to have the same as the measured one.
    pub(crate) fn expected_sizes(&self) -> Option<Arc<[usize]>> {
        let Self::Planned { profiled, pacing: Pacing::Ticks(_), .. } = self else { return None };
        Some(Arc::clone(&profiled.pace.as_ref().filter(|_| !profiled.is_estimate)?.sizes))
    }

    /// Returns what the front end has to report when all that is saved is to be reported. None if that is so already,
    /// or the step follows no timetable.
    pub(crate) fn watch_all(&mut self, now: u64) -> Option<Watched> {
        let Self::Planned { pacing: Pacing::Ticks(paced), .. } = self else { return None };
        paced.watch_all(now)
    }

    /// Returns the actions that follow an event that the front end reports.
    pub(crate) fn next_actions(&mut self, event: StepEvent, first: TensorId) -> Vec<(TensorId, OffloadAction)> {
        let Self::Planned { profiled, planned, events, pacing: Pacing::Events { operations }, .. } = self else {
            return Vec::new();
        };
        let point = *events;
        *events = point + 1;
        *operations = 0;
        if point >= profiled.events.len() && !matches!(event, StepEvent::Need { .. }) {
            // All measured events have happened. Later ones, such as those of an update, are no part of the plan.
            return Vec::new();
        }
        if profiled.expects(point, event) {
            return profiled.with_ids(planned.schedule.at(point), first);
        }
        *self = Self::Free;
        Vec::new()
    }
}
