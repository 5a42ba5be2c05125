use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

use super::{Client, LeaseId, ShareError};
use crate::{DeviceBacking, Driver};

/// The backing of an allocator whose chunks belong to a memory daemon.
///
/// `create` leases a chunk and `release` gives it back; everything else is this process's driver's. An allocator that
/// keeps chunks for later should be told of [recalls](Client::on_recall), to
/// [`release_cached`](tenure_alloc::CachingAllocator::release_cached). Segments of `malloc` are not the daemon's.
pub struct LeasedBacking {
    client: Arc<Client>,
    device: DeviceBacking,
    /// How long others are given to return memory before an allocation fails.
    wait: Duration,
    leases: Mutex<FxHashMap<ChunkId, LeaseId>>,
}

impl LeasedBacking {
    /// A backing on chunks of `client`'s daemon, mapped through `driver`, of the same device. When the daemon has no
    /// memory left, other processes are given `wait` to return some before `create` fails. Requests of one client go
    /// one after the other: allocators that should not wait for each other have clients of their own.
    pub fn new(client: Arc<Client>, driver: Arc<dyn Driver>, wait: Duration) -> Self {
        Self { client, device: DeviceBacking::new(driver), wait, leases: Mutex::default() }
    }

    /// The connection to the daemon.
    pub fn client(&self) -> &Arc<Client> {
        &self.client
    }

    fn lease(&self, bytes: u64) -> Result<ChunkId, ShareError> {
        let (lease, descriptor) = self.client.lease_chunk(bytes, self.wait)?;
        match self.device.driver().import(descriptor.as_fd(), bytes) {
            Ok(chunk) => {
                self.leases.lock().insert(chunk, lease);
                Ok(chunk)
            }
            Err(error) => {
                // If the daemon is gone too, there is nobody to tell.
                let _ = self.client.release(lease);
                Err(error.into())
            }
        }
    }
}

impl Backing for LeasedBacking {
    fn granularity(&self) -> u64 {
        self.device.granularity()
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        self.device.memory_info()
    }

    fn overhead_bytes(&self) -> u64 {
        self.device.overhead_bytes()
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        self.device.malloc(bytes)
    }

    fn free(&self, address: Address) -> Result<(), BackingError> {
        self.device.free(address)
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        self.device.reserve(bytes)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.device.unreserve(address, bytes)
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        Ok(self.lease(bytes)?)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        // Forgotten first: once the chunk is released, another thread may get one of the same name.
        let lease = self.leases.lock().remove(&chunk);
        if let Err(error) = self.device.release(chunk) {
            self.leases.lock().extend(lease.map(|lease| (chunk, lease)));
            return Err(error);
        }
        if let Some(lease) = lease {
            // The chunk is gone here, whatever the daemon says. One that can not be reached takes the lease back when
            // this process exits, or has forgotten it.
            let _ = self.client.release(lease);
        }
        Ok(())
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        self.device.map(address, chunk)
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.device.set_access(address, bytes)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        self.device.unmap(address, bytes)
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        self.device.record(stream)
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        self.device.completed(mark)
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        self.device.wait(stream, mark)
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        self.device.synchronize(mark)
    }
}
