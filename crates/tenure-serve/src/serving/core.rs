//! The state that all threads of a service share: its requests, its models, and the work of its devices.
//!
//! One lock guards all three, since each decision of the scheduler concerns all of them: a batch takes requests out of
//! their queue, uses a model and occupies a device. No thread computes, reads files or frees memory under the lock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;

use super::device::{BatchRun, DeviceJob, DeviceWork, PlannedEviction, RunningRequests, ServingDevice};
use super::registry::Registry;
use super::requests::Requests;
use crate::executor::{BatchControl, ModelError, OpenModel};
use crate::metrics::Metrics;
use crate::repository::Repository;
use crate::scheduler::{Batch, Decision, DeviceId, Eviction, ModelId, Scheduler};
use crate::service::Tokenizer;

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
    /// The tokenizers of models that were asked for embeddings of texts, each read at the first such request. A model that
    /// is loaded again has a new id.
    pub(super) tokenizers: Mutex<BTreeMap<ModelId, Tokenizer>>,
    /// Notified when a background program connects or disconnects or must yield to a request, and at the end.
    pub(super) background: Condvar,
    /// Notified when the scheduler must be polled before [`CoreState::timer`], and at the end.
    pub(super) poll_wanted: Condvar,
    /// Notified when models' folders are outdated, and at the end.
    pub(super) rescan_wanted: Condvar,
}

/// The part of [`Core`] that its lock guards.
pub(super) struct CoreState {
    pub(super) requests: Requests,
    pub(super) registry: Registry,
    /// The work of each device.
    pub(super) device_work: Vec<DeviceWork>,
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
        while let Some(decision) = state.requests.scheduler.poll(self.now()) {
            match decision {
                Decision::Run(batch) => self.run(state, batch),
                Decision::Answer { request, outcome } => {
                    if let Some(waiting) = state.requests.take(request) {
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
                Decision::Unload { device, model } => {
                    if let Some(model) = state.registry.take_from_device(model) {
                        self.device(device).send(DeviceJob::Free(model));
                    }
                }
            }
        }
        // A thread is woken only if there is work for it: waking takes longer than everything else here.
        let now = self.now();
        state.last_event = now;
        if self.must_yield(state, now) {
            self.background.notify_one();
        }
        if state.requests.scheduler.next_wake(now).is_some_and(|wake| wake < state.timer) {
            self.poll_wanted.notify_one();
        }
        for device in self.devices.iter().filter(|device| state.upcoming(device.id, now).is_some()) {
            device.upcoming.notify_one();
        }
    }

    /// Updates the metric of how many requests wait for a model.
    pub(super) fn count_queued(&self, state: &CoreState, id: ModelId, model: &OpenModel) {
        self.metrics.queued(model.name(), state.requests.scheduler.queued(id) as u64);
    }

    /// Passes a batch to its device's threads.
    fn run(&self, state: &mut CoreState, batch: Batch) {
        let Batch { id, device, model, requests, load_bytes, evict, .. } = batch;
        let Some(running) = state.registry.served.get(&model).cloned() else { return };
        let evict = self.planned_evictions(state, &evict);
        self.count_queued(state, model, &running);
        let is_load = load_bytes > 0;
        let control = Arc::new(BatchControl::default());
        let left = requests.iter().copied().collect();
        state.device_work[device.index()]
            .running
            .insert(id, RunningRequests { model, left, control: Arc::clone(&control) });
        let (rows, inputs) = state.requests.begin(&requests);
        let run = BatchRun { id, model, running, is_load, evict, requests, inputs, rows, control };
        self.device(device).send(DeviceJob::Run(run));
    }

    pub(super) fn device(&self, device: DeviceId) -> &ServingDevice {
        &self.devices[device.index()]
    }

    /// Returns the scheduler's evictions with their models and bytes.
    pub(super) fn planned_evictions(&self, state: &CoreState, evictions: &[Eviction]) -> Vec<PlannedEviction> {
        let mut planned = Vec::with_capacity(evictions.len());
        for eviction in evictions {
            if let Some(model) = state.registry.served.get(&eviction.model) {
                let bytes = eviction.chunks.saturating_mul(self.chunk_bytes);
                planned.push(PlannedEviction { model: Arc::clone(model), bytes });
            }
        }
        planned
    }

    /// Causes the folders to be read at once if a model's files changed.
    pub(super) fn rescan_if_changed(&self, loaded: &Result<(), ModelError>) {
        if let Err(ModelError::Changed { .. }) = loaded {
            self.state.lock().is_outdated = true;
            self.rescan_wanted.notify_all();
        }
    }

    /// Polls the scheduler at its wake times.
    pub(super) fn keep_time(&self) {
        let mut state = self.state.lock();
        while !state.is_ending {
            let now = self.now();
            let wake = state.requests.scheduler.next_wake(now).unwrap_or(Duration::MAX);
            state.timer = wake;
            match wake {
                Duration::MAX => self.poll_wanted.wait(&mut state),
                wake => {
                    self.poll_wanted.wait_for(&mut state, wake.saturating_sub(now));
                }
            }
            state.timer = Duration::ZERO;
            self.advance(&mut state);
        }
    }

    /// Reads the folders at an interval, and at once when they are known to be outdated.
    pub(super) fn watch(&self, interval: Duration) {
        loop {
            let end = Instant::now() + interval;
            let mut state = self.state.lock();
            while !state.is_ending && !state.is_outdated {
                if self.rescan_wanted.wait_until(&mut state, end).timed_out() {
                    break;
                }
            }
            if state.is_ending {
                return;
            }
            state.is_outdated = false;
            drop(state);
            if let Err(error) = self.rescan() {
                tracing::warn!("{error}: the served models stay unchanged");
            }
        }
    }
}

impl CoreState {
    /// Creates the state of a service without models, with this many devices.
    pub(super) fn new(scheduler: Scheduler, devices: usize) -> Self {
        Self {
            requests: Requests::new(scheduler),
            registry: Registry::default(),
            device_work: (0..devices).map(|_| DeviceWork::default()).collect(),
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
        self.requests.scheduler.residency(device).missing_bytes(model) != Some(0)
    }

    /// Returns the model to load ahead on a device. A model whose loading just failed is not loaded ahead again: it
    /// waits for its batch.
    pub(super) fn upcoming(&self, device: DeviceId, now: Duration) -> Option<ModelId> {
        let failed_load = self.device_work[device.index()].failed_load;
        self.requests.scheduler.upcoming(device, now).filter(|next| failed_load != Some(*next))
    }
}
