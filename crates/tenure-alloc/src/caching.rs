//! [`CachingAllocator`]: the interface of a device's caching allocator, in one trait for each concern.

use std::ops::Range;
use std::sync::Arc;

use tenure_core::{KeyId, StreamId, Tag};

use crate::{
    Address, AllocError, Block, History, MappedChunk, PoolCheckpoint, PoolId, PoolSource, PoolUse, Resource, Restored,
    Snapshot, Statistics, StreamFilter,
};

/// The state of memory at an out-of-memory error, as its observers see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes that the failed request needed: rounded, and in [`native`](crate::native) the bytes of its segment.
    pub requested: u64,
    /// Bytes that this process may hold, overhead included.
    pub allowed: u64,
    /// Bytes that this process holds beside the allocator's:
    /// [`Backing::overhead_bytes`](crate::Backing::overhead_bytes).
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

impl OutOfMemory {
    /// Returns the error for a request of `requested` bytes, as the program made it.
    pub(crate) fn error(&self, requested: u64, stream: StreamId) -> AllocError {
        let Self { allowed, overhead, allocated, inactive, total, free, .. } = *self;
        let reserved = allocated + inactive;
        AllocError::OutOfMemory { requested, stream, allocated, reserved, inactive, overhead, free, total, allowed }
    }
}

/// A callback for when memory runs short; returns whether it may have freed any of this allocator's blocks.
pub type FreeMemoryCallback = Box<dyn Fn() -> bool + Send + Sync>;

/// An observer of every out-of-memory error. It is called before the error is returned, with no lock held.
pub type OutOfMemoryObserver = Box<dyn Fn(&OutOfMemory) + Send + Sync>;

/// The number of steps between a power of two and the next to which a request is rounded: one number for requests below
/// 2 MiB, one for those below 4 MiB, and so on, the last for all larger ones. Each is a power of two; 0 and 1 mean
/// multiples of 512 bytes. PyTorch's `roundup_power2_divisions`.
pub type Divisions = [u64; 16];

/// A setting that can be changed while the program runs: the settings of PyTorch's `_set_allocator_settings`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tuning {
    /// The rounding of requests.
    Rounding(Divisions),
    /// See [`NativeConfig::max_split_size`](crate::NativeConfig::max_split_size).
    MaxSplitSize(Option<u64>),
    /// See [`NativeConfig::garbage_collection_threshold`](crate::NativeConfig::garbage_collection_threshold).
    GarbageCollectionThreshold(f64),
    /// See [`NativeConfig::expandable_segments`](crate::NativeConfig::expandable_segments). It holds for segments
    /// made from now on. Existing segments serve only blocks of their kind.
    ExpandableSegments(bool),
    /// The fraction of the device, 0 to 1, beyond which requests are refused; `None` for no such limit. It applies in
    /// addition to [`set_memory_fraction`](MemoryLimits::set_memory_fraction). Requests that only this limit
    /// refuses are counted as [`num_oom_rejections`](crate::Statistics::num_oom_rejections). PyTorch's
    /// `throw_on_cudamalloc_oom`.
    RejectAbove(Option<f64>),
}

/// A device's caching allocator: the interface of PyTorch's `DeviceCachingAllocator`. This trait has the calls that
/// decide when memory is reused and given back; each of the traits that it includes has one other concern.
pub trait CachingAllocator:
    Resource + LiveBlocks + MemoryReports + MemoryLimits + PrivatePools + PoolCheckpoints + Cycles
{
    /// Records that `stream` uses the block at `address` too. After its free, the block is not reused until that stream
    /// has finished the work that was put on it before the free.
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError>;

    /// Gives back to the backing every physical byte that no block uses (`empty_cache`).
    fn release_cached(&self) -> Result<(), AllocError>;

    /// Gives back the memory of a private pool that no block uses, if the pool has no uses left. Does nothing if it
    /// has, or if the pool is unknown. For the common pool's id it does the same as
    /// [`release_cached`](Self::release_cached).
    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Changes a setting. Returns whether the setting applies to this allocator; if not, nothing has changed.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if the value makes no sense.
    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError>;
}

/// A block of a cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleBlock {
    /// Its bytes.
    pub bytes: u64,
    /// Its lifetime, in numbers of blocks: it begins with its own number and ends with that of the first block that was
    /// placed after its free.
    pub lifetime: Range<usize>,
}

/// A cycle that repeats an earlier one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepeatedCycle {
    /// Its blocks, in the order in which they were placed.
    pub blocks: Vec<CycleBlock>,
    /// The bytes of the range that there is for them now.
    pub room_bytes: u64,
    /// The bytes by which the allocator's memory may still grow.
    pub growth_bytes: u64,
}

/// The cycles of a program that repeats itself, from which an allocator may learn. The methods do nothing by default.
pub trait Cycles {
    /// Marks the point where the program begins to repeat itself, such as the start of a training step. Cycles of one
    /// `kind` allocate much the same. An allocator may let go of memory that the last cycles did not use, where that
    /// costs no memory, and may put blocks where they were in an earlier cycle of the kind.
    ///
    /// # Errors
    /// The backing fails.
    fn begin_cycle(&self, _kind: u64) -> Result<(), AllocError> {
        Ok(())
    }

    /// Returns the earlier cycle that the one which has just begun is like, if it would pay to
    /// [lay it out](Self::lay_out_cycle): it repeated an earlier cycle, and had memory mapped for it all the same. The
    /// same blocks are offered a few times only.
    fn repeated_cycle(&self) -> Option<RepeatedCycle> {
        None
    }

    /// Puts this cycle's blocks into one range of all the memory that is free for them, where each has an offset in
    /// bytes, a multiple of 512. They are the blocks of [`repeated_cycle`](Self::repeated_cycle) of this cycle or of an
    /// earlier one. If those are not the blocks that this cycle would have, nothing changes. Those that would reach
    /// beyond the range go elsewhere. So does a block whose place is taken when it is allocated.
    ///
    /// # Errors
    /// The backing fails. Then blocks go where they would have gone.
    fn lay_out_cycle(&self, _blocks: &[CycleBlock], _offsets: &[u64]) -> Result<(), AllocError> {
        Ok(())
    }
}

/// Questions about single live blocks, and changes of what is recorded for them.
pub trait LiveBlocks {
    /// Returns the live block that starts at `address`, if there is one.
    fn block(&self, address: Address) -> Option<Block>;

    /// Changes the tag and key of the live block at `address`, for when they were not known at its allocation. Its
    /// bytes move from the old tag's figures to the new tag's; events recorded before stay as they are.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if no live block starts there. Address 0 is ignored.
    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError>;

    /// Records [`HistoryAction::Annotate`](crate::HistoryAction::Annotate) for the live block at `address`, with this
    /// thread's note. Does nothing while events are not recorded.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if no live block starts there.
    fn annotate(&self, address: Address) -> Result<(), AllocError>;

    /// Returns the memory that was mapped or allocated together around the live block at `address`: first byte and
    /// bytes.
    fn extent(&self, address: Address) -> Option<(Address, u64)>;

    /// Returns the physical chunks mapped under `bytes` bytes of the live block at `address`, in order. Mapped side by
    /// side, they show the block at the same offset. They belong to the block as long as it lives. Returns `None` if
    /// the memory is not made of chunks, or if there is no such block.
    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>>;
}

/// Reports on the whole memory of an allocator: counters, snapshots and the history of events.
pub trait MemoryReports {
    /// Returns the counters, under PyTorch's names and per tag.
    fn statistics(&self) -> Statistics;

    /// Sets every peak to the current value.
    fn reset_peak_statistics(&self);

    /// Sets every accumulated counter to zero.
    fn reset_accumulated_statistics(&self);

    /// Returns the length in bytes of the longest free range of memory that is held.
    fn largest_free(&self) -> u64;

    /// Returns every segment and block, and the history if it is recorded.
    fn snapshot(&self) -> Snapshot {
        self.snapshot_of(None, true)
    }

    /// Returns the segments of `pool`: every pool's for `None` or (0, 0), none for a pool that does not exist. If
    /// `traces`, it includes the events up to this call. The history records that the snapshot was taken.
    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot;

    /// Returns the history of this allocator.
    fn history(&self) -> &History;
}

/// The limit on the memory that an allocator may hold, and the calls that it makes when memory runs short.
pub trait MemoryLimits {
    /// Limits the memory held to `fraction` (0 to 1) of the device. The limit counts the whole process, overhead
    /// included, or this allocator alone, as [`count_overhead`](Self::count_overhead) says.
    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError>;

    /// Returns the fraction that was set; 1 if none was.
    fn memory_fraction(&self) -> f64;

    /// Sets whether the limit counts all that this process holds, its overhead included (the default), or only the
    /// bytes that this allocator reserves, as in PyTorch.
    fn count_overhead(&self, counts: bool);

    /// Adds a callback to try when memory runs short. [`PagedAllocator`](crate::PagedAllocator) calls it when it finds
    /// no memory, and again as long as the callback says that it may have freed some. `native` calls it once, before it
    /// takes more memory, as PyTorch does.
    fn add_free_memory_callback(&self, callback: FreeMemoryCallback);

    /// Adds an observer of out-of-memory errors.
    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver);
}

/// Private pools: memory kept apart, for graph captures and for programs that ask for it.
pub trait PrivatePools {
    /// Makes private pool `pool` with one use, or adds a use to it if it exists. Its segments come from `source`, if
    /// given.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if the id is the common pool's, or if a source is given for a pool that exists.
    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError>;

    /// Returns the number of uses of a private pool: 0 if it does not exist or was given up.
    fn pool_uses(&self, pool: PoolId) -> usize;

    /// Sends allocations on streams that pass `filter` to private pool `pool`, until [`end_pool`](Self::end_pool). The
    /// pool is made if it does not exist. This adds a use of the pool, which `end_pool` does not give up.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if the id is the common pool's, or if allocations go to the pool already.
    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError>;

    /// Stops sending allocations to `pool`.
    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Changes the use of `pool`, for a capture that begins or ends while allocations go to it. Does nothing if no
    /// allocations go to it.
    fn set_pool_use(&self, pool: PoolId, purpose: PoolUse);

    /// Returns whether a private pool is used for [a capture](PoolUse::Capture) now: the device must not be waited for
    /// then.
    fn is_capturing(&self) -> bool;

    /// Gives up one use of `pool`. After the last one, its memory may go back to the backing as its blocks are freed.
    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Sets whether allocations outside `pool` may use its free blocks before they fail for lack of memory.
    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError>;

    /// Makes every block that `pool` serves from now on a segment of its own.
    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Makes the segments of `pool` expandable from now on, whatever the settings are:
    /// [`NativeConfig::expandable_segments`](crate::NativeConfig::expandable_segments).
    fn set_expandable(&self, pool: PoolId) -> Result<(), AllocError>;

    /// Returns the first addresses of the live blocks of a private pool, in order.
    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError>;
}

/// Checkpoints of private pools, for graphs that are captured after others were replayed.
pub trait PoolCheckpoints {
    /// Records the live blocks of a private pool, so that the pool can be set back to them later. Waits on the host for
    /// other streams that use freed blocks of the pool.
    ///
    /// # Errors
    /// [`AllocError::PoolBusy`] if those streams cannot be waited for.
    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError>;

    /// Sets a private pool back: frees its live blocks, and makes exactly the blocks of `checkpoint` live again at
    /// their addresses. Memory that the pool got since then stays in it, free. The requests that follow get the same
    /// addresses each time. Waits on the host as [`checkpoint`](Self::checkpoint) does, and for streams that use live
    /// blocks.
    ///
    /// # Errors
    /// [`AllocError::PoolBusy`] if those streams cannot be waited for; [`AllocError::PoolChanged`] if the pool was
    /// given up, or if memory of the checkpoint is gone. In both cases nothing has changed.
    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError>;
}
