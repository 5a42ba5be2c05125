//! The weights of one PyTorch module.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::super::link::Lost;
use super::super::message::pack;
use super::PythonShared;
use super::message::{Order, Place};
use super::process::{Answer, Process};
use crate::executor::{Callbacks, Done, ModelError, RawTensor, Timed, Weights};
use crate::repository::StoredModel;

/// A module in the memory of a process of Python, or in that of none.
pub(super) struct OnPython {
    shared: Arc<PythonShared>,
    model: u64,
    place: Place,
    bytes: u64,
    loading: Mutex<Option<Arc<Loading>>>,
}

/// A module that a process has, or that comes.
struct Loading {
    process: Arc<Process>,
    state: Mutex<LoadingState>,
    changed: Condvar,
}

#[derive(Default)]
struct LoadingState {
    outcome: Option<Result<Loaded, LoadFailure>>,
    waiting: Vec<Done>,
}

#[derive(Clone, Copy)]
struct Loaded {
    bytes: u64,
    took: Duration,
}

/// Why a module does not come.
#[derive(Clone)]
enum LoadFailure {
    Lost(String),
    Raised(String),
}

impl OnPython {
    /// Has a module loaded once, to see how many bytes it has.
    pub(super) fn open(shared: &Arc<PythonShared>, stored: &StoredModel) -> Result<Self, ModelError> {
        let python = stored.config.python.as_ref().ok_or(ModelError::NoPython)?;
        let (shared, model) = (Arc::clone(shared), shared.number());
        let place = Place::of(stored, python);
        let mut opened = Self { shared, model, place, bytes: 0, loading: Mutex::default() };
        let Loaded { bytes, .. } = opened.begin()?.wait()?;
        opened.evict(u64::MAX);
        opened.bytes = bytes;
        Ok(opened)
    }

    /// Begins to load the module, if it is not there.
    fn begin(&self) -> Result<Arc<Loading>, ModelError> {
        let mut current = self.loading.lock();
        if let Some(loading) = current.as_ref().filter(|loading| loading.is_usable()) {
            return Ok(Arc::clone(loading));
        }
        let process = self.shared.process().map_err(ModelError::NoWorker)?;
        let loading = Arc::new(Loading { process, state: Mutex::default(), changed: Condvar::new() });
        let (coming, calls) = (Arc::clone(&loading), self.shared.calls.clone());
        let answered = Box::new(move |answer| coming.finish(answer, &calls));
        let call = self.shared.number();
        loading.process.call(
            call,
            &Order::Load { call, model: self.model, place: &self.place },
            Vec::new(),
            answered,
        )?;
        if current.replace(Arc::clone(&loading)).is_none() {
            self.shared.resident.fetch_add(self.bytes, Ordering::Relaxed);
        }
        Ok(loading)
    }

    /// Waits until the module is there, as it was when it was opened.
    fn wait(&self, loading: &Loading) -> Result<(), ModelError> {
        let Loaded { bytes, .. } = loading.wait()?;
        if bytes == self.bytes {
            return Ok(());
        }
        let before = self.bytes;
        Err(ModelError::Elsewhere(format!(
            "it has {bytes} bytes of weights now, and had {before}: load the model again"
        )))
    }

    /// Runs a batch. The inner error is of a process that ended.
    fn run(&self, loading: &Loading, inputs: &[RawTensor]) -> Result<Result<Answer, Lost>, ModelError> {
        let (call, (inputs, payload)) = (self.shared.number(), pack(inputs));
        let (sender, receiver) = mpsc::channel();
        let answered = Box::new(move |answer| drop(sender.send(answer)));
        loading.process.call(call, &Order::Run { call, model: self.model, inputs }, payload, answered)?;
        receiver.recv().map_err(|error| ModelError::Elsewhere(error.to_string()))
    }

    fn compute_once(&self, inputs: &[RawTensor]) -> Result<Result<Timed, Lost>, ModelError> {
        let begun = Instant::now();
        let loading = self.begin()?;
        self.wait(&loading)?;
        let copy = begun.elapsed();
        Ok(match self.run(&loading, inputs)? {
            Ok(Answer::Computed { outputs, took }) => Ok(Timed { outputs, copy, wait: Duration::ZERO, compute: took }),
            Ok(Answer::Failed(reason)) => return Err(ModelError::Elsewhere(reason)),
            Ok(_) => return Err(ModelError::Elsewhere("Python answers what was not asked".into())),
            Err(lost) => Err(lost),
        })
    }
}

impl Weights for OnPython {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn resident_bytes(&self) -> u64 {
        if self.loading.lock().is_some() { self.bytes } else { 0 }
    }

    fn load(&self, _: Duration) -> Result<(), ModelError> {
        self.begin().map(drop)
    }

    fn when_loaded(&self, done: Done) {
        let loading = self.loading.lock().clone();
        match loading {
            Some(loading) => loading.when_over(done),
            None => done(None),
        }
    }

    fn loaded(&self) -> Result<(), ModelError> {
        let loading = self.loading.lock().clone();
        loading.map_or(Ok(()), |loading| self.wait(&loading))
    }

    /// Frees all of them.
    fn evict(&self, _: u64) {
        let Some(loading) = self.loading.lock().take() else { return };
        let (sender, receiver) = mpsc::channel();
        let answered = Box::new(move |_| {
            // The receiver waits below.
            let _ = sender.send(());
        });
        let call = self.shared.number();
        if loading.process.call(call, &Order::Evict { call, model: self.model }, Vec::new(), answered).is_ok() {
            // Others may have the memory then.
            let _ = receiver.recv();
        }
        self.shared.resident.fetch_sub(self.bytes, Ordering::Relaxed);
    }

    fn compute(&self, inputs: &[RawTensor]) -> Result<Timed, ModelError> {
        self.shared.set_running(true);
        let computed = match self.compute_once(inputs) {
            Ok(Err(Lost { has_begun: false, .. })) => self.compute_once(inputs),
            computed => computed,
        };
        self.shared.set_running(false);
        computed?.map_err(|lost| ModelError::Lost(lost.reason))
    }
}

impl Drop for OnPython {
    fn drop(&mut self) {
        self.evict(u64::MAX);
    }
}

impl Loading {
    /// Whether it is worth to wait for.
    fn is_usable(&self) -> bool {
        !self.process.has_ended() && !matches!(self.state.lock().outcome, Some(Err(_)))
    }

    fn finish(&self, answer: Result<Answer, Lost>, calls: &Callbacks) {
        let outcome = match answer {
            Ok(Answer::Loaded { bytes, took }) => Ok(Loaded { bytes, took }),
            Ok(Answer::Failed(reason)) => Err(LoadFailure::Raised(reason)),
            Ok(_) => Err(LoadFailure::Raised("Python answers what was not asked".into())),
            Err(lost) => Err(LoadFailure::Lost(lost.reason)),
        };
        let took = outcome.as_ref().ok().map(|loaded| loaded.took);
        let mut state = self.state.lock();
        state.outcome = Some(outcome);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.changed.notify_all();
        for done in waiting {
            calls.call(move || done(took));
        }
    }

    fn when_over(&self, done: Done) {
        let mut state = self.state.lock();
        let took = match &state.outcome {
            None => return state.waiting.push(done),
            Some(outcome) => outcome.as_ref().ok().map(|loaded| loaded.took),
        };
        drop(state);
        done(took);
    }

    fn wait(&self) -> Result<Loaded, ModelError> {
        let mut state = self.state.lock();
        loop {
            match &state.outcome {
                Some(Ok(loaded)) => return Ok(*loaded),
                Some(Err(LoadFailure::Lost(reason))) => return Err(ModelError::Lost(reason.clone())),
                Some(Err(LoadFailure::Raised(reason))) => return Err(ModelError::Elsewhere(reason.clone())),
                None => self.changed.wait(&mut state),
            }
        }
    }
}
