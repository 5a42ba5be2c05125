//! A module that comes to the memory of a process.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::super::link::Lost;
use super::process::{Answer, Process};
use crate::executor::{Callbacks, Done, ModelError};

/// A module that a process has, or that comes.
pub(super) struct Loading {
    pub(super) process: Arc<Process>,
    state: Mutex<LoadingState>,
    changed: Condvar,
}

#[derive(Default)]
struct LoadingState {
    /// How long it took.
    outcome: Option<Result<Duration, LoadFailure>>,
    waiting: Vec<Done>,
    /// Some of it left, or all.
    is_cut: bool,
}

/// Why a module does not come.
#[derive(Clone)]
enum LoadFailure {
    Lost(String),
    Raised(String),
}

impl Loading {
    pub(super) fn new(process: Arc<Process>) -> Self {
        Self { process, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether it is worth to wait for, and all of it.
    pub(super) fn is_usable(&self) -> bool {
        let state = self.state.lock();
        !state.is_cut && !matches!(state.outcome, Some(Err(_))) && !self.process.has_ended()
    }

    /// Some of it leaves: it has to be brought again.
    pub(super) fn cut(&self) {
        self.state.lock().is_cut = true;
    }

    pub(super) fn finish(&self, answer: Result<Answer, Lost>, calls: &Callbacks) {
        let outcome = match answer {
            Ok(Answer::Loaded { took }) => Ok(took),
            Ok(Answer::Failed(reason)) => Err(LoadFailure::Raised(reason)),
            Ok(_) => Err(LoadFailure::Raised("Python answers what was not asked".into())),
            Err(lost) => Err(LoadFailure::Lost(lost.reason)),
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

    pub(super) fn when_over(&self, done: Done) {
        let mut state = self.state.lock();
        let took = match &state.outcome {
            None => return state.waiting.push(done),
            Some(outcome) => outcome.as_ref().ok().copied(),
        };
        drop(state);
        done(took);
    }

    /// Waits until it is over, and says how long it took.
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
