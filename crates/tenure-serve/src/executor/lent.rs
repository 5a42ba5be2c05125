//! Models on a CUDA device that workers compute. This process holds their weights and lends them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tenure_nn::networks::Network;
use tenure_tensor::Device;

use super::ModelError;
use super::backend::{Backend, BackendWeights, LoadedCallback, TimedOutputs};
use super::batch_control::BatchControl;
use super::compute_process::ComputeProcess;
use super::network::Computed;
use super::resident::{DeviceWeights, ResidentModel};
use super::stored::StoredWeights;
use super::tensors::RawTensor;
use crate::service::Tier;
use crate::worker::{LentWeights, WorkerCommand, Workers};

/// A CUDA device whose memory this process manages, and workers that compute on it.
pub(crate) struct LentBackend {
    weights: DeviceWeights,
    workers: Workers,
}

/// A model that workers compute, and whose weights this process holds.
struct LentWorkerModel {
    /// Dropped first, so that no worker holds the weights when they are freed.
    lent: Mutex<LentWeights>,
    resident: ResidentModel,
}

impl LentBackend {
    /// Creates a backend that lends these weights. Waits for the first worker.
    pub(crate) fn new(
        device: Device,
        weights: DeviceWeights,
        command: WorkerCommand,
        deaths: Counter,
    ) -> Result<Self, ModelError> {
        let workers = Workers::start_on_cuda(device.index(), weights.chunk_bytes(), command, deaths);
        Ok(Self { weights, workers: workers.map_err(ModelError::NoWorker)? })
    }
}

impl Backend for LentBackend {
    fn open(&self, network: Box<dyn Network>, stored: &StoredWeights) -> Result<Box<dyn BackendWeights>, ModelError> {
        let resident = self.weights.open(network, stored)?;
        Ok(Box::new(LentWorkerModel { lent: Mutex::new(self.workers.lent(stored.files.model())), resident }))
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

    fn is_answering(&self) -> bool {
        self.workers.is_answering()
    }

    fn end(&self) {
        self.workers.end();
    }

    fn processes(&self) -> Vec<u32> {
        self.workers.processes()
    }
}

impl BackendWeights for LentWorkerModel {
    fn bytes(&self) -> u64 {
        self.resident.bytes()
    }

    fn resident_bytes(&self) -> u64 {
        self.resident.resident_bytes()
    }

    fn load(&self, _: Duration) -> Result<(), ModelError> {
        self.resident.load()
    }

    fn when_loaded(&self, done: LoadedCallback) {
        let model = self.resident.model.clone();
        let begun = Instant::now();
        // Copies run one after the other, and so do the calls that wait for them.
        self.resident.calls.call(move || done(model.settle().ok().map(|()| begun.elapsed())));
    }

    fn loaded(&self) -> Result<(), ModelError> {
        self.resident.loaded()
    }

    fn evict(&self, bytes: u64) {
        self.lent.lock().give_back();
        self.resident.evict(bytes);
    }

    fn compute(&self, inputs: &[RawTensor], control: &BatchControl) -> Result<TimedOutputs, ModelError> {
        let mut lent = self.lent.lock();
        let computed = lent.compute(&self.resident.model, inputs, control);
        self.resident.update_resident_bytes()?;
        let Computed { outputs, begun, ended, measured, .. } = computed?;
        let took = ended - begun;
        let copy = self.resident.copy_time(took)?;
        if let Some(measured) = measured {
            // The weights are rearranged, and no worker may hold them meanwhile.
            lent.give_back();
            if let Err(error) = self.resident.model.learn(&measured) {
                tracing::warn!("{}: the order of its weights cannot be recorded: {error}", self.resident.model.name());
            }
            self.resident.update_resident_bytes()?;
        }
        Ok(TimedOutputs { outputs, copy, wait: Duration::ZERO, compute: took - copy })
    }
}
