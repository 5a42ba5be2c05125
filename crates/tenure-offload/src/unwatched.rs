//! Steps that are not watched, since they fit into the budget as they are.

use crate::engine::Shared;
use crate::step::Course;
use crate::{OffloadError, Signature};

impl Shared {
    /// The course of a step that fits into the budget as it is, by what is known of its signature, or of other sizes.
    pub(crate) fn unwatched(&self, signature: Signature) -> Option<Course> {
        self.wake.lock().as_ref()?;
        let (room_bytes, held_bytes) = (self.unwatched_bytes()?, self.held_bytes());
        let state = self.state.lock();
        let is_too_much = state.woken.contains(&signature.id) || state.peaks.is_too_much(signature);
        if is_too_much || !state.residents.is_empty() {
            return None;
        }
        let taken_bytes = match state.profiles.get(&signature.id) {
            Some(profiled) => profiled.profile.plain_bytes(),
            None => held_bytes + state.peaks.predict(signature)?,
        };
        let fits = taken_bytes + self.memory.slack_bytes() <= room_bytes;
        fits.then_some(Course::Unwatched { held_bytes })
    }

    /// The limit of a step that is not watched, in bytes.
    pub(crate) fn unwatched_bytes(&self) -> Option<u64> {
        self.state.lock().limit_bytes().map(|bytes| bytes / 4 * 3)
    }

    /// Wakes the front end in a step that is not watched, which gets all of the budget. Whether it is such a step.
    pub(crate) fn wake(&self) -> Result<bool, OffloadError> {
        let mut state = self.state.lock();
        if !matches!(state.course, Course::Unwatched { .. }) {
            return Ok(false);
        }
        state.course = Course::Free;
        let (signature, limit_bytes) = (state.signature, state.limit_bytes());
        state.woken.insert(signature.id);
        // The next of its kind and size is watched.
        state.peaks.note_too_much(signature);
        drop(state);
        self.set_limit(limit_bytes)?;
        let wake = self.wake.lock().clone();
        if let Some(wake) = wake {
            wake();
        }
        Ok(true)
    }
}
