//! The service itself.

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

use super::core::{Core, State};
use super::registry::Entry;
use super::texts::Tokenizers;
use super::threads::Job;
use crate::executor::{Backend, CpuBackend, CudaBackend, Here, Place, WithPython};
use crate::http::{ModelSnapshot, Resident, ServeError, Service, ServiceFuture, Snapshot, Texts};
use crate::metrics::Metrics;
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelMetadata, ModelState};
use crate::repository::{Repository, RepositoryError};
use crate::scheduler::{Model, Scheduler, SchedulerConfig};
use crate::worker::{Python, WorkerCommand, Workers};

/// What memory is counted in: pages.
const PAGE_BYTES: u64 = 4096;

/// How fast weights are taken to be read until it was measured.
const DISK_BYTES_PER_SECOND: f64 = 2e9;
/// The same of copies to a device.
const LINK_BYTES_PER_SECOND: f64 = 25e9;

/// How a [`Serving`] serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// The folder of models.
    pub models: PathBuf,
    /// The device that computes.
    pub device: Device,
    /// Bytes of its memory for weights.
    pub memory_bytes: u64,
    /// Bytes of pinned memory of the host for weights, where the device is not the CPU.
    pub host_bytes: u64,
    /// Requests that may wait for a model, at most.
    pub max_queued: usize,
    /// After how long folders are looked at again.
    pub rescan: Duration,
    /// The command that starts processes that compute on the CPU; `None` to compute in this one.
    pub worker: Option<WorkerCommand>,
    /// The command that starts the process that computes PyTorch modules on the CPU; `None` where there are none.
    pub python: Option<WorkerCommand>,
}

impl ServingOptions {
    /// A folder of models, of whose weights so many bytes are in memory at most. 128 requests may wait for each, and folders
    /// are looked at every 2 s. They are computed in this process, on the CPU.
    pub fn new(models: impl Into<PathBuf>, memory_bytes: u64) -> Self {
        Self {
            models: models.into(),
            device: Device::CPU,
            memory_bytes,
            host_bytes: 0,
            max_queued: Model::default().max_queued,
            rescan: Duration::from_secs(2),
            worker: None,
            python: None,
        }
    }

    /// The backend, its chunks, and whether models leave it as a whole.
    fn backend(&self, metrics: &Metrics) -> Result<(Box<dyn Backend>, u64, bool), ServingError> {
        if !self.device.is_cpu() {
            let backend = CudaBackend::new(self.device, self.memory_bytes, self.host_bytes);
            let backend = backend.map_err(|error| ServingError::Device(error.to_string()))?;
            let chunk_bytes = backend.chunk_bytes();
            return Ok((Box::new(backend), chunk_bytes, false));
        }
        let place: Arc<dyn Place> = match &self.worker {
            Some(command) => {
                let workers = Workers::start(command.clone(), metrics.worker_deaths());
                Arc::new(workers.map_err(ServingError::Worker)?)
            }
            None => Arc::new(Here),
        };
        let native: Box<dyn Backend> = Box::new(CpuBackend::new(self.memory_bytes, place)?);
        let backend = match &self.python {
            Some(command) => {
                let python = Python::new(command.clone(), metrics.worker_deaths());
                Box::new(WithPython::new(native, python.map_err(ServingError::Worker)?))
            }
            None => native,
        };
        Ok((backend, PAGE_BYTES, true))
    }
}

/// Why nothing can be served.
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
    /// No process computes.
    #[error("no worker computes: {0}")]
    Worker(String),
    /// The system gives no thread.
    #[error("no thread to {what}: {source}")]
    Thread {
        /// What for.
        what: &'static str,
        /// The system's words.
        source: io::Error,
    },
}

/// Models in folders, computed on the CPU, in this process or in [workers](crate::worker), or on a CUDA device. As many weights as there
/// is memory for are there; the others are on the disk, or in the host's memory, and come when they are asked for.
pub struct Serving {
    core: Arc<Core>,
    threads: Vec<JoinHandle<()>>,
}

impl Serving {
    /// Looks at the folders and begins to serve what is there. No weights are read yet.
    ///
    /// # Errors
    /// The folder cannot be read; no threads; a worker does not start.
    pub fn start(options: ServingOptions, architectures: Architectures) -> Result<Self, ServingError> {
        let metrics = Metrics::default();
        let (backend, chunk_bytes, evicts_whole) = options.backend(&metrics)?;
        let copy_bytes_per_second = if options.device.is_cpu() { DISK_BYTES_PER_SECOND } else { LINK_BYTES_PER_SECOND };
        let mut scheduler = Scheduler::new(SchedulerConfig {
            chunk_bytes,
            evicts_whole,
            copy_bytes_per_second,
            ..SchedulerConfig::default()
        });
        let ServingOptions { models, memory_bytes, max_queued, rescan, .. } = options;
        let device = scheduler.add_device(memory_bytes);
        let (jobs, receiver) = mpsc::channel();
        let core = Arc::new(Core {
            origin: Instant::now(),
            architectures,
            backend,
            chunk_bytes,
            max_queued,
            metrics,
            device,
            repository: Mutex::new(Repository::new(models)),
            state: Mutex::new(State::new(scheduler)),
            tokenizers: Tokenizers::default(),
            moves: Mutex::default(),
            changed: Condvar::new(),
            ended: Condvar::new(),
            jobs,
        });
        core.rescan()?;
        let mut serving = Self { core, threads: Vec::new() };
        serving.spawn("compute", move |core| core.execute(&receiver))?;
        serving.spawn("load ahead", Core::load_ahead)?;
        serving.spawn("keep time", |core| core.keep_time())?;
        serving.spawn("watch folders", move |core| core.watch(rescan))?;
        Ok(serving)
    }

    /// The processes that compute, the active one first; none beside this one.
    pub fn workers(&self) -> Vec<u32> {
        self.core.backend.processes()
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
    /// Who still waits is told that the server ends. A batch that runs in this process is finished.
    fn drop(&mut self) {
        let mut state = self.core.state.lock();
        state.is_ending = true;
        state.requests.clear();
        drop(state);
        self.core.backend.end();
        self.core.backend.abandon();
        self.core.changed.notify_all();
        self.core.ended.notify_all();
        self.core.send(Job::End);
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
        !self.core.state.lock().is_ending
    }

    fn index(&self) -> Vec<IndexEntry> {
        self.core.state.lock().entries.iter().map(|(name, entry)| entry.index(name)).collect()
    }

    fn metadata(&self, model: &str, version: Option<&str>) -> Result<Arc<ModelMetadata>, ServeError> {
        self.core.state.lock().entry(model, version)?.metadata(model)
    }

    fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, ServeError> {
        Ok(self.core.state.lock().entry(model, version)?.id().is_some())
    }

    fn infer(&self, request: InferRequest) -> ServiceFuture<'_, InferResponse> {
        Box::pin(self.core.infer(request))
    }

    fn texts<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, Texts> {
        let (core, model) = (Arc::clone(&self.core), model.to_owned());
        Box::pin(async move {
            let opened = spawn_blocking(move || core.texts(&model)).await;
            opened.unwrap_or_else(|error| Err(ServeError::Failed(error.to_string())))
        })
    }

    fn load<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()> {
        let (core, model) = (Arc::clone(&self.core), model.to_owned());
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
        let [tier, _] = self.core.backend.tiers();
        let state = self.core.state.lock();
        let known = |(name, entry): (&String, &Entry)| {
            let id = entry.id();
            let bytes = id.and_then(|id| state.models.get(&id)).map_or(0, |model| model.resident_bytes());
            (name.clone(), entry.state(), bytes, id.map_or(0, |id| state.scheduler.queued(id) as u64))
        };
        let models: Vec<_> = state.entries.iter().map(known).collect();
        // Latencies are sorted, for which nobody is to wait.
        drop(state);
        let model = |(name, state, bytes, queued): (String, ModelState, u64, u64)| {
            let resident = (bytes > 0).then(|| Resident { tier: tier.into(), bytes });
            ModelSnapshot {
                state,
                resident: resident.into_iter().collect(),
                queued,
                answered: metrics.answered(&name),
                switches: metrics.switches(&name),
                latency: metrics.latency(&name),
                last_latencies: metrics.last_latencies(&name, ModelSnapshot::LATENCIES),
                name,
            }
        };
        let models = models.into_iter().map(model).collect();
        Snapshot {
            uptime: self.core.now(),
            tiers: self.core.backend.usage(),
            models,
            switches: metrics.latest_switches(),
        }
    }

    fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }
}
