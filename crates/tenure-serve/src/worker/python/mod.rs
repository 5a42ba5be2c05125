//! PyTorch modules, which a Python process computes.
//!
//! The process is started for the first model, and again when it is gone and a model is needed. It holds the weights of
//! modules that the scheduler wants in memory. A batch that had not begun when the process ended is run again, once;
//! one that had begun is answered with an error.
//!
//! On the CPU each model has its own process, if there is memory for it, so that a module which computes for long, hangs
//! or ends its process spares the others. Each CUDA device has one process. This process keeps an image of every module
//! in pinned memory, loads weights to the device while they are computed with, and evicts chunks of them on order. A new
//! process, which does not know a module yet, opens the module when it is to be loaded.

mod loading;
mod message;
mod pool;
mod process;
mod weights;

use std::ffi::OsString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;
use tenure_tensor::Device;

use self::message::PythonOrder;
pub(crate) use self::pool::Pythons;
use self::process::{Process, ProcessEnd};
use self::weights::PythonModel;
use super::WorkerCommand;
use super::link::time_to_end;
use crate::executor::{BackendWeights, Callbacks, ModelError};
use crate::repository::StoredModel;

/// The time for which no other process is started after one that could not start.
const PAUSE: Duration = Duration::from_secs(5);

/// The reason why the last process of a command could not start. All processes of the command share it, so that a Python
/// without Tenure is not started again for each of many models.
#[derive(Clone, Default)]
struct StartFailure(Arc<Mutex<Option<(Instant, String)>>>);

impl StartFailure {
    /// Records that a process could not start.
    fn record(&self, reason: &str) {
        *self.0.lock() = Some((Instant::now(), reason.into()));
    }

    /// Returns the reason if it is new.
    fn recent(&self) -> Option<String> {
        self.0.lock().as_ref().filter(|(at, _)| at.elapsed() < PAUSE).map(|(_, reason)| reason.clone())
    }
}

/// The handle of the Python process that computes PyTorch modules. The process may not be running.
pub(crate) struct Python {
    shared: Arc<PythonShared>,
    /// The thread that starts and kills processes.
    keeper: Option<JoinHandle<()>>,
}

/// The state that all threads which use the process share.
struct PythonShared {
    command: WorkerCommand,
    deaths: Counter,
    start_failure: StartFailure,
    /// Whether modules are computed on a CUDA device. There a batch may start while weights are being loaded.
    is_on_device: bool,
    numbers: AtomicU64,
    state: Mutex<KeeperState>,
    changed: Condvar,
    calls: Callbacks,
    /// Locked while a batch is computed: all modules of a process share its main thread.
    computing: Mutex<()>,
}

/// The process, and what its keeper thread must do.
#[derive(Default)]
struct KeeperState {
    process: Option<Arc<Process>>,
    /// Whether a process is to be started.
    is_wanted: bool,
    /// The reason why the last start failed.
    failure: Option<String>,
    /// The number of processes that were not reaped yet.
    processes: usize,
    batch: Option<RunningBatch>,
    is_ending: bool,
}

/// The batch that is being computed.
struct RunningBatch {
    number: u64,
    begun: Instant,
    /// The time at which the process is killed if the batch still runs. Set when the batch is abandoned.
    kill_at: Option<Instant>,
}

impl Python {
    /// Creates a handle that computes on the CPU. This starts threads but no process yet.
    ///
    /// # Errors
    /// The threads cannot be started.
    fn on_cpu(command: WorkerCommand, deaths: Counter, start_failure: StartFailure) -> Result<Self, String> {
        Self::new(command, deaths, start_failure, false)
    }

    /// Creates a handle that computes on a CUDA device, with `device_bytes` for weights in chunks of `chunk_bytes`, and
    /// `host_bytes` of pinned memory.
    pub(crate) fn on_cuda(
        command: WorkerCommand,
        deaths: Counter,
        device: Device,
        [device_bytes, chunk_bytes, host_bytes]: [u64; 3],
    ) -> Result<Self, String> {
        let bytes = [("--device-bytes", device_bytes), ("--chunk-bytes", chunk_bytes), ("--host-bytes", host_bytes)];
        let bytes = bytes.iter().flat_map(|(name, bytes)| [name.to_string(), bytes.to_string()]);
        let arguments = ["--device".to_string(), device.to_string()].into_iter().chain(bytes).map(OsString::from);
        let arguments = command.arguments.into_iter().chain(arguments).collect();
        Self::new(WorkerCommand { arguments, ..command }, deaths, StartFailure::default(), true)
    }

    fn new(
        command: WorkerCommand,
        deaths: Counter,
        start_failure: StartFailure,
        is_on_device: bool,
    ) -> Result<Self, String> {
        let calls = Callbacks::start("serve: python loaded").map_err(|error| error.to_string())?;
        let shared = Arc::new(PythonShared {
            command,
            deaths,
            start_failure,
            is_on_device,
            numbers: AtomicU64::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
            calls,
            computing: Mutex::default(),
        });
        let keeping = Arc::clone(&shared);
        let keeper = thread::Builder::new().name("serve: keep python".into()).spawn(move || keeping.keep());
        Ok(Self { shared, keeper: Some(keeper.map_err(|error| error.to_string())?) })
    }

    /// Opens the weights of a module: see [`Backend::open_python`](crate::executor::Backend::open_python).
    pub(crate) fn open(self: &Arc<Self>, stored: &StoredModel) -> Result<Box<dyn BackendWeights>, ModelError> {
        Ok(Box::new(PythonModel::open(self, stored)?))
    }

    /// Returns the bytes of the modules that are in memory or on their way.
    pub(crate) fn resident_bytes(&self) -> u64 {
        self.shared.current().map_or(0, |process| process.resident_bytes())
    }

    /// Returns the bytes of images in pinned memory.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.shared.current().map_or(0, |process| process.host_bytes())
    }

    /// Returns device memory that no module uses to the driver.
    pub(crate) fn trim(&self) {
        let Some(process) = self.shared.current() else { return };
        let call = self.shared.next_number();
        if let Ok(answer) = process.ask(call, &PythonOrder::Trim { call }, Vec::new()) {
            // A process that is gone has no memory.
            let _ = answer.recv();
        }
    }

    /// Returns the process's id, if it is running.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.shared.current().map(|process| process.pid())
    }

    /// Returns whether the process responds, as far as is known, or is not running.
    pub(crate) fn is_answering(&self) -> bool {
        self.shared.current().is_none_or(|process| process.is_answering())
    }

    /// Ends the process, and starts no other.
    pub(crate) fn end(&self) {
        self.shared.state.lock().is_ending = true;
        self.shared.changed.notify_all();
    }
}

impl Drop for Python {
    /// Ends the process, and waits until it has ended.
    fn drop(&mut self) {
        self.end();
        if self.keeper.take().is_some_and(|keeper| keeper.join().is_err()) {
            tracing::error!("the thread that starts Python panicked");
        }
    }
}

impl PythonShared {
    /// Returns a number that was not used before.
    fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the process, if it is running.
    fn current(&self) -> Option<Arc<Process>> {
        self.state.lock().process.clone()
    }

    /// Returns the process, and starts it if it is not running.
    fn process(&self) -> Result<Arc<Process>, String> {
        let mut state = self.state.lock();
        loop {
            if state.is_ending {
                return Err("the server is shutting down".into());
            }
            if let Some(process) = &state.process {
                return Ok(Arc::clone(process));
            }
            if let Some(failure) = state.failure.take() {
                return Err(failure);
            }
            state.is_wanted = true;
            self.changed.notify_all();
            self.changed.wait(&mut state);
        }
    }

    /// Records that a batch is being computed, and returns its number.
    fn begin_batch(&self) -> u64 {
        let number = self.next_number();
        self.state.lock().batch = Some(RunningBatch { number, begun: Instant::now(), kill_at: None });
        number
    }

    /// Records that the batch is over.
    fn end_batch(&self) {
        self.state.lock().batch = None;
    }

    /// Abandons a batch, if it is still computed: no request waits for it any more.
    fn abandon(&self, number: u64) {
        let mut state = self.state.lock();
        if let Some(batch) = state.batch.as_mut().filter(|batch| batch.number == number) {
            let now = Instant::now();
            batch.kill_at.get_or_insert(now + time_to_end(now - batch.begun));
            self.changed.notify_all();
        }
    }

    /// Starts a process when one is wanted, and kills it when it gives no sign of life, an abandoned batch goes on for too
    /// long or the server ends. A process ends with the thread that started it, so the calling thread starts them all.
    fn keep(self: &Arc<Self>) {
        let mut state = self.state.lock();
        while !state.is_ending {
            if state.is_wanted && state.process.is_none() {
                self.start(&mut state);
                continue;
            }
            let now = Instant::now();
            let process = state.process.clone();
            if let (Some(batch), Some(process)) = (&mut state.batch, &process)
                && batch.kill_at.is_some_and(|end| end <= now)
            {
                batch.kill_at = None;
                tracing::error!("Python {} does not stop an abandoned batch and is killed", process.pid());
                process.kill();
            }
            let kill_at = state.batch.as_ref().and_then(|batch| batch.kill_at);
            let next_ask = process.map(|process| process.ask_for_life(now, self.next_number()));
            match kill_at.into_iter().chain(next_ask).min() {
                Some(end) => {
                    self.changed.wait_until(&mut state, end);
                }
                None => self.changed.wait(&mut state),
            }
        }
        if let Some(process) = &state.process {
            process.kill();
        }
        self.changed.notify_all();
        while state.processes > 0 {
            self.changed.wait(&mut state);
        }
    }

    fn start(self: &Arc<Self>, state: &mut KeeperState) {
        state.is_wanted = false;
        state.failure = self.start_failure.recent();
        if state.failure.is_some() {
            self.changed.notify_all();
            return;
        }
        let shared = Arc::clone(self);
        // The callback of a process that ends at once waits for this lock, so the process is recorded by then.
        match Process::start(&self.command, move |end| shared.ended(end)) {
            Ok(process) => {
                state.processes += 1;
                state.process = Some(process);
            }
            Err(error) => {
                let program = self.command.program.display();
                let reason = format!("{program}: {error}: name a Python with --python");
                self.start_failure.record(&reason);
                state.failure = Some(reason);
            }
        }
        self.changed.notify_all();
    }

    fn ended(&self, end: &ProcessEnd) {
        if let ProcessEnd::Unable { reason } = end {
            self.start_failure.record(reason);
        }
        let mut state = self.state.lock();
        state.process = None;
        state.processes -= 1;
        if !state.is_ending {
            tracing::warn!("Python ended: {}", end.reason());
            self.deaths.inc();
        }
        drop(state);
        self.changed.notify_all();
    }
}
