//! The service and its options.

use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;
use tenure_switch::SwitchError;
use tenure_tensor::Device;
use tokio::task::spawn_blocking;

use super::background::{self, Programs};
use super::core::{Core, CoreState};
use super::device::{self, DeviceJob, ServingDevice};
use super::registry::Entry;
use super::runner::DeviceRunner;
use crate::executor::{
    Backend, ComputeProcess, CpuBackend, CudaBackend, DeviceWeights, LentBackend, ModelError, SharedBudget,
    ThisProcess, WithPython,
};
use crate::metrics::Metrics;
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelMetadata, ModelState};
use crate::repository::{Repository, RepositoryError};
use crate::scheduler::{ModelSpec, Scheduler, SchedulerConfig};
use crate::service::{ModelSnapshot, Resident, ServeError, Service, ServiceFuture, Snapshot, Texts};
use crate::worker::{Python, Pythons, WorkerCommand, Workers};

/// The size of a page: the unit in which weights on the CPU are counted.
const PAGE_BYTES: u64 = 4096;

/// The most workers that compute on the CPU at once, each another model. The system shares its processors among them.
const MAX_WORKERS: usize = 16;

/// The assumed speed of reading weights until it is measured.
const DISK_BYTES_PER_SECOND: f64 = 2e9;
/// The assumed speed of copies to a device.
const LINK_BYTES_PER_SECOND: f64 = 25e9;

/// The options of a [`Serving`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// The folder of models.
    pub models: PathBuf,
    /// The devices that compute, each with its own models: the CPU, or one or more CUDA devices.
    pub devices: Vec<Device>,
    /// The bytes of each device's memory for weights.
    pub memory_bytes: u64,
    /// The bytes of pinned host memory for weights if the devices are not the CPU: for all devices together, which
    /// share one image of each model. With a Python, half of them are for PyTorch modules, in equal shares for the
    /// devices.
    pub host_bytes: u64,
    /// The most requests that may wait for a model.
    pub max_queued: usize,
    /// The longest time that a batch of several requests, or of several rows of one, is expected to compute: see
    /// [`SchedulerConfig::longest_batch`].
    pub longest_batch: Duration,
    /// The interval at which folders are read again.
    pub rescan: Duration,
    /// The socket of programs that run while there are no requests; `None` for none.
    pub background: Option<PathBuf>,
    /// The command that starts worker processes; `None` to compute in this process.
    pub worker: Option<WorkerCommand>,
    /// The command that starts the process that computes PyTorch modules, one for each device; `None` for no such
    /// modules.
    pub python: Option<WorkerCommand>,
}

/// One backend for each device, the size of their chunks in bytes, and whether models leave them only as a whole.
type Backends = (Vec<Box<dyn Backend>>, u64, bool);

impl ServingOptions {
    /// Creates options for a folder of models, with `memory_bytes` of memory for weights. At most 256 requests may wait
    /// for a model, folders are read every 2 s, and this process computes, on the CPU.
    pub fn new(models: impl Into<PathBuf>, memory_bytes: u64) -> Self {
        Self {
            models: models.into(),
            devices: vec![Device::CPU],
            memory_bytes,
            host_bytes: 0,
            max_queued: ModelSpec::default().max_queued,
            longest_batch: SchedulerConfig::default().longest_batch,
            rescan: Duration::from_secs(2),
            background: None,
            worker: None,
            python: None,
        }
    }

    /// Creates one backend for each device; also returns their chunk size and whether models leave them only as a
    /// whole.
    fn backends(&self, metrics: &Metrics) -> Result<Backends, ServingError> {
        let distinct: HashSet<_> = self.devices.iter().collect();
        let is_mixed = self.devices.iter().any(|device| device.is_cpu()) && self.devices.len() > 1;
        if self.devices.is_empty() || is_mixed || distinct.len() < self.devices.len() {
            return Err(ServingError::Devices(self.devices.clone()));
        }
        if self.devices == [Device::CPU] {
            return Ok((vec![self.on_cpu(metrics)?], PAGE_BYTES, true));
        }
        let (backends, chunk_bytes) = self.on_cuda(metrics).map_err(|error| match error {
            ModelError::NoWorker(reason) => ServingError::Worker(reason),
            error => ServingError::Device(error.to_string()),
        })?;
        Ok((backends, chunk_bytes, false))
    }

    fn on_cpu(&self, metrics: &Metrics) -> Result<Box<dyn Backend>, ServingError> {
        let place: Arc<dyn ComputeProcess> = match &self.worker {
            Some(command) => {
                let workers = Workers::start(command.clone(), MAX_WORKERS, metrics.worker_deaths());
                Arc::new(workers.map_err(ServingError::Worker)?)
            }
            None => Arc::new(ThisProcess),
        };
        let native: Box<dyn Backend> = Box::new(CpuBackend::new(self.memory_bytes, place)?);
        let Some(command) = &self.python else { return Ok(native) };
        Ok(Box::new(WithPython::on_cpu(native, Pythons::new(command.clone(), metrics.worker_deaths()))))
    }

    /// Creates the backends of CUDA devices, which share images, and returns their chunk size.
    fn on_cuda(&self, metrics: &Metrics) -> Result<(Vec<Box<dyn Backend>>, u64), ModelError> {
        let host_bytes = self.host_bytes / if self.python.is_some() { 2 } else { 1 };
        let weights = DeviceWeights::on_devices(&self.devices, self.memory_bytes, host_bytes, self.worker.is_some())?;
        // All devices have equal memory, and so chunks of one size.
        let chunk_bytes = weights[0].chunk_bytes();
        let backends = self.devices.iter().zip(weights).map(|(device, weights)| {
            let native: Box<dyn Backend> = match self.worker.clone() {
                Some(command) => Box::new(LentBackend::new(*device, weights, command, metrics.worker_deaths())?),
                None => Box::new(CudaBackend::new(weights)),
            };
            match self.python.clone() {
                Some(command) => self.with_python(native, command, *device, chunk_bytes, metrics),
                None => Ok(native),
            }
        });
        Ok((backends.collect::<Result<_, _>>()?, chunk_bytes))
    }

    /// Adds to a CUDA device's backend a process that computes PyTorch modules there, with a share of the host's
    /// memory.
    fn with_python(
        &self,
        native: Box<dyn Backend>,
        command: WorkerCommand,
        device: Device,
        chunk_bytes: u64,
        metrics: &Metrics,
    ) -> Result<Box<dyn Backend>, ModelError> {
        let host_bytes = self.host_bytes / 2 / self.devices.len() as u64;
        let bytes = [self.memory_bytes, chunk_bytes, host_bytes];
        let python = Python::on_cuda(command, metrics.worker_deaths(), device, bytes).map_err(ModelError::NoWorker)?;
        let room = SharedBudget::new(self.memory_bytes, chunk_bytes);
        Ok(Box::new(WithPython::on_cuda(native, python, room, host_bytes)))
    }
}

/// The reason why serving cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServingError {
    /// The folder of models cannot be read.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Weights cannot be read.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// The device cannot be used.
    #[error("{0}")]
    Device(String),
    /// The devices cannot serve together.
    #[error("models are served on the CPU, or on one or more CUDA devices, each named once; found {}", device_names(.0))]
    Devices(Vec<Device>),
    /// No worker process computes.
    #[error("no worker computes: {0}")]
    Worker(String),
    /// The socket for background programs cannot be created.
    #[error("no background at {}: {source}", path.display())]
    Background {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("no thread to {what}: {source}")]
    Thread {
        /// The purpose of the thread.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

fn device_names(devices: &[Device]) -> String {
    let names: Vec<_> = devices.iter().map(ToString::to_string).collect();
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// A service over models in folders, computed on the CPU, in this process or in [workers](crate::worker), or on CUDA
/// devices. As many weights are loaded as memory allows; the others stay on disk or in host memory, and are loaded when
/// requests need them.
pub struct Serving {
    core: Arc<Core>,
    devices: Vec<Device>,
    threads: Vec<JoinHandle<()>>,
    background: Option<Arc<Programs>>,
}

impl Serving {
    /// Reads the folders and starts to serve their models. No weights are read yet.
    ///
    /// # Errors
    /// The folder cannot be read; a thread or worker does not start; the devices cannot be used; or the socket for
    /// background programs cannot be created.
    pub fn start(options: ServingOptions, architectures: Architectures) -> Result<Self, ServingError> {
        let metrics = Metrics::default();
        let (backends, chunk_bytes, evicts_whole) = options.backends(&metrics)?;
        let is_cpu = options.devices == [Device::CPU];
        let copy_bytes_per_second = if is_cpu { DISK_BYTES_PER_SECOND } else { LINK_BYTES_PER_SECOND };
        let mut scheduler = Scheduler::new(SchedulerConfig {
            chunk_bytes,
            evicts_whole,
            copy_bytes_per_second,
            longest_batch: options.longest_batch,
            ..SchedulerConfig::default()
        });
        let ServingOptions { models, devices: served, memory_bytes, max_queued, rescan, background, python, .. } =
            options;
        let repository = Repository::new(models);
        let repository = if python.is_some() { repository.with_python() } else { repository };
        let mut devices = Vec::with_capacity(backends.len());
        let mut jobs = Vec::with_capacity(backends.len());
        for backend in backends {
            let id = scheduler.add_parallel_device(memory_bytes, backend.max_batches());
            let (device, device_jobs) = ServingDevice::new(id, backend);
            devices.push(device);
            jobs.push(device_jobs);
        }
        let core = Arc::new(Core {
            origin: Instant::now(),
            architectures,
            chunk_bytes,
            max_queued,
            metrics,
            repository: Mutex::new(repository),
            state: Mutex::new(CoreState::new(scheduler, devices.len())),
            tokenizers: Mutex::default(),
            devices,
            background: Condvar::new(),
            poll_wanted: Condvar::new(),
            rescan_wanted: Condvar::new(),
        });
        core.rescan()?;
        let mut serving = Self { core, devices: served, threads: Vec::new(), background: None };
        let ids: Vec<_> = serving.core.devices.iter().map(|device| device.id).collect();
        for (id, jobs) in ids.into_iter().zip(jobs) {
            let (sender, brought) = mpsc::channel();
            let brought = Arc::new(Mutex::new(brought));
            let runner = DeviceRunner { core: Arc::clone(&serving.core), id };
            let bringing = runner.clone();
            serving.spawn("bring", move |_| bringing.bring(&jobs, &sender))?;
            for _ in 0..serving.core.device(id).backend.max_batches() {
                let brought = Arc::clone(&brought);
                let computing = runner.clone();
                serving.spawn("compute", move |_| computing.execute(&brought))?;
            }
            serving.spawn("load ahead", move |_| runner.load_ahead())?;
        }
        serving.spawn("keep time", |core| core.keep_time())?;
        serving.spawn("watch folders", move |core| core.watch(rescan))?;
        if let Some(path) = background {
            serving.run_in_background(path)?;
        }
        Ok(serving)
    }

    /// Returns the ids of the worker processes, the active one first; empty if this process computes.
    pub fn workers(&self) -> Vec<u32> {
        self.core.devices.iter().flat_map(|device| device.backend.processes()).collect()
    }

    /// Creates a socket for programs that run while there are no requests.
    fn run_in_background(&mut self, path: PathBuf) -> Result<(), ServingError> {
        let programs = Programs::listen(&path).map_err(|source| ServingError::Background { path, source })?;
        let programs = Arc::new(programs);
        self.background = Some(Arc::clone(&programs));
        let accepting = Arc::clone(&programs);
        self.spawn("accept programs", move |core| background::accept(core, &accepting))?;
        self.spawn("schedule programs", move |core| core.schedule_background(&programs))
    }

    fn spawn(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&Arc<Core>) + Send + 'static,
    ) -> Result<(), ServingError> {
        let core = Arc::clone(&self.core);
        let thread = thread::Builder::new().name(format!("serve: {what}")).spawn(move || work(&core));
        self.threads.push(thread.map_err(|source| ServingError::Thread { what, source })?);
        Ok(())
    }
}

impl Drop for Serving {
    /// Answers waiting clients that the server ends, and ends all threads. A batch that runs in this process finishes.
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.is_ending = true;
        state.requests.clear();
        let running = state.device_work.iter().flat_map(|work| work.running.values());
        let running: Vec<_> = running.map(|batch| Arc::clone(&batch.control)).collect();
        drop(state);
        for device in &self.core.devices {
            device.backend.end();
            device.upcoming.notify_all();
            device.send(DeviceJob::End);
        }
        running.iter().for_each(|control| control.abandon());
        if let Some(programs) = self.background.take() {
            programs.end();
        }
        self.core.background.notify_all();
        self.core.poll_wanted.notify_all();
        self.core.rescan_wanted.notify_all();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the server panicked");
            }
        }
    }
}

impl Service for Serving {
    fn is_live(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }

    fn is_ready(&self) -> bool {
        let is_ending = self.core.state.lock().is_ending;
        !is_ending && self.core.devices.iter().all(|device| device.backend.is_answering())
    }

    fn devices(&self) -> &[Device] {
        &self.devices
    }

    fn index(&self) -> Vec<IndexEntry> {
        self.core.state.lock().registry.entries.iter().map(|(name, entry)| entry.index(name)).collect()
    }

    fn metadata(&self, model: &str, version: Option<&str>) -> Result<Arc<ModelMetadata>, ServeError> {
        self.core.state.lock().registry.entry(model, version)?.metadata(model)
    }

    fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, ServeError> {
        Ok(self.core.state.lock().registry.entry(model, version)?.id().is_some())
    }

    fn infer(&self, request: InferRequest) -> ServiceFuture<'_, InferResponse> {
        Box::pin(self.core.infer(request))
    }

    fn texts<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, Texts> {
        let core = Arc::clone(&self.core);
        let model = model.to_owned();
        Box::pin(async move {
            let opened = spawn_blocking(move || core.texts(&model)).await;
            opened.unwrap_or_else(|error| Err(ServeError::Failed(error.to_string())))
        })
    }

    fn load<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()> {
        let core = Arc::clone(&self.core);
        let model = model.to_owned();
        Box::pin(async move {
            let loaded = spawn_blocking(move || core.load(&model)).await;
            loaded.unwrap_or_else(|error| Err(ServeError::Failed(error.to_string())))
        })
    }

    fn unload<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()> {
        Box::pin(async move {
            if let Some(gone) = self.core.unload(model)? {
                // The sender sends nothing: it is dropped with the model.
                let _ = gone.await;
            }
            Ok(())
        })
    }

    fn snapshot(&self) -> Snapshot {
        let metrics = &self.core.metrics;
        let state = self.core.state.lock();
        let models: Vec<_> = state
            .registry
            .entries
            .iter()
            .map(|(name, entry): (&String, &Entry)| {
                let id = entry.id();
                let model = id.and_then(|id| state.registry.served.get(&id));
                let resident = model.map(|model| device::resident(&self.core.devices, model)).unwrap_or_default();
                (name.clone(), entry.state(), resident, id.map_or(0, |id| state.requests.scheduler.queued(id) as u64))
            })
            .collect();
        // Sorting latencies must not hold up other threads.
        drop(state);
        let models = models
            .into_iter()
            .map(|(name, state, resident, queued): (String, ModelState, Vec<Resident>, u64)| ModelSnapshot {
                state,
                resident,
                queued,
                answered: metrics.answered(&name),
                switches: metrics.switches(&name),
                latency: metrics.latency(&name),
                last_latencies: metrics.last_latencies(&name, ModelSnapshot::LATENCIES),
                name,
            })
            .collect();
        Snapshot {
            uptime: self.core.now(),
            tiers: device::tiers(&self.core.devices),
            models,
            switches: metrics.latest_switches(),
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }
}
