//! What all threads of a service share. One lock is over the scheduler and what it decides about; nobody computes, reads or
//! frees anything under it.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;

use super::device::{Doing, Job, Leaving, Run, ServingDevice};
use super::registry::Entry;
use super::request::Waiting;
use super::texts::Tokenizers;
use crate::executor::Model;
use crate::metrics::Metrics;
use crate::repository::Repository;
use crate::scheduler::{Batch, Decision, DeviceId, Eviction, ModelId, RequestId, Scheduler};

pub(super) struct Core {
    pub(super) origin: Instant,
    pub(super) architectures: Architectures,
    /// The devices, in the order of the scheduler's numbers.
    pub(super) devices: Vec<ServingDevice>,
    /// Bytes of the pieces in which weights leave.
    pub(super) chunk_bytes: u64,
    pub(super) max_queued: usize,
    pub(super) metrics: Metrics,
    /// Locked before the state.
    pub(super) repository: Mutex<Repository>,
    pub(super) state: Mutex<State>,
    /// Of models that were asked for the vectors of texts.
    pub(super) tokenizers: Tokenizers,
    /// A program has come or gone, or is in the way of a request; or the end has come.
    pub(super) background: Condvar,
    /// The scheduler wakes before [`State::timer`]; or the end has come.
    pub(super) sooner: Condvar,
    /// Models' folders are outdated, or the end has come.
    pub(super) woken: Condvar,
}

pub(super) struct State {
    pub(super) scheduler: Scheduler,
    /// By name.
    pub(super) entries: BTreeMap<String, Entry>,
    /// Those that are served.
    pub(super) models: HashMap<ModelId, Arc<Model>>,
    /// Models that are not served any more, and on how many devices each is yet to be freed.
    pub(super) removed: HashMap<ModelId, (Arc<Model>, usize)>,
    /// Accepted, and not answered.
    pub(super) requests: HashMap<RequestId, Waiting>,
    /// The work of each device.
    pub(super) doing: Vec<Doing>,
    /// How many workers ended with each model's batches, one after the other.
    pub(super) deaths: HashMap<ModelId, u32>,
    /// The folders are not what they were when they were looked at.
    pub(super) is_outdated: bool,
    /// When something happened last.
    pub(super) last_event: Duration,
    /// Whether programs in the background have the devices.
    pub(super) is_in_background: bool,
    /// The thread that keeps time sleeps until then; zero while it does not.
    pub(super) timer: Duration,
    pub(super) is_ending: bool,
}

impl Core {
    pub(super) fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Does what the scheduler decides. To be called after all that it is told.
    pub(super) fn advance(&self, state: &mut State) {
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
                    let running = &mut state.doing[device.index()].running;
                    if let Some((_, left)) = running.as_mut().filter(|(running, _)| *running == batch)
                        && left.remove(&request)
                        && left.is_empty()
                    {
                        self.device(device).backend.abandon();
                    }
                }
                Decision::Unload { device, model } => self.unload_from(state, device, model),
            }
        }
        // A thread is woken only if there is something for it: that takes longer than all else here.
        let now = self.now();
        state.last_event = now;
        if self.must_yield(state, now) {
            self.background.notify_one();
        }
        if state.scheduler.next_wake(now).is_some_and(|wake| wake < state.timer) {
            self.sooner.notify_one();
        }
        for device in self.devices.iter().filter(|device| state.upcoming(device.id, now).is_some()) {
            device.upcoming.notify_one();
        }
    }

    pub(super) fn count_queued(&self, state: &State, id: ModelId, model: &Model) {
        self.metrics.queued(model.name(), state.scheduler.queued(id) as u64);
    }

    fn run(&self, state: &mut State, batch: Batch) {
        let Batch { id, device, model, requests, load_bytes, evict, .. } = batch;
        let Some(running) = state.models.get(&model).cloned() else { return };
        let evict = self.leaving(state, &evict);
        self.count_queued(state, model, &running);
        let chosen = Instant::now();
        let (is_load, inputs, rows) = (load_bytes > 0, Vec::new(), Vec::new());
        let mut run = Run { id, model, running, is_load, evict, requests, inputs, rows };
        for request in &run.requests {
            if let Some(waiting) = state.requests.get_mut(request) {
                run.rows.push(waiting.rows);
                run.inputs.push(mem::take(&mut waiting.inputs));
                waiting.chosen = chosen;
            }
        }
        state.doing[device.index()].running = Some((id, run.requests.iter().copied().collect()));
        self.device(device).send(Job::Run(run));
    }

    /// Has a removed model leave a device. It is gone when it has left all devices, and nobody else has it.
    fn unload_from(&self, state: &mut State, device: DeviceId, id: ModelId) {
        let Some((model, devices)) = state.removed.get_mut(&id) else { return };
        self.device(device).send(Job::Free(Arc::clone(model)));
        *devices -= 1;
        if *devices == 0 {
            state.removed.remove(&id);
        }
    }

    pub(super) fn device(&self, device: DeviceId) -> &ServingDevice {
        &self.devices[device.index()]
    }

    /// The models that leave.
    pub(super) fn leaving(&self, state: &State, evictions: &[Eviction]) -> Vec<Leaving> {
        let of = |eviction: &Eviction| {
            let bytes = eviction.chunks.saturating_mul(self.chunk_bytes);
            Some(Leaving { model: state.models.get(&eviction.model)?.clone(), bytes })
        };
        evictions.iter().filter_map(of).collect()
    }
}

impl State {
    /// Nothing but a scheduler of so many devices.
    pub(super) fn new(scheduler: Scheduler, devices: usize) -> Self {
        Self {
            scheduler,
            entries: BTreeMap::new(),
            models: HashMap::new(),
            removed: HashMap::new(),
            requests: HashMap::new(),
            doing: (0..devices).map(|_| Doing::default()).collect(),
            deaths: HashMap::new(),
            is_outdated: false,
            last_event: Duration::ZERO,
            is_in_background: false,
            timer: Duration::ZERO,
            is_ending: false,
        }
    }

    /// Whether the scheduler takes a model's weights, or some of them, for absent. It may promise their room to others.
    pub(super) fn is_absent(&self, device: DeviceId, model: ModelId) -> bool {
        self.scheduler.residency(device).missing_bytes(model) != Some(0)
    }

    /// The model to be brought to a device next. What did not come has to wait for its turn.
    pub(super) fn upcoming(&self, device: DeviceId, now: Duration) -> Option<ModelId> {
        let missed = self.doing[device.index()].missed;
        self.scheduler.upcoming(device, now).filter(|next| missed != Some(*next))
    }
}
