//! Unwatched steps: they are known to fit into the budget without moving any tensor, so the front end reports nothing.

use crate::course::Course;
use crate::error::OffloadError;
use crate::inner::EngineInner;
use crate::signature::Signature;

impl EngineInner {
    /// Returns the course of an unwatched step, if the step is known to fit by its signature or by steps of other
    /// sizes.
    pub(crate) fn unwatched(&self, signature: Signature) -> Option<Course> {
        self.wake.lock().as_ref()?;
        let room_bytes = self.unwatched_bytes()?;
        let held_bytes = self.held_bytes();
        let ledger = self.ledger.lock();
        let is_too_much = ledger.out_of_room.contains(&signature.id) || ledger.peaks.is_too_much(signature);
        if is_too_much || !ledger.residents.is_empty() {
            return None;
        }
        let taken_bytes = match ledger.steps.measured(signature) {
            Some(profiled) => profiled.profile.plain_bytes(),
            None => held_bytes + ledger.peaks.predict(signature)?,
        };
        let fits = taken_bytes + self.memory.slack_bytes() <= room_bytes;
        fits.then_some(Course::Unwatched { held_bytes })
    }

    /// Returns the memory limit of an unwatched step in bytes: three quarters of the engine's.
    pub(crate) fn unwatched_bytes(&self) -> Option<u64> {
        self.ledger.lock().limit_bytes().map(|bytes| bytes / 4 * 3)
    }

    /// Wakes the front end in an unwatched step, which then gets the whole budget. Returns whether the step was
    /// unwatched.
    pub(crate) fn wake(&self) -> Result<bool, OffloadError> {
        let mut ledger = self.ledger.lock();
        if !matches!(ledger.course, Course::Unwatched { .. }) {
            return Ok(false);
        }
        ledger.course = Course::Free;
        let signature = ledger.signature;
        let limit_bytes = ledger.limit_bytes();
        ledger.out_of_room.insert(signature.id);
        // The next step of this kind and size is watched.
        ledger.peaks.record_too_much(signature);
        drop(ledger);
        self.set_limit(limit_bytes)?;
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
        Ok(true)
    }
}
