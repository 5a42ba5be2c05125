//! Models that are computed on a CUDA device in this process. A switcher loads their weights during the computation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tenure_nn::networks::Network;

use super::ModelError;
use super::backend::{Backend, BackendWeights, LoadedCallback, TimedOutputs};
use super::batch_control::BatchControl;
use super::network::unwind_error;
use super::resident::{DeviceWeights, ResidentModel};
use super::stored::StoredWeights;
use super::tensors::RawTensor;
use crate::service::Tier;

/// A CUDA device that this process computes on.
pub(crate) struct CudaBackend {
    weights: DeviceWeights,
}

/// A model that this process computes.
struct CudaModel(ResidentModel);

impl CudaBackend {
    /// Creates a backend for a device with these weights.
    pub(crate) fn new(weights: DeviceWeights) -> Self {
        Self { weights }
    }
}

impl Backend for CudaBackend {
    fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<Box<dyn BackendWeights>, ModelError> {
        Ok(Box::new(CudaModel(self.weights.open(network, stored)?)))
    }

    fn tiers(&self) -> [&str; 2] {
        self.weights.tiers()
    }

    fn usage(&self) -> Vec<Tier> {
        self.weights.usage()
    }

    fn trim(&self) {
        self.weights.trim();
    }
}

impl BackendWeights for CudaModel {
    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn resident_bytes(&self) -> u64 {
        self.0.resident_bytes()
    }

    fn load(&self, _: Duration) -> Result<(), ModelError> {
        self.0.load()
    }

    fn when_loaded(&self, done: LoadedCallback) {
        let calls = self.0.calls.clone();
        self.0.model.when_loaded(move |took| calls.call(move || done(took)));
    }

    fn loaded(&self) -> Result<(), ModelError> {
        self.0.loaded()
    }

    fn evict(&self, bytes: u64) {
        self.0.evict(bytes);
    }

    fn compute(&self, inputs: &[RawTensor], _: &BatchControl) -> Result<TimedOutputs, ModelError> {
        let inputs = inputs.iter().map(RawTensor::to_tensor).collect::<Result<Vec<_>, _>>()?;
        let begun = Instant::now();
        let answers = catch_unwind(AssertUnwindSafe(|| self.0.model.forward(&inputs))).map_err(unwind_error)??;
        // This waits for the device.
        let outputs = answers.iter().map(RawTensor::of).collect::<Result<_, _>>()?;
        let took = begun.elapsed();
        self.0.update_resident_bytes()?;
        let copy = self.0.copy_time(took)?;
        Ok(TimedOutputs { outputs, copy, wait: Duration::ZERO, compute: took - copy })
    }
}
