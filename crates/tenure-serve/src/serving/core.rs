//! The state that all threads of a service share. One lock guards the scheduler and everything that it decides about;
//! no thread computes, reads files or frees memory under it.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;

use super::device::{BatchRun, DeviceJob, DeviceWork, PlannedEviction, RunningRequests, ServingDevice};
use super::registry::Entry;
use super::request::Waiting;
use super::texts::Tokenizers;
use crate::executor::{BatchControl, OpenModel};
use crate::metrics::Metrics;
use crate::repository::Repository;
use crate::scheduler::{Batch, Decision, DeviceId, Eviction, ModelId, RequestId, Scheduler};

/// The state that all threads of a service share, and the conditions that they wait for.
pub(super) struct Core {
    /// The origin of the scheduler's times.
    pub(super) origin: Instant,
    pub(super) architectures: Architectures,
    /// The devices, in the order of their numbers in the scheduler.
    pub(super) devices: Vec<ServingDevice>,
    /// The size in bytes of the chunks in which weights are evicted.
    pub(super) chunk_bytes: u64,
    /// The most requests that may wait for a model.
    pub(super) max_queued: usize,
    pub(super) metrics: Metrics,
    /// Locked before the state.
    pub(super) repository: Mutex<Repository>,
    pub(super) state: Mutex<CoreState>,
    /// The tokenizers of models that were asked for embeddings of texts.
    pub(super) tokenizers: Tokenizers,
    /// Notified when a background program connects or disconnects or must yield to a request, and at the end.
    pub(super) background: Condvar,
    /// Notified when the scheduler must be polled before [`CoreState::timer`], and at the end.
    pub(super) poll_wanted: Condvar,
    /// Notified when models' folders are outdated, and at the end.
    pub(super) rescan_wanted: Condvar,
}

/// The part of [`Core`] that its lock guards.
pub(super) struct CoreState {
    pub(super) scheduler: Scheduler,
    /// The models by name.
    pub(super) entries: BTreeMap<String, Entry>,
    /// The models that are served.
    pub(super) models: HashMap<ModelId, Arc<OpenModel>>,
    /// Models that are no longer served, each with the number of devices on which it is still to be freed.
    pub(super) removed: HashMap<ModelId, (Arc<OpenModel>, usize)>,
    /// Requests that were accepted and not answered yet.
    pub(super) requests: HashMap<RequestId, Waiting>,
    /// The work of each device.
    pub(super) device_work: Vec<DeviceWork>,
    /// The number of workers in a row that ended with each model's batches.
    pub(super) deaths: HashMap<ModelId, u32>,
    /// Whether a model's files changed since its folder was read.
    pub(super) is_outdated: bool,
    /// The time of the last call of [`Core::advance`]: a request came, or a batch or copy ended.
    pub(super) last_event: Duration,
    /// Whether background programs may use the devices.
    pub(super) is_in_background: bool,
    /// The time until which the timer thread sleeps; zero while it does not sleep.
    pub(super) timer: Duration,
    pub(super) is_ending: bool,
}

impl Core {
    /// Returns the scheduler's time: the time since the origin.
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Carries out the scheduler's decisions. Must be called after each report to the scheduler.
    pub(super) fn advance(&self, state: &mut CoreState) {
        while let Some(decision) = state.scheduler.poll(self.now()) {
            match decision {
                Decision::Run(batch) => self.run(state, batch),
                Decision::Answer { request, outcome } => {
                    if let Some(waiting) = state.requests.remove(&request) {
                        self.count_queued(state, waiting.id, &waiting.model);
                        waiting.refuse(outcome);
                    }
                }
                Decision::Discard { device, batch, request } => {
                    if let Some(batch) = state.device_work[device.index()].running.get_mut(&batch)
                        && batch.left.remove(&request)
                        && batch.left.is_empty()
                    {
                        batch.control.abandon();
                    }
                }
                Decision::Unload { device, model } => self.unload_from(state, device, model),
            }
        }
        // A thread is woken only if there is work for it: waking takes longer than everything else here.
        let now = self.now();
        state.last_event = now;
        if self.must_yield(state, now) {
            self.background.notify_one();
        }
        if state.scheduler.next_wake(now).is_some_and(|wake| wake < state.timer) {
            self.poll_wanted.notify_one();
        }
        for device in self.devices.iter().filter(|device| state.upcoming(device.id, now).is_some()) {
            device.upcoming.notify_one();
        }
    }

    /// Updates the metric of how many requests wait for a model.
    pub(super) fn count_queued(&self, state: &CoreState, id: ModelId, model: &OpenModel) {
        self.metrics.queued(model.name(), state.scheduler.queued(id) as u64);
    }

    /// Passes a batch to its device's threads.
    fn run(&self, state: &mut CoreState, batch: Batch) {
        let Batch { id, device, model, requests, load_bytes, evict, .. } = batch;
        let Some(running) = state.models.get(&model).cloned() else { return };
        let evict = self.planned_evictions(state, &evict);
        self.count_queued(state, model, &running);
        let chosen = Instant::now();
        let is_load = load_bytes > 0;
        let control = Arc::new(BatchControl::default());
        let left = requests.iter().copied().collect();
        state.device_work[device.index()]
            .running
            .insert(id, RunningRequests { model, left, control: Arc::clone(&control) });
        let inputs = Vec::new();
        let mut run = BatchRun { id, model, running, is_load, evict, requests, inputs, rows: Vec::new(), control };
        for request in &run.requests {
            if let Some(waiting) = state.requests.get_mut(request) {
                run.rows.push(waiting.rows);
                run.inputs.push(mem::take(&mut waiting.inputs));
                waiting.chosen = chosen;
            }
        }
        self.device(device).send(DeviceJob::Run(run));
    }

    /// Frees a removed model on a device. The model is gone once it has left all devices and no other thread holds it.
    fn unload_from(&self, state: &mut CoreState, device: DeviceId, id: ModelId) {
        let Some((model, devices)) = state.removed.get_mut(&id) else { return };
        self.device(device).send(DeviceJob::Free(Arc::clone(model)));
        *devices -= 1;
        if *devices == 0 {
            state.removed.remove(&id);
        }
    }

    pub(super) fn device(&self, device: DeviceId) -> &ServingDevice {
        &self.devices[device.index()]
    }

    /// Returns the scheduler's evictions with their models and bytes.
    pub(super) fn planned_evictions(&self, state: &CoreState, evictions: &[Eviction]) -> Vec<PlannedEviction> {
        let mut planned = Vec::with_capacity(evictions.len());
        for eviction in evictions {
            if let Some(model) = state.models.get(&eviction.model) {
                let bytes = eviction.chunks.saturating_mul(self.chunk_bytes);
                planned.push(PlannedEviction { model: Arc::clone(model), bytes });
            }
        }
        planned
    }
}

impl CoreState {
    /// Creates the state of a service without models, with this many devices.
    pub(super) fn new(scheduler: Scheduler, devices: usize) -> Self {
        Self {
            scheduler,
            entries: BTreeMap::new(),
            models: HashMap::new(),
            removed: HashMap::new(),
            requests: HashMap::new(),
            device_work: (0..devices).map(|_| DeviceWork::default()).collect(),
            deaths: HashMap::new(),
            is_outdated: false,
            last_event: Duration::ZERO,
            is_in_background: false,
            timer: Duration::ZERO,
            is_ending: false,
        }
    }

    /// Returns whether the scheduler counts some of a model's weights as absent. It may promise their room to other
    /// models.
    pub(super) fn is_absent(&self, device: DeviceId, model: ModelId) -> bool {
        self.scheduler.residency(device).missing_bytes(model) != Some(0)
    }

    /// Returns the model to load ahead on a device. A model whose loading just failed is not loaded ahead again: it
    /// waits for its batch.
    pub(super) fn upcoming(&self, device: DeviceId, now: Duration) -> Option<ModelId> {
        let failed_load = self.device_work[device.index()].failed_load;
        self.scheduler.upcoming(device, now).filter(|next| failed_load != Some(*next))
    }
}
