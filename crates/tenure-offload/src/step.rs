//! A step: measured, or made by a plan.

use std::collections::{HashMap, HashSet};
use std::fmt;
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

/// Identifies steps that do the same, and have a plan together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// A number for what the step does, such as a hash of the sizes of its batch.
    pub id: u64,
    /// A number that steps have in common which differ in sizes alone.
    pub kind: u64,
    /// Bytes that the step computes on, by which steps of a kind are compared. 0 if the front end does not know.
    pub input_bytes: u64,
}

impl From<u64> for Signature {
    fn from(id: u64) -> Self {
        Self { id, kind: id, input_bytes: 0 }
    }
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

    /// Whether the step fits into the budget as it is, by what is known: nothing need be told of it until the engine
    /// [wakes](crate::Engine::on_wake) its front end.
    pub fn is_unwatched(&self) -> bool {
        matches!(self.shared.state.lock().course, Course::Unwatched { .. })
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
    /// It fits into the budget as it is, by what is known.
    Unwatched {
        /// Bytes that were held when it began.
        held_bytes: u64,
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
    /// Bytes that were held when it began.
    pub(crate) held_bytes: u64,
    /// Bytes in memory of what was saved, when the interval began.
    pub(crate) here_bytes: u64,
    /// The most bytes beside these, in the part of the interval before room was made in it.
    pub(crate) other_bytes: u64,
    pub(crate) peak: Peak,
}

impl Measured {
    pub(crate) fn new<'a>(
        pass: Pass,
        of: impl Iterator<Item = (u64, &'a Held)>,
        clock: Clock,
        held_bytes: u64,
    ) -> Self {
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
            held_bytes,
            here_bytes: 0,
            other_bytes: 0,
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

    /// How something that was saved is made, if somebody knows.
    fn making(&self, number: usize) -> Option<Making> {
        self.operations.making(&**self.recomputes.get(number)?.as_ref()?, number, &self.saved)
    }

    /// Whether something was needed again.
    pub(crate) fn is_backward(&self) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Need { .. }))
    }

    /// The most bytes beside what was saved, in an interval whose last part had this peak.
    pub(crate) fn other_bytes(&mut self, peak: Peak) -> u64 {
        self.peak = self.peak.and(peak);
        self.other_bytes = self.other_bytes.max(peak.allocated_bytes.saturating_sub(self.here_bytes));
        self.other_bytes
    }

    /// What steps of the signature do. Operations only said how long it takes to make what was saved: plans know of the
    /// intervals between what is saved, needed and used, so that no operation need be told of where they are followed.
    pub(crate) fn finish(self) -> Result<Profiled, OffloadError> {
        let mut makings: Vec<_> = (0..self.recomputes.len()).map(|number| self.making(number)).collect();
        let Self { mut profile, clock, events, residents, codecs, .. } = self;
        let times_ns = clock.finish()?;
        profile.set_times(times_ns.iter().copied());
        for (number, making) in makings.iter().enumerate() {
            profile.saved_mut(number).recipe = making.as_ref().map(|making| making.recipe(&times_ns));
        }
        let ends = events.iter().map(|event| usize::from(*event != Event::Operation));
        let count = |group: &mut usize, end| {
            *group += end;
            Some(*group)
        };
        let groups: Vec<usize> = std::iter::once(0).chain(ends).scan(0, count).collect();
        let profile = profile.merged(&groups);
        let operated = events.iter().zip(&groups).filter(|(event, _)| **event == Event::Operation);
        let operated = operated.map(|(_, group)| *group).collect();
        for making in makings.iter_mut().flatten() {
            making.intervals.iter_mut().for_each(|interval| *interval = groups[*interval]);
        }
        let events = events.into_iter().filter(|event| *event != Event::Operation).collect();
        let makings = makings.into_iter().map(|making| making.map(Arc::new)).collect();
        Ok(Profiled { events, profile, operated, makings, residents, codecs, is_timed: false })
    }
}

/// What is to be done in them.
pub(crate) struct Planned {
    pub(crate) schedule: Schedule,
    /// How long that takes, if it can be played.
    pub(crate) predicted: Option<Duration>,
    /// The intervals in which is asked for what makes what is computed again, and what that is made of.
    pub(crate) repeated: HashSet<usize>,
}

/// The effort of making a plan. Displayed as one line for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planning {
    /// Operations of the step: the intervals of its profile.
    pub operations: usize,
    /// Plans that the planner tried.
    pub evaluations: u64,
    /// How long it took, from the profile to what is done at each operation.
    pub elapsed: Duration,
}

impl fmt::Display for Planning {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, evaluations, elapsed } = self;
        write!(formatter, "planned a step of {operations} operations in {elapsed:.2?}: {evaluations} plans tried")
    }
}

/// What steps of a signature do.
#[derive(Clone)]
pub(crate) struct Profiled {
    pub(crate) events: Vec<Event>,
    pub(crate) profile: Profile,
    /// The intervals that had operations, in order.
    operated: Vec<usize>,
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
    /// The same, with times of a step that was made by a plan, where they are less. What is computed again takes as much less
    /// as the intervals in which it was made.
    pub(crate) fn timed(&self, times_ns: &[u64]) -> Self {
        let mut timed = Self { is_timed: true, ..self.clone() };
        let before: Vec<u64> = self.profile.times().collect();
        let mut least = before.clone();
        least.iter_mut().zip(times_ns).for_each(|(least, time_ns)| *least = (*least).min(*time_ns));
        timed.profile.set_times(least.iter().copied());
        for (number, making) in self.makings.iter().enumerate() {
            let Some(recipe) = &mut timed.profile.saved_mut(number).recipe else { continue };
            let sum = |times: &[u64]| making.iter().flat_map(|making| &making.intervals).map(|at| times[*at]).sum();
            let (before, after): (u64, u64) = (sum(&before), sum(&least));
            recipe.time_ns = (recipe.time_ns as f64 * after as f64 / before.max(1) as f64) as u64;
        }
        timed
    }

    /// The intervals in which is asked for what makes what a schedule gives up, and what that is made of: since the last
    /// operation before, as autograd saves what an operation is given when that is asked for already.
    pub(crate) fn repeated(&self, schedule: &Schedule) -> HashSet<usize> {
        let makings = schedule.dropped().filter_map(|number| self.makings.get(number)?.as_ref());
        let asked_for = |made: &usize| {
            let before = self.operated.partition_point(|interval| interval < made).checked_sub(1);
            before.map_or(0, |before| self.operated[before])..=*made
        };
        makings.flat_map(|making| making.intervals.iter().flat_map(asked_for)).collect()
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
            Self::None | Self::Unwatched { .. } | Self::Free => return None,
        };
        codecs.get(number).copied()
    }

    /// How something that was saved is made, as it was measured.
    pub(crate) fn making(&self, number: usize) -> Option<Arc<Making>> {
        match self {
            Self::Planned { profiled, .. } => profiled.makings.get(number)?.clone(),
            Self::Measured(measured) => measured.making(number).map(Arc::new),
            Self::None | Self::Unwatched { .. } | Self::Free => None,
        }
    }

    /// How long it took to compute something that was saved, where that is known.
    pub(crate) fn recompute_ns(&self, number: usize) -> Option<u64> {
        let Self::Planned { profiled, .. } = self else { return None };
        Some(profiled.profile.saved().get(number)?.recipe.as_ref()?.time_ns)
    }

    /// Whether operations that are asked for until something is saved or needed may be repeated.
    pub(crate) fn is_repeated(&self) -> bool {
        match self {
            Self::Measured(_) => true,
            // Autograd saves what an operation is given when that is under way.
            Self::Planned { planned, events, .. } => {
                [*events, events + 1].iter().any(|at| planned.repeated.contains(at))
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
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    /// A step that saves two tensors, the second of which two operations make, in an interval that has three.
    fn measured() -> Measured {
        let now = std::sync::Arc::new(parking_lot::Mutex::new(std::time::Instant::now()));
        let time = Arc::clone(&now);
        let clock = Clock::with_host_time(Arc::new(move || *time.lock()));
        let mut measured = Measured::new(Pass::Plain, std::iter::empty(), clock, 0);
        let save = Event::Save { bytes: 1 };
        let events = [(save, 50), (Event::Operation, 5), (Event::Operation, 6), (Event::Operation, 7), (save, 2)];
        for (event, ms) in events.into_iter().chain([(Event::Need { number: 1 }, 9)]) {
            measured.clock.begin(None).unwrap();
            *now.lock() += Duration::from_millis(ms);
            measured.clock.end(None).unwrap();
            match event {
                Event::Save { bytes } => drop(measured.profile.save(ms, "saved", bytes)),
                Event::Need { number } => measured.profile.need(ms, number),
                _ => drop(measured.profile.end(ms)),
            }
            measured.events.push(event);
        }
        measured.clock.begin(None).unwrap();
        measured.clock.end(None).unwrap();
        measured.profile.end(0);
        measured.recomputes = vec![None, None];
        measured
    }

    #[test]
    fn plans_know_of_the_intervals_between_what_is_saved_and_needed() {
        let profiled = measured().finish().unwrap();
        assert_eq!(profiled.events.len(), 3);
        let of_ms = |ms: [u64; 4]| ms.map(|ms| ms * 1_000_000).to_vec();
        assert_eq!(profiled.profile.times().collect::<Vec<_>>(), of_ms([50, 20, 9, 0]));
        let mut expected = Profile::new();
        expected.save(50, "saved", 1);
        expected.save(7, "saved", 1);
        expected.need(9, 1);
        expected.end(0);
        expected.set_times(of_ms([50, 20, 9, 0]));
        assert_eq!(profiled.profile, expected);
    }

    #[test]
    fn what_makes_something_is_asked_for_since_the_operation_before() {
        let mut profiled = measured().finish().unwrap();
        let making = |interval| Some(Arc::new(Making { intervals: vec![interval], ..Making::default() }));
        profiled.makings = vec![making(4), making(5)];
        profiled.operated = vec![0, 2, 4, 5];
        let drops = |number| {
            let step = tenure_plan::plan::Step { tensor: number, kernel: 2, action: tenure_plan::plan::Action::Drop };
            Schedule::of(&profiled.profile, &tenure_plan::Plan { places: vec![0, 0], steps: vec![step] })
        };
        assert_eq!(profiled.repeated(&drops(0)), HashSet::from([2, 3, 4]));
        assert_eq!(profiled.repeated(&drops(1)), HashSet::from([4, 5]));
    }

    #[test]
    fn the_lesser_of_two_times_counts_also_for_what_is_made_then() {
        let mut profiled = measured().finish().unwrap();
        profiled.makings = vec![None, Some(Arc::new(Making { intervals: vec![1, 1], ..Making::default() }))];
        profiled.profile.saved_mut(1).recipe = Some(crate::Recipe { inputs: Vec::new(), time_ns: 11_000_000 });
        // Of a step's last interval nothing is known.
        let timed = profiled.timed(&[60_000_000, 10_000_000]);
        let recipe = |profiled: &Profiled| profiled.profile.saved()[1].recipe.as_ref().map(|recipe| recipe.time_ns);
        assert_eq!(timed.profile.times().take(2).collect::<Vec<_>>(), [50_000_000, 10_000_000]);
        assert_eq!(recipe(&timed), Some(5_500_000));
        assert_eq!(recipe(&timed.timed(&[1, 30_000_000])), Some(5_500_000));
    }
}
