use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, AllocError, Block, History, MappedChunk, PoolId, Resource, Snapshot, Statistics};

/// What a memory callback is told when the device is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes of the request that failed, rounded.
    pub requested: u64,
    /// Bytes this process may hold, overhead and all.
    pub allowed: u64,
    /// Bytes of this process beside the allocator's: [`Backing::overhead_bytes`](crate::Backing::overhead_bytes).
    pub overhead: u64,
    /// Bytes reserved but not allocated.
    pub inactive: u64,
    /// Bytes of the device.
    pub total: u64,
    /// Bytes free on the device.
    pub free: u64,
}

/// Called when memory runs short; returns whether it may have freed any of this allocator's blocks.
pub type FreeMemoryCallback = Box<dyn Fn() -> bool + Send + Sync>;

/// Told of every out-of-memory error, before it is returned and with no lock held.
pub type OutOfMemoryObserver = Box<dyn Fn(&OutOfMemory) + Send + Sync>;

/// Says whether an allocation on a stream goes to a private pool. Called on the allocating thread with the allocator's
/// lock held: it must not call the allocator.
pub type StreamFilter = Box<dyn Fn(StreamId) -> bool + Send + Sync>;

/// A device's caching allocator: PyTorch's `DeviceCachingAllocator`, as its users see it.
pub trait CachingAllocator: Resource {
    /// Says that `stream` uses the block at `address` too: after its free it is not reused until that stream has
    /// passed what was put on it before the free.
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError>;

    /// Says anew what the live block at `address` is for and which block it is, where that was not known when it was
    /// allocated. Its bytes move from one tag's figures to the other's; events recorded before stay as they are.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`]: no live block starts there. Address 0 is ignored.
    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError>;

    /// The live block that starts at `address`, if there is one.
    fn block(&self, address: Address) -> Option<Block>;

    /// Gives every physical byte that no block lives on back to the backing (`empty_cache`).
    fn release_cached(&self) -> Result<(), AllocError>;

    /// Counters, under PyTorch's names and per tag.
    fn statistics(&self) -> Statistics;

    /// Sets every peak to the current value.
    fn reset_peak_statistics(&self);

    /// Sets every accumulated counter to zero.
    fn reset_accumulated_statistics(&self);

    /// Every segment and block, and the history if it is recorded.
    fn snapshot(&self) -> Snapshot {
        self.snapshot_of(None, true)
    }

    /// The segments of `pool`, of every pool for `None` or (0, 0), and of none for a pool that is not there; with the
    /// events if `traces`, up to this call. That the snapshot was taken is recorded.
    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot;

    /// What is recorded of this allocator.
    fn history(&self) -> &History;

    /// Limits what this process may hold, overhead and all, to `fraction` (0 to 1) of the device.
    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError>;

    /// Adds a callback to try when memory runs short.
    fn add_free_memory_callback(&self, callback: FreeMemoryCallback);

    /// Adds an observer of out-of-memory errors.
    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver);

    /// Sends allocations on streams that pass `filter` to private pool `pool`, made if it is not there, until
    /// [`end_pool`](Self::end_pool). Uses of the pool are counted.
    fn begin_pool(&self, pool: PoolId, filter: StreamFilter) -> Result<(), AllocError>;

    /// Stops sending allocations to `pool`.
    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Whether allocations are sent to a private pool now, so that a stream may be captured: then the device must not be
    /// waited for.
    fn is_capturing(&self) -> bool;

    /// Gives up one use of `pool`; with the last one its memory may go back to the backing as its blocks are freed.
    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Lets allocations outside `pool` use its free blocks before an out-of-memory error.
    fn use_pool_on_oom(&self, pool: PoolId) -> Result<(), AllocError>;

    /// The physical chunks mapped under `bytes` bytes of the live block at `address`, in order: mapped side by side,
    /// they show the block at the same offset. They are its own as long as it lives. `None` if the memory is not made of
    /// chunks, or no such block is there.
    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>>;
}
