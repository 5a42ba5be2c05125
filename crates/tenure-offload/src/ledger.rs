//! The mutable state of an engine: its saved tensors and residents, the current step, and measured profiles and plans.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Instant;

use tenure_core::{Generation, Storage, Tag};
use tenure_device::Stream;
use tenure_tier::Stored;
use tenure_tier::codec::Choice;

use crate::cache::StepCache;
use crate::course::{Course, Pacing};
use crate::error::OffloadError;
use crate::estimate::StepPeaks;
use crate::identity::{SavedIndex, Signature, TensorId};
use crate::machine::Memory;
use crate::pace::{PaceMeter, SavePlace};
use crate::place::{IntermediateBytes, OffloadTensor, Place, SavedBytesId, SavedHandle};
use crate::profiled::{Profiled, StepEvent};
use crate::report::{Notes, Planning, SavedRecord, StepReport};
use crate::schedule::OffloadAction;
use crate::state::Overflow;

/// The mutable state of an engine, guarded by one lock.
#[derive(Default)]
pub(crate) struct Ledger {
    /// All saved tensors and residents, in the order in which they were added.
    pub(crate) tensors: BTreeMap<TensorId, OffloadTensor>,
    /// The handles of saved tensors, by storage and version.
    saved_handles: HashMap<SavedBytesId, Weak<SavedHandle>>,
    /// The bytes that dropped tensors are recomputed from on the way, by storage and version.
    intermediates: HashMap<SavedBytesId, Weak<IntermediateBytes>>,
    /// The identity of the next tensor.
    next_id: TensorId,
    /// The residents, in the order in which they were added.
    pub(crate) residents: Vec<TensorId>,
    /// The identity of this step's first saved tensor.
    first_of_step: TensorId,
    /// The spills whose source still takes memory or which have not ended, in the order in which they began.
    pub(crate) spills: VecDeque<(TensorId, Stored)>,
    /// The course of the current step: measured, planned or neither.
    pub(crate) course: Course,
    /// The signature of the current or last step.
    pub(crate) signature: Signature,
    /// The peaks of measured and unwatched steps, less the bytes that were allocated when they began.
    pub(crate) peaks: StepPeaks,
    /// Signatures of unwatched steps in which an allocation found no room. They are watched from then on.
    pub(crate) out_of_room: HashSet<u64>,
    pub(crate) budget_bytes: Option<u64>,
    /// The bytes of the budget that are reserved for memory which the engine's allocator does not manage.
    pub(crate) aside_bytes: u64,
    /// The bytes of the budget that plans leave free. They grow when an allocation of a planned step finds no room, for
    /// example because pages are only partly in use.
    pub(crate) spare_bytes: u64,
    /// The bytes of the budget that are left free ahead of an interval, even if spilled tensors have to be waited for.
    /// They grow when the blocks of a step cannot be packed.
    pub(crate) ahead_bytes: u64,
    /// Whether a planned step had too little room, so that state is to leave if plans cannot leave these bytes free.
    pub(crate) is_spare_needed: bool,
    /// The codec for bytes that are written to a disk.
    pub(crate) codec: Choice,
    /// The profiles and plans of steps, by signature.
    pub(crate) steps: StepCache,
    /// The effort of the last plan, until the front end takes it.
    pub(crate) planning: Option<Planning>,
    /// Whether a plan is being made in the background.
    pub(crate) is_planning: bool,
    /// Whether the limit was lifted since the current step began, because an allocation found no room.
    pub(crate) has_exceeded: bool,
    /// The allocations since the current step began that went to zero-copy memory because they found no room.
    pub(crate) overflow: Option<Overflow>,
    /// Whether the program updates its state.
    pub(crate) is_updating: bool,
    /// The bytes of gradients and weights that can leave: see
    /// [`Engine::set_parameter_bytes`](crate::Engine::set_parameter_bytes).
    parameter_bytes: u64,
    /// The bytes of optimizers' state that are to leave before the next step, so that the next update finds room.
    pub(crate) wanted_bytes: u64,
    /// The bytes of any state that are to leave before the next step, as this one could not be measured in the budget.
    pub(crate) lacking_bytes: u64,
    /// The report of the current step so far.
    pub(crate) report: StepReport,
    /// The times at which each tensor was moved, while a [`StepRecorder`](crate::StepRecorder) is at work.
    notes: Option<Notes>,
    /// The first error that no call could return yet.
    pub(crate) failure: Option<OffloadError>,
    /// The error of the last spill that found no room.
    pub(crate) no_room: Option<OffloadError>,
    /// Why the last allocation found no room. It is no failure of the step yet: the allocation succeeds if another
    /// thread frees memory.
    pub(crate) refused: Option<OffloadError>,
}

/// One part in this many of a device's budget is left free at first, since its allocator rounds sizes up, and blocks
/// may lie in the way of others.
pub(crate) const SPARE_PART: u64 = 32;
/// At most one part in this many is left free.
const MOST_SPARE_PART: u64 = 8;

impl Ledger {
    /// Sets the budget, and discards the plans of the previous one. New plans leave `spare_bytes` of it free, if they
    /// can.
    pub(crate) fn set_budget(&mut self, bytes: u64, spare_bytes: u64) {
        self.budget_bytes = Some(bytes);
        (self.spare_bytes, self.ahead_bytes, self.is_spare_needed) = (spare_bytes, spare_bytes, false);
        self.steps.clear_plans();
        self.out_of_room.clear();
    }

    /// Reserves bytes of the budget for memory that the allocator does not manage, and discards all plans,
    /// which do not leave these bytes free.
    pub(crate) fn set_aside(&mut self, bytes: u64) {
        self.aside_bytes = bytes;
        self.steps.clear_plans();
    }

    /// Sets the codec, and discards the measurements made with the previous one.
    pub(crate) fn set_codec(&mut self, codec: Choice) {
        self.codec = codec;
        self.forget();
    }

    /// Discards all measurements and plans.
    pub(crate) fn forget(&mut self) {
        let state_bytes = self.steps.state_bytes();
        self.steps = StepCache::default();
        self.steps.set_state_bytes(state_bytes);
    }

    /// See [`Engine::set_parameter_bytes`](crate::Engine::set_parameter_bytes).
    pub(crate) fn set_parameter_bytes(&mut self, bytes: u64) {
        let have_left = bytes < self.parameter_bytes;
        self.parameter_bytes = bytes;
        if have_left {
            self.forget();
        }
    }

    /// Returns how many bytes the program could make leave.
    pub(crate) fn leavable_bytes(&self) -> u64 {
        self.steps.state_bytes() + self.parameter_bytes
    }

    /// Returns the most bytes that the allocator may hold: the budget less the reserved bytes.
    pub(crate) fn limit_bytes(&self) -> Option<u64> {
        self.budget_bytes.map(|bytes| bytes.saturating_sub(self.aside_bytes))
    }

    /// Returns the smallest number of bytes in which every measured step can run. Returns None if none was measured.
    pub(crate) fn measured_need_bytes(&self) -> Option<u64> {
        self.steps.all_measured().map(|profiled| profiled.profile.least_bytes().0).max()
    }

    /// In a measured step, begins the part of an interval whose peak [`Measured::other_bytes`] takes: resets the
    /// memory's peak, and counts the bytes of the saved tensors and residents in memory, which are not other bytes.
    ///
    /// [`Measured::other_bytes`]: crate::measured::Measured::other_bytes
    fn begin_peak(&mut self, memory: &Memory) {
        let Self { tensors, course, .. } = self;
        if let Course::Measured(measured) = course {
            measured.in_memory_bytes =
                tensors.values().filter(|tensor| tensor.is_in_memory()).map(|tensor| tensor.bytes).sum();
            measured.peak = measured.peak.max(memory.take_peak());
        }
    }

    /// In a step that is measured or timed, pauses the clock and the peak of the current interval until
    /// [`resume`](Self::resume), since making room is no part of it.
    pub(crate) fn pause(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        if let Course::Measured(measured) = &mut self.course {
            measured.other_bytes(memory.take_peak());
        }
        Ok(self.course.clock().map_or(Ok(()), |clock| clock.pause(stream))?)
    }

    /// Ends a [`pause`](Self::pause).
    pub(crate) fn resume(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.begin_peak(memory);
        Ok(self.course.clock().map_or(Ok(()), |clock| clock.begin(stream))?)
    }

    /// Removes the spills that have ended and whose source the mover has released. Returns whether there was one.
    pub(crate) fn remove_released_spills(&mut self) -> bool {
        let before = self.spills.len();
        self.spills.retain(|(_, stored)| stored.keeps_source() || !stored.is_settled());
        self.spills.len() < before
    }

    /// Returns whether state is to leave if plans cannot leave the spare bytes free.
    pub(crate) fn must_spare(&self) -> bool {
        self.is_spare_needed && self.steps.state_bytes() > 0
    }

    /// Makes later plans leave more bytes free, as this step needed moves that its plan did not have. Returns false if
    /// they leave as many as they may.
    pub(crate) fn note_unplanned(&mut self) -> bool {
        self.is_spare_needed = true;
        let may_raise = self.spare_bytes < self.most_spare_bytes();
        if may_raise {
            self.spare_bytes += self.budget_bytes.unwrap_or(0) / SPARE_PART;
            self.steps.outdate_plans();
        }
        may_raise
    }

    /// Makes later steps take at least so many bytes less at once, or as many as they may, as the blocks of this one
    /// cannot be packed.
    pub(crate) fn note_lacking(&mut self, bytes: u64) {
        let most = self.most_spare_bytes();
        if bytes > 0 && self.ahead_bytes < most {
            // Each time, another plan is made.
            let least = self.budget_bytes.unwrap_or(0) / SPARE_PART;
            self.ahead_bytes = most.min(self.ahead_bytes + bytes.max(least));
            self.spare_bytes = self.spare_bytes.max(self.ahead_bytes);
            self.steps.outdate_plans();
        }
    }

    fn most_spare_bytes(&self) -> u64 {
        self.budget_bytes.unwrap_or(0) / MOST_SPARE_PART
    }

    /// Begins a step that follows `course`. Returns the previous course. The caller drops it after releasing the lock.
    pub(crate) fn begin_step(&mut self, signature: Signature, course: Course) -> Course {
        let before = std::mem::replace(&mut self.course, course);
        let report = StepReport { codec: self.codec, ..StepReport::default() };
        self.signature = signature;
        self.first_of_step = self.next_id;
        if let Course::Planned { profiled, pacing: Pacing::Ticks(_), .. } = &self.course {
            // Such a step adds only some of the saved tensors, each as its index says.
            self.next_id = TensorId::in_step(self.next_id, SavedIndex(profiled.profile.saved().len()));
        }
        self.report = report;
        self.has_exceeded = false;
        self.overflow = None;
        // An update that failed has not ended.
        self.is_updating = false;
        self.failure = None;
        self.no_room = None;
        self.refused = None;
        self.saved_handles.retain(|_, saved| saved.strong_count() > 0);
        self.intermediates.retain(|_, made| made.strong_count() > 0);
        before
    }

    /// Records that the limit was lifted, since an allocation found no room.
    pub(crate) fn exceed(&mut self) {
        self.has_exceeded = true;
        self.report.unplanned += u64::from(!matches!(self.course, Course::Measured(_)));
    }

    /// Returns the profile of steps with the signature of the current or last step.
    pub(crate) fn profiled(&self) -> Option<Arc<Profiled>> {
        self.steps.profiled(self.signature).cloned()
    }

    /// Returns the handle of the tensor that was saved with this storage and version, unless its last handle was
    /// dropped.
    pub(crate) fn find(&self, id: SavedBytesId) -> Option<Arc<SavedHandle>> {
        self.saved_handles.get(&id).and_then(Weak::upgrade)
    }

    /// See [`Engine::stay`](crate::Engine::stay). Returns a former place of the bytes, for the caller to drop when it
    /// has released its locks.
    pub(crate) fn stay(&mut self, id: TensorId) -> Option<Place> {
        let index = self.index(id);
        if let (Course::Measured(measured), Some(index)) = (&mut self.course, index) {
            measured.profile.saved_mut(index).stays = true;
        }
        self.tensors.get_mut(&id)?.stay()
    }

    /// Returns bytes on the way to dropped tensors, if any of these is left.
    pub(crate) fn intermediate(&self, id: SavedBytesId) -> Option<Arc<IntermediateBytes>> {
        self.intermediates.get(&id).and_then(Weak::upgrade)
    }

    /// Returns bytes on the way to a tensor that is being dropped.
    pub(crate) fn intermediate_of_dropped(&mut self, id: SavedBytesId) -> Arc<IntermediateBytes> {
        self.intermediate(id).unwrap_or_else(|| {
            let made = Arc::default();
            self.intermediates.insert(id, Arc::downgrade(&made));
            made
        })
    }

    /// Gives up bytes on the way to dropped tensors, which then have to be recomputed once more. Returns them, for the
    /// caller to drop when it has released its locks.
    pub(crate) fn give_up_intermediate(&self) -> Option<Storage> {
        self.intermediates.values().filter_map(Weak::upgrade).find_map(|made| made.give_up())
    }

    /// Adds the handle of a saved tensor, for [`find`](Self::find).
    pub(crate) fn remember(&mut self, id: SavedBytesId, saved: &Arc<SavedHandle>) {
        self.saved_handles.insert(id, Arc::downgrade(saved));
    }

    /// Keeps an error for the next call that can return one. The first error stays.
    pub(crate) fn fail(&mut self, error: OffloadError) {
        self.failure.get_or_insert(error);
    }

    /// Adds a saved tensor or a resident.
    pub(crate) fn add(&mut self, tensor: OffloadTensor) -> TensorId {
        let id = self.next_id;
        self.next_id = id.next();
        self.add_as(id, tensor);
        id
    }

    /// Adds a saved tensor with its identity.
    pub(crate) fn add_as(&mut self, id: TensorId, tensor: OffloadTensor) {
        if let Some(notes) = &mut self.notes {
            notes.add(id, &tensor);
        }
        self.tensors.insert(id, tensor);
    }

    /// Removes a saved tensor or a resident that is not needed any more.
    pub(crate) fn remove(&mut self, id: TensorId) -> Option<OffloadTensor> {
        self.residents.retain(|resident| *resident != id);
        self.tensors.remove(&id)
    }

    /// Returns the dropped tensors that are recomputed from a storage directly.
    pub(crate) fn made_from(&self, generation: Generation) -> Vec<TensorId> {
        let made = self.tensors.iter().filter(|(_, tensor)| match &tensor.place {
            Place::Dropped(inputs) => inputs.unsaved.iter().any(|input| input.generation() == generation),
            _ => false,
        });
        made.map(|(id, _)| *id).collect()
    }

    /// Returns the tensors in memory that no caller uses, ordered by their next need, the latest first.
    pub(crate) fn idle(&self) -> Vec<TensorId> {
        let idle = self.tensors.iter().filter(|(_, tensor)| tensor.is_idle());
        let mut idle: Vec<TensorId> = idle.map(|(id, _)| *id).collect();
        idle.sort_by_cached_key(|id| Reverse(self.course.needed_in(*id, self.first_of_step)));
        idle
    }

    /// Returns the identity of this step's first saved tensor.
    pub(crate) fn first_of_step(&self) -> TensorId {
        self.first_of_step
    }

    /// Returns the index of a tensor that this step saved. Returns None for an earlier one.
    pub(crate) fn index(&self, id: TensorId) -> Option<SavedIndex> {
        id.index_in_step(self.first_of_step)
    }

    /// Returns the name that the measured step gave the next saved tensor. Returns None if the step follows no plan.
    pub(crate) fn planned_name(&self) -> Option<&str> {
        let Course::Planned { profiled, .. } = &self.course else { return None };
        Some(&profiled.profile.saved().get(self.index(self.next_id)?.0)?.key)
    }

    /// Returns the place of a save that happens now, in a step whose pace is measured.
    pub(crate) fn next_save(&mut self) -> Option<SavePlace> {
        let Course::Measured(measured) = &mut self.course else { return None };
        measured.pace.as_mut().map(PaceMeter::next_save)
    }

    /// Notes which tensor was saved at a place.
    pub(crate) fn note_save(&mut self, place: Option<SavePlace>, id: TensorId) {
        let index = self.index(id);
        if let (Course::Measured(measured), Some(place), Some(index)) = (&mut self.course, place, index)
            && let Some(pace) = &mut measured.pace
        {
            pace.save(place, index);
        }
    }

    /// Returns the plan's actions before the first event.
    pub(crate) fn first_actions(&self) -> Vec<(TensorId, OffloadAction)> {
        let Course::Planned { profiled, planned, .. } = &self.course else { return Vec::new() };
        profiled.with_ids(planned.schedule.at_begin(), self.first_of_step)
    }

    /// Returns the plan's actions after an event.
    pub(crate) fn next_actions(&mut self, event: StepEvent) -> Vec<(TensorId, OffloadAction)> {
        self.course.next_actions(event, self.first_of_step)
    }

    /// Returns the codec for a tensor: the one that was chosen when the step was measured, or else the engine's. Only
    /// activations may be encoded with loss.
    pub(crate) fn codec_of(&self, id: TensorId) -> Choice {
        let index = self.index(id);
        let choice = index.and_then(|index| self.course.codec(index)).unwrap_or(self.codec);
        let may_lose = index.is_some() && self.tensors.get(&id).is_some_and(|tensor| tensor.tag == Tag::Activation);
        if choice.is_lossy() && !may_lose { Choice::default() } else { choice }
    }

    /// Begins an interval: from now on the device or the host computes. In a measured step, starts its clock and peak.
    pub(crate) fn begin_interval(&mut self, memory: &Memory, stream: Option<&Stream>) -> Result<(), OffloadError> {
        self.begin_peak(memory);
        let Self { tensors, first_of_step: first, course, .. } = self;
        if let Course::Measured(measured) = course {
            // Making room before the interval began does not count in it.
            measured.other_bytes = 0;
            measured.released_bytes = 0;
            let used = tensors.range(*first..).filter(|(_, tensor)| tensor.is_used_by_others());
            measured.used_by_others = used.map(|(id, _)| *id).collect();
            let indices = measured.used_by_others.iter().filter_map(|id| id.index_in_step(*first));
            indices.for_each(|index| measured.profile.hold(index));
        }
        Ok(course.clock().map_or(Ok(()), |clock| clock.begin(stream))?)
    }

    /// In a measured step, records that the front end has asked for an operation, and the bytes that it made, if given.
    pub(crate) fn operation(
        &mut self,
        memory: &Memory,
        made: Option<SavedBytesId>,
        stream: Option<&Stream>,
    ) -> Result<(), OffloadError> {
        let Self { tensors, course, .. } = self;
        let Course::Measured(measured) = course else { return Ok(()) };
        let mut released_bytes = 0;
        measured.used_by_others.retain(|id| match tensors.get(id) {
            Some(tensor) if !tensor.is_used_by_others() => {
                released_bytes += tensor.bytes;
                false
            }
            Some(_) => true,
            None => false,
        });
        if released_bytes > 0 {
            // The whole interval already counts the tensors that others used when it began. Memory that takes their
            // place now must not count twice.
            measured.other_bytes(memory.take_peak());
            measured.released_bytes += released_bytes;
        }
        Ok(measured.operation(made, stream)?)
    }

    /// Ends an interval, by `event` or, without one, with the step. If an earlier error is pending, takes that error
    /// and returns it instead. In a measured step, adds the interval and the event to the profile.
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
        // The step goes on, so it got its memory.
        self.refused = None;
        if let Some(clock) = self.course.clock() {
            clock.end(stream)?;
        }
        let Course::Measured(measured) = &mut self.course else { return Ok(()) };
        let other = measured.other_bytes(memory.take_peak());
        match event {
            // The tensor was made in this interval, or is already counted in it.
            Some(StepEvent::Save { bytes }) => {
                measured.profile.save(other.saturating_sub(bytes), name, bytes);
            }
            Some(StepEvent::Need { index }) => measured.profile.need(other, index),
            Some(StepEvent::Lend { id }) => measured.lend(other, id),
            Some(StepEvent::GiveBack { id }) => measured.give_back(other, id),
            Some(StepEvent::Operation) | None => {
                measured.profile.end(other);
            }
        }
        if let Some(event) = event {
            measured.events.push(event);
            measured.pace.iter_mut().for_each(PaceMeter::event);
        }
        Ok(())
    }

    /// Begins to record when each tensor is moved, for tensors that the engine has now or that are saved later.
    pub(crate) fn begin_notes(&mut self, began: Instant) {
        let mut notes = Notes::new(began);
        self.tensors.iter().for_each(|(id, tensor)| notes.add(*id, tensor));
        self.notes = Some(notes);
    }

    /// Ends the recording, and returns the record of each tensor.
    pub(crate) fn take_notes(&mut self) -> Vec<SavedRecord> {
        self.notes.take().map(Notes::finish).unwrap_or_default()
    }

    /// Calls `note` with the record of a tensor and the time in microseconds, if tensors are being recorded.
    pub(crate) fn note(&mut self, id: TensorId, note: impl FnOnce(&mut SavedRecord, u64)) {
        if let Some(notes) = &mut self.notes {
            notes.note(id, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_left_free_where_blocks_cannot_be_packed_or_a_plan_lacked_room() {
        let mut ledger = Ledger::default();
        let free = |ledger: &Ledger| (ledger.spare_bytes, ledger.ahead_bytes);
        ledger.set_budget(3200, 100);
        ledger.note_lacking(0);
        assert_eq!(free(&ledger), (100, 100));
        // A plan leaves at least what is left free ahead.
        ledger.note_lacking(1);
        assert_eq!(free(&ledger), (200, 200));
        assert!(ledger.note_unplanned());
        assert_eq!(free(&ledger), (300, 200));
        ledger.note_lacking(1000);
        assert_eq!(free(&ledger), (400, 400), "an eighth");
        ledger.note_lacking(1);
        assert!(!ledger.note_unplanned());
        assert_eq!(free(&ledger), (400, 400));
    }
}
