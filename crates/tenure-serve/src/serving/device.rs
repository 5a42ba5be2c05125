//! The devices of a service. Each computes batches one after the other, or those of several models at once.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};

use parking_lot::{Condvar, Mutex};

use crate::executor::{Backend, BatchControl, ModelError, OpenModel};
use crate::protocol::Tensor;
use crate::scheduler::{BatchId, DeviceId, ModelId, RequestId};
use crate::service::{Resident, Tier};

/// A device of a service. It has a thread that brings the weights of the chosen batches, threads that compute them, and
/// one that loads weights ahead.
pub(super) struct ServingDevice {
    pub(super) id: DeviceId,
    pub(super) backend: Box<dyn Backend>,
    /// Locked from the decision to load ahead until that load has started, and while a batch starts to load its
    /// weights. So no load takes memory that the scheduler gave to another. Locked before the state.
    pub(super) load_lock: Mutex<()>,
    /// Notified when there may be a model to load next, and at the end.
    pub(super) upcoming: Condvar,
    jobs: mpsc::Sender<DeviceJob>,
}

/// A device's batches and last failed load. The service's lock guards it.
#[derive(Default)]
pub(super) struct DeviceWork {
    /// The batches that were handed out and are not over.
    pub(super) running: HashMap<BatchId, RunningRequests>,
    /// The last model whose weights failed to load.
    pub(super) failed_load: Option<ModelId>,
}

/// The requests of a batch that runs.
pub(super) struct RunningRequests {
    pub(super) model: ModelId,
    /// The requests whose clients still wait. When there are none, the batch is abandoned.
    pub(super) left: HashSet<RequestId>,
    pub(super) control: Arc<BatchControl>,
}

/// A job of a device's thread, which does one job after the other.
pub(super) enum DeviceJob {
    /// Brings the weights of a batch, which another thread then computes.
    Run(BatchRun),
    /// Frees the weights of a model that is no longer served, or that the scheduler counts as absent. Freeing takes
    /// time, and must not come after a job that was promised their memory.
    Free(Arc<OpenModel>),
    /// Ends the thread.
    End,
}

/// A batch for a device's threads.
pub(super) struct BatchRun {
    pub(super) id: BatchId,
    pub(super) model: ModelId,
    pub(super) running: Arc<OpenModel>,
    /// Whether its weights are to be loaded.
    pub(super) is_load: bool,
    /// The evictions that must come first.
    pub(super) evict: Vec<PlannedEviction>,
    pub(super) requests: Vec<RequestId>,
    /// The inputs of each request, in the model's order.
    pub(super) inputs: Vec<Vec<Tensor>>,
    /// The rows of each request.
    pub(super) rows: Vec<u32>,
    pub(super) control: Arc<BatchControl>,
}

/// A batch whose weights are there or on their way, or could not be loaded.
pub(super) struct BroughtBatch {
    pub(super) run: BatchRun,
    pub(super) loaded: Result<(), ModelError>,
}

/// A model to evict from a device's memory, in whole or from its end.
pub(super) struct PlannedEviction {
    pub(super) model: Arc<OpenModel>,
    /// The bytes to free.
    pub(super) bytes: u64,
}

impl ServingDevice {
    /// Creates a device, and the receiver of its thread's jobs.
    pub(super) fn new(id: DeviceId, backend: Box<dyn Backend>) -> (Self, mpsc::Receiver<DeviceJob>) {
        let (jobs, receiver) = mpsc::channel();
        (Self { id, backend, load_lock: Mutex::default(), upcoming: Condvar::new(), jobs }, receiver)
    }

    pub(super) fn send(&self, job: DeviceJob) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the thread that computes is gone: start the server again");
        }
    }
}

/// Returns the bytes of a model's weights in the memory of each device that has some.
pub(super) fn resident(devices: &[ServingDevice], model: &OpenModel) -> Vec<Resident> {
    devices
        .iter()
        .filter_map(|device| {
            let bytes = model.on(device.id).resident_bytes();
            (bytes > 0).then(|| Resident { tier: device.backend.tiers()[0].into(), bytes })
        })
        .collect()
}

/// Returns the memory tiers: those of all devices first, then the tiers that they share.
pub(super) fn tiers(devices: &[ServingDevice]) -> Vec<Tier> {
    let mut tiers: Vec<Tier> = Vec::new();
    let all: Vec<_> = devices.iter().map(|device| device.backend.usage()).collect();
    let fastest = all.iter().filter_map(|tiers| tiers.first());
    let others = all.iter().flat_map(|tiers| tiers.iter().skip(1));
    for Tier { name, used_bytes, capacity_bytes } in fastest.chain(others) {
        match tiers.iter_mut().find(|tier| tier.name == *name) {
            Some(tier) => {
                tier.used_bytes += used_bytes;
                tier.capacity_bytes += capacity_bytes;
            }
            None => tiers.push(Tier { name: name.clone(), used_bytes: *used_bytes, capacity_bytes: *capacity_bytes }),
        }
    }
    tiers
}
