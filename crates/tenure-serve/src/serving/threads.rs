//! The threads of a service: for each device, one computes and one brings weights ahead; one keeps time, one looks at the folders.

use std::slice;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::core::{Core, State};
use super::device::{Job, Leaving, Run, ServingDevice};
use crate::executor::{Answer, Model, ModelError};
use crate::http::ServeError;
use crate::metrics::{Found, Phases};
use crate::protocol::Tensor;
use crate::scheduler::{DeviceId, ModelId};

/// How many workers may end with a model's batches, one after the other, before it is served no more.
const DEATHS: u32 = 3;

/// How long a batch waits for room that was promised to it, and that others still give back.
const ROOM: Duration = Duration::from_secs(5);

impl Core {
    /// Does a device's jobs until the last.
    pub(super) fn execute(self: &Arc<Self>, device: DeviceId, jobs: &mpsc::Receiver<Job>) {
        let device = self.device(device);
        for job in jobs {
            match job {
                Job::Run(run) => self.compute(device, run),
                // Batches that need them come before, and those that were promised their memory after.
                Job::Free(model) => self.evict_all(device, &model),
                Job::End => return,
            }
        }
    }

    /// Frees what leaves, brings what is missing, computes what is there, and tells everybody.
    fn compute(self: &Arc<Self>, device: &ServingDevice, run: Run) {
        let model = &*run.running;
        let moving = device.moves.lock();
        self.evict(device, &run.evict);
        let mut loaded = model.load(device.id, ROOM);
        drop(moving);
        if run.is_load {
            self.tell_when_loaded(device, run.model, &run.running);
        }
        let begun = Instant::now();
        self.state.lock().scheduler.started(run.id, self.now());
        let computed = match &loaded {
            Ok(()) => model.compute(device.id, &run.inputs, &run.rows),
            Err(_) => Err(ModelError::NoWeights),
        };
        if loaded.is_ok() {
            loaded = model.loaded(device.id).inspect_err(|_| model.on(device.id).evict(u64::MAX));
        }
        self.count_resident(device, model);
        self.look_again_if_changed(&loaded);
        let death =
            computed.as_ref().err().filter(|error| matches!(error, ModelError::Lost(_))).map(ToString::to_string);
        let is_interrupted = death.is_some() && loaded.is_ok();
        let (spent, answers) = match loaded {
            Ok(()) => self.one_by_one(device.id, &run, computed),
            Err(error) => (None, failed(error, run.requests.len())),
        };
        if let Some(reason) = death {
            self.count_death(&run, &reason);
        } else if spent.is_some() {
            self.state.lock().deaths.remove(&run.model);
        }
        // Weights that were brought ahead may still have been on their way.
        let has_waited = spent.is_some_and(|spent| spent.copy + spent.wait > Duration::ZERO);
        let found = if run.is_load || has_waited { Found::Switched } else { Found::Resident };
        let mut state = self.state.lock();
        state.doing[device.id.index()].running = None;
        let finished = match is_interrupted {
            true => state.scheduler.interrupted(run.id, self.now()),
            false => state.scheduler.finished(run.id, spent.map(|spent| spent.compute), self.now()),
        };
        let answers = run.requests.iter().zip(answers).filter(|(request, _)| finished.contains(request));
        let answers: Vec<_> =
            answers.filter_map(|(request, answer)| Some((state.requests.remove(request)?, answer))).collect();
        // Of a batch that failed, the scheduler may take weights for lost, and a model that was removed has no more room.
        if state.is_absent(device.id, run.model) {
            drop(state);
            self.evict_all(device, model);
            state = self.state.lock();
        }
        self.advance(&mut state);
        drop(state);
        // Others may ask meanwhile.
        if let Some(spent) = spent.filter(|_| answers.iter().any(|(_, answer)| answer.is_ok())) {
            self.metrics.executed(model.name(), run.rows.iter().copied().map(u64::from).sum(), spent);
            let mut counted = Vec::with_capacity(answers.len());
            for (waiting, _) in answers.iter().filter(|(_, answer)| answer.is_ok()) {
                let (queue, copy) = (waiting.chosen - waiting.arrived, begun - waiting.chosen + spent.copy);
                let phases = Phases { queue, copy, ..spent };
                if let Some(record) = &waiting.record {
                    record.computed(waiting.rows, phases);
                }
                counted.push(phases);
            }
            self.metrics.all_computed(model.name(), &counted, found);
        }
        for (waiting, answer) in answers {
            waiting.answer(answer);
        }
    }

    /// One more worker ended with a model's batch.
    fn count_death(&self, run: &Run, reason: &str) {
        let mut state = self.state.lock();
        let deaths = state.deaths.entry(run.model).or_default();
        *deaths += 1;
        let deaths = *deaths;
        drop(state);
        if deaths >= DEATHS {
            self.give_up(run.model, run.running.name(), deaths, reason);
        }
    }

    /// Brings weights that are wanted next on a device while others are computed with, one model after the other.
    pub(super) fn load_ahead(self: &Arc<Self>, device: DeviceId) {
        let device = self.device(device);
        loop {
            let moving = device.moves.lock();
            let mut state = self.state.lock();
            if state.is_ending {
                return;
            }
            let Some((id, model, evict)) = self.next_load(device.id, &mut state) else {
                drop(moving);
                device.upcoming.wait(&mut state);
                continue;
            };
            drop(state);
            self.evict(device, &evict);
            let loaded = model.load(device.id, Duration::ZERO);
            if let Err(error) = &loaded {
                tracing::debug!("{} is not brought ahead: {error}", model.name());
            }
            // A batch of it that failed meanwhile ended the copy, and its room may have been promised to another.
            if self.state.lock().is_absent(device.id, id) {
                self.evict_all(device, &model);
            }
            drop(moving);
            self.look_again_if_changed(&loaded);
            self.tell_when_loaded(device, id, &model);
        }
    }

    fn next_load(&self, device: DeviceId, state: &mut State) -> Option<(ModelId, Arc<Model>, Vec<Leaving>)> {
        let now = self.now();
        let next = state.upcoming(device, now)?;
        let model = state.models.get(&next)?.clone();
        // What finds no room has to wait for its turn.
        let load = state.scheduler.prefetch(device, next, now).ok()??;
        Some((next, model, self.leaving(state, &load.evict)))
    }

    /// Tells the scheduler when weights that are being brought are there, or that they do not come.
    fn tell_when_loaded(self: &Arc<Self>, device: &ServingDevice, id: ModelId, model: &Arc<Model>) {
        self.count_resident(device, model);
        let (core, loaded, device) = (Arc::clone(self), Arc::clone(model), device.id);
        model.on(device).when_loaded(Box::new(move |took| {
            let mut state = core.state.lock();
            let missed = &mut state.doing[device.index()].missed;
            match took {
                Some(took) => {
                    *missed = missed.filter(|missed| *missed != id);
                    core.metrics.switched(loaded.name(), took);
                    let [to, from] = core.device(device).backend.tiers();
                    core.metrics.copied(from, to, loaded.on(device).resident_bytes());
                    state.scheduler.loaded(device, id, took, core.now());
                }
                None => {
                    *missed = Some(id);
                    state.scheduler.load_failed(device, id);
                }
            }
            // What is there all the same, such as groups that came before one that did not, leaves before its room is promised.
            if state.is_absent(device, id) {
                core.device(device).send(Job::Free(loaded));
            }
            core.advance(&mut state);
        }));
    }

    fn evict(&self, device: &ServingDevice, leaving: &[Leaving]) {
        for Leaving { model, bytes } in leaving {
            model.on(device.id).evict(*bytes);
            self.count_resident(device, model);
        }
    }

    fn evict_all(&self, device: &ServingDevice, model: &Model) {
        model.on(device.id).evict(u64::MAX);
        self.count_resident(device, model);
    }

    /// Has the folders looked at at once where a model's files are not what they were.
    fn look_again_if_changed(&self, loaded: &Result<(), ModelError>) {
        if let Err(ModelError::Changed { .. }) = loaded {
            self.state.lock().is_outdated = true;
            self.woken.notify_all();
        }
    }

    fn count_resident(&self, device: &ServingDevice, model: &Model) {
        self.metrics.resident(model.name(), device.backend.tiers()[0], model.on(device.id).resident_bytes());
    }

    /// The answers of a batch, and where its time went if it was computed as one. One request that cannot be computed is no
    /// reason not to answer the others.
    fn one_by_one(
        &self,
        device: DeviceId,
        run: &Run,
        computed: Result<Answer, ModelError>,
    ) -> (Option<Phases>, Vec<Result<Vec<Tensor>, ServeError>>) {
        match computed {
            Ok(Answer { outputs, copy, wait, compute }) => {
                let spent = Phases { queue: Duration::ZERO, copy, wait, compute };
                (Some(spent), outputs.into_iter().map(Ok).collect())
            }
            // The same would happen again, or it is for nobody.
            Err(error @ (ModelError::Lost(_) | ModelError::NoWorker(_) | ModelError::Abandoned)) => {
                (None, failed(error, run.requests.len()))
            }
            Err(_) if run.requests.len() > 1 => {
                let alone = |(inputs, rows)| {
                    let answer = run.running.compute(device, slice::from_ref(inputs), slice::from_ref(rows));
                    if let Ok(Answer { copy, wait, compute, .. }) = answer {
                        let phases = Phases { queue: Duration::ZERO, copy, wait, compute };
                        self.metrics.executed(run.running.name(), u64::from(*rows), phases);
                    }
                    answer
                };
                let answers = run.inputs.iter().zip(&run.rows).map(alone);
                let only = |answer: Answer| answer.outputs.into_iter().next().unwrap_or_default();
                (None, answers.map(|answer| answer.map(only).map_err(ServeError::from)).collect())
            }
            Err(error) => (None, failed(error, 1)),
        }
    }

    /// Wakes the scheduler at its times.
    pub(super) fn keep_time(&self) {
        let mut state = self.state.lock();
        while !state.is_ending {
            let now = self.now();
            let wake = state.scheduler.next_wake(now).unwrap_or(Duration::MAX);
            if wake <= now {
                self.advance(&mut state);
                continue;
            }
            state.timer = wake;
            match wake {
                Duration::MAX => self.sooner.wait(&mut state),
                wake => drop(self.sooner.wait_for(&mut state, wake - now)),
            }
            state.timer = Duration::ZERO;
        }
    }

    /// Looks at the folders again and again, and at once when they are known to be outdated.
    pub(super) fn watch(&self, interval: Duration) {
        loop {
            let end = Instant::now() + interval;
            let mut state = self.state.lock();
            while !state.is_ending && !state.is_outdated && !self.woken.wait_until(&mut state, end).timed_out() {}
            if state.is_ending {
                return;
            }
            state.is_outdated = false;
            drop(state);
            if let Err(error) = self.rescan() {
                tracing::warn!("{error}: models stay as they are");
            }
        }
    }
}

/// The same error for each of some requests.
fn failed<T>(error: ModelError, requests: usize) -> Vec<Result<T, ServeError>> {
    let message = error.to_string();
    let of: fn(String) -> ServeError = match ServeError::from(error) {
        ServeError::Malformed(_) => ServeError::Malformed,
        ServeError::TryAgain(_) => ServeError::TryAgain,
        _ => ServeError::Failed,
    };
    (0..requests).map(|_| Err(of(message.clone()))).collect()
}
