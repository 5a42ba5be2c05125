//! The engine: a front end tells it what steps save and need, and it keeps them within a budget.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use parking_lot::Mutex;
use tenure_core::{DType, Purpose, Storage, Tag};
use tenure_device::Stream;
use tenure_plan::Problem;
use tenure_tier::Mover;
use tenure_tier::codec::Choice;

use crate::clock::HostTime;
use crate::course::Course;
use crate::error::{OffloadError, ProfileError};
use crate::held::{Held, HeldInputs, Keeper, Saved};
use crate::inner::{EngineInner, Options};
use crate::memory::Memory;
use crate::notes::SavedRecord;
use crate::profiled::Event;
use crate::reclaim;
use crate::recompute::{Id, Recompute};
use crate::report::Planning;
use crate::signature::{Pass, Signature};
use crate::step::Step;

/// Keeps steps within a budget of memory: what they save leaves it and comes back in time.
///
/// A handle: clones are one engine. It limits the memory while it lives.
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

impl Engine {
    /// An engine for a memory whose bytes the mover moves. It has no budget yet.
    pub fn new(memory: Memory, mover: Mover, options: Options) -> Self {
        let host_time = Mutex::new(Arc::new(Instant::now) as HostTime);
        let (wake, is_strict, moves_all, limit, ledger) = Default::default();
        let inner = EngineInner { memory, mover, options, host_time, wake, is_strict, moves_all, limit, ledger };
        let inner = Arc::new(inner);
        let weak = Arc::downgrade(&inner);
        inner.memory.on_full(Box::new(move || weak.upgrade().is_some_and(|inner| reclaim::make_room(&inner))));
        Self { inner }
    }

    /// Measures the host's computing by `now` instead of the system's clock, from the next step on. For tests, whose plans
    /// then depend on nothing else.
    #[doc(hidden)]
    pub fn set_host_time(&self, now: impl Fn() -> Instant + Send + Sync + 'static) {
        *self.inner.host_time.lock() = Arc::new(now);
    }

    /// Has steps that are measured within the budget move all that they save, wherever there is room. For tests, which then
    /// see all of it go and come back.
    #[doc(hidden)]
    pub fn move_all(&self) {
        self.inner.moves_all.store(true, Ordering::Relaxed);
    }

    /// Lets steps go unwatched that fit into the budget as they are: of these the front end need tell nothing. If one finds
    /// no room after all, `wake` is called in the thread that allocates, with nothing locked here, and the front end tells
    /// of everything again. A step that is [unwatched](Step::is_unwatched) has three quarters of the budget until then, so
    /// that what is saved afterwards can make room for the rest.
    pub fn on_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        *self.inner.wake.lock() = Some(Arc::new(wake));
    }

    /// Has steps that are measured keep to the budget as all others do: what finds no room anywhere is computed again, and what
    /// cannot be kept to is an error at once. Else they are taken for rehearsals: what is too much is told when they are over,
    /// with the least that would do.
    pub fn set_strict(&self) {
        self.inner.is_strict.store(true, Ordering::Relaxed);
    }

    /// How many bytes of its memory may be held at any time, from the next step on.
    pub fn set_budget(&self, bytes: u64) {
        self.inner.ledger.lock().set_budget(bytes);
    }

    /// So many bytes of the budget are taken by what is not allocated of its memory, from the next step on: on the host what
    /// bytes pass through on their way to a disk, and whatever else a process has.
    pub fn set_aside(&self, bytes: u64) {
        self.inner.ledger.lock().set_aside(bytes);
    }

    /// How many of the budget's bytes are taken by what is not allocated of its memory.
    pub fn aside_bytes(&self) -> u64 {
        self.inner.ledger.lock().aside_bytes
    }

    /// By what bytes are encoded on their way to a disk, from the next step on: at first by nothing. What measurements are
    /// to choose is chosen in the step that is measured, for all that has the same place in later ones.
    pub fn set_codec(&self, codec: Choice) {
        self.inner.ledger.lock().set_codec(codec);
    }

    /// By what bytes are encoded on their way to a disk.
    pub fn codec(&self) -> Choice {
        self.inner.ledger.lock().codec
    }

    /// The budget holds from now on, before there is a step: what is kept for later allocations is given back.
    ///
    /// # Errors
    /// The limit cannot be set.
    pub fn enforce(&self) -> Result<(), OffloadError> {
        let bytes = self.inner.ledger.lock().limit_bytes();
        *self.inner.limit.lock() = None;
        self.inner.set_limit(bytes)
    }

    /// Nothing is limited any more, and there is no budget. What was saved can still come back.
    ///
    /// # Errors
    /// The limit cannot be taken away.
    pub fn lift(&self) -> Result<(), OffloadError> {
        self.inner.ledger.lock().budget_bytes = None;
        self.inner.set_limit(None)
    }

    /// The budget, if it has one.
    pub fn budget_bytes(&self) -> Option<u64> {
        self.inner.ledger.lock().budget_bytes
    }

    /// What has fewer bytes is kept.
    pub fn least_bytes(&self) -> u64 {
        self.inner.options.least_bytes
    }

    /// What the planner of the last step was asked: for others to be compared with. None if it was not planned.
    ///
    /// # Errors
    /// The budget has become too small.
    pub fn problem(&self) -> Result<Option<Problem>, OffloadError> {
        let ledger = self.inner.ledger.lock();
        let profiled = ledger.profiled();
        let (Some(profiled), Some(budget_bytes)) = (profiled, ledger.budget_bytes) else { return Ok(None) };
        drop(ledger);
        self.inner.problem(&profiled.profile, budget_bytes, 0).map(Some)
    }

    /// The least budget that all steps can keep to that were measured, by what is used at once in them. None if none was.
    pub fn needed_bytes(&self) -> Option<u64> {
        let ledger = self.inner.ledger.lock();
        ledger.needed_bytes().map(|bytes| bytes + ledger.aside_bytes + self.inner.memory.slack_bytes())
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
        let ledger = self.inner.ledger.lock();
        let profiled = ledger.profiled();
        drop(ledger);
        let profile = profiled.map(|profiled| profiled.profile.clone()).unwrap_or_default();
        match self.inner.problem(&profile, 0, 0) {
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
        let signature = self.inner.ledger.lock().signature;
        self.inner.course(signature).map(drop)
    }

    /// The effort of the last plan; none if no plan was made since this was asked the last time.
    pub fn take_planning(&self) -> Option<Planning> {
        self.inner.ledger.lock().planning.take()
    }

    /// Forgets what was measured, and the plans made of it.
    pub fn forget(&self) {
        self.inner.ledger.lock().forget();
    }

    /// What went wrong where nobody could be told, such as in an allocation that then found no room.
    pub fn take_failure(&self) -> Option<OffloadError> {
        self.inner.ledger.lock().failure.take()
    }

    /// What becomes of what is held, and saved from now on, is noted.
    pub(crate) fn note_from(&self, began: Instant) {
        self.inner.ledger.lock().begin_notes(began);
    }

    /// What was noted.
    pub(crate) fn take_notes(&self) -> Vec<SavedRecord> {
        self.inner.ledger.lock().take_notes()
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.inner.memory
    }

    /// What moves bytes.
    pub fn mover(&self) -> &Mover {
        &self.inner.mover
    }

    /// A step begins. Steps of one signature, such as the sizes of a batch, do the same, and have a plan together.
    ///
    /// # Errors
    /// No plan for what was measured keeps to the budget; the limit cannot be set; the device fails.
    pub fn begin(&self, signature: impl Into<Signature>, pass: Pass) -> Result<Step, OffloadError> {
        Step::begin(&self.inner, signature.into(), pass)
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
        let inner = &self.inner;
        let (bytes, id) = (storage.bytes() as u64, (storage.generation(), version));
        let Some(allocator) = storage.allocator().filter(|_| bytes >= inner.options.least_bytes) else {
            return Ok(None);
        };
        let mut ledger = inner.ledger.lock();
        if let Some(known) = ledger.find(id) {
            return Ok(Some(known));
        }
        if matches!(ledger.course, Course::None | Course::Unwatched { .. }) {
            return Ok(None);
        }
        let (name, event) = (ledger.planned_name().map_or_else(name, str::to_owned), Event::Save { bytes });
        let tag = if Purpose::current().0 == Tag::Gradient { Tag::Gradient } else { Tag::Activation };
        ledger.end_interval(&inner.memory, stream, Some(event), &name)?;
        let choice = ledger.codec;
        if let Course::Measured(measured) = &mut ledger.course {
            let (codec, compression) = inner.codec(storage, dtype, choice);
            measured.add(id, recompute.clone(), codec, compression);
        }
        let held = ledger.add(Held {
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
        let saved = Arc::new(Saved { keeper: Arc::clone(inner) as Arc<dyn Keeper>, id: held });
        ledger.know(id, &saved);
        let actions = ledger.next_actions(event);
        inner.act(ledger, actions)?;
        inner.move_fresh(held)?;
        inner.begin_interval(stream)?;
        Ok(Some(saved))
    }

    /// Whether a plan has a name for what is saved next: then [`save`](Self::save) asks for none.
    pub fn has_name(&self) -> bool {
        self.inner.ledger.lock().planned_name().is_some()
    }

    /// An operation has been asked for that makes these bytes, and can be computed again. What goes wrong is told by the next
    /// call that can.
    pub fn operation(&self, id: Id, stream: Option<&Stream>) {
        if let Err(error) = self.inner.operation(Some(id), stream) {
            self.inner.ledger.lock().fail(error);
        }
    }

    /// An operation is about to be asked for: an interval ends, and another begins. For front ends that learn of what one
    /// makes later, and tell by [`Recompute::made_in`]. What goes wrong is told by the next call that can.
    pub fn point(&self, stream: Option<&Stream>) {
        if let Err(error) = self.inner.operation(None, stream) {
            self.inner.ledger.lock().fail(error);
        }
    }

    /// Whether operations that are asked for from now on, until something is saved or needed, may be computed again: if not,
    /// the engine need not be asked about each.
    pub fn listens(&self) -> bool {
        self.inner.ledger.lock().course.listens()
    }

    /// Counts an operation that is about to be asked for. Returns whether it may be computed again: if so, the front end
    /// tells of it by [`operation`](Self::operation) or [`point`](Self::point). A front end that asks does so for each
    /// operation while the engine [listens](Self::listens).
    pub fn repeats_next(&self) -> bool {
        self.inner.ledger.lock().course.repeats_next()
    }

    /// The number of the interval that is now, in a step that is measured.
    pub fn interval(&self) -> Option<usize> {
        match &self.inner.ledger.lock().course {
            Course::Measured(measured) => Some(measured.events.len()),
            _ => None,
        }
    }

    /// Bytes that were saved are needed by what is put on the stream next, or by the host.
    ///
    /// # Errors
    /// They cannot come back.
    pub fn need(&self, saved: &Saved, stream: Option<&Stream>) -> Result<Storage, OffloadError> {
        let inner = &self.inner;
        let index = {
            let mut ledger = inner.ledger.lock();
            ledger.note(saved.id, |record, now_us| record.needed_us = record.needed_us.or(Some(now_us)));
            ledger.index(saved.id)
        };
        if let Some(index) = index {
            inner.pass(Event::Need { index }, stream)?;
        }
        let storage = inner.here(saved.id, stream)?;
        inner.begin_interval(stream)?;
        Ok(storage)
    }
}
