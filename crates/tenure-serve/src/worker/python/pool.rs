//! The Python processes that compute modules on the CPU.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use super::super::WorkerCommand;
use super::{Python, StartFailure};
use crate::executor::{BackendWeights, ModelError};
use crate::repository::StoredModel;

/// The number of processes above which another is started only while there is much memory: each has a PyTorch of its own,
/// which takes some hundred MB.
const FEW: usize = 8;
const MUCH_BYTES: u64 = 4 << 30;

/// The Python processes on the CPU. Each computes one module, or several if there is too little memory for more processes.
pub(crate) struct Pythons {
    command: WorkerCommand,
    deaths: Counter,
    start_failure: StartFailure,
    state: Mutex<PythonsState>,
}

#[derive(Default)]
struct PythonsState {
    /// The handles, which the models hold.
    pythons: Vec<Weak<Python>>,
    is_ending: bool,
}

impl Pythons {
    /// Creates a pool without processes.
    pub(crate) fn new(command: WorkerCommand, deaths: Counter) -> Self {
        Self { command, deaths, start_failure: StartFailure::default(), state: Mutex::default() }
    }

    /// Opens the weights of a module in a new process, or in the one with the fewest modules if there are many processes
    /// and too little memory for another.
    pub(crate) fn open(&self, stored: &StoredModel) -> Result<Box<dyn BackendWeights>, ModelError> {
        self.python()?.open(stored)
    }

    /// Returns the handles of all processes.
    pub(crate) fn all(&self) -> Vec<Arc<Python>> {
        self.state.lock().pythons.iter().filter_map(Weak::upgrade).collect()
    }

    /// Starts no other process.
    pub(crate) fn end(&self) {
        self.state.lock().is_ending = true;
    }

    fn python(&self) -> Result<Arc<Python>, ModelError> {
        let mut state = self.state.lock();
        if state.is_ending {
            return Err(ModelError::NoWorker("the server is shutting down".into()));
        }
        state.pythons.retain(|python| python.strong_count() > 0);
        if state.pythons.len() >= FEW && tenure_tier::available_bytes() < MUCH_BYTES {
            let least = state.pythons.iter().min_by_key(|python| python.strong_count()).and_then(Weak::upgrade);
            if let Some(python) = least {
                return Ok(python);
            }
        }
        let python = Python::on_cpu(self.command.clone(), self.deaths.clone(), self.start_failure.clone());
        let python = Arc::new(python.map_err(ModelError::NoWorker)?);
        state.pythons.push(Arc::downgrade(&python));
        Ok(python)
    }
}
