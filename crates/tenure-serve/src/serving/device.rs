//! A device that computes, one batch after the other.

use std::collections::HashSet;
use std::sync::{Arc, mpsc};

use parking_lot::{Condvar, Mutex};

use super::core::Core;
use crate::executor::{Backend, Model};
use crate::http::{Resident, Tier};
use crate::protocol::Tensor;
use crate::scheduler::{BatchId, DeviceId, ModelId, RequestId};

/// A device of a service. It has two threads: one computes, one brings weights ahead.
pub(super) struct ServingDevice {
    pub(super) id: DeviceId,
    pub(super) backend: Box<dyn Backend>,
    /// Held from a decision about what is brought ahead until that is on its way, and while what a batch needs is: a batch finds
    /// what was promised. Locked before the state.
    pub(super) moves: Mutex<()>,
    /// Something may be to be brought next; or the end has come.
    pub(super) upcoming: Condvar,
    jobs: mpsc::Sender<Job>,
}

/// The work of a device, under the service's lock.
#[derive(Default)]
pub(super) struct Doing {
    /// The batch that was given to its thread last, and which of its requests somebody waits for.
    pub(super) running: Option<(BatchId, HashSet<RequestId>)>,
    /// The last model whose weights were to be brought and did not come.
    pub(super) missed: Option<ModelId>,
}

/// A job of a device's thread, which does one after the other.
pub(super) enum Job {
    /// Computes a batch.
    Run(Run),
    /// Frees the weights of a model that is not served any more, or that the scheduler takes for absent. Freeing takes time, and must
    /// not come after what was promised their memory.
    Free(Arc<Model>),
    /// Nothing follows.
    End,
}

pub(super) struct Run {
    pub(super) id: BatchId,
    pub(super) model: ModelId,
    pub(super) running: Arc<Model>,
    /// Its weights are to be brought.
    pub(super) is_load: bool,
    /// What leaves before.
    pub(super) evict: Vec<Leaving>,
    pub(super) requests: Vec<RequestId>,
    /// Of each request, in the model's order.
    pub(super) inputs: Vec<Vec<Tensor>>,
    pub(super) rows: Vec<u32>,
}

/// A model that leaves a device's memory, or the end of it.
pub(super) struct Leaving {
    pub(super) model: Arc<Model>,
    /// So many bytes of it.
    pub(super) bytes: u64,
}

impl ServingDevice {
    /// A device, and the jobs that its thread is to do.
    pub(super) fn new(id: DeviceId, backend: Box<dyn Backend>) -> (Self, mpsc::Receiver<Job>) {
        let (jobs, receiver) = mpsc::channel();
        (Self { id, backend, moves: Mutex::default(), upcoming: Condvar::new(), jobs }, receiver)
    }

    pub(super) fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the thread that computes is gone: start the server again");
        }
    }
}

impl Core {
    /// Where a model's weights are.
    pub(super) fn resident(&self, model: &Model) -> Vec<Resident> {
        let on = |device: &ServingDevice| {
            let bytes = model.on(device.id).resident_bytes();
            (bytes > 0).then(|| Resident { tier: device.backend.tiers()[0].into(), bytes })
        };
        self.devices.iter().filter_map(on).collect()
    }

    /// The memory of all devices, and then what they share.
    pub(super) fn tiers(&self) -> Vec<Tier> {
        let mut tiers: Vec<Tier> = Vec::new();
        let all: Vec<_> = self.devices.iter().map(|device| device.backend.usage()).collect();
        let (fastest, others) =
            (all.iter().filter_map(|tiers| tiers.first()), all.iter().flat_map(|tiers| tiers.iter().skip(1)));
        for Tier { name, used_bytes, capacity_bytes } in fastest.chain(others) {
            match tiers.iter_mut().find(|tier| tier.name == *name) {
                Some(tier) => {
                    tier.used_bytes += used_bytes;
                    tier.capacity_bytes += capacity_bytes;
                }
                None => {
                    tiers.push(Tier { name: name.clone(), used_bytes: *used_bytes, capacity_bytes: *capacity_bytes })
                }
            }
        }
        tiers
    }
}
