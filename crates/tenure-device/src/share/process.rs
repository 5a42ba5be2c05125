//! The shared caches of a process, for callers that name them by their device, such as C and Python.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::tenancy::AroundWait;
use super::{DaemonClient, DaemonConfig, ShareError, SharedCache, SharedCacheConfig, WorkerCache};
use crate::memory::{DeviceMemory, MAX_DEVICES};

static CACHES: [Mutex<ProcessCaches>; MAX_DEVICES] = [const { Mutex::new(ProcessCaches::new()) }; MAX_DEVICES];

/// A process's shared caches on a device: it owns at most one, and works in at most one. Both stay until the process
/// exits, because blocks may lie in them.
pub struct ProcessCaches {
    owned: Option<SharedCache>,
    joined: Option<WorkerCache>,
    /// Whether the joined cache is the owned one.
    is_own: bool,
}

/// How a process waits for other processes that use a cache.
#[derive(Clone, Copy)]
pub struct CacheWaits {
    /// The longest wait.
    pub patience: Duration,
    /// As in [`WorkerCache::with_waits_in`].
    pub around: AroundWait,
}

impl ProcessCaches {
    const fn new() -> Self {
        Self { owned: None, joined: None, is_own: false }
    }

    /// Locks and returns the caches on a device's memory.
    pub fn of(memory: &DeviceMemory) -> MutexGuard<'static, Self> {
        CACHES[usize::from(memory.device().index())].lock()
    }

    /// Allocates the cache that this process owns: [`SharedCache::allocate_shared_cache`].
    ///
    /// # Errors
    /// [`ShareError::AlreadyAllocated`], and the errors of that function.
    pub fn allocate(&mut self, memory: &DeviceMemory, config: &SharedCacheConfig) -> Result<(), ShareError> {
        if self.owned.is_some() {
            return Err(ShareError::AlreadyAllocated);
        }
        self.owned = Some(SharedCache::allocate_shared_cache(Arc::clone(memory.driver()), config)?);
        Ok(())
    }

    /// Serves the owned cache at `socket`: [`SharedCache::send_shared_cache`].
    ///
    /// # Errors
    /// [`ShareError::NotAllocated`], and the errors of that function.
    pub fn send(&mut self, socket: &Path) -> Result<(), ShareError> {
        let owned = self.owned.as_mut().ok_or(ShareError::NotAllocated)?;
        owned.send_shared_cache(DaemonConfig { socket: socket.to_owned(), ..DaemonConfig::default() })
    }

    /// Maps the cache that `client` is connected to: [`WorkerCache::recv_shared_cache`]. It replaces a cache joined
    /// before if nothing is inserted in that one. Sizes default to those that the cache was made with.
    ///
    /// # Errors
    /// [`ShareError::StillInserted`], and the errors of that function.
    pub fn join(
        &mut self,
        memory: &'static DeviceMemory,
        client: DaemonClient,
        parameter_bytes: Option<u64>,
        computation_bytes: Option<u64>,
        waits: CacheWaits,
    ) -> Result<(), ShareError> {
        if self.joined.as_ref().is_some_and(|joined| !joined.streams().is_empty()) {
            return Err(ShareError::StillInserted);
        }
        let is_own = self.owned.as_ref().and_then(SharedCache::socket) == Some(client.path());
        let pool = &client.terms().pool;
        let size = |given: Option<u64>, part: usize| given.or_else(|| pool.get(part).copied()).unwrap_or(0);
        let config = SharedCacheConfig {
            pool_bytes: client.terms().pool_bytes(),
            parameter_bytes: size(parameter_bytes, 0),
            computation_bytes: size(computation_bytes, 1),
        };
        let cache = WorkerCache::recv_shared_cache(Arc::new(client), memory, config)?;
        self.joined = Some(cache.with_patience(waits.patience).with_waits_in(waits.around));
        self.is_own = is_own;
        Ok(())
    }

    /// Joins the cache that this process owns, if it has one and has joined none yet. First serves it at `socket`,
    /// unless it is served already.
    ///
    /// # Errors
    /// The errors of [`send`](Self::send) and [`join`](Self::join).
    pub fn join_own(
        &mut self,
        memory: &'static DeviceMemory,
        socket: &Path,
        waits: CacheWaits,
    ) -> Result<(), ShareError> {
        let (Some(owned), None) = (&self.owned, &self.joined) else { return Ok(()) };
        let socket = owned.socket().unwrap_or(socket).to_owned();
        self.send(&socket)?;
        self.join(memory, DaemonClient::connect(&socket)?, None, None, waits)
    }

    /// Returns the cache that this process works in.
    ///
    /// # Errors
    /// [`ShareError::NotReceived`].
    pub fn joined(&self) -> Result<&WorkerCache, ShareError> {
        self.joined.as_ref().ok_or(ShareError::NotReceived)
    }

    /// Returns whether this process works in the cache that it owns.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Takes everything that was inserted, on all streams, out of the allocator:
    /// [`WorkerCache::clear_shared_cache`].
    ///
    /// # Errors
    /// [`ShareError::NotReceived`], and the first error of that function; the remaining streams are cleared all the
    /// same.
    pub fn clear(&self) -> Result<(), ShareError> {
        let cache = self.joined()?;
        cache.streams().into_iter().map(|stream| cache.clear_shared_cache(stream)).fold(Ok(()), Result::and)
    }
}
