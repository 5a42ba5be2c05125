//! The program's own state, such as an optimizer's, its gradients and weights, and the zero-copy memory that it may lie
//! in.
//!
//! The engine does not have these bytes: the program uses them as it likes. But the front end can move them to
//! [zero-copy memory](tenure_device::zero_copy) and back, and the program does not notice, except for the time. The
//! engine asks for it where no plan keeps to the budget beside them. The same memory serves allocations that find no
//! room while an optimizer steps, or in a step that takes more than its plan says.

use std::sync::Arc;

use tenure_core::{Storage, StreamId};
use tenure_device::zero_copy::{self, ZeroCopy};

use crate::course::Course;
use crate::engine::Engine;
use crate::error::{OffloadError, ProfileError};
use crate::inner::EngineInner;
use crate::pace::StatePart;
use crate::planning::Spare;

/// Where no plan is found although the bytes would fit, one part in this many of the budget is asked for at a time.
const PLANNING_PART: u64 = 16;

/// The allocations of a step that went to zero-copy memory because they found no room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overflow {
    /// The bytes in zero-copy memory before the first of them.
    first_bytes: u64,
    /// The most bytes there since then, beyond these.
    pub(crate) most_bytes: u64,
}

impl Engine {
    /// Returns the memory that the device uses in place. None for the host's memory.
    pub fn zero_copy(&self) -> Option<&ZeroCopy> {
        self.mover().zero_copy()
    }

    /// Returns the bytes of the memory that the program can still allocate: what the budget leaves, or without one the
    /// device.
    ///
    /// # Errors
    /// The device fails.
    pub fn room_bytes(&self) -> Result<u64, OffloadError> {
        let limit_bytes = *self.inner.limit.lock();
        match (limit_bytes, self.memory().device()) {
            (Some(bytes), _) => Ok(bytes.saturating_sub(self.inner.allocated_bytes())),
            (None, Some(device)) => {
                let free = device.driver().memory_info().map_err(|error| OffloadError::Memory(error.to_string()))?;
                Ok(free.free)
            }
            (None, None) => Ok(u64::MAX),
        }
    }

    /// Tells the engine how many bytes of its program's state the front end could move to zero-copy memory now. Plans
    /// are made for steps that begin with this state.
    pub fn set_state_bytes(&self, bytes: u64) {
        self.inner.ledger.lock().steps.set_state_bytes(bytes);
    }

    /// Tells the engine how many bytes of its program's gradients and weights the front end could make leave too, if
    /// the state is not enough. They are part of what a step allocates, so all measurements are discarded where some
    /// leave.
    pub fn set_parameter_bytes(&self, bytes: u64) {
        self.inner.ledger.lock().set_parameter_bytes(bytes);
    }

    /// Begins an update of the program's state. An allocation that finds no room goes to zero-copy memory, so no plan
    /// has to leave room for it.
    ///
    /// # Errors
    /// The device fails.
    pub fn begin_update(&self) -> Result<(), OffloadError> {
        self.zero_copy().map(ZeroCopy::take_peak_bytes);
        let stream = self.memory().device().map(|device| device.streams().current());
        let mut ledger = self.inner.ledger.lock();
        ledger.is_updating = true;
        ledger.pause(self.memory(), stream.as_ref())
    }

    /// Ends an update. If memory that the update needed for a while found no room, some of the state leaves before the
    /// next step.
    ///
    /// # Errors
    /// The device fails.
    pub fn end_update(&self) -> Result<(), OffloadError> {
        let wanted_bytes = self.zero_copy().map_or(0, |memory| memory.take_peak_bytes().saturating_sub(memory.bytes()));
        let stream = self.memory().device().map(|device| device.streams().current());
        let mut ledger = self.inner.ledger.lock();
        if !std::mem::take(&mut ledger.is_updating) {
            return Ok(());
        }
        ledger.wanted_bytes = ledger.wanted_bytes.max(wanted_bytes);
        ledger.resume(self.memory(), stream.as_ref())
    }
}

impl EngineInner {
    /// Makes zero-copy memory serve the program's allocations that find no room, where [`Self::overflow`] allows it.
    pub(crate) fn serve_overflow(self: &Arc<Self>) {
        let Some(memory) = self.memory.device() else { return };
        let inner = Arc::downgrade(self);
        let serve = move |bytes, stream| inner.upgrade()?.overflow(bytes, stream);
        // The function stays, and does nothing when the engine is gone: by then it may be another engine's.
        zero_copy::on_overflow(memory.device(), serve);
    }

    /// Returns zero-copy memory for an allocation that finds no room: in an update, in a step that follows a plan or
    /// has left one, and elsewhere if some of the program's state can leave before the next step. Otherwise a step that
    /// is measured is refused, with the least budget that works.
    pub(crate) fn overflow(&self, bytes: usize, stream: StreamId) -> Option<Storage> {
        let memory = self.memory.device()?;
        let zero_copy = self.mover.zero_copy()?;
        if memory.driver().is_capturing(stream).unwrap_or(true) {
            return None;
        }
        {
            let ledger = self.ledger.lock();
            let may_overflow = match ledger.course {
                Course::Planned { .. } | Course::Free => true,
                Course::Measured(_) => ledger.leavable_bytes() > 0,
                Course::None => ledger.leavable_bytes() + zero_copy.bytes() > 0,
                Course::Unwatched { .. } => false,
            };
            if !may_overflow && !ledger.is_updating {
                return None;
            }
        }
        let before_bytes = zero_copy.bytes();
        let storage = zero_copy.allocate(bytes, stream).ok()?;
        let mut ledger = self.ledger.lock();
        ledger.refused = None;
        if !ledger.is_updating {
            ledger.report.unplanned += 1;
            let overflow = ledger.overflow.get_or_insert(Overflow { first_bytes: before_bytes, most_bytes: 0 });
            let now_bytes = zero_copy.bytes().saturating_sub(overflow.first_bytes);
            overflow.most_bytes = overflow.most_bytes.max(now_bytes);
        }
        Some(storage)
    }

    /// Makes the front end move as much state out of memory as the last step or update lacked.
    pub(crate) fn release_wanted_state(&self) {
        let (wanted_bytes, lacking_bytes) = {
            let mut ledger = self.ledger.lock();
            (std::mem::take(&mut ledger.wanted_bytes), std::mem::take(&mut ledger.lacking_bytes))
        };
        self.release_state(wanted_bytes, StatePart::Optimizers);
        self.release_state(lacking_bytes, StatePart::All);
    }

    /// Makes the front end move state out of memory if a step like those that were measured could not run beside it.
    pub(crate) fn make_room_for_measurement(&self) {
        let missing_bytes = {
            let ledger = self.ledger.lock();
            let taken_bytes = ledger.aside_bytes + self.memory.slack_bytes();
            let needed_bytes = ledger.measured_need_bytes().map_or(0, |bytes| bytes + taken_bytes);
            needed_bytes.saturating_sub(ledger.budget_bytes.unwrap_or(u64::MAX))
        };
        self.release_state(missing_bytes, StatePart::All);
    }

    /// Makes the front end move state out of memory, as no plan was found for this reason. Returns whether there is
    /// more room now.
    pub(crate) fn make_room_for_plan(&self, error: &OffloadError, spare: Spare) -> bool {
        // To leave bytes free is not worth the time that gradients and weights take to come and go.
        let part = if spare == Spare::Needed { StatePart::Optimizers } else { StatePart::All };
        match error {
            OffloadError::Profile(ProfileError::TooSmall { least_bytes, budget_bytes, .. }) => {
                self.release_state(least_bytes.saturating_sub(*budget_bytes), part)
            }
            OffloadError::NoPlan { budget_bytes, .. } => self.release_state(budget_bytes / PLANNING_PART, part),
            _ => false,
        }
    }

    /// Makes the front end move at least so many bytes of state out of memory. Returns whether some left.
    fn release_state(&self, bytes: u64, part: StatePart) -> bool {
        let leavable_bytes = {
            let ledger = self.ledger.lock();
            if part == StatePart::All { ledger.leavable_bytes() } else { ledger.steps.state_bytes() }
        };
        let front_end = self.paced.get().filter(|_| bytes > 0 && leavable_bytes > 0);
        front_end.is_some_and(|front_end| front_end.release_state(bytes, part))
    }
}
