//! A barrier with messages for the threads of a run on several devices.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

/// A reusable barrier: all threads of a run wait for one another, and each gets the messages of all. It does not wait
/// for work on the devices.
pub(super) struct Lockstep<M> {
    state: Mutex<LockstepState<M>>,
    changed: Condvar,
}

struct LockstepState<M> {
    /// The messages that threads have sent for the next exchange, by thread.
    sent: Vec<Option<M>>,
    /// The number of exchanges so far.
    exchanges: u64,
    /// The messages of the last exchange, by thread.
    received: Arc<Vec<M>>,
    is_over: bool,
}

impl<M> Lockstep<M> {
    pub(super) fn new(size: usize) -> Self {
        let sent = (0..size).map(|_| None).collect();
        let state = LockstepState { sent, exchanges: 0, received: Arc::default(), is_over: false };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Sends a message and waits until all other threads have sent theirs. Returns the messages of all, by thread;
    /// `None` after [`end`](Self::end).
    pub(super) fn meet(&self, rank: usize, message: M) -> Option<Arc<Vec<M>>> {
        let mut state = self.state.lock();
        if state.is_over {
            return None;
        }
        let before = state.exchanges;
        state.sent[rank] = Some(message);
        if state.sent.iter().all(Option::is_some) {
            state.received = Arc::new(state.sent.iter_mut().filter_map(Option::take).collect());
            state.exchanges += 1;
            self.changed.notify_all();
        }
        while state.exchanges == before && !state.is_over {
            self.changed.wait(&mut state);
        }
        (state.exchanges > before).then(|| Arc::clone(&state.received))
    }

    /// Ends the exchanges: all threads that wait, now or later, return at once.
    pub(super) fn end(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
