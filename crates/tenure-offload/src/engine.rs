//! The engine: front ends report the tensors that steps save and need, and it keeps the steps within a budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use tenure_core::{DType, Storage};
use tenure_device::Stream;
use tenure_plan::Problem;
use tenure_tier::Mover;
use tenure_tier::codec::Choice;

use crate::clock::HostTime;
use crate::course::{Course, Pacing};
use crate::error::{LeastBudget, OffloadError, ProfileError};
use crate::identity::{Pass, Signature};
use crate::inner::{EngineInner, EngineOptions};
use crate::machine::Memory;
use crate::pace::PacedFrontEnd;
use crate::place::{Recomputation, SavedBytesId, SavedHandle, TensorOwner};
use crate::profiled::StepEvent;
use crate::reclaim;
use crate::report::{Planning, SavedRecord};
use crate::step::OffloadStep;

/// The offload engine: keeps steps within a memory budget. Saved tensors leave that memory and come back in time.
///
/// This is a handle: clones share one engine. The engine limits the memory until its last handle is dropped.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

impl Engine {
    /// Creates an engine for a memory, whose bytes `mover` moves. The engine has no budget yet.
    pub fn new(memory: Memory, mover: Mover, options: EngineOptions) -> Self {
        let host_time = Mutex::new(Arc::new(Instant::now) as HostTime);
        let (wake, paced, is_strict, may_exceed, moves_all, limit, ledger, layout) = Default::default();
        let inner = EngineInner {
            memory,
            mover,
            options,
            host_time,
            wake,
            paced,
            is_strict,
            may_exceed,
            moves_all,
            limit,
            ledger,
            layout,
        };
        let inner = Arc::new(inner);
        let weak = Arc::downgrade(&inner);
        inner.memory.on_full(Box::new(move || weak.upgrade().is_some_and(|inner| reclaim::make_room(&inner))));
        Self { inner }
    }

    /// Measures computation on the host by `now` instead of the system's clock, from the next step on. Tests use this,
    /// so that their plans do not depend on the system's clock.
    #[doc(hidden)]
    pub fn set_host_time(&self, now: impl Fn() -> Instant + Send + Sync + 'static) {
        *self.inner.host_time.lock() = Arc::new(now);
    }

    /// Makes steps that are measured within the budget move every tensor that they save, wherever there is room. For
    /// tests, which then see each tensor leave and come back.
    #[doc(hidden)]
    pub fn move_all(&self) {
        self.inner.moves_all.store(true, Ordering::Relaxed);
    }

    /// Lets steps that fit into the budget without any moves go unwatched: the front end need not report them. If such
    /// a step finds no room after all, the allocating thread calls `wake` with no lock of the engine held, and the
    /// front end reports everything again. Until then an [unwatched](OffloadStep::is_unwatched) step gets three
    /// quarters of the budget, so that tensors saved later can make room for the rest.
    pub fn on_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.inner.wake.lock() = Some(Arc::new(wake));
    }

    /// Makes planned steps go by the program's allocations, which an
    /// [`AllocationClock`](tenure_device::allocation_clock::AllocationClock) counts: the front end then reports only
    /// what the engine asks it to [watch](PacedFrontEnd::watch). It reports everything where it begins a step. The
    /// first front end stays.
    pub fn count_allocations(&self, front_end: Arc<dyn PacedFrontEnd>) {
        if self.inner.paced.set(front_end).is_ok() {
            let inner = Arc::downgrade(&self.inner);
            // The alarm stays, and does nothing when the engine is gone: by then it may be another engine's.
            let alarm = move |tick| inner.upgrade().into_iter().for_each(|inner| inner.tick(tick));
            self.inner.allocation_clock().on_alarm(alarm);
            self.inner.serve_overflow();
        }
    }

    /// Makes measured steps keep to the budget, too: tensors that find no room anywhere are recomputed, and a step that
    /// still needs too much fails at once. By default a measured step is a rehearsal: it may exceed the budget, and the
    /// next step reports a budget that is too small, with the least that works.
    pub fn set_strict(&self) {
        self.inner.is_strict.store(true, Ordering::Relaxed);
    }

    /// Sets whether steps may exceed the budget: an allocation that finds no room, although all that can leave has
    /// left, then lifts the limit until the next step begins. The step's [report](crate::StepReport) says that it did.
    /// Where a planned step's allocations can go to zero-copy memory, they do so instead. For budgets that were derived
    /// from steps, which a larger step shows to be too small.
    pub fn set_may_exceed(&self, may: bool) {
        self.inner.may_exceed.store(may, Ordering::Relaxed);
    }

    /// Sets the budget: the most bytes of the memory that may be held at any time, from the next step on.
    pub fn set_budget(&self, bytes: u64) {
        self.inner.ledger.lock().set_budget(bytes, self.inner.memory.spare_bytes(bytes));
    }

    /// Reserves `bytes` of the budget for memory that the engine's allocator does not manage, from the next step on:
    /// on the host, the buffers through which bytes pass on their way to a disk, and the rest of the process.
    pub fn set_aside(&self, bytes: u64) {
        self.inner.ledger.lock().set_aside(bytes);
    }

    /// Returns the bytes of the budget that are reserved for memory which the engine's allocator does not manage.
    pub fn aside_bytes(&self) -> u64 {
        self.inner.ledger.lock().aside_bytes
    }

    /// Sets the codec for bytes on their way to a disk, from the next step on. Default: no codec. If measurements are
    /// to choose the codec, the step that is measured chooses one for each saved tensor; the tensors in the same place
    /// in later steps use it.
    pub fn set_codec(&self, codec: Choice) {
        self.inner.ledger.lock().set_codec(codec);
    }

    /// Returns the codec for bytes on their way to a disk.
    pub fn codec(&self) -> Choice {
        self.inner.ledger.lock().codec
    }

    /// Applies the budget now, before there is a step, and gives back memory that is cached for later allocations.
    ///
    /// # Errors
    /// The limit cannot be set.
    pub fn enforce(&self) -> Result<(), OffloadError> {
        let bytes = self.inner.ledger.lock().limit_bytes();
        *self.inner.limit.lock() = None;
        self.inner.set_limit(bytes)
    }

    /// Removes the limit and the budget. Saved tensors can still come back.
    ///
    /// # Errors
    /// The limit cannot be removed.
    pub fn remove_budget(&self) -> Result<(), OffloadError> {
        self.inner.ledger.lock().budget_bytes = None;
        self.inner.set_limit(None)
    }

    /// Returns the budget in bytes, if there is one.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.inner.ledger.lock().budget_bytes
    }

    /// Returns the size in bytes below which saved tensors stay in memory.
    pub fn min_tensor_bytes(&self) -> u64 {
        self.inner.options.min_tensor_bytes
    }

    /// Returns the problem that the last step's planner was asked to solve, for comparisons with other planners.
    /// Returns None if the step was not measured or there is no budget.
    ///
    /// # Errors
    /// The budget has become too small for the step.
    pub fn problem(&self) -> Result<Option<Problem>, OffloadError> {
        let ledger = self.inner.ledger.lock();
        let profiled = ledger.profiled();
        let (Some(profiled), Some(budget_bytes)) = (profiled, ledger.budget_bytes) else { return Ok(None) };
        drop(ledger);
        self.inner.problem(&profiled.profile, budget_bytes, 0).map(Some)
    }

    /// Returns the least budget in bytes that all measured steps can keep to, by the bytes that they use at once.
    /// Returns None if no step was measured.
    pub fn least_budget_bytes(&self) -> Option<u64> {
        let ledger = self.inner.ledger.lock();
        ledger.measured_need_bytes().map(|bytes| bytes + ledger.aside_bytes + self.inner.memory.slack_bytes())
    }

    /// Checks whether a plan can keep to the budget, by the measurement of the last step. The caller learns this before
    /// the next step, and before a plan is made.
    ///
    /// # Errors
    /// [`ProfileError::TooSmall`] if no plan can, even if all of the program's state leaves.
    pub fn check(&self) -> Result<(), OffloadError> {
        let state_bytes = self.inner.ledger.lock().leavable_bytes();
        match self.problem() {
            Err(OffloadError::Profile(ProfileError::TooSmall { least_bytes, budget_bytes, .. }))
                if least_bytes <= budget_bytes + state_bytes =>
            {
                Ok(())
            }
            checked => checked.map(drop),
        }
    }

    /// Returns the error for a budget that is too small, when a budget of `least_bytes` would do, which was found as
    /// `least` says. It lists the needs of
    /// the step that was measured last, and counts the rest of `least_bytes` as set aside.
    pub fn refusal(&self, budget_bytes: u64, least_bytes: u64, least: LeastBudget) -> OffloadError {
        let ledger = self.inner.ledger.lock();
        let profiled = ledger.profiled();
        drop(ledger);
        let profile = profiled.map(|profiled| profiled.profile.clone()).unwrap_or_default();
        match self.inner.problem(&profile, 0, 0) {
            Err(OffloadError::Profile(ProfileError::TooSmall {
                least_bytes: bound_bytes, when, mut needed, ..
            })) => {
                needed.aside_bytes += least_bytes.saturating_sub(bound_bytes);
                ProfileError::TooSmall { budget_bytes, least_bytes, least, when, needed }.into()
            }
            Err(error) => error,
            Ok(_) => OffloadError::Memory("no step was measured".into()),
        }
    }

    /// Makes the plan for steps with the last step's signature now, rather than when the next of them begins.
    ///
    /// # Errors
    /// No plan keeps to the budget.
    pub fn prepare(&self) -> Result<(), OffloadError> {
        let signature = self.inner.ledger.lock().signature;
        self.inner.course(signature).map(drop)
    }

    /// Returns the effort of the last plan. Returns None if no plan was made since the last call.
    pub fn take_planning(&self) -> Option<Planning> {
        self.inner.ledger.lock().planning.take()
    }

    /// Discards all measurements and plans.
    pub fn forget(&self) {
        self.inner.ledger.lock().forget();
    }

    /// Takes the first error that no call could return, such as one of a spill.
    pub fn take_failure(&self) -> Option<OffloadError> {
        self.inner.ledger.lock().failure.take()
    }

    /// Takes the reason why a step has failed, if the engine has one: the first error that no call could return, or
    /// why the last allocation found no room.
    pub fn take_cause(&self) -> Option<OffloadError> {
        let mut ledger = self.inner.ledger.lock();
        let refused = ledger.refused.take();
        ledger.failure.take().or(refused)
    }

    /// Begins to record when each tensor is moved, for tensors that the engine has now or that are saved later.
    pub(crate) fn record_since(&self, began: Instant) {
        self.inner.ledger.lock().begin_notes(began);
    }

    /// Ends the recording, and returns the record of each tensor.
    pub(crate) fn take_notes(&self) -> Vec<SavedRecord> {
        self.inner.ledger.lock().take_notes()
    }

    /// Returns the memory.
    pub fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// Returns the mover, which moves the bytes.
    pub fn mover(&self) -> &Mover {
        &self.inner.mover
    }

    /// Begins a step. Steps with equal signatures do the same work and share a plan. A signature is, for example, the
    /// sizes of a batch.
    ///
    /// # Errors
    /// No plan for the measured step keeps to the budget; the limit cannot be set; the device fails.
    pub fn begin(&self, signature: impl Into<Signature>, pass: Pass) -> Result<OffloadStep, OffloadError> {
        OffloadStep::begin(&self.inner, signature.into(), pass)
    }

    /// Saves the bytes of a storage, elements of `dtype`, as they are when the work that is on `stream` so far is done.
    /// Returns None if the engine leaves the bytes where they are: the storage has no allocator, it is smaller than the
    /// least size, or no watched step is open. A storage that is saved again at the same `version` returns the same
    /// handle.
    ///
    /// # Errors
    /// A transfer that is due now fails, or an earlier one failed.
    pub fn save(
        &self,
        storage: &Storage,
        version: u64,
        dtype: DType,
        stream: Option<&Stream>,
        recompute: Option<Arc<dyn Recomputation>>,
        name: impl FnOnce() -> String,
    ) -> Result<Option<Arc<SavedHandle>>, OffloadError> {
        let inner = &self.inner;
        let bytes = storage.bytes() as u64;
        let bytes_id = (storage.generation(), version);
        if storage.allocator().is_none() || bytes < inner.options.min_tensor_bytes {
            self.pass_save();
            return Ok(None);
        }
        let mut ledger = inner.ledger.lock();
        if matches!(ledger.course, Course::Planned { pacing: Pacing::Ticks(_), .. }) {
            return inner.save_at_tick(ledger, storage, version, dtype, stream, recompute);
        }
        let place = ledger.next_save();
        if let Some(saved) = ledger.find(bytes_id) {
            ledger.note_save(place, saved.id);
            return Ok(Some(saved));
        }
        if matches!(ledger.course, Course::None | Course::Unwatched { .. }) {
            return Ok(None);
        }
        let name = ledger.planned_name().map_or_else(name, str::to_owned);
        let event = StepEvent::Save { bytes };
        ledger.end_interval(&inner.memory, stream, Some(event), &name)?;
        let choice = ledger.codec;
        if let Course::Measured(measured) = &mut ledger.course {
            let (codec, compression) = inner.codec(storage, dtype, choice);
            measured.add(bytes_id, recompute.clone(), codec, compression);
        }
        let Some(tensor) = EngineInner::saved_tensor(storage, dtype, stream, recompute, name) else { return Ok(None) };
        let id = ledger.add(tensor);
        let saved = Arc::new(SavedHandle { owner: Arc::clone(inner) as Arc<dyn TensorOwner>, id });
        ledger.remember(bytes_id, &saved);
        ledger.note_save(place, id);
        let actions = ledger.next_actions(event);
        inner.take_actions(ledger, actions)?;
        inner.spill_if_all_move(id)?;
        inner.begin_interval(stream)?;
        Ok(Some(saved))
    }

    /// Tells the engine that a tensor was saved which is too small for it. In a step of another size it may be larger,
    /// so it counts where saved tensors are told apart by their number.
    pub fn pass_save(&self) {
        if self.inner.paced.get().is_none() {
            return;
        }
        let mut ledger = self.inner.ledger.lock();
        match &mut ledger.course {
            Course::Measured(_) => drop(ledger.next_save()),
            Course::Planned { pacing: Pacing::Ticks(_), .. } => self.inner.pass_save_at_tick(&mut ledger),
            _ => {}
        }
    }

    /// Returns whether the plan has a name for the next saved tensor. If so, [`save`](Self::save) does not call `name`.
    pub fn has_name(&self) -> bool {
        let ledger = self.inner.ledger.lock();
        let is_paced = matches!(ledger.course, Course::Planned { pacing: Pacing::Ticks(_), .. });
        is_paced || ledger.planned_name().is_some()
    }

    /// Records that the front end has asked for an operation that makes the bytes `id` and can be recomputed. If this
    /// fails, the next call that can return an error returns that error.
    pub fn operation(&self, id: SavedBytesId, stream: Option<&Stream>) {
        if let Err(error) = self.inner.operation(Some(id), stream) {
            self.inner.ledger.lock().fail(error);
        }
    }

    /// Records that the front end is about to ask for an operation: an interval ends, and another begins. It serves
    /// front ends that learn only later which bytes an operation makes, and report it by [`Recomputation::made_in`].
    /// The next call that can return an error returns an error of this one.
    pub fn begin_operation(&self, stream: Option<&Stream>) {
        if let Err(error) = self.inner.operation(None, stream) {
            self.inner.ledger.lock().fail(error);
        }
    }

    /// Returns whether the plan may recompute operations that come before the next save or need. If not, the front end
    /// need not call [`count_next_operation`](Self::count_next_operation) for them.
    pub fn listens(&self) -> bool {
        self.operations_from().is_some()
    }

    /// Returns the [sequence number](crate::Position::Forward) from which on the plan may recompute operations that
    /// come before the next save or need, if it may: 0 where the program's allocations are not counted.
    pub fn operations_from(&self) -> Option<u64> {
        self.inner.ledger.lock().course.operations_from()
    }

    /// Counts the operation that the front end asks for next. Returns whether the plan may recompute it: if so, the
    /// front end reports it by [`operation`](Self::operation) or [`begin_operation`](Self::begin_operation). A front
    /// end that calls this does so for each operation while the engine [listens](Self::listens).
    pub fn count_next_operation(&self) -> bool {
        self.inner.ledger.lock().course.count_next_operation()
    }

    /// Tells the engine that the front end is about to write to a storage on `stream`, such as to update a parameter
    /// during backward. A plan then recomputes nothing from the bytes of `version` after this point of a step. In a
    /// step that is not planned, tensors that were dropped and would be recomputed from them come back now.
    ///
    /// # Errors
    /// The bytes of such a tensor cannot come back.
    pub fn before_write(&self, storage: &Storage, version: u64, stream: Option<&Stream>) -> Result<(), OffloadError> {
        let inner = &self.inner;
        let generation = storage.generation();
        let dropped = {
            let mut ledger = inner.ledger.lock();
            if let Course::Measured(measured) = &mut ledger.course {
                measured.write((generation, version));
            }
            ledger.made_from(generation)
        };
        for id in dropped {
            inner.bring_back(id, stream)?;
        }
        Ok(())
    }

    /// Tells the engine that an operation wrote to bytes and left their version as it was. If they are saved, they stay
    /// in memory in this step, and in those that are planned by it.
    pub fn stay(&self, id: SavedBytesId) {
        // The handle is dropped with the ledger unlocked, since it may be the last.
        let saved = self.inner.ledger.lock().find(id);
        let _former = saved.as_ref().and_then(|saved| self.inner.ledger.lock().stay(saved.id));
    }

    /// Returns the number of the current interval, in a step that is measured.
    pub fn interval(&self) -> Option<usize> {
        match &self.inner.ledger.lock().course {
            Course::Measured(measured) => Some(measured.events.len()),
            _ => None,
        }
    }

    /// Brings back a saved tensor and returns its storage, for the host or for the work that is put on `stream` next.
    ///
    /// # Errors
    /// The bytes cannot come back.
    pub fn need(&self, saved: &SavedHandle, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let inner = &self.inner;
        let index = {
            let mut ledger = inner.ledger.lock();
            ledger.note(saved.id, |record, now_us| record.needed_us = record.needed_us.or(Some(now_us)));
            ledger.index(saved.id)
        };
        if inner.is_paced() {
            return inner.need_at_tick(saved.id, stream);
        }
        let Some(index) = index else {
            // An earlier step has saved it, so this step's profile does not have it, and the interval goes on.
            inner.ledger.lock().pause(&inner.memory, stream)?;
            let storage = inner.bring_back(saved.id, stream)?;
            inner.ledger.lock().resume(&inner.memory, stream)?;
            return Ok(storage);
        };
        inner.handle_event(StepEvent::Need { index }, stream)?;
        let storage = inner.bring_back(saved.id, stream)?;
        inner.begin_interval(stream)?;
        Ok(storage)
    }
}
