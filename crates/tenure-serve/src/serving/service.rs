//! The service itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tenure_nn::networks::Architectures;
use tenure_switch::{Images, SwitchError};
use tokio::task::spawn_blocking;

use super::core::{Core, MEMORY, State};
use super::registry::Entry;
use super::threads::Job;
use crate::executor::{Here, Place};
use crate::http::{ModelSnapshot, Resident, ServeError, Service, ServiceFuture, Snapshot, Tier};
use crate::metrics::Metrics;
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelMetadata};
use crate::repository::{Repository, RepositoryError};
use crate::scheduler::{Model, Scheduler, SchedulerConfig};
use crate::worker::{WorkerCommand, Workers};

/// What memory is counted in: pages.
const PAGE_BYTES: u64 = 4096;

/// How fast weights are taken to be read until it was measured.
const DISK_BYTES_PER_SECOND: f64 = 2e9;

/// How a [`Serving`] serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingOptions {
    /// The folder of models.
    pub models: PathBuf,
    /// Bytes of memory for weights.
    pub memory_bytes: u64,
    /// Requests that may wait for a model, at most.
    pub max_queued: usize,
    /// After how long folders are looked at again.
    pub rescan: Duration,
    /// What starts processes that compute; nothing to compute in this one.
    pub worker: Option<WorkerCommand>,
}

impl ServingOptions {
    /// A folder of models, of whose weights so many bytes are in memory at most. 128 requests may wait for each, and folders
    /// are looked at every 2 s. They are computed in this process.
    pub fn new(models: impl Into<PathBuf>, memory_bytes: u64) -> Self {
        let max_queued = Model::default().max_queued;
        Self { models: models.into(), memory_bytes, max_queued, rescan: Duration::from_secs(2), worker: None }
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

/// Models in folders, computed on the CPU, in this process or in [workers](crate::worker). As many weights as there is memory for are there; the others are on
/// the disk, and come when they are asked for.
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
        let ServingOptions { models, memory_bytes, max_queued, rescan, worker } = options;
        let mut scheduler = Scheduler::new(SchedulerConfig {
            chunk_bytes: PAGE_BYTES,
            evicts_whole: true,
            copy_bytes_per_second: DISK_BYTES_PER_SECOND,
            ..SchedulerConfig::default()
        });
        let device = scheduler.add_device(memory_bytes);
        let metrics = Metrics::default();
        let place: Arc<dyn Place> = match worker {
            Some(command) => Arc::new(Workers::start(command, metrics.worker_deaths()).map_err(ServingError::Worker)?),
            None => Arc::new(Here),
        };
        let (jobs, receiver) = mpsc::channel();
        let core = Arc::new(Core {
            origin: Instant::now(),
            architectures,
            images: Arc::new(Images::new(memory_bytes, None)?),
            memory_bytes,
            max_queued,
            metrics,
            place,
            device,
            repository: Mutex::new(Repository::new(models)),
            state: Mutex::new(State::new(scheduler)),
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
        self.core.place.processes()
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
        self.core.place.end();
        self.core.place.abandon();
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
        let (state, metrics) = (self.core.state.lock(), &self.core.metrics);
        let model = |(name, entry): (&String, &Entry)| {
            let id = entry.id();
            let bytes = id.and_then(|id| state.models.get(&id)).map_or(0, |model| model.resident_bytes());
            let resident = (bytes > 0).then(|| Resident { tier: MEMORY.into(), bytes });
            ModelSnapshot {
                name: name.clone(),
                state: entry.state(),
                resident: resident.into_iter().collect(),
                queued: id.map_or(0, |id| state.scheduler.queued(id) as u64),
                answered: metrics.answered(name),
                switches: metrics.switches(name),
                latency: metrics.latency(name),
            }
        };
        let used_bytes = self.core.images.statistics().bytes;
        let tier = Tier { name: MEMORY.into(), used_bytes, capacity_bytes: self.core.memory_bytes };
        let models = state.entries.iter().map(model).collect();
        Snapshot { uptime: self.core.now(), tiers: vec![tier], models }
    }

    fn metrics(&self) -> &Metrics {
        &self.core.metrics
    }
}
