use std::sync::Arc;

use tenure_core::{KeyId, StreamId, Tag};

use crate::{
    Address, AllocError, Block, History, MappedChunk, PoolCheckpoint, PoolId, PoolSource, PoolUse, Resource, Restored,
    Snapshot, Statistics, StreamFilter,
};

/// What a memory callback is told when the device is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes of the request that failed, rounded.
    pub requested: u64,
    /// Bytes this process may hold, overhead and all.
    pub allowed: u64,
    /// Bytes of this process beside the allocator's: [`Backing::overhead_bytes`](crate::Backing::overhead_bytes).
    pub overhead: u64,
    /// Bytes in live blocks.
    pub allocated: u64,
    /// Bytes reserved but not allocated.
    pub inactive: u64,
    /// Bytes of the device.
    pub total: u64,
    /// Bytes free on the device.
    pub free: u64,
    /// Whether [`Tuning::RejectAbove`] refused the request.
    pub rejected: bool,
}

/// Called when memory runs short; returns whether it may have freed any of this allocator's blocks.
pub type FreeMemoryCallback = Box<dyn Fn() -> bool + Send + Sync>;

/// Told of every out-of-memory error, before it is returned and with no lock held.
pub type OutOfMemoryObserver = Box<dyn Fn(&OutOfMemory) + Send + Sync>;

/// How many steps a request is rounded to between a power of two and the next: for requests below 2 MiB, below 4 MiB, and
/// so on, the last for all others. Powers of two; 0 and 1 mean multiples of 512 bytes. PyTorch's
/// `roundup_power2_divisions`.
pub type Divisions = [u64; 16];

/// A setting that can be changed while the program runs: those of PyTorch's `_set_allocator_settings`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tuning {
    /// How requests are rounded.
    Rounding(Divisions),
    /// See [`native::Config::max_split_size`](crate::native::Config::max_split_size).
    MaxSplitSize(Option<u64>),
    /// See [`native::Config::garbage_collection_threshold`](crate::native::Config::garbage_collection_threshold).
    GarbageCollectionThreshold(f64),
    /// See [`native::Config::expandable_segments`](crate::native::Config::expandable_segments): for segments made from
    /// now on. Those there are serve blocks of their kind only.
    ExpandableSegments(bool),
    /// The part of the device, 0 to 1, beyond which requests are refused; `None` for no such limit. It holds beside
    /// [`set_memory_fraction`](CachingAllocator::set_memory_fraction); what it alone refuses is counted as
    /// [`num_oom_rejections`](crate::Statistics::num_oom_rejections). PyTorch's `throw_on_cudamalloc_oom`.
    RejectAbove(Option<f64>),
}

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

    /// Records [`Action::Annotate`](crate::Action::Annotate) for the live block at `address`, with this thread's note.
    /// Does nothing while events are not recorded.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`]: no live block starts there.
    fn annotate(&self, address: Address) -> Result<(), AllocError>;

    /// The live block that starts at `address`, if there is one.
    fn block(&self, address: Address) -> Option<Block>;

    /// Gives every physical byte that no block lives on back to the backing (`empty_cache`).
    fn release_cached(&self) -> Result<(), AllocError>;

    /// Says that the program begins to repeat itself, as where a training step begins. An allocator may let go of
    /// what the last cycles had no use for, where that costs no memory.
    ///
    /// # Errors
    /// The backing fails.
    fn begin_cycle(&self) -> Result<(), AllocError>;

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

    /// Changes a setting. Whether it has a meaning for this allocator; if not, nothing has changed.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`]: the value makes no sense.
    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError>;

    /// Limits what may be held to `fraction` (0 to 1) of the device: by this process, overhead and all, or by this
    /// allocator alone, as [`count_overhead`](Self::count_overhead) says.
    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError>;

    /// The fraction that was set; 1 if none was.
    fn memory_fraction(&self) -> f64;

    /// Whether the limit is on what this process holds, its overhead included, as it is at first; or, as PyTorch means
    /// it, on what this allocator reserves.
    fn count_overhead(&self, counts: bool);

    /// Adds a callback to try when memory runs short. [`PagedAllocator`](crate::PagedAllocator) calls it when it finds none,
    /// and again as long as it says that it may have freed some; `native` as PyTorch does, once, before it takes more.
    fn add_free_memory_callback(&self, callback: FreeMemoryCallback);

    /// Adds an observer of out-of-memory errors.
    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver);

    /// Makes private pool `pool`, with one use; one that is there has one use more. Its segments come from `source`, if
    /// given.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`]: the id is the common pool's, or a source is given for a pool that is there.
    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError>;

    /// Uses of a private pool: 0 if it is not there, or given up.
    fn pool_uses(&self, pool: PoolId) -> usize;

    /// Sends allocations on streams that pass `filter` to private pool `pool`, made if it is not there, until
    /// [`end_pool`](Self::end_pool). That is one use of the pool more; `end_pool` does not give it up.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`]: the id is the common pool's, or allocations go to the pool already.
    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError>;

    /// Stops sending allocations to `pool`.
    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Says what `pool` is used for from now on, as a capture begins or ends while allocations go to it. Does nothing if
    /// none do.
    fn set_pool_use(&self, pool: PoolId, purpose: PoolUse);

    /// Whether a private pool is used for [a capture](PoolUse::Capture) now: then the device must not be waited for.
    fn is_capturing(&self) -> bool;

    /// Gives up one use of `pool`. With the last one its memory may go back to the backing as its blocks are freed.
    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Says whether allocations outside `pool` may use its free blocks before an out-of-memory error.
    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError>;

    /// From now on every block of `pool` is a segment of its own.
    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError>;

    /// From now on segments of `pool` are expandable, whatever the settings are:
    /// [`native::Config::expandable_segments`](crate::native::Config::expandable_segments).
    fn set_expandable(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Gives back what no block of a private pool lives on, if nobody uses the pool any more; else, and for an unknown
    /// pool, does nothing. [`release_cached`](Self::release_cached) for the common pool's id.
    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError>;

    /// First addresses of the live blocks of a private pool, in order.
    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError>;

    /// The live blocks of a private pool, to set it back to later. Waits on the host for other streams that use freed
    /// blocks of the pool.
    ///
    /// # Errors
    /// [`AllocError::PoolBusy`] if they cannot be waited for.
    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError>;

    /// Sets a private pool back: frees what lives in it, and makes exactly the blocks of `checkpoint` live again, at
    /// their addresses. What the pool got since then stays in it, free. Requests that follow get the same addresses each
    /// time. Waits on the host as [`checkpoint`](Self::checkpoint) does, and for streams that use live blocks.
    ///
    /// # Errors
    /// [`AllocError::PoolBusy`]; [`AllocError::PoolChanged`] if the pool was given up, or memory of the checkpoint is
    /// not there any more. Then nothing has changed.
    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError>;

    /// What was mapped or allocated together around the live block at `address`: first byte and bytes.
    fn extent(&self, address: Address) -> Option<(Address, u64)>;

    /// The longest free range, in bytes, of memory that is held.
    fn largest_free(&self) -> u64;

    /// The physical chunks mapped under `bytes` bytes of the live block at `address`, in order: mapped side by side,
    /// they show the block at the same offset. They are its own as long as it lives. `None` if the memory is not made of
    /// chunks, or no such block is there.
    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>>;
}
