//! The threads of a service: for each device, one brings the weights of the chosen batches, others compute them, and one
//! loads weights ahead; one keeps time and one watches the folders.

use std::slice;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::core::{Core, CoreState};
use super::device::{BatchRun, BroughtBatch, DeviceJob, PlannedEviction, ServingDevice};
use crate::executor::{BatchAnswer, ModelError, OpenModel};
use crate::metrics::{Phases, WeightsFound};
use crate::protocol::Tensor;
use crate::scheduler::{DeviceId, ModelId};
use crate::service::ServeError;

/// The number of workers in a row that may end with a model's batches before the model rests, and how long it rests then
/// and at most. Each further worker doubles the rest.
const DEATHS_BEFORE_REST: u32 = 2;
const FIRST_REST: Duration = Duration::from_millis(100);
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The longest time that a batch waits for memory that other models are still freeing for it.
const ROOM_PATIENCE: Duration = Duration::from_secs(5);

impl Core {
    /// Does a device's jobs, one after the other, until [`DeviceJob::End`]. So memory is freed before it is given to the
    /// next model.
    pub(super) fn bring(
        self: &Arc<Self>,
        device: DeviceId,
        jobs: &mpsc::Receiver<DeviceJob>,
        brought: &mpsc::Sender<BroughtBatch>,
    ) {
        let device = self.device(device);
        for job in jobs {
            match job {
                DeviceJob::Run(run) => {
                    let loaded = self.begin_load(device, &run);
                    // The threads that compute end after this one.
                    let _ = brought.send(BroughtBatch { run, loaded });
                }
                // Batches that need the weights come before this job, and batches that were promised their memory after
                // it.
                DeviceJob::Free(model) => self.evict_all(device, &model),
                DeviceJob::End => return,
            }
        }
    }

    /// Frees memory for a batch, and begins to load its missing weights.
    fn begin_load(self: &Arc<Self>, device: &ServingDevice, run: &BatchRun) -> Result<(), ModelError> {
        let loading = device.load_lock.lock();
        self.evict(device, &run.evict);
        let loaded = run.running.load(device.id, ROOM_PATIENCE);
        drop(loading);
        if run.is_load {
            self.report_when_loaded(device, run.model, &run.running);
        }
        loaded
    }

    /// Computes batches, until no more are brought.
    pub(super) fn execute(self: &Arc<Self>, device: DeviceId, brought: &Mutex<mpsc::Receiver<BroughtBatch>>) {
        loop {
            let next = brought.lock().recv();
            let Ok(BroughtBatch { run, loaded }) = next else { return };
            self.compute(self.device(device), run, loaded);
        }
    }

    /// Computes a batch, reports to the scheduler, and answers the requests.
    fn compute(self: &Arc<Self>, device: &ServingDevice, run: BatchRun, mut loaded: Result<(), ModelError>) {
        let model = &*run.running;
        let begun = Instant::now();
        self.state.lock().scheduler.started(run.id, self.now());
        let computed = match &loaded {
            Ok(()) if run.control.is_abandoned() => Err(ModelError::Abandoned),
            Ok(()) => model.compute(device.id, &run.inputs, &run.rows, &run.control),
            Err(_) => Err(ModelError::NoWeights),
        };
        if loaded.is_ok() {
            loaded = model.loaded(device.id).inspect_err(|_| model.on(device.id).evict(u64::MAX));
        }
        self.count_resident(device, model);
        self.rescan_if_changed(&loaded);
        let has_died = matches!(computed, Err(ModelError::Lost(_)));
        // The weights are still there if only the process that computed is gone, or never was.
        let is_interrupted = loaded.is_ok()
            && matches!(computed, Err(ModelError::Lost(_) | ModelError::OutOfMemory(_) | ModelError::Abandoned));
        let (spent, answers) = match loaded {
            Ok(()) => self.answers(device.id, &run, computed),
            Err(error) => (None, same_error(error, run.requests.len())),
        };
        // Weights that were loaded ahead may still have been on their way.
        let has_waited = spent.is_some_and(|spent| spent.copy + spent.wait > Duration::ZERO);
        let found = if run.is_load || has_waited { WeightsFound::Switched } else { WeightsFound::Resident };
        let mut state = self.state.lock();
        state.device_work[device.id.index()].running.remove(&run.id);
        if has_died {
            self.rest_after_death(&mut state, &run);
        } else if spent.is_some() {
            state.deaths.remove(&run.model);
        }
        let finished = match is_interrupted {
            true => state.scheduler.interrupted(run.id, self.now()),
            false => state.scheduler.finished(run.id, spent.map(|spent| spent.compute), self.now()),
        };
        let answers = run.requests.iter().zip(answers).filter(|(request, _)| finished.contains(request));
        let answers: Vec<_> =
            answers.filter_map(|(request, answer)| Some((state.requests.remove(request)?, answer))).collect();
        // After a failed batch the scheduler may count weights as absent, and it gives the memory of a removed model to
        // others.
        if state.is_absent(device.id, run.model) {
            drop(state);
            self.evict_all(device, model);
            state = self.state.lock();
        }
        self.advance(&mut state);
        drop(state);
        // Other threads may use the state meanwhile.
        if let Some(spent) = spent.filter(|_| answers.iter().any(|(_, answer)| answer.is_ok())) {
            self.metrics.executed(model.name(), run.rows.iter().copied().map(u64::from).sum(), spent);
            let mut counted = Vec::with_capacity(answers.len());
            for (waiting, _) in answers.iter().filter(|(_, answer)| answer.is_ok()) {
                let queue = waiting.chosen - waiting.arrived;
                let copy = begun - waiting.chosen + spent.copy;
                let phases = Phases { queue, copy, ..spent };
                if let Some(record) = &waiting.record {
                    record.computed(waiting.rows, phases);
                }
                if waiting.is_last {
                    counted.push(phases);
                }
            }
            self.metrics.all_computed(model.name(), &counted, found);
        }
        for (waiting, answer) in answers {
            waiting.answer(answer);
        }
    }

    /// Counts another worker that ended while it computed a model's batch. After several in a row the model rests, so
    /// that its workers do not take all of the machine's time.
    fn rest_after_death(&self, state: &mut CoreState, run: &BatchRun) {
        let deaths = state.deaths.entry(run.model).or_default();
        *deaths += 1;
        if let Some(doublings) = deaths.checked_sub(DEATHS_BEFORE_REST) {
            let rest = FIRST_REST.saturating_mul(1 << doublings.min(10)).min(LONGEST_REST);
            tracing::warn!("{deaths} workers in a row ended with {}: it rests for {rest:?}", run.running.name());
            state.scheduler.rest(run.model, self.now() + rest);
        }
    }

    /// Loads weights that are needed next on a device while it computes with others, one model after the other.
    pub(super) fn load_ahead(self: &Arc<Self>, device: DeviceId) {
        let device = self.device(device);
        loop {
            let loading = device.load_lock.lock();
            let mut state = self.state.lock();
            if state.is_ending {
                return;
            }
            let Some((id, model, evict)) = self.next_load(device.id, &mut state) else {
                drop(loading);
                device.upcoming.wait(&mut state);
                continue;
            };
            drop(state);
            self.evict(device, &evict);
            let loaded = model.load(device.id, Duration::ZERO);
            if let Err(error) = &loaded {
                tracing::debug!("{} is not loaded ahead: {error}", model.name());
            }
            // A failed batch of this model may have ended the copy meanwhile, and its room may have been promised to
            // another.
            if self.state.lock().is_absent(device.id, id) {
                self.evict_all(device, &model);
            }
            drop(loading);
            self.rescan_if_changed(&loaded);
            self.report_when_loaded(device, id, &model);
        }
    }

    /// Decides which model to load ahead on a device, and which evictions must come first.
    fn next_load(
        &self,
        device: DeviceId,
        state: &mut CoreState,
    ) -> Option<(ModelId, Arc<OpenModel>, Vec<PlannedEviction>)> {
        let now = self.now();
        let next = state.upcoming(device, now)?;
        let model = state.models.get(&next)?.clone();
        // A model that finds no room must wait for its turn.
        let load = state.scheduler.prefetch(device, next, now).ok()??;
        Some((next, model, self.planned_evictions(state, &load.evict)))
    }

    /// Arranges that the scheduler gets a report when the weights that are being loaded are there, or loading failed.
    fn report_when_loaded(self: &Arc<Self>, device: &ServingDevice, id: ModelId, model: &Arc<OpenModel>) {
        self.count_resident(device, model);
        let core = Arc::clone(self);
        let loaded = Arc::clone(model);
        let device = device.id;
        model.on(device).when_loaded(Box::new(move |took| {
            let mut state = core.state.lock();
            let failed_load = &mut state.device_work[device.index()].failed_load;
            match took {
                Some(took) => {
                    *failed_load = failed_load.filter(|failed_load| *failed_load != id);
                    core.metrics.switched(loaded.name(), took);
                    let [to, from] = core.device(device).backend.tiers();
                    core.metrics.copied(from, to, loaded.on(device).resident_bytes());
                    state.scheduler.loaded(device, id, took, core.now());
                }
                None => {
                    *failed_load = Some(id);
                    state.scheduler.load_failed(device, id);
                }
            }
            // Some weights may be in memory although the scheduler counts them as absent, such as groups that were
            // loaded before one that failed. They must be freed before the scheduler gives their memory to another
            // model.
            // A batch that runs frees them when it ends.
            let runs = state.device_work[device.index()].running.values().any(|batch| batch.model == id);
            if !runs && state.is_absent(device, id) {
                core.device(device).send(DeviceJob::Free(loaded));
            }
            core.advance(&mut state);
        }));
    }

    /// Frees memory as planned.
    fn evict(&self, device: &ServingDevice, leaving: &[PlannedEviction]) {
        for PlannedEviction { model, bytes } in leaving {
            model.on(device.id).evict(*bytes);
            self.count_resident(device, model);
        }
    }

    /// Frees all memory of a model on a device.
    fn evict_all(&self, device: &ServingDevice, model: &OpenModel) {
        model.on(device.id).evict(u64::MAX);
        self.count_resident(device, model);
    }

    /// Causes the folders to be read at once if a model's files changed.
    fn rescan_if_changed(&self, loaded: &Result<(), ModelError>) {
        if let Err(ModelError::Changed { .. }) = loaded {
            self.state.lock().is_outdated = true;
            self.rescan_wanted.notify_all();
        }
    }

    /// Updates the metric of a model's bytes on a device.
    fn count_resident(&self, device: &ServingDevice, model: &OpenModel) {
        self.metrics.resident(model.name(), device.backend.tiers()[0], model.on(device.id).resident_bytes());
    }

    /// Returns the answers of a batch, and its phases if it was computed as one. If the batch failed, its requests are
    /// computed one by one, so that one bad request does not fail the others.
    fn answers(
        &self,
        device: DeviceId,
        run: &BatchRun,
        computed: Result<BatchAnswer, ModelError>,
    ) -> (Option<Phases>, Vec<Result<Vec<Tensor>, ServeError>>) {
        match computed {
            Ok(BatchAnswer { outputs, copy, wait, compute }) => {
                let spent = Phases { queue: Duration::ZERO, copy, wait, compute };
                (Some(spent), outputs.into_iter().map(Ok).collect())
            }
            // A retry would fail again, or no client waits for the answer.
            Err(
                error @ (ModelError::Lost(_)
                | ModelError::NoWorker(_)
                | ModelError::OutOfMemory(_)
                | ModelError::Abandoned),
            ) => (None, same_error(error, run.requests.len())),
            Err(_) if run.requests.len() > 1 => {
                let answers = run.inputs.iter().zip(&run.rows).map(|(inputs, rows)| {
                    let BatchAnswer { outputs, copy, wait, compute } =
                        run.running.compute(device, slice::from_ref(inputs), slice::from_ref(rows), &run.control)?;
                    let phases = Phases { queue: Duration::ZERO, copy, wait, compute };
                    self.metrics.executed(run.running.name(), u64::from(*rows), phases);
                    Ok(outputs.into_iter().next().unwrap_or_default())
                });
                (None, answers.collect())
            }
            Err(error) => (None, same_error(error, 1)),
        }
    }

    /// Polls the scheduler at its wake times.
    pub(super) fn keep_time(&self) {
        let mut state = self.state.lock();
        while !state.is_ending {
            let now = self.now();
            let wake = state.scheduler.next_wake(now).unwrap_or(Duration::MAX);
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

/// Returns the same error for each of some requests.
fn same_error<T>(error: ModelError, requests: usize) -> Vec<Result<T, ServeError>> {
    let message = error.to_string();
    let variant: fn(String) -> ServeError = match ServeError::from(error) {
        ServeError::Malformed(_) => ServeError::Malformed,
        ServeError::TryAgain(_) => ServeError::TryAgain,
        ServeError::TooMuchMemory(_) => ServeError::TooMuchMemory,
        _ => ServeError::Failed,
    };
    (0..requests).map(|_| Err(variant(message.clone()))).collect()
}
