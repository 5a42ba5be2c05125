//! What is told of saved bytes, and moves them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{DType, KeyId, Purpose, Storage, Tag};
use tenure_device::{Stream, StreamGuard};
use tenure_plan::planner::{PlannerError, PlannerOptions};
use tenure_plan::{Planner, Problem, simulator};
use tenure_tier::codec::{Choice, Coding};
use tenure_tier::{Bytes, Destination, Mover, MoverError, Stored, Urgency};

use crate::held::{Held, Saved};
use crate::reclaim;
use crate::record::{Notes, SavedRecord};
use crate::step::{Course, Event, Measured, Pass, Planned, Profiled, Step, StepReport};
use crate::{Action, Id, Link, Machine, Memory, OffloadError, Profile, Recompute, Schedule};

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
    options: Options,
    /// Of its memory, as it was set: what sets it gives back what is kept for later allocations.
    limit: Mutex<Option<u64>>,
    pub(crate) state: Mutex<State>,
}

#[derive(Default)]
pub(crate) struct State {
    /// By a number that is never used again: what was saved first, first.
    pub(crate) held: BTreeMap<u64, Held>,
    known: HashMap<Id, Weak<Saved>>,
    next: u64,
    /// What stays from step to step.
    pub(crate) residents: Vec<u64>,
    /// The first of this step.
    first: u64,
    /// What is on its way out, by the numbers of what it is of.
    pub(crate) leaving: VecDeque<(u64, Stored)>,
    pub(crate) course: Course,
    signature: u64,
    budget_bytes: Option<u64>,
    /// What plans leave of it, since steps found no room where a plan had some: in pages of which only parts are in use.
    spare_bytes: u64,
    /// By what bytes are encoded on their way to a disk.
    codec: Choice,
    /// What steps of a signature do.
    profiles: HashMap<u64, Arc<Profiled>>,
    plans: HashMap<u64, Arc<Planned>>,
    pub(crate) report: StepReport,
    /// What becomes of what is saved, if somebody records it.
    pub(crate) notes: Option<Notes>,
    /// What went wrong where nobody could be told.
    pub(crate) failure: Option<OffloadError>,
}

impl Engine {
    /// An engine for a memory whose bytes the mover moves. It has no budget yet.
    pub fn new(memory: Memory, mover: Mover, options: Options) -> Self {
        let shared = Arc::new(Shared { memory, mover, options, limit: Mutex::default(), state: Mutex::default() });
        let weak = Arc::downgrade(&shared);
        shared.memory.on_full(Box::new(move || weak.upgrade().is_some_and(|shared| reclaim::make_room(&shared))));
        Self { shared }
    }

    /// How many bytes of its memory may be held at any time, from the next step on.
    pub fn set_budget(&self, bytes: u64) {
        let mut state = self.shared.state.lock();
        (state.budget_bytes, state.spare_bytes) = (Some(bytes), 0);
        state.plans.clear();
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
        let bytes = self.budget_bytes();
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
        let profiled = state.profiles.get(&state.signature).cloned();
        let (Some(profiled), Some(budget_bytes)) = (profiled, state.budget_bytes) else { return Ok(None) };
        drop(state);
        self.shared.problem(&profiled.profile, budget_bytes, 0).map(Some)
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

    /// A step begins. Steps of one `signature`, such as the sizes of a batch, do the same, and have a plan together.
    ///
    /// # Errors
    /// No plan for what was measured keeps to the budget; the limit cannot be set; the device fails.
    pub fn begin(&self, signature: u64, pass: Pass) -> Result<Step, OffloadError> {
        let shared = &self.shared;
        let course = match pass {
            Pass::Plain => shared.measured(pass),
            Pass::Budgeted => shared.course(signature)?,
        };
        let limit = self.budget_bytes().filter(|_| pass == Pass::Budgeted);
        shared.set_limit(limit)?;
        let mut state = shared.state.lock();
        state.course = course;
        let report = StepReport { codec: state.codec, ..StepReport::default() };
        (state.signature, state.first, state.report, state.failure) = (signature, state.next, report, None);
        state.known.retain(|_, saved| saved.strong_count() > 0);
        drop(state);
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
        if matches!(state.course, Course::None) {
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

    /// Does what is to be done at a point. In a pass that is measured within the budget, what is `fresh` goes at once, and
    /// nothing goes on meanwhile: so that what a step takes is known, and how long it takes.
    fn act<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        actions: Vec<(u64, Action)>,
        fresh: Option<u64>,
    ) -> Result<(), OffloadError> {
        let is_measured = matches!(&state.course, Course::Measured(measured) if measured.pass == Pass::Budgeted);
        if let Some(fresh) = fresh.filter(|_| is_measured) {
            self.spill(&mut state, fresh, 0)?;
            drop(state);
            return reclaim::wait_for_all(self);
        }
        for (id, action) in actions {
            match action {
                Action::Spill { link } => self.spill(&mut state, id, link)?,
                Action::Fetch => {
                    drop(state);
                    // There may be no room yet: then it comes when it is needed.
                    let fetched = self.fetch(id, Urgency::Ahead);
                    if let Err(error) = fetched
                        && !matches!(error, OffloadError::Back { .. })
                    {
                        return Err(error);
                    }
                    state = self.state.lock();
                }
                Action::Drop => {
                    let given_up = state.held.get_mut(&id).and_then(Held::give_up);
                    if given_up.is_some() {
                        state.note(id, |record, now_us| record.dropped_us = Some(now_us));
                    }
                }
            }
        }
        Ok(())
    }

    /// By what bytes that were saved are to be encoded, and how many times smaller they get, where that can be looked at
    /// now: in the host's memory, from which all links lead to disks.
    fn codec(&self, storage: &Storage, dtype: DType, choice: Choice) -> (Choice, Option<f64>) {
        let (Memory::Host(_), Some(disk)) = (&self.memory, self.mover.disk()) else { return (choice, None) };
        let bytes = storage.lock();
        // SAFETY: what is saved is not written to any more, but by a program that is wrong: then the sample is of no use.
        let (codec, ratio) = disk.sample(unsafe { bytes.as_slice() }, Coding { choice, dtype, is_beside: false });
        (Choice::Codec(codec), Some(1.0 / ratio).filter(|smaller| *smaller > 1.0))
    }

    /// Bytes begin to go, over a link or one behind it that leads to room; if there is none, they stay. They are let go of
    /// at once: who moves them has them as long as it must.
    pub(crate) fn spill(&self, state: &mut State, id: u64, link: usize) -> Result<(), OffloadError> {
        let choice = state.choice(id);
        // What came back since takes no room any more where it was.
        state.forget_gone();
        let State { held, report, leaving, .. } = state;
        let Some(held) = held.get_mut(&id).filter(|held| held.arrival.is_none()) else { return Ok(()) };
        let Some(storage) = held.storage.take() else { return Ok(()) };
        if held.stored.is_some() {
            return Ok(());
        }
        for (_, destination) in self.options.links.iter().skip(link) {
            // SAFETY: a front end that has saved bytes refuses to use them once they are written to; what was read of such
            // a write is not used then either. Bytes of a device are read in the order of its stream.
            let source = unsafe { Bytes::of(&storage, held.stream.as_ref()) };
            let coding = Coding { choice, dtype: held.dtype, is_beside: self.memory.device().is_some() };
            match self.mover.store_encoded(&held.name, source, *destination, coding) {
                Ok(stored) => {
                    report.spilled_bytes += held.bytes;
                    leaving.push_back((id, stored.clone()));
                    held.stored = Some(stored);
                    state.note(id, |record, now_us| record.spilled = Some((now_us, *destination)));
                    return Ok(());
                }
                Err(MoverError::NoRoom { .. }) => {}
                Err(error) => {
                    held.storage = Some(storage);
                    return Err(error.into());
                }
            }
        }
        held.storage = Some(storage);
        Ok(())
    }

    /// Bytes begin to come back, if they are not there.
    fn fetch(&self, id: u64, urgency: Urgency) -> Result<(), OffloadError> {
        let (name, bytes, tag, allocator, stream) = {
            let mut state = self.state.lock();
            let Some(held) = state.held.get_mut(&id) else { return Ok(()) };
            if held.storage.is_some() {
                return Ok(());
            }
            if let Some(source) = held.of_others() {
                held.storage = Some(source);
                return Ok(());
            }
            if held.stored.is_none() {
                return Ok(());
            }
            (held.name.clone(), held.bytes, held.tag, Arc::clone(&held.allocator), held.stream.clone())
        };
        // Nothing is locked: room may have to be made.
        let storage = {
            let _purpose = Purpose::enter(tag, KeyId::NONE);
            let _stream = stream.as_ref().map(StreamGuard::new);
            Storage::new(bytes as usize, allocator).map_err(|source| OffloadError::Back { name, source })?
        };
        let mut state = self.state.lock();
        let State { held, report, .. } = &mut *state;
        let Some(held) = held.get_mut(&id) else { return Ok(()) };
        let (Some(stored), None) = (&held.stored, &held.storage) else { return Ok(()) };
        // SAFETY: it is fresh, and given to nobody before it has arrived.
        let target = unsafe { Bytes::of(&storage, held.stream.as_ref()) };
        held.arrival = Some(Arc::new(self.mover.fetch(stored, target, urgency)?));
        let encoded = Some(stored.encoded()).filter(|encoded| encoded.raw_bytes as u64 == bytes);
        held.storage = Some(storage);
        report.fetched_bytes += bytes;
        state.note(id, |record, now_us| (record.fetched_us, record.encoded) = (Some(now_us), encoded));
        Ok(())
    }

    /// Bytes, in memory, and there for what is put on a stream next.
    pub(crate) fn here(&self, id: u64, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        loop {
            let (storage, arrival, home, is_given_up) = {
                let state = self.state.lock();
                let Some(held) = state.held.get(&id) else { unreachable!("what is saved is held") };
                let is_given_up = held.stored.is_none() && held.of_others().is_none();
                (held.storage.clone(), held.arrival.clone(), held.stream.clone(), is_given_up)
            };
            let Some(storage) = storage else {
                if is_given_up {
                    self.compute(id, stream)?;
                } else {
                    self.fetch(id, Urgency::Now)?;
                }
                continue;
            };
            if let Some(arrival) = arrival {
                let since = Instant::now();
                self.stalled(|| stream.map_or_else(|| arrival.wait(), |stream| arrival.lead_to(stream)))?;
                let stalled_us = since.elapsed().as_micros() as u64;
                self.state.lock().note(id, |record, _| record.stalled_us += stalled_us);
                // For other streams it is still on its way.
                if stream.is_none() || stream == home.as_ref() {
                    self.arrived(id);
                }
            }
            return Ok(storage);
        }
    }

    /// See [`Engine::operation`] and [`Engine::point`].
    fn operation(&self, id: Option<Id>, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        if matches!(state.course, Course::None | Course::Free) {
            return Ok(());
        }
        state.end_interval(&self.memory, stream, Some(Event::Operation), "")?;
        if let (Course::Measured(measured), Some(id)) = (&mut state.course, id) {
            measured.operations.add(id, measured.events.len() - 1);
        }
        let actions = state.next_actions(Event::Operation);
        self.act(state, actions, None)?;
        self.begin_interval(stream)
    }

    /// Bytes that were given up are computed again.
    fn compute(&self, id: u64, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let (name, bytes, home, recompute) = {
            let state = self.state.lock();
            let Some(held) = state.held.get(&id) else { return Ok(()) };
            (held.name.clone(), held.bytes, held.stream.clone(), held.recompute.clone())
        };
        let again = |reason: String| OffloadError::Again { name, reason };
        let Some(recompute) = recompute else { return Err(again("nobody knows how".into())) };
        let find = |id: Id| {
            let known = self.state.lock().known.get(&id).and_then(Weak::upgrade);
            known.map(|known| self.here(known.id, home.as_ref())).transpose()
        };
        let storage = {
            let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
            let _stream = home.as_ref().map(StreamGuard::new);
            recompute.run(&find).map_err(|error| again(error.to_string()))?
        };
        if let (Some(home), Some(stream)) = (&home, stream)
            && home != stream
        {
            home.lead_to(stream)?;
        }
        let mut state = self.state.lock();
        let time_ns = id.checked_sub(state.first).and_then(|number| state.course.recompute_ns(number as usize));
        state.report.recomputed += Duration::from_nanos(time_ns.unwrap_or(0));
        state.report.recomputed_bytes += bytes;
        state.note(id, |record, now_us| record.recomputed_us = Some(now_us));
        if let Some(held) = state.held.get_mut(&id) {
            held.storage.get_or_insert(storage);
        }
        Ok(())
    }

    /// Bytes are there, for their own stream and the host.
    pub(crate) fn arrived(&self, id: u64) {
        if let Some(held) = self.state.lock().held.get_mut(&id) {
            held.arrival = None;
        }
    }

    /// Does something that the host may have to wait in.
    pub(crate) fn stalled<T>(&self, wait: impl FnOnce() -> T) -> T {
        let since = Instant::now();
        let waited = wait();
        self.state.lock().report.stalled += since.elapsed();
        waited
    }

    /// Somebody computes from now on.
    pub(crate) fn begin_interval(&self, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let mut state = self.state.lock();
        let State { held, first, course, .. } = &mut *state;
        let Course::Measured(measured) = course else { return Ok(()) };
        measured.here_bytes = held.values().filter(|held| held.is_here()).map(|held| held.bytes).sum();
        for (id, _) in held.range(*first..).filter(|(_, held)| held.is_elsewhere()) {
            measured.profile.hold((id - *first) as usize);
        }
        measured.peak_bytes = measured.peak_bytes.max(self.memory.take_peak());
        Ok(measured.clock.begin(stream)?)
    }

    /// See [`Step::finish`].
    pub(crate) fn finish(&self) -> Result<StepReport, OffloadError> {
        let mut state = self.state.lock();
        state.end_interval(&self.memory, None, None, "")?;
        let (course, signature) = (std::mem::take(&mut state.course), state.signature);
        if let Some(error) = state.failure.take() {
            return Err(error);
        }
        let mut report = state.report;
        match course {
            Course::Measured(measured) => {
                report.peak_bytes = Some(measured.peak_bytes);
                let pass = measured.pass;
                state.profiles.insert(signature, Arc::new(measured.finish()?));
                state.plans.remove(&signature);
                drop(state);
                // That the budget is too small is said now.
                if pass == Pass::Budgeted {
                    self.course(signature)?;
                }
            }
            Course::Planned { profiled, planned, events } if profiled.events.len() <= events => {
                (report.is_planned, report.predicted) = (true, Some(planned.predicted));
                state.learn(&report);
            }
            // What was measured is not what is done.
            Course::Planned { .. } | Course::Free => drop(state.profiles.remove(&signature)),
            Course::None => {}
        }
        Ok(report)
    }

    fn measured(&self, pass: Pass) -> Course {
        let state = self.state.lock();
        let residents = state.residents.iter().map(|id| (*id, &state.held[id]));
        Course::Measured(Box::new(Measured::new(pass, residents)))
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
                let planned = Arc::new(self.plan(&profiled.profile, budget_bytes.unwrap_or(u64::MAX))?);
                self.state.lock().plans.insert(signature, Arc::clone(&planned));
                planned
            }
        };
        Ok(Course::Planned { profiled, planned, events: 0 })
    }

    /// What is done when, in a step that does what was measured.
    fn plan(&self, profile: &Profile, budget_bytes: u64) -> Result<Planned, OffloadError> {
        let Options { planner, planning, .. } = &self.options;
        let plan = |spare_bytes| {
            let problem = self.problem(profile, budget_bytes, spare_bytes)?;
            let plan = planner.plan(&problem, planning, &mut |_| ControlFlow::Continue(()))?.plan;
            let nanoseconds = simulator::simulate(&problem, &plan).map_err(PlannerError::from)?.makespan_ns;
            Ok(Planned { schedule: Schedule::of(profile, &plan), predicted: Duration::from_nanos(nanoseconds as u64) })
        };
        let spare_bytes = self.state.lock().spare_bytes;
        // Where nothing can be spared, room is made as it is found missing.
        plan(spare_bytes).or_else(|error| if spare_bytes > 0 { plan(0) } else { Err(error) })
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
        let slack_bytes = self.memory.slack_bytes() + spare_bytes;
        Ok(profile.problem("a training step", &Machine { budget_bytes, slack_bytes, bandwidth: 1 << 40, links })?)
    }
}

impl State {
    /// Lets go of what is where it was to go, and takes no memory any more or is needed by nobody. Whether there was any.
    pub(crate) fn forget_gone(&mut self) -> bool {
        let Self { held, leaving, .. } = self;
        let before = leaving.len();
        leaving.retain(|(id, stored)| !stored.is_settled() || stored.keeps_source() && held.contains_key(id));
        leaving.len() < before
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
    fn choice(&self, id: u64) -> Choice {
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
        let Course::Measured(measured) = &mut self.course else { return Ok(()) };
        measured.clock.end(stream)?;
        let peak = memory.take_peak();
        measured.peak_bytes = measured.peak_bytes.max(peak);
        let other = peak.saturating_sub(measured.here_bytes);
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
