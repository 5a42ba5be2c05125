//! The weights of one PyTorch module.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::super::link::LostOrder;
use super::super::message::pack;
use super::Python;
use super::loading::Loading;
use super::message::{ModuleSource, PythonOrder};
use super::process::{Process, PythonAnswer};
use crate::executor::{BackendWeights, BatchControl, LoadedCallback, ModelError, RawTensor, TimedOutputs};
use crate::niceness::BatchMeter;
use crate::repository::StoredModel;

/// A module that may be in the memory of the Python process.
pub(super) struct PythonModel {
    /// The process's handle, which ends the process when its last model is gone.
    python: Arc<Python>,
    model: u64,
    place: ModuleSource,
    bytes: u64,
    held: Mutex<HeldModule>,
}

/// The part of a module that a process holds in the memory for computing.
#[derive(Default)]
struct HeldModule {
    /// The last loading of the module. `None` if all of it was evicted since.
    loading: Option<Arc<Loading>>,
    resident_bytes: u64,
}

impl PythonModel {
    /// Loads a module once, to learn how many bytes it has.
    pub(super) fn open(python: &Arc<Python>, stored: &StoredModel) -> Result<Self, ModelError> {
        let function = stored.config.python.as_ref().ok_or(ModelError::NoPython)?;
        let shared = &python.shared;
        let model = shared.next_number();
        let place = ModuleSource::of(stored, function);
        let process = shared.process().map_err(ModelError::NoWorker)?;
        let call = shared.next_number();
        let answer = process.ask(call, &PythonOrder::Open { call, model, place: &place }, Vec::new())?;
        match received(&answer)? {
            Ok(PythonAnswer::Opened { bytes }) => {
                let held = Mutex::default();
                Ok(Self { python: Arc::clone(python), model, place, bytes, held })
            }
            Ok(answer) => Err(unexpected(answer)),
            Err(LostOrder::NotBegun { reason }) => Err(ModelError::NoWorker(reason)),
            Err(lost) => Err(lost.into()),
        }
    }

    /// Starts to load the module, if it is not there.
    fn begin(&self) -> Result<Arc<Loading>, ModelError> {
        let mut held = self.held.lock();
        if let Some(loading) = held.loading.as_ref().filter(|loading| loading.is_usable()) {
            return Ok(Arc::clone(loading));
        }
        let process = self.python.shared.process().map_err(ModelError::NoWorker)?;
        let loading = Arc::new(Loading::new(process));
        let coming = Arc::clone(&loading);
        let calls = self.python.shared.calls.clone();
        let answered = Box::new(move |answer| coming.finish(answer, &calls));
        let call = self.python.shared.next_number();
        let order = PythonOrder::Load { call, model: self.model, place: &self.place, bytes: self.bytes };
        loading.process.call(call, &order, Vec::new(), answered)?;
        held.set(Some(Arc::clone(&loading)), self.bytes);
        Ok(loading)
    }

    /// Runs a batch. The inner error says that the process ended.
    fn run(&self, process: &Process, inputs: &[RawTensor]) -> Result<Result<PythonAnswer, LostOrder>, ModelError> {
        let call = self.python.shared.next_number();
        let (inputs, payload) = pack(inputs);
        let mut meter = BatchMeter::new(Instant::now());
        let answer = process.ask(call, &PythonOrder::Run { call, model: self.model, inputs }, payload)?;
        if self.python.shared.is_on_device {
            return received(&answer);
        }
        let received = loop {
            let patience = meter.next_look().map(|look| look.saturating_duration_since(Instant::now()));
            match patience.map(|patience| answer.recv_timeout(patience)) {
                None => break received(&answer)?,
                Some(Ok(received)) => break received,
                Some(Err(RecvTimeoutError::Timeout)) => process.look(&mut meter),
                Some(Err(error)) => return Err(ModelError::Elsewhere(error.to_string())),
            }
        };
        process.after(&meter);
        Ok(received)
    }

    /// Computes a batch, after loading the module if needed. The inner error says that the process ended.
    fn compute_once(&self, inputs: &[RawTensor]) -> Result<Result<TimedOutputs, LostOrder>, ModelError> {
        let begun = Instant::now();
        let loading = self.begin()?;
        if !self.python.shared.is_on_device {
            loading.wait()?;
        }
        let waited = begun.elapsed();
        Ok(match self.run(&loading.process, inputs)? {
            Ok(PythonAnswer::Computed { outputs, took, copy }) => {
                let copy = copy.min(took);
                Ok(TimedOutputs { outputs, copy: waited + copy, wait: Duration::ZERO, compute: took - copy })
            }
            Ok(answer) => return Err(unexpected(answer)),
            Err(lost) => Err(lost),
        })
    }
}

impl BackendWeights for PythonModel {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn resident_bytes(&self) -> u64 {
        let held = self.held.lock();
        match &held.loading {
            Some(loading) if !loading.process.has_ended() => held.resident_bytes,
            _ => 0,
        }
    }

    fn load(&self, _: Duration) -> Result<(), ModelError> {
        self.begin().map(drop)
    }

    fn when_loaded(&self, done: LoadedCallback) {
        let loading = self.held.lock().loading.clone();
        match loading {
            Some(loading) => loading.when_over(done),
            None => done(None),
        }
    }

    fn loaded(&self) -> Result<(), ModelError> {
        let loading = self.held.lock().loading.clone();
        loading.map_or(Ok(()), |loading| loading.wait().map(drop))
    }

    /// Frees at least this many bytes; on the CPU always the whole module.
    fn evict(&self, bytes: u64) {
        let held = self.held.lock();
        let Some(loading) = held.loading.clone() else { return };
        loading.set_evicted();
        let call = self.python.shared.next_number();
        // The order is sent before another thread can load the module again.
        let answer = loading.process.ask(call, &PythonOrder::Evict { call, model: self.model, bytes }, Vec::new());
        drop(held);
        // After the answer, other models may have the memory. A process that is gone has none.
        let resident_bytes = match answer.ok().and_then(|answer| answer.recv().ok()) {
            Some(Ok(PythonAnswer::Freed { resident_bytes })) => resident_bytes,
            _ => 0,
        };
        let mut held = self.held.lock();
        if held.loading.as_ref().is_some_and(|current| Arc::ptr_eq(current, &loading)) {
            held.set((resident_bytes > 0).then_some(loading), resident_bytes);
        }
    }

    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<TimedOutputs, ModelError> {
        let _computing = self.python.shared.computing.lock();
        if control.is_abandoned() {
            return Err(ModelError::Abandoned);
        }
        let batch = self.python.shared.begin_batch();
        let shared = Arc::clone(&self.python.shared);
        control.on_abandon(move || shared.abandon(batch));
        let computed = match self.compute_once(inputs) {
            Ok(Err(LostOrder::NotBegun { .. })) if !control.is_abandoned() => self.compute_once(inputs),
            computed => computed,
        };
        self.python.shared.end_batch();
        match computed? {
            Err(_) if control.is_abandoned() => Err(ModelError::Abandoned),
            computed => Ok(computed?),
        }
    }
}

impl Drop for PythonModel {
    fn drop(&mut self) {
        let call = self.python.shared.next_number();
        let order = PythonOrder::Close { call, model: self.model };
        let asked = self.python.shared.current().map(|process| process.ask(call, &order, Vec::new()));
        if let Some(Ok(answer)) = asked {
            // After the answer, other models may have the memory.
            let _ = answer.recv();
        }
        self.held.get_mut().set(None, 0);
    }
}

impl HeldModule {
    /// Replaces the loading and its bytes, and updates the counts of resident bytes of the processes concerned.
    fn set(&mut self, loading: Option<Arc<Loading>>, resident_bytes: u64) {
        if let Some(before) = &self.loading {
            before.process.count_resident(self.resident_bytes, 0);
        }
        if let Some(now) = &loading {
            now.process.count_resident(0, resident_bytes);
        }
        *self = Self { loading, resident_bytes };
    }
}

/// Waits for an answer, or for the end of the process.
fn received(answer: &Receiver<Result<PythonAnswer, LostOrder>>) -> Result<Result<PythonAnswer, LostOrder>, ModelError> {
    answer.recv().map_err(|error| ModelError::Elsewhere(error.to_string()))
}

/// Returns the error of an answer that does not fit its order.
pub(super) fn unexpected(answer: PythonAnswer) -> ModelError {
    match answer {
        PythonAnswer::Failed(reason) => ModelError::Elsewhere(reason),
        PythonAnswer::OutOfMemory(reason) => ModelError::OutOfMemory(reason),
        _ => ModelError::Elsewhere("Python gave an unexpected answer".into()),
    }
}
