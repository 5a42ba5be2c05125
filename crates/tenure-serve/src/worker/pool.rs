//! The workers of a server: one that computes, and one that stands by to replace it.

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;
use tenure_nn::networks::Network;

use super::link::{LostOrder, Worker};
use super::message::{BorrowingDevice, Failure, WorkerOrder, pack};
use super::weights::LentWeights;
use super::worker_model::WorkerModel;
use super::{IS_WORKER, WorkerCommand};
use crate::executor::{ComputeProcess, Computed, ModelError, ModelRunner, RawTensor};
use crate::repository::StoredModel;

/// The pause before the next start after several workers in a row ended at once: the first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The number of workers that end at once in a row after which a batch fails instead of waiting for the next worker.
const MAX_FAILURES: u32 = 5;

/// The worker processes. Dropping this ends them.
pub(crate) struct Workers {
    shared: Arc<WorkersShared>,
    /// The thread that starts and replaces workers.
    keeper: Option<JoinHandle<()>>,
}

/// The state that all threads which use the workers share.
pub(super) struct WorkersShared {
    command: WorkerCommand,
    /// The first order of each worker.
    first: WorkerOrder,
    /// The metric of workers that ended.
    deaths: Counter,
    /// The next number of a batch, image, loan or model.
    numbers: AtomicU64,
    state: Mutex<WorkersState>,
    changed: Condvar,
}

#[derive(Default)]
struct WorkersState {
    active: Option<Arc<Worker>>,
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

impl Workers {
    /// Starts workers that compute on the CPU, and waits for the first.
    ///
    /// # Errors
    /// The reason why the first worker does not start.
    pub(crate) fn start(command: WorkerCommand, deaths: Counter) -> Result<Self, String> {
        Self::start_on(None, command, deaths)
    }

    /// Starts workers that compute on a CUDA device, whose memory comes in chunks of `chunk_bytes`, and waits for the
    /// first.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start); or a worker cannot use the device.
    pub(crate) fn start_on_cuda(
        index: u8,
        chunk_bytes: u64,
        command: WorkerCommand,
        deaths: Counter,
    ) -> Result<Self, String> {
        Self::start_on(Some(BorrowingDevice { index, chunk_bytes }), command, deaths)
    }

    /// Returns the weights of a model that workers compute on a CUDA device.
    pub(crate) fn lent(&self, stored: &StoredModel) -> LentWeights {
        LentWeights::new(Arc::clone(&self.shared), stored)
    }

    fn start_on(device: Option<BorrowingDevice>, command: WorkerCommand, deaths: Counter) -> Result<Self, String> {
        if env::var_os(IS_WORKER).is_some() {
            return Err("this process is one: have its program call `worker::run` first".into());
        }
        let state = Mutex::default();
        let changed = Condvar::new();
        let first = WorkerOrder::Start { device };
        let numbers = AtomicU64::new(0);
        let shared = Arc::new(WorkersShared { command, first, deaths, numbers, state, changed });
        let keeping = Arc::clone(&shared);
        let keeper = thread::Builder::new().name("serve: workers".into()).spawn(move || keeping.keep());
        let workers = Self { shared, keeper: Some(keeper.map_err(|error| error.to_string())?) };
        workers.shared.active()?.ready()?;
        Ok(workers)
    }
}

impl ComputeProcess for Workers {
    fn open(&self, _: Box<dyn Network>, stored: &StoredModel) -> Box<dyn ModelRunner> {
        Box::new(WorkerModel::new(Arc::clone(&self.shared), stored))
    }

    fn abandon(&self) {
        if let Some(active) = &self.shared.state.lock().active {
            active.abandon();
        }
    }

    fn end(&self) {
        self.shared.state.lock().is_ending = true;
        self.shared.changed.notify_all();
    }

    fn processes(&self) -> Vec<u32> {
        let state = self.shared.state.lock();
        state.active.iter().chain(&state.standby).map(|worker| worker.pid()).collect()
    }
}

impl Drop for Workers {
    /// Ends the workers, and waits until they have ended.
    fn drop(&mut self) {
        self.end();
        if self.keeper.take().is_some_and(|keeper| keeper.join().is_err()) {
            tracing::error!("the thread that starts workers panicked");
        }
    }
}

impl WorkersShared {
    /// Returns a number that was not used before.
    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits for an active worker and returns it.
    pub(super) fn active(&self) -> Result<Arc<Worker>, String> {
        let mut state = self.state.lock();
        loop {
            match &state.active {
                Some(active) => return Ok(Arc::clone(active)),
                None if state.is_ending => return Err("the server is shutting down".into()),
                None if state.failures >= MAX_FAILURES => {
                    return Err(format!("workers end as soon as they are started, the last with {}", state.reason));
                }
                None => self.changed.wait(&mut state),
            }
        }
    }

    /// Computes the answers to inputs on the active worker. `prepare` gives the worker the weights, and returns their
    /// number. A batch that had not begun when its worker ended is run again, once.
    pub(super) fn compute(
        &self,
        inputs: &[RawTensor],
        mut prepare: impl FnMut(&Arc<Worker>) -> Result<u64, ModelError>,
    ) -> Result<Computed, ModelError> {
        let mut was_retried = false;
        loop {
            let worker = self.active().map_err(ModelError::NoWorker)?;
            let image = prepare(&worker)?;
            let batch = self.next_number();
            let (inputs, payload) = pack(inputs);
            match worker.run(batch, &WorkerOrder::Run { batch, image, inputs }, payload)? {
                Ok((Ok(done), payload)) => return Ok(done.unpack(payload)?),
                Ok((Err(Failure { reason, is_request_error: true }), _)) => return Err(ModelError::Asked(reason)),
                Ok((Err(Failure { reason, .. }), _)) => return Err(ModelError::Elsewhere(reason)),
                Err(LostOrder { has_begun: false, .. }) if !was_retried => was_retried = true,
                Err(LostOrder { reason, .. }) => return Err(ModelError::Lost(reason)),
            }
        }
    }

    /// Replaces workers that are gone, until the server ends; then ends all workers. The calling thread starts all
    /// workers, since a worker ends with the thread that started it.
    fn keep(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_ending {
            let is_complete = state.active.is_some() && state.standby.is_some();
            let pause_end = state.pause_end.filter(|end| *end > Instant::now());
            if is_complete {
                self.changed.wait(&mut state);
            } else if let Some(end) = pause_end {
                self.changed.wait_until(&mut state, end);
            } else {
                self.start(&mut state);
            }
        }
        let workers = [state.active.clone(), state.standby.clone()];
        drop(state);
        workers.iter().flatten().for_each(|worker| worker.end());
        let mut state = self.state.lock();
        while state.processes > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Starts the active worker, or the one that stands by.
    fn start(self: &Arc<Self>, state: &mut WorkersState) {
        let shared = Arc::clone(self);
        // The callback of a worker that ends at once waits for this lock. So it finds the worker in `active` or
        // `standby`.
        match Worker::start(&self.command, &self.first, move |worker, reason| shared.ended(worker, reason)) {
            Ok(worker) => {
                state.processes += 1;
                if state.active.is_none() {
                    state.active = Some(worker);
                } else {
                    state.standby = Some(worker);
                }
            }
            Err(error) => state.failed(format!("{}: {error}", self.command.program.display())),
        }
        self.changed.notify_all();
    }

    /// Records that a worker is gone. The other one takes its place before the next order.
    fn ended(&self, worker: &Arc<Worker>, reason: &str) {
        let mut state = self.state.lock();
        let is_worker = |other: &Option<Arc<Worker>>| other.as_ref().is_some_and(|other| Arc::ptr_eq(other, worker));
        if is_worker(&state.standby) {
            state.standby = None;
        } else if is_worker(&state.active) {
            state.active = state.standby.take();
        }
        state.processes -= 1;
        if !state.is_ending {
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
    /// Records another worker that ended before it was useful.
    fn failed(&mut self, reason: String) {
        self.failures += 1;
        self.reason = reason;
        let pause = FIRST_PAUSE.saturating_mul(1 << (self.failures - 1).min(10)).min(LONGEST_PAUSE);
        // The first failure causes no pause.
        self.pause_end = (self.failures > 1).then(|| Instant::now() + pause);
    }
}
