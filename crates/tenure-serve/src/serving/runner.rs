//! The threads of a device: one brings the weights of the chosen batches, others compute them, and one loads weights
//! ahead.

use std::slice;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::core::{Core, CoreState};
use super::device::{BatchRun, BroughtBatch, DeviceJob, PlannedEviction, ServingDevice};
use super::requests::{Answer, PendingRequest};
use crate::executor::{BatchAnswer, ModelError, OpenModel};
use crate::metrics::{Phases, WeightsFound};
use crate::scheduler::{DeviceId, ModelId};
use crate::service::ServeError;

/// The number of workers in a row that may end with a model's batches before the model rests, and how long it rests then
/// and at most. Each further worker doubles the rest.
const DEATHS_BEFORE_REST: u32 = 2;
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The longest time that a batch waits for memory that other models are still freeing for it.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

/// The work of a device's threads: it frees and loads weights, computes batches, and reports to the scheduler. It takes
/// the service's lock for each report, and never holds it while it works.
#[derive(Clone)]
pub(super) struct DeviceRunner {
    pub(super) core: Arc<Core>,
    pub(super) id: DeviceId,
}

/// The answers of a batch and how it ended.
struct BatchResult {
    /// The phases of its time, if it was computed as one.
    spent: Option<Phases>,
    answers: Vec<Answer>,
    /// The process that computed is gone.
    has_died: bool,
    /// The batch failed and its weights are still there: only the process that computed is gone, or never was.
    keeps_weights: bool,
}

impl DeviceRunner {
    fn device(&self) -> &ServingDevice {
        self.core.device(self.id)
    }

    /// Does the device's jobs, one after the other, until [`DeviceJob::End`]. So memory is freed before it is given to the
    /// next model.
    pub(super) fn bring(&self, jobs: &mpsc::Receiver<DeviceJob>, brought: &mpsc::Sender<BroughtBatch>) {
        for job in jobs {
            match job {
                DeviceJob::Run(run) => {
                    let loaded = self.begin_load(&run);
                    // The threads that compute end after this one.
                    let _ = brought.send(BroughtBatch { run, loaded });
                }
                // Batches that need the weights come before this job, and batches that were promised their memory after
                // it.
                DeviceJob::Free(model) => self.evict_all(&model),
                DeviceJob::End => return,
            }
        }
    }

    /// Frees memory for a batch, and begins to load its missing weights.
    fn begin_load(&self, run: &BatchRun) -> Result<(), ModelError> {
        let loading = self.device().load_lock.lock();
        self.evict(&run.evict);
        let loaded = run.running.load(self.id, ROOM_PATIENCE);
        drop(loading);
        if run.is_load {
            self.report_when_loaded(run.model, &run.running);
        }
        loaded
    }

    /// Computes batches, until no more are brought.
    pub(super) fn execute(&self, brought: &Mutex<mpsc::Receiver<BroughtBatch>>) {
        loop {
            // The lock is released before the batch is computed.
            let next = brought.lock().recv();
            let Ok(batch) = next else { return };
            self.compute(batch);
        }
    }

    /// Computes a batch, reports to the scheduler, and answers the requests.
    fn compute(&self, BroughtBatch { run, loaded }: BroughtBatch) {
        let begun = Instant::now();
        self.core.state.lock().requests.scheduler.started(run.id, self.core.now());
        let computed = self.outputs(&run, &loaded);
        let loaded = self.confirm_weights(&run, loaded);
        let result = self.result(&run, loaded, computed);
        let spent = result.spent;
        let answers = self.report(&run, result);
        if let Some(spent) = spent {
            self.count_phases(&run, begun, spent, &answers);
        }
        for (waiting, answer) in answers {
            waiting.answer(answer);
        }
    }

    /// Computes a batch's outputs, unless its weights could not be loaded or no client waits for it.
    fn outputs(&self, run: &BatchRun, loaded: &Result<(), ModelError>) -> Result<BatchAnswer, ModelError> {
        match loaded {
            Ok(()) if run.control.is_abandoned() => Err(ModelError::Abandoned),
            Ok(()) => run.running.compute(self.id, &run.inputs, &run.rows, &run.control),
            Err(_) => Err(ModelError::NoWeights),
        }
    }

    /// Returns whether a batch's weights were loaded to their end, and frees them if not.
    fn confirm_weights(&self, run: &BatchRun, loaded: Result<(), ModelError>) -> Result<(), ModelError> {
        let model = &run.running;
        let loaded = loaded.and_then(|()| model.loaded(self.id).inspect_err(|_| model.on(self.id).evict(u64::MAX)));
        self.count_resident(model);
        self.core.rescan_if_changed(&loaded);
        loaded
    }

    /// Returns the answers of a batch, and how it ended.
    fn result(
        &self,
        run: &BatchRun,
        loaded: Result<(), ModelError>,
        computed: Result<BatchAnswer, ModelError>,
    ) -> BatchResult {
        let has_died = matches!(computed, Err(ModelError::Lost(_)));
        let keeps_weights = loaded.is_ok()
            && matches!(computed, Err(ModelError::Lost(_) | ModelError::OutOfMemory(_) | ModelError::Abandoned));
        let (spent, answers) = match loaded {
            Ok(()) => self.answers(run, computed),
            Err(error) => (None, same_error(error, run.requests.len())),
        };
        BatchResult { spent, answers, has_died, keeps_weights }
    }

    /// Reports the end of a batch to the scheduler, and carries out what that decides. Returns the requests that are still
    /// to be answered, with their answers.
    fn report(&self, run: &BatchRun, result: BatchResult) -> Vec<(PendingRequest, Answer)> {
        let BatchResult { spent, answers, has_died, keeps_weights } = result;
        let core = &*self.core;
        let mut state = core.state.lock();
        state.device_work[self.id.index()].running.remove(&run.id);
        if has_died {
            self.rest_after_death(&mut state, run);
        } else if spent.is_some() {
            state.registry.deaths.remove(&run.model);
        }
        let finished = match keeps_weights {
            true => state.requests.scheduler.interrupted(run.id, core.now()),
            false => state.requests.scheduler.finished(run.id, spent.map(|spent| spent.compute), core.now()),
        };
        let answers = run.requests.iter().zip(answers).filter(|(request, _)| finished.contains(request));
        let answers = answers.filter_map(|(request, answer)| Some((state.requests.take(*request)?, answer))).collect();
        // After a failed batch the scheduler may count weights as absent, and it gives the memory of a removed model to
        // others.
        if state.is_absent(self.id, run.model) {
            MutexGuard::unlocked(&mut state, || self.evict_all(&run.running));
        }
        core.advance(&mut state);
        answers
    }

    /// Counts the phases of a batch and of its answered requests. Other threads may use the state meanwhile.
    fn count_phases(&self, run: &BatchRun, begun: Instant, spent: Phases, answers: &[(PendingRequest, Answer)]) {
        let answered: Vec<&PendingRequest> =
            answers.iter().filter(|(_, answer)| answer.is_ok()).map(|(waiting, _)| waiting).collect();
        if answered.is_empty() {
            return;
        }
        let metrics = &self.core.metrics;
        let name = run.running.name();
        metrics.executed(name, run.rows.iter().copied().map(u64::from).sum(), spent);
        let mut counted = Vec::with_capacity(answered.len());
        for waiting in answered {
            let phases = waiting.phases(begun, spent);
            if let Some(record) = &waiting.record {
                record.computed(waiting.rows, phases);
            }
            if waiting.is_last {
                counted.push(phases);
            }
        }
        // Weights that were loaded ahead may still have been on their way.
        let has_waited = spent.copy + spent.wait > Duration::ZERO;
        let found = if run.is_load || has_waited { WeightsFound::Switched } else { WeightsFound::Resident };
        metrics.all_computed(name, &counted, found);
    }

    /// Counts another worker that ended while it computed a model's batch. After several in a row the model rests, so
    /// that its workers do not take all of the machine's time.
    fn rest_after_death(&self, state: &mut CoreState, run: &BatchRun) {
        let deaths = state.registry.deaths.entry(run.model).or_default();
        *deaths += 1;
        if let Some(doublings) = deaths.checked_sub(DEATHS_BEFORE_REST) {
            let rest = FIRST_REST.saturating_mul(1 << doublings.min(10)).min(LONGEST_REST);
            tracing::warn!("{deaths} workers in a row ended with {}: it rests for {rest:?}", run.running.name());
            state.requests.scheduler.rest(run.model, self.core.now() + rest);
        }
    }

    /// Loads weights that are needed next on a device while it computes with others, one model after the other.
    pub(super) fn load_ahead(&self) {
        let device = self.device();
        loop {
            let loading = device.load_lock.lock();
            let mut state = self.core.state.lock();
            if state.is_ending {
                return;
            }
            let Some((id, model, evict)) = self.next_load(&mut state) else {
                drop(loading);
                device.upcoming.wait(&mut state);
                continue;
            };
            drop(state);
            self.evict(&evict);
            let loaded = model.load(self.id, Duration::ZERO);
            if let Err(error) = &loaded {
                tracing::debug!("{} is not loaded ahead: {error}", model.name());
            }
            // A failed batch of this model may have ended the copy meanwhile, and its room may have been promised to
            // another.
            if self.core.state.lock().is_absent(self.id, id) {
                self.evict_all(&model);
            }
            drop(loading);
            self.core.rescan_if_changed(&loaded);
            self.report_when_loaded(id, &model);
        }
    }

    /// Decides which model to load ahead on a device, and which evictions must come first.
    fn next_load(&self, state: &mut CoreState) -> Option<(ModelId, Arc<OpenModel>, Vec<PlannedEviction>)> {
        let now = self.core.now();
        let next = state.upcoming(self.id, now)?;
        let model = state.registry.served.get(&next)?.clone();
        // A model that finds no room must wait for its turn.
        let load = state.requests.scheduler.prefetch(self.id, next, now).ok()??;
        Some((next, model, self.core.planned_evictions(state, &load.evict)))
    }

    /// Arranges that the scheduler gets a report when the weights that are being loaded are there, or loading failed.
    fn report_when_loaded(&self, id: ModelId, model: &Arc<OpenModel>) {
        self.count_resident(model);
        let runner = self.clone();
        let loaded = Arc::clone(model);
        model.on(self.id).when_loaded(Box::new(move |took| runner.report_loaded(id, loaded, took)));
    }

    /// Reports that the weights of a model are there, and how long that took, or that loading them failed.
    fn report_loaded(&self, id: ModelId, model: Arc<OpenModel>, took: Option<Duration>) {
        let core = &*self.core;
        let mut state = core.state.lock();
        let state = &mut *state;
        let work = &mut state.device_work[self.id.index()];
        match took {
            Some(took) => {
                work.failed_load = work.failed_load.filter(|failed_load| *failed_load != id);
                core.metrics.switched(model.name(), took);
                let [to, from] = self.device().backend.tiers();
                core.metrics.copied(from, to, model.on(self.id).resident_bytes());
                state.requests.scheduler.loaded(self.id, id, took, core.now());
            }
            None => {
                work.failed_load = Some(id);
                state.requests.scheduler.load_failed(self.id, id);
            }
        }
        // Some weights may be in memory although the scheduler counts them as absent, such as groups that were loaded
        // before one that failed. They must be freed before the scheduler gives their memory to another model. A batch
        // that runs frees them when it ends.
        let runs = work.running.values().any(|batch| batch.model == id);
        if !runs && state.is_absent(self.id, id) {
            self.device().send(DeviceJob::Free(model));
        }
        core.advance(state);
    }

    /// Frees memory as planned.
    fn evict(&self, leaving: &[PlannedEviction]) {
        for PlannedEviction { model, bytes } in leaving {
            model.on(self.id).evict(*bytes);
            self.count_resident(model);
        }
    }

    /// Frees all memory of a model on a device.
    fn evict_all(&self, model: &OpenModel) {
        model.on(self.id).evict(u64::MAX);
        self.count_resident(model);
    }

    /// Updates the metric of a model's bytes on a device.
    fn count_resident(&self, model: &OpenModel) {
        let tier = self.device().backend.tiers()[0];
        self.core.metrics.resident(model.name(), tier, model.on(self.id).resident_bytes());
    }

    /// Returns the answers of a batch, and its phases if it was computed as one. If the batch failed, its requests are
    /// computed one by one, so that one bad request does not fail the others.
    fn answers(&self, run: &BatchRun, computed: Result<BatchAnswer, ModelError>) -> (Option<Phases>, Vec<Answer>) {
        match computed {
            Ok(answer) => (Some(phases(&answer)), answer.outputs.into_iter().map(Ok).collect()),
            // A retry would fail again, or no client waits for the answer.
            Err(
                error @ (ModelError::Lost(_)
                | ModelError::NoWorker(_)
                | ModelError::OutOfMemory(_)
                | ModelError::Abandoned),
            ) => (None, same_error(error, run.requests.len())),
            Err(_) if run.requests.len() > 1 => {
                let answers = run.inputs.iter().zip(&run.rows).map(|(inputs, rows)| {
                    let answer =
                        run.running.compute(self.id, slice::from_ref(inputs), slice::from_ref(rows), &run.control)?;
                    self.core.metrics.executed(run.running.name(), u64::from(*rows), phases(&answer));
                    Ok(answer.outputs.into_iter().next().unwrap_or_default())
                });
                (None, answers.collect())
            }
            Err(error) => (None, same_error(error, 1)),
        }
    }
}

/// Returns the phases of a batch's time. It waited in no queue of its own.
fn phases(BatchAnswer { copy, wait, compute, .. }: &BatchAnswer) -> Phases {
    Phases { queue: Duration::ZERO, copy: *copy, wait: *wait, compute: *compute }
}

/// Returns the same error for each of some requests.
fn same_error(error: ModelError, requests: usize) -> Vec<Answer> {
    let message = error.to_string();
    let variant: fn(String) -> ServeError = match ServeError::from(error) {
        ServeError::Malformed(_) => ServeError::Malformed,
        ServeError::TryAgain(_) => ServeError::TryAgain,
        ServeError::TooMuchMemory(_) => ServeError::TooMuchMemory,
        _ => ServeError::Failed,
    };
    (0..requests).map(|_| Err(variant(message.clone()))).collect()
}
