//! The barrier of the threads of a run on several devices.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A barrier at which the threads of a run meet repeatedly and exchange a message each. It does not wait for work on
/// the devices.
pub(super) struct Lockstep<W> {
    state: Mutex<LockstepState<W>>,
    changed: Condvar,
}

struct LockstepState<W> {
    /// The words for the next meeting, by thread.
    said: Vec<Option<W>>,
    meetings: u64,
    /// The words of the last meeting.
    heard: Arc<Vec<W>>,
    is_over: bool,
}

impl<W> Lockstep<W> {
    pub(super) fn new(size: usize) -> Self {
        let said = (0..size).map(|_| None).collect();
        let state = LockstepState { said, meetings: 0, heard: Arc::default(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for all other threads. Returns the words of all, by thread; `None` if the meetings are over.
    pub(super) fn meet(&self, rank: usize, message: W) -> Option<Arc<Vec<W>>> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let before = state.meetings;
        state.said[rank] = Some(message);
        if state.said.iter().all(Option::is_some) {
            state.heard = Arc::new(state.said.iter_mut().filter_map(Option::take).collect());
            state.meetings += 1;
            self.changed.notify_all();
        }
        while state.meetings == before && !state.is_over {
            self.changed.wait(&mut state);
        }
        (state.meetings > before).then(|| Arc::clone(&state.heard))
    }

    /// Ends the meetings, so that no thread waits any more.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
