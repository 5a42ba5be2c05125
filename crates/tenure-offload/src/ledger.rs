//! The ledger of an engine: where each held tensor is, what the current step does, and what was measured of steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tenure_core::Tag;
use tenure_device::Stream;
use tenure_tier::Stored;
use tenure_tier::codec::Choice;

use crate::cache::StepCache;
use crate::course::Course;
use crate::error::OffloadError;
use crate::held::{HeldTensor, SavedHandle};
use crate::identity::{HeldId, SavedIndex};
use crate::memory::Memory;
use crate::notes::{Notes, SavedRecord};
use crate::peaks::StepPeaks;
use crate::profiled::{Profiled, StepEvent};
use crate::recompute::SavedBytesId;
use crate::report::{Planning, StepReport};
use crate::schedule::OffloadAction;
use crate::signature::Signature;

/// The mutable state of an engine, guarded by one lock.
#[derive(Default)]
pub(crate) struct Ledger {
    /// All saved tensors and residents, in the order in which they were added.
    pub(crate) held: BTreeMap<HeldId, HeldTensor>,
    /// The saved tensors, by storage and version.
    known: HashMap<SavedBytesId, Weak<SavedHandle>>,
    /// The identity of the next tensor.
    next_id: HeldId,
    /// The tensors that stay from step to step.
    pub(crate) residents: Vec<HeldId>,
    /// The identity of this step's first saved tensor.
    first_of_step: HeldId,
    /// The tensors that are being spilled, in the order in which they began.
    pub(crate) leaving: VecDeque<(HeldId, Stored)>,
    pub(crate) course: Course,
    pub(crate) signature: Signature,
    /// Peaks of steps, beyond the bytes that were held when they began.
    pub(crate) peaks: StepPeaks,
    /// Signatures of steps that were not watched and found no room.
    pub(crate) woken: HashSet<u64>,
    pub(crate) budget_bytes: Option<u64>,
    /// The bytes of the budget that are reserved for memory which the engine's allocator does not manage.
    pub(crate) aside_bytes: u64,
    /// The bytes of the budget that plans leave free. They grow when a planned step finds no room: some pages are only
    /// partly in use.
    pub(crate) spare_bytes: u64,
    /// The codec for bytes on their way to a disk.
    pub(crate) codec: Choice,
    /// The profiles and plans of steps, by signature.
    pub(crate) steps: StepCache,
    /// The effort of the last plan.
    pub(crate) planning: Option<Planning>,
    /// Whether a plan is being made in the background.
    pub(crate) is_planning: bool,
    pub(crate) report: StepReport,
    /// The notes on what becomes of saved tensors, while a step is recorded.
    notes: Option<Notes>,
    /// The first error that no call could return yet.
    pub(crate) failure: Option<OffloadError>,
    /// The error of the last spill that found no room.
    pub(crate) no_room: Option<OffloadError>,
}

impl Ledger {
    /// Sets the budget, and forgets plans and spare bytes from another budget.
    pub(crate) fn set_budget(&mut self, bytes: u64) {
        (self.budget_bytes, self.spare_bytes) = (Some(bytes), 0);
        self.steps.clear_plans();
        self.woken.clear();
    }

    /// Reserves bytes of the budget for memory that the allocator does not manage, and forgets plans made without them.
    pub(crate) fn set_aside(&mut self, bytes: u64) {
        self.aside_bytes = bytes;
        self.steps.clear_plans();
    }

    /// Sets the codec, and forgets measurements with another.
    pub(crate) fn set_codec(&mut self, codec: Choice) {
        self.codec = codec;
        self.forget();
    }

    /// Forgets all measurements, and the plans made of them.
    pub(crate) fn forget(&mut self) {
        self.steps = StepCache::default();
    }

    /// Returns the most bytes that may be allocated of the memory.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.budget_bytes.map(|bytes| bytes.saturating_sub(self.aside_bytes))
    }

    /// Returns the least bytes that are enough for every measured step.
    pub(crate) fn measured_need_bytes(&self) -> Option<u64> {
        self.steps.all_measured().map(|profiled| profiled.profile.least_bytes().0).max()
    }

    /// In a measured step, counts the bytes of saved tensors that are in memory from now on.
    fn count_here(&mut self, memory: &Memory) {
        let Self { held, course, .. } = self;
        if let Course::Measured(measured) = course {
            measured.here_bytes = held.values().filter(|held| held.is_here()).map(|held| held.bytes).sum();
            measured.peak = measured.peak.and(memory.take_peak());
        }
    }

    /// In a measured step, leaves everything until [`resume`](Self::resume) out of the current interval, because room
    /// is being made. Returns whether the step is measured.
    pub(crate) fn pause(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<bool, OffloadError> {
        let Course::Measured(measured) = &mut self.course else { return Ok(false) };
        measured.other_bytes(memory.take_peak());
        measured.clock.pause(stream)?;
        Ok(true)
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.count_here(memory);
        let Course::Measured(measured) = &mut self.course else { return Ok(()) };
        Ok(measured.clock.resume(stream)?)
    }

    /// Forgets spills that are done, whose tensors take no memory any more. Returns whether there was one.
    pub(crate) fn forget_gone(&mut self) -> bool {
        let before = self.leaving.len();
        self.leaving.retain(|(_, stored)| stored.keeps_source() || !stored.is_settled());
        self.leaving.len() < before
    }

    /// Makes the next plan leave more bytes free, if this step had less room than its plan counted on.
    pub(crate) fn raise_spare_bytes(&mut self, report: &StepReport) {
        let budget = self.budget_bytes.unwrap_or(0);
        if report.unplanned > 0 && self.spare_bytes < budget / 8 {
            self.spare_bytes += budget / 32;
            self.steps.outdate_plans();
        }
    }

    /// Begins a step that follows `course`. Returns the previous course. The caller drops it after releasing the lock.
    pub(crate) fn begin_step(&mut self, signature: Signature, course: Course) -> Course {
        let before = std::mem::replace(&mut self.course, course);
        let report = StepReport { codec: self.codec, ..StepReport::default() };
        (self.signature, self.first_of_step, self.report) = (signature, self.next_id, report);
        (self.failure, self.no_room) = (None, None);
        self.known.retain(|_, saved| saved.strong_count() > 0);
        before
    }

    /// Returns the profile of steps with the last step's signature.
    pub(crate) fn profiled(&self) -> Option<Arc<Profiled>> {
        self.steps.profiled(self.signature).cloned()
    }

    /// Finds the saved tensor of a storage at a version, if it may still be needed.
    pub(crate) fn find(&self, id: SavedBytesId) -> Option<Arc<SavedHandle>> {
        self.known.get(&id).and_then(Weak::upgrade)
    }

    /// Lets [`find`](Self::find) find a saved tensor.
    pub(crate) fn remember(&mut self, id: SavedBytesId, saved: &Arc<SavedHandle>) {
        self.known.insert(id, Arc::downgrade(saved));
    }

    /// Keeps an error for the next call that can return one. The first error stays.
    pub(crate) fn fail(&mut self, error: OffloadError) {
        self.failure.get_or_insert(error);
    }

    /// Adds a saved tensor or a resident.
    pub(crate) fn add(&mut self, held: HeldTensor) -> HeldId {
        let id = self.next_id;
        self.next_id = id.next();
        if let Some(notes) = &mut self.notes {
            notes.add(id, &held);
        }
        self.held.insert(id, held);
        id
    }

    /// Removes a saved tensor or a resident that is not needed any more.
    pub(crate) fn remove(&mut self, id: HeldId) -> Option<HeldTensor> {
        self.residents.retain(|resident| *resident != id);
        self.held.remove(&id)
    }

    /// Returns the tensors in memory that are not in use, the one that is needed last first.
    pub(crate) fn idle(&self) -> Vec<HeldId> {
        let idle = self.held.iter().filter(|(_, held)| held.is_idle());
        let mut idle: Vec<HeldId> = idle.map(|(id, _)| *id).collect();
        idle.sort_by_cached_key(|id| Reverse(self.course.needed_in(*id, self.first_of_step)));
        idle
    }

    /// Returns the index of a tensor that this step saved. Returns None for an earlier one.
    pub(crate) fn index(&self, id: HeldId) -> Option<SavedIndex> {
        id.index_in_step(self.first_of_step)
    }

    /// Returns the plan's name for the next saved tensor.
    pub(crate) fn planned_name(&self) -> Option<&str> {
        let Course::Planned { profiled, .. } = &self.course else { return None };
        Some(&profiled.profile.saved().get(self.index(self.next_id)?.0)?.key)
    }

    /// Returns the plan's actions before the first event.
    pub(crate) fn first_actions(&self) -> Vec<(HeldId, OffloadAction)> {
        let Course::Planned { profiled, planned, .. } = &self.course else { return Vec::new() };
        profiled.ids(planned.schedule.at_begin(), self.first_of_step)
    }

    /// Returns the plan's actions after an event.
    pub(crate) fn next_actions(&mut self, event: StepEvent) -> Vec<(HeldId, OffloadAction)> {
        self.course.next_actions(event, self.first_of_step)
    }

    /// Returns the codec for a tensor: the one that was found best when the step was measured. Only tensors that are
    /// saved for backward may be encoded with loss.
    pub(crate) fn codec_of(&self, id: HeldId) -> Choice {
        let index = self.index(id);
        let choice = index.and_then(|index| self.course.codec(index)).unwrap_or(self.codec);
        let may_lose = index.is_some() && self.held.get(&id).is_some_and(|held| held.tag == Tag::Activation);
        if choice.is_lossy() && !may_lose { Choice::default() } else { choice }
    }

    /// Begins an interval, in which the device or the host computes.
    pub(crate) fn begin_interval(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.count_here(memory);
        let Self { held, first_of_step: first, course, .. } = self;
        if let Course::Measured(measured) = course {
            // Room that was made before the interval began does not count in it.
            (measured.other_bytes, measured.left_bytes) = (0, 0);
            let elsewhere = held.range(*first..).filter(|(_, held)| held.held_by_others());
            measured.elsewhere = elsewhere.map(|(id, _)| *id).collect();
            let indices = measured.elsewhere.iter().filter_map(|id| id.index_in_step(*first));
            indices.for_each(|index| measured.profile.hold(index));
        }
        Ok(course.clock().map_or(Ok(()), |clock| clock.begin(stream))?)
    }

    /// Notes that the front end has asked for an operation, in a step that is measured.
    pub(crate) fn operation(
        &mut self,
        memory: &Memory,
        made: Option<SavedBytesId>,
        stream: Option<&Stream>,
    ) -> Result<(), OffloadError> {
        let Self { held, course, .. } = self;
        let Course::Measured(measured) = course else { return Ok(()) };
        let mut left_bytes = 0;
        measured.elsewhere.retain(|id| match held.get(id) {
            Some(held) if !held.held_by_others() => {
                left_bytes += held.bytes;
                false
            }
            Some(_) => true,
            None => false,
        });
        if left_bytes > 0 {
            // The whole interval already counts the tensors that others had when it began. Memory that takes their
            // place now must not count twice.
            measured.other_bytes(memory.take_peak());
            measured.left_bytes += left_bytes;
        }
        Ok(measured.operation(made, stream)?)
    }

    /// Ends an interval, by an event or with the step. If an earlier error is pending, takes that error and returns it
    /// instead. In a measured step, adds what the interval took to the profile.
    pub(crate) fn end_interval(
        &mut self,
        memory: &Memory,
        stream: Option<&Stream>,
        event: Option<StepEvent>,
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
            // The tensor was made in this interval, or is already counted in it.
            Some(StepEvent::Save { bytes }) => drop(measured.profile.save(other.saturating_sub(bytes), name, bytes)),
            Some(StepEvent::Need { index }) => measured.profile.need(other, index),
            Some(StepEvent::Lend { id }) => measured.lend(other, id),
            Some(StepEvent::GiveBack { id }) => measured.give_back(other, id),
            Some(StepEvent::Operation) | None => drop(measured.profile.end(other)),
        }
        measured.events.extend(event);
        Ok(())
    }

    /// Begins to note what becomes of each tensor, held now or saved later.
    pub(crate) fn begin_notes(&mut self, began: Instant) {
        let mut notes = Notes::new(began);
        self.held.iter().for_each(|(id, held)| notes.add(*id, held));
        self.notes = Some(notes);
    }

    /// Ends the notes, and returns them.
    pub(crate) fn take_notes(&mut self) -> Vec<SavedRecord> {
        self.notes.take().map(Notes::finish).unwrap_or_default()
    }

    /// Notes what becomes of a tensor now, if notes are made.
    pub(crate) fn note(&mut self, id: HeldId, note: impl FnOnce(&mut SavedRecord, u64)) {
        if let Some(notes) = &mut self.notes {
            notes.note(id, note);
        }
    }
}
