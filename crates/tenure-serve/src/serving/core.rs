//! What all threads of a service share. One lock is over the scheduler and what it decides about; nobody computes, reads or
//! frees anything under it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;

use super::registry::Entry;
use super::request::Waiting;
use super::texts::Tokenizers;
use super::threads::{Job, Run};
use crate::executor::{Backend, Model};
use crate::metrics::Metrics;
use crate::repository::Repository;
use crate::scheduler::{Batch, BatchId, Decision, DeviceId, Eviction, ModelId, RequestId, Scheduler};

pub(super) struct Core {
    pub(super) origin: Instant,
    pub(super) architectures: Architectures,
    pub(super) backend: Box<dyn Backend>,
    /// Bytes of the pieces in which weights leave.
    pub(super) chunk_bytes: u64,
    pub(super) max_queued: usize,
    pub(super) metrics: Metrics,
    pub(super) device: DeviceId,
    /// Locked before the state.
    pub(super) repository: Mutex<Repository>,
    pub(super) state: Mutex<State>,
    /// Of models that were asked for the vectors of texts.
    pub(super) tokenizers: Tokenizers,
    /// Held from a decision about what is brought ahead until that is on its way, and while what a batch needs is: a batch finds
    /// what was promised. Locked before the state.
    pub(super) moves: Mutex<()>,
    /// What is to be brought next, or the time of the scheduler's next wake, may be another; or the end has come.
    pub(super) changed: Condvar,
    pub(super) ended: Condvar,
    pub(super) jobs: mpsc::Sender<Job>,
}

pub(super) struct State {
    pub(super) scheduler: Scheduler,
    /// By name.
    pub(super) entries: BTreeMap<String, Entry>,
    /// Those that are served.
    pub(super) models: HashMap<ModelId, Arc<Model>>,
    /// Accepted, and not answered.
    pub(super) requests: HashMap<RequestId, Waiting>,
    /// The batch that was given to the executor last, and which of its requests somebody waits for.
    pub(super) running: Option<(BatchId, HashSet<RequestId>)>,
    /// How many workers ended with each model's batches, one after the other.
    pub(super) deaths: HashMap<ModelId, u32>,
    /// The last model whose weights were to be brought and did not come.
    pub(super) missed: Option<ModelId>,
    pub(super) is_ending: bool,
}

/// A model that leaves the device's memory, or the end of it.
pub(super) struct Leaving {
    pub(super) model: Arc<Model>,
    /// So many bytes of it.
    pub(super) bytes: u64,
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
                Decision::Discard { batch, request, .. } => {
                    if let Some((_, left)) = state.running.as_mut().filter(|(running, _)| *running == batch)
                        && left.remove(&request)
                        && left.is_empty()
                    {
                        self.backend.abandon();
                    }
                }
                // A model is freed when the last that has it lets go.
                Decision::Unload { .. } => {}
            }
        }
        self.changed.notify_all();
    }

    pub(super) fn count_queued(&self, state: &State, id: ModelId, model: &Model) {
        self.metrics.queued(model.name(), state.scheduler.queued(id) as u64);
    }

    fn run(&self, state: &mut State, batch: Batch) {
        let Batch { id, model, requests, load_bytes, evict, .. } = batch;
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
        state.running = Some((id, run.requests.iter().copied().collect()));
        self.send(Job::Run(run));
    }

    /// The models that leave.
    pub(super) fn leaving(&self, state: &State, evictions: &[Eviction]) -> Vec<Leaving> {
        let of = |eviction: &Eviction| {
            let bytes = eviction.chunks.saturating_mul(self.chunk_bytes);
            Some(Leaving { model: state.models.get(&eviction.model)?.clone(), bytes })
        };
        evictions.iter().filter_map(of).collect()
    }

    pub(super) fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            tracing::error!("the executor is gone: start the server again");
        }
    }
}

impl State {
    /// Nothing but a scheduler.
    pub(super) fn new(scheduler: Scheduler) -> Self {
        let (entries, models, requests, deaths) = Default::default();
        Self { scheduler, entries, models, requests, running: None, deaths, missed: None, is_ending: false }
    }
}
