//! The loading of a module into a process's memory.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::super::link::LostOrder;
use super::process::{Process, PythonAnswer};
use crate::executor::{Callbacks, LoadedCallback, ModelError};

/// A module that a process has loaded or is loading.
pub(super) struct Loading {
    pub(super) process: Arc<Process>,
    state: Mutex<LoadingState>,
    changed: Condvar,
}

#[derive(Default)]
struct LoadingState {
    /// The time that loading took, or the reason why it failed.
    outcome: Option<Result<Duration, LoadFailure>>,
    /// The callbacks to call when loading is over.
    waiting: Vec<LoadedCallback>,
    /// Whether some or all of it was evicted.
    was_evicted: bool,
}

/// The reason why a module was not loaded.
#[derive(Clone)]
enum LoadFailure {
    /// The process ended, for this reason.
    Lost(String),
    /// The model's code raised this error.
    Raised(String),
}

impl Loading {
    pub(super) fn new(process: Arc<Process>) -> Self {
        Self { process, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Returns whether the module is, or will be, completely loaded.
    pub(super) fn is_usable(&self) -> bool {
        let state = self.state.lock();
        !state.was_evicted && !matches!(state.outcome, Some(Err(_))) && !self.process.has_ended()
    }

    /// Records that some of the module is evicted, so that it must be loaded again.
    pub(super) fn set_evicted(&self) {
        self.state.lock().was_evicted = true;
    }

    /// Records how loading ended, and calls the callbacks.
    pub(super) fn finish(&self, answer: Result<PythonAnswer, LostOrder>, calls: &Callbacks) {
        let outcome = match answer {
            Ok(PythonAnswer::Loaded { took }) => Ok(took),
            Ok(PythonAnswer::Failed(reason) | PythonAnswer::OutOfMemory(reason)) => Err(LoadFailure::Raised(reason)),
            Ok(_) => Err(LoadFailure::Raised("Python gave an unexpected answer".into())),
            Err(lost) => Err(LoadFailure::Lost(lost.reason().into())),
        };
        let took = outcome.as_ref().ok().copied();
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for done in waiting {
            calls.call(move || done(took));
        }
    }

    /// Calls `done` when loading is over.
    pub(super) fn when_over(&self, done: LoadedCallback) {
        let mut state = self.state.lock();
        let took = match &state.outcome {
            None => return state.waiting.push(done),
            Some(outcome) => outcome.as_ref().ok().copied(),
        };
        drop(state);
        done(took);
    }

    /// Waits until loading is over, and returns how long it took.
    pub(super) fn wait(&self) -> Result<Duration, ModelError> {
        let mut state = self.state.lock();
        loop {
            match &state.outcome {
                Some(Ok(took)) => return Ok(*took),
                Some(Err(LoadFailure::Lost(reason))) => return Err(ModelError::Lost(reason.clone())),
                Some(Err(LoadFailure::Raised(reason))) => return Err(ModelError::Elsewhere(reason.clone())),
                None => self.changed.wait(&mut state),
            }
        }
    }
}
