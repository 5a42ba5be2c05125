//! What is told of saved bytes, and knows what is to be done with them.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_core::{DType, Purpose, Storage, Tag};
use tenure_device::memory::DeviceMemory;
use tenure_device::{Executor, Stream};
use tenure_plan::planner::{Condensed, PlannerError, PlannerOptions};
use tenure_plan::{PlanError, Planner, Problem, simulator};
use tenure_tier::codec::Choice;
use tenure_tier::{Destination, Mover, Stored};

use crate::clock::{Clock, HostTime, LEAD};
use crate::held::{Held, Saved};
use crate::memory::Peak;
use crate::peaks::Peaks;
use crate::reclaim;
use crate::recompute::HeldInputs;
use crate::record::{Notes, SavedRecord};
use crate::step::{Course, Event, Measured, Pass, Planned, Planning, Profiled, Step, StepReport};
use crate::{Action, Id, Link, Machine, Memory, OffloadError, Profile, ProfileError, Recompute, Schedule, Signature};

/// What an engine works with.
pub struct Options {
    /// What has fewer bytes is kept.
    pub least_bytes: u64,
    /// Where bytes go, the fastest first.
    pub links: Vec<(Link, Destination)>,
    /// Who makes plans.
    pub planner: Box<dyn Planner + Send + Sync>,
    /// How far it may go.
    pub planning: PlannerOptions,
}

/// Keeps steps within a budget of memory: what they save leaves it and comes back in time.
///
/// A handle: clones are one engine. It limits the memory while it lives.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) memory: Memory,
    pub(crate) mover: Mover,
    pub(crate) options: Options,
    host_time: Mutex<HostTime>,
    pub(crate) wake: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
    pub(crate) is_strict: AtomicBool,
    /// Of its memory, as it was set: what sets it gives back what is kept for later allocations.
    limit: Mutex<Option<u64>>,
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// By a number that is never used again: what was saved first, first.
    pub(crate) held: BTreeMap<u64, Held>,
    pub(crate) known: HashMap<Id, Weak<Saved>>,
    next: u64,
    /// What stays from step to step.
    pub(crate) residents: Vec<u64>,
    /// The first of this step.
    pub(crate) first: u64,
    /// What is on its way out, by the numbers of what it is of.
    pub(crate) leaving: VecDeque<(u64, Stored)>,
    pub(crate) course: Course,
    pub(crate) signature: Signature,
    /// Peaks of steps, beyond the bytes that were held when they began.
    pub(crate) peaks: Peaks,
    /// Signatures of steps that were not watched and found no room.
    pub(crate) woken: HashSet<u64>,
    budget_bytes: Option<u64>,
    /// Of the budget, what is taken by what is not of its memory.
    aside_bytes: u64,
    /// What plans leave of it, since steps found no room where a plan had some: in pages of which only parts are in use.
    spare_bytes: u64,
    /// By what bytes are encoded on their way to a disk.
    codec: Choice,
    /// What steps of a signature do.
    pub(crate) profiles: HashMap<u64, Arc<Profiled>>,
    plans: HashMap<u64, Arc<Planned>>,
    /// The effort of the last plan.
    planning: Option<Planning>,
    pub(crate) report: StepReport,
    /// What becomes of what is saved, if somebody records it.
    pub(crate) notes: Option<Notes>,
    /// What went wrong where nobody could be told.
    pub(crate) failure: Option<OffloadError>,
    /// Why what was to leave last stayed.
    pub(crate) no_room: Option<OffloadError>,
}

impl Engine {
    /// An engine for a memory whose bytes the mover moves. It has no budget yet.
    pub fn new(memory: Memory, mover: Mover, options: Options) -> Self {
        let host_time = Mutex::new(Arc::new(Instant::now) as HostTime);
        let (wake, is_strict, limit, state) = Default::default();
        let shared = Arc::new(Shared { memory, mover, options, host_time, wake, is_strict, limit, state });
        let weak = Arc::downgrade(&shared);
        shared.memory.on_full(Box::new(move || weak.upgrade().is_some_and(|shared| reclaim::make_room(&shared))));
        Self { shared }
    }

    /// Measures the host's computing by `now` instead of the system's clock, from the next step on. For tests, whose plans
    /// then depend on nothing else.
    #[doc(hidden)]
    pub fn set_host_time(&self, now: impl Fn() -> Instant + Send + Sync + 'static) {
        *self.shared.host_time.lock() = Arc::new(now);
    }

    /// Lets steps go unwatched that fit into the budget as they are: of these the front end need tell nothing. If one finds
    /// no room after all, `wake` is called in the thread that allocates, with nothing locked here, and the front end tells
    /// of everything again. A step that is [unwatched](Step::is_unwatched) has three quarters of the budget until then, so
    /// that what is saved afterwards can make room for the rest.
    pub fn on_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.shared.wake.lock() = Some(Arc::new(wake));
    }

    /// Has steps that are measured keep to the budget as all others do: what finds no room anywhere is computed again, and what
    /// cannot be kept to is an error at once. Else they are taken for rehearsals: what is too much is told when they are over,
    /// with the least that would do.
    pub fn set_strict(&self) {
        self.shared.is_strict.store(true, Ordering::Relaxed);
    }

    /// How many bytes of its memory may be held at any time, from the next step on.
    pub fn set_budget(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        (state.budget_bytes, state.spare_bytes) = (Some(bytes), 0);
        state.plans.clear();
        state.woken.clear();
    }

    /// So many bytes of the budget are taken by what is not allocated of its memory, from the next step on: on the host what
    /// bytes pass through on their way to a disk, and whatever else a process has.
    pub fn set_aside(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        state.aside_bytes = bytes;
        state.plans.clear();
    }

    /// How many of the budget's bytes are taken by what is not allocated of its memory.
    pub fn aside_bytes(&self) -> u64 {
        self.shared.state.lock().aside_bytes
    }

    /// By what bytes are encoded on their way to a disk, from the next step on: at first by nothing. What measurements are
    /// to choose is chosen in the step that is measured, for all that has the same place in later ones.
    pub fn set_codec(&self, codec: Choice) {
        let mut state = self.shared.state.lock();
        state.codec = codec;
        (state.profiles, state.plans) = Default::default();
    }

    /// By what bytes are encoded on their way to a disk.
    pub fn codec(&self) -> Choice {
        self.shared.state.lock().codec
    }

    /// The budget holds from now on, before there is a step: what is kept for later allocations is given back.
    ///
    /// # Errors
    /// The limit cannot be set.
    pub fn enforce(&self) -> Result<(), OffloadError> {
        let bytes = self.shared.state.lock().limit_bytes();
        *self.shared.limit.lock() = None;
        self.shared.set_limit(bytes)
    }

    /// Nothing is limited any more, and there is no budget. What was saved can still come back.
    ///
    /// # Errors
    /// The limit cannot be taken away.
    pub fn lift(&self) -> Result<(), OffloadError> {
        self.shared.state.lock().budget_bytes = None;
        self.shared.set_limit(None)
    }

    /// The budget, if it has one.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.shared.state.lock().budget_bytes
    }

    /// What has fewer bytes is kept.
    pub fn least_bytes(&self) -> u64 {
        self.shared.options.least_bytes
    }

    /// What the planner of the last step was asked: for others to be compared with. None if it was not planned.
    ///
    /// # Errors
    /// The budget has become too small.
    pub fn problem(&self) -> Result<Option<Problem>, OffloadError> {
        let state = self.shared.state.lock();
        let profiled = state.profiles.get(&state.signature.id).cloned();
        let (Some(profiled), Some(budget_bytes)) = (profiled, state.budget_bytes) else { return Ok(None) };
        drop(state);
        self.shared.problem(&profiled.profile, budget_bytes, 0).map(Some)
    }

    /// The least budget that all steps can keep to that were measured, by what is used at once in them. None if none was.
    pub fn needed_bytes(&self) -> Option<u64> {
        let state = self.shared.state.lock();
        state.needed_bytes().map(|bytes| bytes + state.aside_bytes + self.shared.memory.slack_bytes())
    }

    /// Whether a plan can keep to the budget, by what was measured of the last step: for who wants to know before the next,
    /// and before a plan is made.
    ///
    /// # Errors
    /// [`ProfileError::TooSmall`].
    pub fn check(&self) -> Result<(), OffloadError> {
        self.problem().map(drop)
    }

    /// Returns the error for a budget that is too small, where one of `least_bytes` works. Its parts are those of the step
    /// that was measured last.
    pub fn refusal(&self, budget_bytes: u64, least_bytes: u64) -> OffloadError {
        let state = self.shared.state.lock();
        let profiled = state.profiles.get(&state.signature.id).cloned();
        drop(state);
        let profile = profiled.map(|profiled| profiled.profile.clone()).unwrap_or_default();
        match self.shared.problem(&profile, 0, 0) {
            Err(OffloadError::Profile(ProfileError::TooSmall { least_bytes: least, when, mut needed, .. })) => {
                needed.aside_bytes += least_bytes.saturating_sub(least);
                ProfileError::TooSmall { budget_bytes, least_bytes, when, needed }.into()
            }
            Err(error) => error,
            Ok(_) => OffloadError::Memory("no step was measured".into()),
        }
    }

    /// Makes the plan of what was measured last now, rather than when the next step begins.
    ///
    /// # Errors
    /// No plan keeps to the budget.
    pub fn prepare(&self) -> Result<(), OffloadError> {
        let signature = self.shared.state.lock().signature;
        self.shared.course(signature.id).map(drop)
    }

    /// The effort of the last plan; none if no plan was made since this was asked the last time.
    pub fn take_planning(&self) -> Option<Planning> {
        self.shared.state.lock().planning.take()
    }

    /// Forgets what was measured, and the plans made of it.
    pub fn forget(&self) {
        let mut state = self.shared.state.lock();
        (state.profiles, state.plans) = Default::default();
    }

    /// What went wrong where nobody could be told, such as in an allocation that then found no room.
    pub fn take_failure(&self) -> Option<OffloadError> {
        self.shared.state.lock().failure.take()
    }

    /// What becomes of what is held, and saved from now on, is noted.
    pub(crate) fn note_from(&self, began: Instant) {
        let mut state = self.shared.state.lock();
        state.notes = Some(Notes::new(began));
        for id in state.held.keys().copied().collect::<Vec<_>>() {
            state.note_saved(id);
        }
    }

    /// What was noted.
    pub(crate) fn take_notes(&self) -> Vec<SavedRecord> {
        self.shared.state.lock().notes.take().map(Notes::finish).unwrap_or_default()
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.shared.memory
    }

    /// What moves bytes.
    pub fn mover(&self) -> &Mover {
        &self.shared.mover
    }

    /// A step begins. Steps of one signature, such as the sizes of a batch, do the same, and have a plan together.
    ///
    /// # Errors
    /// No plan for what was measured keeps to the budget; the limit cannot be set; the device fails.
    pub fn begin(&self, signature: impl Into<Signature>, pass: Pass) -> Result<Step, OffloadError> {
        let (shared, signature) = (&self.shared, signature.into());
        let course = match pass {
            Pass::Plain => shared.measured(pass),
            Pass::Budgeted if let Some(course) = shared.unwatched(signature) => course,
            Pass::Budgeted => shared.course(signature.id)?,
        };
        shared.set_limit(match (pass, &course) {
            (Pass::Plain, _) => None,
            (Pass::Budgeted, Course::Unwatched { .. }) => shared.unwatched_bytes(),
            (Pass::Budgeted, _) => shared.state.lock().limit_bytes(),
        })?;
        let mut state = shared.state.lock();
        let before = std::mem::replace(&mut state.course, course);
        let report = StepReport { codec: state.codec, ..StepReport::default() };
        (state.signature, state.first, state.report) = (signature, state.next, report);
        (state.failure, state.no_room) = (None, None);
        state.known.retain(|_, saved| saved.strong_count() > 0);
        drop(state);
        drop(before);
        let step = Step { shared: Arc::clone(shared) };
        shared.open()?;
        // What was held at a time before is not the step's.
        shared.memory.take_peak();
        shared.begin_interval(None)?;
        Ok(step)
    }

    /// Bytes are saved, elements of a dtype: as they are when what was put on their stream so far is done. None if they stay
    /// where they are, since there is nothing to gain.
    ///
    /// # Errors
    /// What is to go now cannot, or what went before could not.
    pub fn save(
        &self,
        storage: &Storage,
        version: u64,
        dtype: DType,
        stream: Option<&Stream>,
        recompute: Option<Arc<dyn Recompute>>,
        name: impl FnOnce() -> String,
    ) -> Result<Option<Arc<Saved>>, OffloadError> {
        let shared = &self.shared;
        let (bytes, id) = (storage.bytes() as u64, (storage.generation(), version));
        let Some(allocator) = storage.allocator().filter(|_| bytes >= shared.options.least_bytes) else {
            return Ok(None);
        };
        let mut state = shared.state.lock();
        if let Some(known) = state.known.get(&id).and_then(Weak::upgrade) {
            return Ok(Some(known));
        }
        if matches!(state.course, Course::None | Course::Unwatched { .. }) {
            return Ok(None);
        }
        let (name, event) = (name(), Event::Save { bytes });
        let tag = if Purpose::current().0 == Tag::Gradient { Tag::Gradient } else { Tag::Activation };
        state.end_interval(&shared.memory, stream, Some(event), &name)?;
        let choice = state.codec;
        if let Course::Measured(measured) = &mut state.course {
            let (codec, compression) = shared.codec(storage, dtype, choice);
            measured.profile.saved_mut(measured.recomputes.len()).compression = compression;
            measured.saved.insert(id, measured.recomputes.len());
            measured.recomputes.push(recompute.clone());
            measured.codecs.push(codec);
        }
        let number = state.add(Held {
            name,
            bytes,
            tag,
            dtype,
            allocator: Arc::clone(allocator),
            stream: stream.cloned(),
            source: Some(storage.downgrade()),
            storage: Some(storage.clone()),
            arrival: None,
            stored: None,
            is_lent: false,
            recompute,
            inputs: HeldInputs::default(),
        });
        let saved = Arc::new(Saved { shared: Arc::clone(shared), id: number });
        state.known.insert(id, Arc::downgrade(&saved));
        let actions = state.next_actions(event);
        shared.act(state, actions, Some(number))?;
        shared.begin_interval(stream)?;
        Ok(Some(saved))
    }

    /// An operation has been asked for that makes these bytes, and can be computed again. What goes wrong is told by the next
    /// call that can.
    pub fn operation(&self, id: Id, stream: Option<&Stream>) {
        if let Err(error) = self.shared.operation(Some(id), stream) {
            self.shared.state.lock().failure.get_or_insert(error);
        }
    }

    /// An operation is about to be asked for: an interval ends, and another begins. For front ends that learn of what one
    /// makes later, and tell by [`Recompute::made_in`]. What goes wrong is told by the next call that can.
    pub fn point(&self, stream: Option<&Stream>) {
        if let Err(error) = self.shared.operation(None, stream) {
            self.shared.state.lock().failure.get_or_insert(error);
        }
    }

    /// Whether operations that are asked for from now on, until something is saved or needed, may be computed again: if not,
    /// nothing need be told of them.
    pub fn is_repeated(&self) -> bool {
        self.shared.state.lock().course.is_repeated()
    }

    /// The number of the interval that is now, in a step that is measured.
    pub fn interval(&self) -> Option<usize> {
        match &self.shared.state.lock().course {
            Course::Measured(measured) => Some(measured.events.len()),
            _ => None,
        }
    }

    /// Bytes that were saved are needed by what is put on the stream next, or by the host.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn need(&self, saved: &Saved, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let shared = &self.shared;
        let first = {
            let mut state = shared.state.lock();
            state.note(saved.id, |record, now_us| record.needed_us = record.needed_us.or(Some(now_us)));
            state.first
        };
        if let Some(number) = saved.id.checked_sub(first) {
            shared.pass(Event::Need { number: number as usize }, stream)?;
        }
        let storage = shared.here(saved.id, stream)?;
        shared.begin_interval(stream)?;
        Ok(storage)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // The allocator says so if it fails. Another engine's limit stays.
        let _ = self.set_limit(None);
    }
}

impl Shared {
    pub(crate) fn set_limit(&self, bytes: Option<u64>) -> Result<(), OffloadError> {
        let mut limit = self.limit.lock();
        if *limit != bytes {
            self.memory.set_limit(bytes)?;
            *limit = bytes;
        }
        Ok(())
    }

    /// See [`Engine::set_strict`].
    pub(crate) fn is_strict(&self) -> bool {
        self.is_strict.load(Ordering::Relaxed)
    }

    /// Something happens: what is to be done then is done.
    pub(crate) fn pass(&self, event: Event, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        state.end_interval(&self.memory, stream, Some(event), "")?;
        let actions = state.next_actions(event);
        let fresh = match event {
            Event::GiveBack { id } => Some(id),
            _ => None,
        };
        self.act(state, actions, fresh)
    }

    /// Residents are where a step begins with them.
    fn open(&self) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        match &state.course {
            Course::Measured(measured) if measured.pass == Pass::Budgeted => {
                for id in state.residents.clone() {
                    self.spill(&mut state, id, 0)?;
                }
                drop(state);
                reclaim::wait_for_all(self)
            }
            Course::Planned { profiled, planned, .. } => {
                let actions = profiled.ids(planned.schedule.at_begin(), state.first);
                self.act(state, actions, None)
            }
            _ => Ok(()),
        }
    }

    /// See [`Engine::operation`] and [`Engine::point`].
    fn operation(&self, id: Option<Id>, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        if !matches!(state.course, Course::Measured(_)) {
            return Ok(());
        }
        state.end_interval(&self.memory, stream, Some(Event::Operation), "")?;
        if let (Course::Measured(measured), Some(id)) = (&mut state.course, id) {
            measured.operations.add(id, measured.events.len() - 1);
        }
        drop(state);
        self.begin_interval(stream)
    }

    /// Somebody computes from now on.
    pub(crate) fn begin_interval(&self, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        state.count_here(&self.memory);
        let State { held, first, course, .. } = &mut *state;
        if let Course::Measured(measured) = course {
            // Room that was made before it began is none of it.
            measured.other_bytes = 0;
            for (id, _) in held.range(*first..).filter(|(_, held)| held.is_elsewhere()) {
                measured.profile.hold((id - *first) as usize);
            }
        }
        Ok(course.clock().map_or(Ok(()), |clock| clock.begin(stream))?)
    }

    /// See [`Step::finish`].
    pub(crate) fn finish(&self) -> Result<StepReport, OffloadError> {
        let mut state = self.state.lock();
        state.end_interval(&self.memory, None, None, "")?;
        let (course, signature) = (std::mem::take(&mut state.course), state.signature);
        if let Some(error) = state.failure.take() {
            drop(state);
            return Err(error);
        }
        let mut report = state.report;
        match course {
            Course::Measured(measured) => {
                // Recipes go with it: a front end may wait for something to free one.
                drop(state);
                let Peak { allocated_bytes, reserved_bytes } = measured.peak;
                (report.peak_bytes, report.reserved_bytes) = (Some(allocated_bytes), Some(reserved_bytes));
                let held_bytes = measured.held_bytes;
                let profiled = Arc::new(measured.finish()?);
                let mut state = self.state.lock();
                let plain_bytes = profiled.profile.plain_bytes();
                state.peaks.note(signature, plain_bytes.saturating_sub(held_bytes));
                state.profiles.insert(signature.id, profiled);
                state.plans.remove(&signature.id);
            }
            Course::Planned { profiled, planned, events, clock } if profiled.events.len() <= events => {
                (report.is_planned, report.predicted) = (true, planned.predicted);
                state.learn(&report);
                if let Some(clock) = clock {
                    state.profiles.insert(signature.id, Arc::new(profiled.timed(&clock.finish()?)));
                    state.plans.remove(&signature.id);
                }
            }
            Course::Unwatched { held_bytes } => {
                report.is_planned = true;
                let peak_bytes = self.memory.take_peak().allocated_bytes;
                state.peaks.note(signature, peak_bytes.saturating_sub(held_bytes));
            }
            // What was measured is not what is done.
            Course::Planned { .. } | Course::Free => drop(state.profiles.remove(&signature.id)),
            Course::None => {}
        }
        Ok(report)
    }

    fn measured(&self, pass: Pass) -> Course {
        let clock = Clock::with_host_time(Arc::clone(&self.host_time.lock()));
        let state = self.state.lock();
        let residents = state.residents.iter().map(|id| (*id, &state.held[id]));
        Course::Measured(Box::new(Measured::new(pass, residents, clock, self.held_bytes())))
    }

    /// Bytes that are allocated now.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.memory.statistics().all.allocated_bytes.current
    }

    /// What a step of a signature goes by, within the budget.
    fn course(&self, signature: u64) -> Result<Course, OffloadError> {
        let (profiled, planned, budget_bytes) = {
            let state = self.state.lock();
            (state.profiles.get(&signature).cloned(), state.plans.get(&signature).cloned(), state.budget_bytes)
        };
        let Some(profiled) = profiled else { return Ok(self.measured(Pass::Budgeted)) };
        let planned = match planned {
            Some(planned) => planned,
            None => {
                let planned = Arc::new(self.plan(&profiled, budget_bytes.unwrap_or(u64::MAX))?);
                self.memory.release_cached()?;
                self.state.lock().plans.insert(signature, Arc::clone(&planned));
                planned
            }
        };
        let device = self.memory.device().filter(|_| !profiled.is_timed);
        // A simulated one has no time of its own.
        let is_simulated = |device: &DeviceMemory| matches!(device.driver().executor(), Executor::Sim(_));
        let clock = device.map(|device| Clock::with_lead(if is_simulated(device) { Duration::ZERO } else { LEAD }));
        Ok(Course::Planned { profiled, planned, events: 0, clock })
    }

    /// What is done when, in a step that does what was measured.
    fn plan(&self, profiled: &Profiled, budget_bytes: u64) -> Result<Planned, OffloadError> {
        let Options { planner, planning, .. } = &self.options;
        let profile = &profiled.profile;
        let plan = |spare_bytes| {
            let began = Instant::now();
            let problem = self.problem(profile, budget_bytes, spare_bytes)?;
            let planned = Condensed::new(&**planner).plan(&problem, planning, &mut |_| ControlFlow::Continue(()));
            let planned = planned.map_err(|error| self.no_plan(error, &problem, profile, budget_bytes))?;
            let (evaluations, plan) = (planned.evaluations, planned.plan);
            // A plan that cannot be played is followed as far as it goes.
            let outcome = simulator::simulate(&problem, &plan).ok();
            let predicted = outcome.map(|outcome| Duration::from_nanos(outcome.makespan_ns as u64));
            let schedule = Schedule::of(profile, &plan);
            let planning = Planning { operations: profile.intervals(), evaluations, elapsed: began.elapsed() };
            tracing::info!("{planning}");
            self.state.lock().planning = Some(planning);
            Ok(Planned { repeated: profiled.repeated(&schedule), schedule, predicted })
        };
        let spare_bytes = self.state.lock().spare_bytes;
        // Where nothing can be spared, room is made as it is found missing.
        plan(spare_bytes).or_else(|error| if spare_bytes > 0 { plan(0) } else { Err(error) })
    }

    /// Why there is no plan, for who has a budget.
    fn no_plan(&self, error: PlannerError, problem: &Problem, profile: &Profile, budget_bytes: u64) -> OffloadError {
        let PlannerError::Plan(PlanError::NoRoom { kernel, .. }) = error else { return error.into() };
        let folders = |destination| match (destination, self.mover.disk()) {
            (Destination::Disk, Some(disk)) => format!(" in {}", disk.folders()),
            _ => String::new(),
        };
        let room = |(link, destination): &(Link, Destination)| {
            Some(format!("{}{} takes {}", link.name, folders(*destination), link.capacity?))
        };
        let rooms: Vec<String> = self.options.links.iter().filter_map(room).collect();
        let (when, saved_bytes) = (problem.kernels()[kernel].name.clone(), profile.bytes());
        OffloadError::NoPlan { budget_bytes, when, saved_bytes, rooms: rooms.join(", ") }
    }

    /// What planners are asked, for a budget of which some is spared.
    fn problem(&self, profile: &Profile, budget_bytes: u64, spare_bytes: u64) -> Result<Problem, OffloadError> {
        let Options { links, .. } = &self.options;
        // A slower link is of use where those before it lead to too little room.
        let (all_bytes, mut room) = (profile.bytes(), 0_u64);
        let is_of_use = |link: &Link| {
            let before = room;
            room = room.saturating_add(link.capacity.unwrap_or(u64::MAX));
            before < all_bytes
        };
        let links: Vec<Link> = links.iter().map(|(link, _)| link.clone()).take_while(is_of_use).collect();
        // A disk keeps room as if nothing got smaller: where it may be too little, that is planned with.
        let is_scarce = links.iter().any(|link| link.capacity.is_some_and(|capacity| capacity < all_bytes));
        let mut profile = profile.clone();
        if is_scarce {
            profile.forget_compression();
        }
        let slack_bytes = self.memory.slack_bytes() + spare_bytes + self.state.lock().aside_bytes;
        let machine = Machine { budget_bytes, slack_bytes, bandwidth: 1 << 40, links };
        let mut problem = profile.problem("a training step", &machine);
        if let Err(ProfileError::TooSmall { needed, .. }) = &mut problem {
            needed.known = self.staying();
        }
        Ok(problem?)
    }

    /// Why an allocation found no room in a step, where all that may leave has left.
    pub(crate) fn too_small_so_far(&self, state: &State) -> Option<OffloadError> {
        let when = match &state.course {
            Course::None => return None,
            Course::Measured(measured) if measured.is_backward() => "in backward".into(),
            Course::Measured(measured) => match measured.profile.saved().last() {
                Some(saved) => format!("after {} was saved", saved.key),
                None => "before anything was saved".into(),
            },
            Course::Planned { .. } | Course::Unwatched { .. } | Course::Free => {
                "in a step that takes more than those like it".into()
            }
        };
        let budget_bytes = state.budget_bytes?;
        Some(OffloadError::TooSmallSoFar { budget_bytes, held_bytes: self.held_bytes() + state.aside_bytes, when })
    }

    /// What is allocated between steps, by what it is for, and is in nobody's hands here.
    fn staying(&self) -> Vec<(Tag, u64)> {
        let (tags, state) = (self.memory.statistics().tags, self.state.lock());
        let held = |tag| state.held.values().filter(move |held| held.tag == tag && held.storage.is_some());
        let of = |tag: Tag| {
            let allocated = tags[tag as usize].allocated_bytes.current;
            (tag, allocated.saturating_sub(held(tag).map(|held| held.bytes).sum()))
        };
        [Tag::Weight, Tag::Gradient, Tag::OptimizerState, Tag::Input].map(of).to_vec()
    }
}

impl State {
    /// What may be allocated of its memory.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.budget_bytes.map(|bytes| bytes.saturating_sub(self.aside_bytes))
    }

    /// The most bytes that any step that was measured uses at once.
    fn needed_bytes(&self) -> Option<u64> {
        self.profiles.values().map(|profiled| profiled.profile.least_bytes().0).max()
    }

    /// In a step that is measured, counts what is in memory from now on of what was saved.
    fn count_here(&mut self, memory: &Memory) {
        let Self { held, course, .. } = self;
        if let Course::Measured(measured) = course {
            measured.here_bytes = held.values().filter(|held| held.is_here()).map(|held| held.bytes).sum();
            measured.peak = measured.peak.and(memory.take_peak());
        }
    }

    /// In a step that is measured, what comes until [`resume`](Self::resume) is none of its interval: room is made. Whether
    /// it is such a step.
    pub(crate) fn pause(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<bool, OffloadError> {
        let Course::Measured(measured) = &mut self.course else { return Ok(false) };
        measured.other_bytes(memory.take_peak());
        measured.clock.pause(stream)?;
        Ok(true)
    }

    /// See [`pause`](Self::pause).
    pub(crate) fn resume(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.count_here(memory);
        let Course::Measured(measured) = &mut self.course else { return Ok(()) };
        Ok(measured.clock.resume(stream)?)
    }

    /// Lets go of what is where it was to go, and takes no memory any more. Whether there was any.
    pub(crate) fn forget_gone(&mut self) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|(_, stored)| stored.keeps_source() || !stored.is_settled());
        self.leaving.len() < before
    }

    /// Has the next plan leave more where there was less room than this one had.
    fn learn(&mut self, report: &StepReport) {
        let budget = self.budget_bytes.unwrap_or(0);
        if report.unplanned > 0 && self.spare_bytes < budget / 8 {
            self.spare_bytes += budget / 32;
            self.plans.clear();
        }
    }

    /// One more is held. Its number.
    pub(crate) fn add(&mut self, held: Held) -> u64 {
        let id = self.next;
        self.next += 1;
        self.held.insert(id, held);
        self.note_saved(id);
        id
    }

    /// What is done where an event has happened.
    fn next_actions(&mut self, event: Event) -> Vec<(u64, Action)> {
        self.course.next(event, self.first)
    }

    /// By what something is encoded: by what was found best when it was measured. Only what is saved for backward may lose
    /// something.
    pub(crate) fn choice(&self, id: u64) -> Choice {
        let number = id.checked_sub(self.first);
        let choice = number.and_then(|number| self.course.codec(number as usize)).unwrap_or(self.codec);
        let may_lose = number.is_some() && self.held.get(&id).is_some_and(|held| held.tag == Tag::Activation);
        if choice.is_lossy() && !may_lose { Choice::default() } else { choice }
    }

    /// An interval ends, by an event or with the step: in a pass that is measured, what it took is told.
    fn end_interval(
        &mut self,
        memory: &Memory,
        stream: Option<&Stream>,
        event: Option<Event>,
        name: &str,
    ) -> Result<(), OffloadError> {
        if let Some(error) = self.failure.take() {
            return Err(error);
        }
        if let Some(clock) = self.course.clock() {
            clock.end(stream)?;
        }
        let Course::Measured(measured) = &mut self.course else { return Ok(()) };
        let other = measured.other_bytes(memory.take_peak());
        match event {
            // It was made in this interval, or counted in it.
            Some(Event::Save { bytes }) => drop(measured.profile.save(other.saturating_sub(bytes), name, bytes)),
            Some(Event::Need { number }) => measured.profile.need(other, number),
            Some(Event::Lend { id }) => measured.lend(other, id),
            Some(Event::GiveBack { id }) => measured.give_back(other, id),
            Some(Event::Operation) | None => drop(measured.profile.end(other)),
        }
        measured.events.extend(event);
        Ok(())
    }
}
