//! Threads that wait for one another.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// Where the threads of a run meet, again and again, each with something to say. What is on devices is not waited for.
pub(super) struct Lockstep<W> {
    state: Mutex<State<W>>,
    changed: Condvar,
}

struct State<W> {
    /// What was said for the meeting that is next, by thread.
    said: Vec<Option<W>>,
    meetings: u64,
    /// What was said in the last.
    heard: Arc<Vec<W>>,
    is_over: bool,
}

impl<W> Lockstep<W> {
    pub(super) fn new(size: usize) -> Self {
        let said = (0..size).map(|_| None).collect();
        let state = State { said, meetings: 0, heard: Arc::default(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for all others. What all said, by thread; none if there are no more meetings.
    pub(super) fn meet(&self, rank: usize, word: W) -> Option<Arc<Vec<W>>> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let before = state.meetings;
        state.said[rank] = Some(word);
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

    /// No thread waits any more.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
