//! PipeSwitch's five calls (its patch of PyTorch 1.3: `CUDACachingAllocator.cpp`, `Module.cpp`), by name: one process
//! takes a cache of device memory and hands it to its workers, whose allocators use ranges of it for a while.
//!
//! There, sizes and offsets stood in the code, a raw handle went over an open port, and every worker could write every
//! range. Here sizes are configured, and a range has one user at a time.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure_alloc::Address;
use tenure_alloc::adaptor::Placement;
use tenure_core::StreamId;

use super::manifest::Manifest;
use super::store::Store;
use super::{Client, DaemonConfig, MemoryDaemon, PoolLease, ShareError, SharedPool};
use crate::memory::DeviceMemory;
use crate::{Access, Driver};

/// Sizes of a shared cache, in bytes.
///
/// Parameters come first, then the memory for computation, then the rest. Each is a chunk of its own, so that who may
/// write one can not write another by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SharedCacheConfig {
    /// In all.
    pub pool_bytes: u64,
    /// For parameters.
    pub parameter_bytes: u64,
    /// For computation.
    pub computation_bytes: u64,
}

impl Default for SharedCacheConfig {
    /// PipeSwitch's: 1 GiB for parameters, 11 GiB for computation.
    fn default() -> Self {
        Self { pool_bytes: 12 << 30, parameter_bytes: 1 << 30, computation_bytes: 11 << 30 }
    }
}

impl SharedCacheConfig {
    /// The chunks of a pool of these sizes.
    ///
    /// # Errors
    /// The parts are larger than the whole.
    pub fn chunks(&self) -> Result<Vec<u64>, ShareError> {
        let rest = self.pool_bytes.checked_sub(self.parameter_bytes);
        let rest = rest.and_then(|bytes| bytes.checked_sub(self.computation_bytes));
        let rest = rest.ok_or_else(|| ShareError::InvalidSetting {
            setting: "pool_bytes",
            value: self.pool_bytes.to_string(),
            expected: format!(
                "room for parameter_bytes = {} and computation_bytes = {}",
                self.parameter_bytes, self.computation_bytes
            ),
        })?;
        let chunks = [self.parameter_bytes, self.computation_bytes, rest];
        Ok(chunks.into_iter().filter(|&bytes| bytes > 0).collect())
    }
}

/// Device memory taken for workers, in the process that owns it.
pub struct SharedCache {
    store: Store,
}

impl SharedCache {
    /// Takes the memory.
    ///
    /// # Errors
    /// The sizes do not fit together, or are no multiples of the device's granularity; the device has not enough.
    pub fn allocate_shared_cache(driver: Arc<dyn Driver>, config: &SharedCacheConfig) -> Result<Self, ShareError> {
        Ok(Self { store: Store::new(driver, &config.chunks()?)? })
    }

    /// Hands it to whoever asks at `config`'s socket. `config`'s pool is not used.
    ///
    /// # Errors
    /// The socket is served already, or can not be made.
    pub fn send_shared_cache(self, config: DaemonConfig) -> Result<MemoryDaemon, ShareError> {
        MemoryDaemon::serve(self.store, config)
    }
}

/// A shared cache in a worker: in another process than its owner's, or in the same.
///
/// A range for *computation* is this worker's alone. One for *parameters* is written by one worker, which then
/// [publishes](Self::publish_parameters) them, and read by any number: a reader that allocates the same tensors in the same
/// order finds them filled, at no copy. What was published says which these are; anything else is refused, so that no
/// tensor ever stands on bytes that were not written for it. Readers have the range mapped for reading only.
///
/// Dropped, it takes its ranges out of the allocator and gives them back, but for those in which blocks live: these
/// stay with the process until it exits.
pub struct WorkerCache {
    pool: Arc<SharedPool>,
    memory: &'static DeviceMemory,
    config: SharedCacheConfig,
    inserted: Mutex<Vec<Inserted>>,
}

/// A range that the allocator has.
struct Inserted {
    lease: PoolLease,
    stream: StreamId,
    /// What is said of the parameters in it, once they are published.
    about: Option<Vec<u8>>,
}

impl WorkerCache {
    /// Maps the cache of `client`'s daemon, which has the size of `config`, for `memory` to use.
    ///
    /// # Errors
    /// The sizes do not fit together; the daemon has no cache of this size, or is gone; a driver call failed.
    pub fn recv_shared_cache(
        client: Arc<Client>,
        memory: &'static DeviceMemory,
        config: SharedCacheConfig,
    ) -> Result<Self, ShareError> {
        config.chunks()?;
        let pool_bytes = client.terms().pool_bytes();
        if config.pool_bytes != pool_bytes {
            return Err(ShareError::InvalidSetting {
                setting: "pool_bytes",
                value: config.pool_bytes.to_string(),
                expected: format!("the daemon's pool has {pool_bytes} bytes: configure both alike"),
            });
        }
        let pool = SharedPool::attach(client, Arc::clone(memory.driver()))?;
        Ok(Self { pool, memory, config, inserted: Mutex::default() })
    }

    /// Its sizes.
    pub fn config(&self) -> &SharedCacheConfig {
        &self.config
    }

    /// The cache, mapped for reading.
    pub fn pool(&self) -> &Arc<SharedPool> {
        &self.pool
    }

    /// Gives `bytes` bytes from `offset` to this process's allocator, for large blocks on `stream`. Returns their address.
    ///
    /// # Errors
    /// Another process uses a part of the range; it is none of the cache; the daemon is gone.
    pub fn insert_shared_cache(&self, bytes: u64, offset: u64, stream: StreamId) -> Result<Address, ShareError> {
        let lease = self.pool.lease(offset, bytes, Access::ReadWrite)?;
        self.insert(lease, stream, Placement::BestFit, None)
    }

    /// Gives the part for parameters to every allocation on `stream`, whatever its size. For writing, each gets the first
    /// place that is free, until they are [published](Self::publish_parameters). For reading, allocations must be those of
    /// the parameters that are published there, and get their places; later ones are served from elsewhere.
    ///
    /// # Errors
    /// Another process writes them, or uses them if they are to be written; nothing is published that could be read; the
    /// daemon is gone; a driver call failed.
    pub fn insert_shared_cache_for_parameter(&self, stream: StreamId, access: Access) -> Result<Address, ShareError> {
        let lease = self.pool.lease(0, self.config.parameter_bytes, access)?;
        let (driver, address, bytes) = (self.memory.driver(), lease.address(), lease.bytes());
        match access {
            Access::Read => {
                let published = Manifest::read(&**driver, address, bytes)?;
                self.insert(lease, stream, Placement::Recorded(published.layout()), Some(published.about))
            }
            Access::ReadWrite => {
                Manifest::wipe(&**driver, address, bytes)?;
                self.insert(lease, stream, Placement::InOrder, None)
            }
        }
    }

    /// [`insert_shared_cache`](Self::insert_shared_cache) of the part for computation. No more parameters are allocated
    /// after that.
    ///
    /// # Errors
    /// As there, and as [`check_parameters`](Self::check_parameters).
    pub fn insert_shared_cache_for_computation(&self, stream: StreamId) -> Result<Address, ShareError> {
        self.check_parameters()?;
        let written = self.inserted.lock().iter().find(|one| one.is_written()).map(|one| one.lease.address());
        // A range for computation has nothing to close.
        let _ = written.map(|address| self.memory.donated().close(address));
        self.insert_shared_cache(self.config.computation_bytes, self.config.parameter_bytes, stream)
    }

    /// Ends the writing of parameters: from now on other workers can read what was allocated for them here and still
    /// lives, and this one can only read it too. `about` is told to the readers.
    ///
    /// # Errors
    /// This process writes no parameters; the range has no room left for the list of them; the daemon is gone; a driver
    /// call failed. Nothing is published then.
    pub fn publish_parameters(&self, about: &[u8]) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        let writes = |inserted: &&mut Inserted| inserted.lease.offset() == 0 && inserted.is_written();
        let parameters = inserted.iter_mut().find(writes).ok_or(ShareError::NotInserted("published"))?;
        let (address, bytes) = (parameters.lease.address(), parameters.lease.bytes());
        let layout = self.memory.donated().close(address)?;
        Manifest::new(&layout, about).write(&**self.memory.driver(), address, bytes)?;
        parameters.lease.lower()?;
        parameters.about = Some(about.to_vec());
        Ok(())
    }

    /// What was said of the parameters that are inserted, by who published them.
    pub fn about_parameters(&self) -> Option<Vec<u8>> {
        self.inserted.lock().iter().find_map(|inserted| inserted.about.clone())
    }

    /// That all parameters inserted for reading were allocated.
    ///
    /// # Errors
    /// [`ShareError::Outstanding`]: some were not, and would be computed with as something else.
    pub fn check_parameters(&self) -> Result<(), ShareError> {
        let inserted = self.inserted.lock();
        let outstanding = inserted.iter().map(|one| self.memory.donated().outstanding(one.lease.address())).sum();
        if outstanding > 0 { Err(ShareError::Outstanding { outstanding }) } else { Ok(()) }
    }

    /// The streams that something is inserted for.
    pub fn streams(&self) -> Vec<StreamId> {
        let mut streams: Vec<_> = self.inserted.lock().iter().map(|inserted| inserted.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        streams
    }

    /// Takes what was inserted for `stream` out of the allocator, waits for the device, and gives it back, if anybody is
    /// there to take it.
    ///
    /// # Errors
    /// Blocks live in it: free them first; nothing is taken out. The context is lost: everything is taken out, and see
    /// [`PoolLease::release`].
    pub fn clear_shared_cache(&self, stream: StreamId) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        self.memory.donated().clear(stream)?;
        let cleared = inserted.extract_if(.., |inserted| inserted.stream == stream);
        let released = cleared.map(|inserted| match inserted.lease.release() {
            Err(ShareError::DaemonGone { .. }) => Ok(()),
            released => released,
        });
        // The first error counts, and the others are tried all the same.
        released.fold(Ok(()), Result::and)
    }

    fn insert(
        &self,
        lease: PoolLease,
        stream: StreamId,
        placement: Placement,
        about: Option<Vec<u8>>,
    ) -> Result<Address, ShareError> {
        let (address, bytes) = (lease.address(), lease.bytes());
        // Held over both, so that a clear finds the range in both or in neither.
        let mut inserted = self.inserted.lock();
        self.memory.donated().insert(address, bytes, stream, placement)?;
        inserted.push(Inserted { lease, stream, about });
        Ok(address)
    }
}

impl Inserted {
    fn is_written(&self) -> bool {
        self.lease.access() == Access::ReadWrite
    }
}

impl Drop for WorkerCache {
    fn drop(&mut self) {
        for Inserted { lease, stream, .. } in self.inserted.get_mut().drain(..) {
            // The first range of a stream takes the others out too.
            match self.memory.donated().clear(stream) {
                Ok(_) => drop(lease),
                Err(_) => lease.keep(),
            }
        }
    }
}
