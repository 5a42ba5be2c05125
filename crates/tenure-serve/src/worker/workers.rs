//! The workers of a server, as its executors see them.

use std::env;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use prometheus_client::metrics::counter::Counter;
use tenure_nn::networks::Network;

use super::message::{BorrowingDevice, WorkerOrder};
use super::pool::WorkerPool;
use super::weights::LentWeights;
use super::worker_model::WorkerModel;
use super::{IS_WORKER, WorkerCommand};
use crate::executor::{ComputeProcess, ModelRunner};
use crate::repository::StoredModel;

/// The worker processes. Dropping this ends them.
pub(crate) struct Workers {
    pool: Arc<WorkerPool>,
    /// The thread that starts, asks and replaces workers.
    keeper: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts workers that compute on the CPU, up to `max_computing` at once, and waits for the first.
    ///
    /// # Errors
    /// The reason why the first worker does not start.
    pub(crate) fn start(command: WorkerCommand, max_computing: usize, deaths: Counter) -> Result<Self, String> {
        Self::start_on(None, max_computing, command, deaths)
    }

    /// Starts workers of which one at a time computes on a CUDA device, whose memory comes in chunks of `chunk_bytes`,
    /// and waits for the first.
    ///
    /// # Errors
    /// The errors of [`start`](Self::start); or a worker cannot use the device.
    pub(crate) fn start_on_cuda(
        index: u8,
        chunk_bytes: u64,
        command: WorkerCommand,
        deaths: Counter,
    ) -> Result<Self, String> {
        Self::start_on(Some(BorrowingDevice { index, chunk_bytes }), 1, command, deaths)
    }

    /// Returns the weights of a model that workers compute on a CUDA device.
    pub(crate) fn lent(&self, stored: &StoredModel) -> LentWeights {
        LentWeights::new(Arc::clone(&self.pool), stored)
    }

    fn start_on(
        device: Option<BorrowingDevice>,
        max_computing: usize,
        command: WorkerCommand,
        deaths: Counter,
    ) -> Result<Self, String> {
        if env::var_os(IS_WORKER).is_some() {
            return Err("this process is one: have its program call `worker::run` first".into());
        }
        let pool = Arc::new(WorkerPool::new(command, WorkerOrder::Start { device }, max_computing, deaths));
        let keeping = Arc::clone(&pool);
        let keeper = thread::Builder::new().name("serve: workers".into()).spawn(move || keeping.keep());
        let workers = Self { pool, keeper: Some(keeper.map_err(|error| error.to_string())?) };
        workers.pool.first()?.ready()?;
        Ok(workers)
    }
}

impl ComputeProcess for Workers {
    fn max_batches(&self) -> usize {
        self.pool.max_computing()
    }

    fn open(&self, _: Box<dyn Network>, stored: &StoredModel) -> Box<dyn ModelRunner> {
        Box::new(WorkerModel::new(Arc::clone(&self.pool), stored))
    }

    fn end(&self) {
        self.pool.end();
    }

    fn is_answering(&self) -> bool {
        self.pool.is_answering()
    }

    fn processes(&self) -> Vec<u32> {
        self.pool.processes()
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
