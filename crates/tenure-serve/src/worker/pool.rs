//! The pool of worker processes: those that compute, each for one model at a time, and one that stands by.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use prometheus_client::metrics::counter::Counter;

use super::WorkerCommand;
use super::link::{LostOrder, Worker};
use super::message::{Failure, WorkerOrder, pack};
use crate::executor::{BatchControl, Computed, ModelError, RawTensor};

/// The pause before the next start after several workers in a row ended at once: the first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The number of workers that end at once in a row after which a batch fails instead of waiting for the next worker.
const MAX_FAILURES: u32 = 5;

/// The pool, which the keeper's thread and those that compute share.
pub(super) struct WorkerPool {
    command: WorkerCommand,
    /// The first order of each worker.
    first: WorkerOrder,
    /// The most workers that compute at once.
    max_computing: usize,
    /// The metric of workers that ended.
    deaths: Counter,
    /// The next number of a batch, image, loan or model.
    numbers: AtomicU64,
    state: Mutex<WorkersState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkersState {
    /// The workers that models have been given, the one that was free for longest first.
    assigned: Vec<AssignedWorker>,
    standby: Option<Arc<Worker>>,
    /// The number of processes that were not reaped yet.
    processes: usize,
    /// The number of workers in a row that ended before they were useful.
    failures: u32,
    /// The reason why the last of them ended.
    reason: String,
    /// The time from which the next may be started.
    pause_end: Option<Instant>,
    is_ending: bool,
}

/// A worker that a model has been given.
struct AssignedWorker {
    worker: Arc<Worker>,
    /// The number of the model that it computed last; `None` once that model has left.
    model: Option<u64>,
    /// Whether it computes now.
    is_busy: bool,
}

/// A worker that computes for one caller. Dropping this makes it free again.
struct BusyWorker<'a> {
    pool: &'a WorkerPool,
    worker: Arc<Worker>,
}

impl WorkerPool {
    /// Returns a pool without workers. `first` is the first order of each.
    pub(super) fn new(command: WorkerCommand, first: WorkerOrder, max_computing: usize, deaths: Counter) -> Self {
        Self {
            command,
            first,
            max_computing: max_computing.max(1),
            deaths,
            numbers: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn max_computing(&self) -> usize {
        self.max_computing
    }

    /// Makes [`keep`](Self::keep) end all workers and return.
    pub(super) fn end(&self) {
        self.state.lock().is_ending = true;
        self.changed.notify_all();
    }

    pub(super) fn is_answering(&self) -> bool {
        let state = self.state.lock();
        state.failures < MAX_FAILURES && state.workers().all(|worker| worker.is_answering())
    }

    /// Returns the numbers of the processes.
    pub(super) fn processes(&self) -> Vec<u32> {
        let state = self.state.lock();
        state.workers().map(|worker| worker.pid()).collect()
    }

    /// Returns a number that was not used before.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for a worker and returns it.
    pub(super) fn first(&self) -> Result<Arc<Worker>, String> {
        let mut state = self.state.lock();
        loop {
            if let Some(worker) = state.workers().next() {
                return Ok(Arc::clone(worker));
            }
            self.wait_for_worker(&mut state)?;
        }
    }

    /// Waits until the state changes, unless no worker can be expected.
    fn wait_for_worker(&self, state: &mut MutexGuard<'_, WorkersState>) -> Result<(), String> {
        if state.is_ending {
            return Err("the server is shutting down".into());
        }
        if state.failures >= MAX_FAILURES {
            return Err(format!("workers end as soon as they are started, the last with {}", state.reason));
        }
        self.changed.wait(state);
        Ok(())
    }

    /// Waits for a free worker, and takes it for a model: the one that computed it last, one that has no model, or, if
    /// as many compute as may, the one that was free for longest.
    fn take(&self, model: u64) -> Result<BusyWorker<'_>, String> {
        let mut state = self.state.lock();
        loop {
            if let Some(worker) = state.take(model, self.max_computing) {
                self.changed.notify_all();
                return Ok(BusyWorker { pool: self, worker });
            }
            self.wait_for_worker(&mut state)?;
        }
    }

    /// Computes the answers to a model's inputs on its worker. `prepare` gives the worker the weights, and returns their
    /// number. A batch that had not begun when its worker ended is run again, once.
    pub(super) fn compute(
        &self,
        model: u64,
        inputs: &[RawTensor],
        control: &BatchControl,
        mut prepare: impl FnMut(&Arc<Worker>) -> Result<u64, ModelError>,
    ) -> Result<Computed, ModelError> {
        let mut was_retried = false;
        loop {
            let busy = self.take(model).map_err(ModelError::NoWorker)?;
            let image = prepare(&busy.worker)?;
            let batch = self.next_number();
            let (inputs, payload) = pack(inputs);
            match busy.worker.run(batch, &WorkerOrder::Run { batch, image, inputs }, payload, control)? {
                Ok((Ok(done), payload)) => return Ok(done.unpack(payload)?),
                Ok((Err(failure), _)) => return Err(failure.into()),
                Err(_) if control.is_abandoned() => return Err(ModelError::Abandoned),
                Err(LostOrder::NotBegun { .. }) if !was_retried => was_retried = true,
                Err(lost) => return Err(lost.into()),
            }
        }
    }

    /// Makes the worker of a model free for others: the model has left.
    pub(super) fn give_back(&self, model: u64) {
        let mut state = self.state.lock();
        state.assigned.iter_mut().filter(|assigned| assigned.model == Some(model)).for_each(|left| left.model = None);
        let needless = state.assigned.extract_if(.., |assigned| assigned.is_needlessly_nice());
        needless.for_each(|assigned| assigned.worker.retire());
    }

    /// Starts, asks and replaces workers, until the server ends; then ends them all. The calling thread starts all
    /// workers, since a worker ends with the thread that started it.
    pub(super) fn keep(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_ending {
            // The first model finds a worker besides the one that stands by.
            if state.assigned.is_empty()
                && let Some(worker) = state.standby.take()
            {
                state.assigned.push(AssignedWorker { worker, model: None, is_busy: false });
                self.changed.notify_all();
            }
            let now = Instant::now();
            let pause_end = state.pause_end.filter(|end| *end > now);
            if state.standby.is_none() && pause_end.is_none() {
                self.start(&mut state);
                continue;
            }
            let next_ask = state.workers().map(|worker| worker.ask_for_life(now)).min();
            match next_ask.into_iter().chain(pause_end).min() {
                Some(end) => {
                    self.changed.wait_until(&mut state, end);
                }
                None => self.changed.wait(&mut state),
            }
        }
        let workers: Vec<_> = state.workers().cloned().collect();
        drop(state);
        workers.iter().for_each(|worker| worker.end());
        let mut state = self.state.lock();
        while state.processes > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Starts the worker that stands by.
    fn start(self: &Arc<Self>, state: &mut WorkersState) {
        let pool = Arc::clone(self);
        // The callback of a worker that ends at once waits for this lock. So it finds the worker in `standby`.
        match Worker::start(&self.command, &self.first, move |worker, reason| pool.ended(worker, reason)) {
            Ok(worker) => {
                state.processes += 1;
                state.standby = Some(worker);
            }
            Err(error) => state.failed(format!("{}: {error}", self.command.program.display())),
        }
        self.changed.notify_all();
    }

    /// Records that a worker is gone.
    fn ended(&self, worker: &Arc<Worker>, reason: &str) {
        let mut state = self.state.lock();
        if state.standby.as_ref().is_some_and(|standby| Arc::ptr_eq(standby, worker)) {
            state.standby = None;
        }
        state.assigned.retain(|assigned| !Arc::ptr_eq(&assigned.worker, worker));
        state.processes -= 1;
        if !state.is_ending && !worker.is_retired() {
            tracing::warn!("worker {} ended: {reason}", worker.pid());
            self.deaths.inc();
            match worker.was_useful() {
                true => {
                    state.failures = 0;
                    state.pause_end = None;
                }
                false => state.failed(reason.into()),
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

impl WorkersState {
    /// Returns all workers, the one that stands by last.
    fn workers(&self) -> impl Iterator<Item = &Arc<Worker>> {
        self.assigned.iter().map(|assigned| &assigned.worker).chain(&self.standby)
    }

    /// Takes a free worker for a model, if there is one.
    fn take(&mut self, model: u64, max_computing: usize) -> Option<Arc<Worker>> {
        let free_with = |model| self.assigned.iter().position(|free| !free.is_busy && free.model == model);
        let index = match free_with(Some(model)).or_else(|| free_with(None)) {
            Some(index) => index,
            None if self.assigned.len() < max_computing => {
                let worker = self.standby.take()?;
                self.assigned.push(AssignedWorker { worker, model: None, is_busy: false });
                self.assigned.len() - 1
            }
            None => self.assigned.iter().position(|assigned| !assigned.is_busy)?,
        };
        let assigned = &mut self.assigned[index];
        if assigned.model != Some(model) && assigned.worker.niceness().is_raised() {
            let normal = self.standby.take()?;
            mem::replace(&mut assigned.worker, normal).retire();
        }
        assigned.model = Some(model);
        assigned.is_busy = true;
        Some(Arc::clone(&assigned.worker))
    }

    /// Records another worker that ended before it was useful.
    fn failed(&mut self, reason: String) {
        self.failures += 1;
        self.reason = reason;
        let pause = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10)).min(LONGEST_PAUSE);
        // The first failure causes no pause.
        self.pause_end = (self.failures > 1).then(|| Instant::now() + pause);
    }
}

impl AssignedWorker {
    /// Returns whether it is free, and yields to others although its model's batches are short, or the model has left.
    fn is_needlessly_nice(&self) -> bool {
        let niceness = self.worker.niceness();
        !self.is_busy && (niceness.is_raised_needlessly() || (niceness.is_raised() && self.model.is_none()))
    }
}

impl Drop for BusyWorker<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        // A worker that ended is gone from the list.
        if let Some(index) = state.assigned.iter().position(|assigned| Arc::ptr_eq(&assigned.worker, &self.worker)) {
            let mut assigned = state.assigned.remove(index);
            assigned.is_busy = false;
            if assigned.is_needlessly_nice() {
                assigned.worker.retire();
            } else {
                state.assigned.push(assigned);
            }
        }
        drop(state);
        self.pool.changed.notify_all();
    }
}

impl From<Failure> for ModelError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Request(reason) => Self::Asked(reason),
            Failure::Memory(reason) => Self::OutOfMemory(reason),
            Failure::Other(reason) => Self::Elsewhere(reason),
        }
    }
}

impl From<LostOrder> for ModelError {
    fn from(lost: LostOrder) -> Self {
        match lost {
            LostOrder::NotBegun { reason } | LostOrder::Begun { reason } => Self::Lost(reason),
            LostOrder::OutOfMemory { reason } => {
                Self::OutOfMemory(format!("the worker that computed it ended with {reason}"))
            }
        }
    }
}
