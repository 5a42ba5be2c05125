//! The interface to a device that serves models: it holds weights in its memory and computes with them.

use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{io, thread};

use tenure_nn::networks::Network;

use super::ModelError;
use super::batch_control::BatchControl;
use super::stored::StoredWeights;
use super::tensors::RawTensor;
use crate::repository::StoredModel;
use crate::service::Tier;

/// A device that holds the weights of models and computes with them.
pub(crate) trait Backend: Send + Sync {
    /// Opens a model whose weights were found in its files. No weights are read yet.
    fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<Box<dyn BackendWeights>, ModelError>;

    /// Opens a model that is a PyTorch module. The module is loaded to learn how many bytes its weights take.
    fn open_python(&self, _: &Arc<StoredModel>) -> Result<Box<dyn BackendWeights>, ModelError> {
        Err(ModelError::NoPython)
    }

    /// Returns the names of the memory that models are computed in and of the memory that weights come from.
    fn tiers(&self) -> [&str; 2];

    /// Returns how many bytes weights take of each memory tier, such as `cuda:0` or `dram`.
    fn usage(&self) -> Vec<Tier>;

    /// Returns device memory that no model uses to the driver, for other processes.
    fn trim(&self) {}

    /// Returns the most batches that are computed at once, each of another model.
    fn max_batches(&self) -> usize {
        1
    }

    /// Stops waiting for results that are not computed yet.
    fn end(&self) {}

    /// Returns whether the processes that compute give signs of life.
    fn is_answering(&self) -> bool {
        true
    }

    /// Returns the ids of the worker processes; empty if this process computes.
    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// A callback that receives how long weights took to load, or `None` if that failed.
pub(crate) type LoadedCallback = Box<dyn FnOnce(Option<Duration>) + Send>;

/// The weights of one model on a [`Backend`]. Dropping them frees their memory.
pub(crate) trait BackendWeights: Send + Sync {
    /// Returns the bytes of all weights, in any order.
    fn bytes(&self) -> u64;

    /// Returns the bytes of weights that are in the backend's memory or on their way to it.
    fn resident_bytes(&self) -> u64;

    /// Starts to load the weights if they are not there. Waits up to `patience` for memory that other models are still
    /// releasing.
    fn load(&self, patience: Duration) -> Result<(), ModelError>;

    /// Calls `done` when all weights are in memory, or when loading failed.
    fn when_loaded(&self, done: LoadedCallback);

    /// Waits until all weights are in memory, and checks that their files have not changed since they were found.
    fn loaded(&self) -> Result<(), ModelError>;

    /// Frees at least this many bytes of their memory.
    fn evict(&self, bytes: u64);

    /// Computes the answers to inputs. Waits for weights.
    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<TimedOutputs, ModelError>;
}

/// The answers to a batch, and how its time was spent.
pub(crate) struct TimedOutputs {
    pub(crate) outputs: Vec<RawTensor>,
    /// The time until the first weights were there.
    pub(crate) copy: Duration,
    /// The time spent waiting for later weights during the computation.
    pub(crate) wait: Duration,
    pub(crate) compute: Duration,
}

/// A handle to a thread for callbacks that may drop a model, which the threads that report loaded weights must not do. The
/// thread ends with its last handle.
#[derive(Clone)]
pub(crate) struct Callbacks(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Callbacks {
    pub(crate) fn start(thread: &str) -> io::Result<Self> {
        let (calls, receiver) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::Builder::new().name(thread.into()).spawn(move || receiver.into_iter().for_each(|call| call()))?;
        Ok(Self(calls))
    }

    /// Runs a call on the thread.
    pub(crate) fn call(&self, call: impl FnOnce() + Send + 'static) {
        // If the thread is gone, there is nothing left to notify.
        let _ = self.0.send(Box::new(call));
    }
}
