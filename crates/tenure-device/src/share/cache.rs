//! PipeSwitch's five calls (its patch of PyTorch 1.3: `CUDACachingAllocator.cpp`, `Module.cpp`), by name: one process
//! takes a cache of device memory and hands it to its workers, whose allocators use ranges of it for a while.
//!
//! There, sizes and offsets stood in the code, a raw handle went over an open port, and every worker could write every
//! range. Here sizes are configured, and a range has one user at a time.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tenure_alloc::Address;
use tenure_alloc::adaptor::Donated;
use tenure_core::StreamId;

use super::store::Store;
use super::{Client, DaemonConfig, MemoryDaemon, PoolLease, ShareError, SharedPool};
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

/// Another process's shared cache, in a worker.
///
/// Dropped, it takes its ranges out of the allocator and gives them back, but for those in which blocks live: these
/// stay with the process until it exits.
pub struct WorkerCache {
    pool: Arc<SharedPool>,
    allocator: Arc<Donated>,
    config: SharedCacheConfig,
    inserted: Mutex<Vec<Inserted>>,
}

/// A range that the allocator has.
struct Inserted {
    lease: PoolLease,
    stream: StreamId,
}

impl WorkerCache {
    /// Maps the cache of `client`'s daemon, which has the size of `config`, for `allocator` to use.
    ///
    /// # Errors
    /// The sizes do not fit together; the daemon has no cache of this size, or is gone; a driver call failed.
    pub fn recv_shared_cache(
        client: Arc<Client>,
        driver: Arc<dyn Driver>,
        allocator: Arc<Donated>,
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
        let pool = SharedPool::attach(client, driver)?;
        Ok(Self { pool, allocator, config, inserted: Mutex::default() })
    }

    /// The cache, mapped for reading.
    pub fn pool(&self) -> &Arc<SharedPool> {
        &self.pool
    }

    /// Gives `bytes` bytes from `offset` to this process's allocator, for `stream`. Returns their address.
    ///
    /// # Errors
    /// Another process uses a part of the range; it is none of the cache; the daemon is gone.
    pub fn insert_shared_cache(&self, bytes: u64, offset: u64, stream: StreamId) -> Result<Address, ShareError> {
        let lease = self.pool.lease(offset, bytes, Access::ReadWrite)?;
        let address = lease.address();
        // Held over both, so that a clear finds the range in both or in neither.
        let mut inserted = self.inserted.lock();
        self.allocator.insert(address, bytes, stream)?;
        inserted.push(Inserted { lease, stream });
        Ok(address)
    }

    /// [`insert_shared_cache`](Self::insert_shared_cache) of the part for parameters.
    ///
    /// # Errors
    /// As there.
    pub fn insert_shared_cache_for_parameter(&self, stream: StreamId) -> Result<Address, ShareError> {
        self.insert_shared_cache(self.config.parameter_bytes, 0, stream)
    }

    /// [`insert_shared_cache`](Self::insert_shared_cache) of the part for computation.
    ///
    /// # Errors
    /// As there.
    pub fn insert_shared_cache_for_computation(&self, stream: StreamId) -> Result<Address, ShareError> {
        self.insert_shared_cache(self.config.computation_bytes, self.config.parameter_bytes, stream)
    }

    /// Takes what was inserted for `stream` out of the allocator, waits for the device, and gives it back.
    ///
    /// # Errors
    /// Blocks live in it: free them first; nothing is taken out. The context is lost, or the daemon is gone: everything
    /// is taken out, and see [`PoolLease::release`].
    pub fn clear_shared_cache(&self, stream: StreamId) -> Result<(), ShareError> {
        let mut inserted = self.inserted.lock();
        self.allocator.clear(stream)?;
        let cleared = inserted.extract_if(.., |inserted| inserted.stream == stream);
        // The first error counts, and the others are tried all the same.
        cleared.map(|inserted| inserted.lease.release()).fold(Ok(()), Result::and)
    }
}

impl Drop for WorkerCache {
    fn drop(&mut self) {
        for Inserted { lease, stream } in self.inserted.get_mut().drain(..) {
            // The first range of a stream takes the others out too.
            match self.allocator.clear(stream) {
                Ok(_) => drop(lease),
                Err(_) => lease.keep(),
            }
        }
    }
}
