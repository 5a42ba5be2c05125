//! The backing of an allocator that leases its chunks from a memory daemon.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, BackingError, CachingAllocator, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

use super::{DaemonClient, DaemonRefusal, LeaseId, Recalls, ShareError};
use crate::{DeviceBacking, Driver};

/// The backing of an allocator whose chunks belong to a memory daemon.
///
/// `create` leases a chunk and `release` gives it back; all other calls go to this process's driver. There is no
/// `malloc`, so only allocators that build their memory from chunks can use this backing, such as `paged` or
/// `expandable`.
///
/// [`serve`](Self::serve) lets the allocator wait for memory that others return, and return what it can spare.
pub struct LeasedBacking {
    client: Arc<DaemonClient>,
    device: DeviceBacking,
    /// How long other processes are given to return memory before an allocation fails.
    wait: Duration,
    table: Mutex<LeaseTable>,
}

/// The leased chunks of a backing, and the size of the last request that was refused.
#[derive(Default)]
struct LeaseTable {
    leases: FxHashMap<ChunkId, Leased>,
    /// The size of all leases together, in bytes.
    leased_bytes: u64,
    /// The value that `leased_bytes` would have reached if the last request had succeeded; `None` unless that request
    /// was refused for want of memory. An allocator that is refused one of several chunks gives the others back, so it
    /// is short of all of them.
    wanted_bytes: Option<u64>,
}

#[derive(Clone, Copy)]
struct Leased {
    lease: LeaseId,
    bytes: u64,
}

impl LeaseTable {
    fn insert(&mut self, chunk: ChunkId, leased: Leased) {
        self.leased_bytes += leased.bytes;
        self.leases.insert(chunk, leased);
    }

    fn remove(&mut self, chunk: ChunkId) -> Option<Leased> {
        let leased = self.leases.remove(&chunk)?;
        self.leased_bytes -= leased.bytes;
        Some(leased)
    }
}

impl LeasedBacking {
    /// Creates a backing on chunks of `client`'s daemon, mapped through `driver`, which must be of the same device.
    /// When the daemon has no memory left, [`make_room`](Self::make_room) gives other processes `wait` to return some,
    /// at most a minute.
    pub fn new(client: Arc<DaemonClient>, driver: Arc<dyn Driver>, wait: Duration) -> Self {
        Self { client, device: DeviceBacking::new(driver), wait, table: Mutex::default() }
    }

    /// Lets `allocator`, which must use this backing, share memory with other processes: it calls
    /// [`make_room`](Self::make_room) when memory runs short, and gives its cached memory back when others run short.
    /// Sharing ends when the returned value is dropped.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use std::time::Duration;
    /// # use tenure_alloc::{PagedAllocator, PagedConfig};
    /// # use tenure_device::Driver;
    /// # use tenure_device::share::{DaemonClient, LeasedBacking, Recalls};
    /// # fn shared(client: Arc<DaemonClient>, driver: Arc<dyn Driver>) -> Result<(), Box<dyn std::error::Error>> {
    /// let backing = Arc::new(LeasedBacking::new(client, driver, Duration::from_millis(500)));
    /// let allocator = Arc::new(PagedAllocator::new(backing.clone(), PagedConfig::default())?);
    /// let _recalls = backing.serve(&allocator)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The same as [`DaemonClient::on_recall`].
    pub fn serve<A: CachingAllocator + ?Sized + 'static>(
        self: &Arc<Self>,
        allocator: &Arc<A>,
    ) -> Result<Recalls, ShareError> {
        let served = Arc::downgrade(allocator);
        let recalls = self.client.on_recall(move |_| {
            if let Some(allocator) = served.upgrade() {
                // The allocator may keep memory that it cannot give back now.
                let _ = allocator.release_cached();
            }
        })?;
        let backing = Arc::clone(self);
        allocator.add_free_memory_callback(Box::new(move || backing.make_room()));
        Ok(recalls)
    }

    /// Waits until other processes, which the daemon has asked, have returned enough memory for the request that
    /// `create` refused. Waits at most as long as [`new`](Self::new) was told. Returns whether `create` may succeed
    /// now. Returns `false` at once if the last `create` was not refused for want of memory.
    ///
    /// An allocator calls this as a free-memory callback. `paged` calls it after a refusal and then tries again.
    /// `native` calls it only before it asks, so that its next request gets the memory that this one waited for.
    pub fn make_room(&self) -> bool {
        let (wanted_bytes, leased_bytes) = {
            let mut table = self.table.lock();
            (table.wanted_bytes.take(), table.leased_bytes)
        };
        let Some(wanted_bytes) = wanted_bytes.filter(|_| !self.wait.is_zero()) else { return false };
        wanted_bytes <= leased_bytes || self.client.wait_for_room(wanted_bytes - leased_bytes, self.wait).is_ok()
    }

    /// Returns the connection to the daemon.
    pub fn client(&self) -> &Arc<DaemonClient> {
        &self.client
    }

    /// Leases a chunk from the daemon and imports it. Records whether it was refused for want of memory.
    fn lease(&self, bytes: u64) -> Result<ChunkId, ShareError> {
        let leased = self.client.lease_chunk(bytes);
        {
            let mut table = self.table.lock();
            let full = matches!(leased, Err(ShareError::Refused(DaemonRefusal::Full { .. })));
            table.wanted_bytes = full.then(|| table.leased_bytes.saturating_add(bytes));
        }
        let (lease, descriptor) = leased?;
        match self.device.driver().import(descriptor.as_fd(), bytes) {
            Ok(chunk) => {
                self.table.lock().insert(chunk, Leased { lease, bytes });
                Ok(chunk)
            }
            Err(error) => {
                // If the daemon is gone too, there is no lease left to give back.
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

    /// Reports as `free` at most the bytes that the daemon can still lease.
    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        let device = self.device.memory_info()?;
        // A daemon that is gone counts as one without a limit; the next lease reports that it is gone.
        let available = self.client.status().map_or(u64::MAX, |status| status.available_bytes());
        Ok(MemoryInfo { free: device.free.min(available), ..device })
    }

    fn overhead_bytes(&self) -> u64 {
        self.device.overhead_bytes()
    }

    fn malloc(&self, _bytes: u64) -> Result<Address, BackingError> {
        Err(no_segments("malloc"))
    }

    fn free(&self, _address: Address) -> Result<(), BackingError> {
        Err(no_segments("free"))
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
        // Forget the chunk first: once it is released, another thread may get a chunk with the same id.
        let leased = self.table.lock().remove(chunk);
        if let Err(error) = self.device.release(chunk) {
            if let Some(leased) = leased {
                self.table.lock().insert(chunk, leased);
            }
            return Err(error);
        }
        if let Some(Leased { lease, .. }) = leased {
            // The chunk is gone here, whatever the daemon says. If the daemon cannot be reached, it reclaims the lease
            // when this process exits; if it was restarted, it does not know the lease.
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

    fn synchronize_all(&self) -> Result<(), BackingError> {
        self.device.synchronize_all()
    }
}

/// Returns the error of calls that need segments: this process's driver would own them, and they would count in no
/// budget.
fn no_segments(call: &'static str) -> BackingError {
    let reason = "a memory daemon leases chunks only: use an allocator that makes its memory of them (`paged`, or \
                  `native` with expandable segments)";
    BackingError::Failed { call, reason: reason.into() }
}
