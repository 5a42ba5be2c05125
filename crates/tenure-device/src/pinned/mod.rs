//! Pinned host memory, for fast asynchronous copies between host and device.
//!
//! This process maps and touches memory and then registers it with the driver. That is three times as fast as
//! allocating it from the driver, can place it next to a device, and is as fast to read on the host as any memory.
//! Registering is slow all the same, and takes a lock of the whole driver, so it is done in chunks, which are kept.
//!
//! To the allocator of blocks, the host is a stream of its own: every stream of the device that copies from or to a
//! block is *another* stream, and the block is reused once all recorded streams have passed.

mod backing;
mod chunk;
mod sealed;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use tenure_alloc::{
    AllocError, CachingAllocator, MemoryReports, NativeAllocator, NativeConfig, Request, Resource, Statistics,
};
use tenure_core::StreamId;

use crate::Driver;
use crate::deferred::{DeferredFrees, in_host_function};
pub use backing::PinnedConfig;
use backing::{HostBacking, MAX_CHUNK_BYTES};
pub use sealed::{Draft, Reading, Sealed, SealedError};

/// The stream that every block is allocated on. No driver call uses it.
const HOST: StreamId = StreamId(u64::MAX);

/// Pinned host memory for one device. PyTorch's `CachingHostAllocator`. Clones share it.
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::StreamId;
/// use tenure_device::pinned::{PinnedConfig, PinnedPool};
/// use tenure_device::sim::{SimConfig, SimDriver};
/// use tenure_device::{CopyCalls, MemoryCalls};
///
/// let driver = Arc::new(SimDriver::new(SimConfig::default()));
/// let pool = PinnedPool::new(driver.clone(), PinnedConfig::new(1 << 30))?;
/// let mut buffer = pool.allocate(4096)?;
/// buffer.fill(7);
///
/// let target = driver.malloc(4096)?;
/// // SAFETY: no code writes the buffer after this; the record keeps it until the copy is done.
/// unsafe { driver.copy_to_device_async(target, buffer.as_ptr(), 4096, StreamId::NULL)? };
/// buffer.record_stream(StreamId::NULL)?;
/// drop(buffer); // at once; it is not reused before the copy is done
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedPool {
    shared: Arc<PinnedShared>,
}

/// The state of a pool, which its buffers share. The last of them to be dropped gives the chunks back.
struct PinnedShared {
    blocks: Arc<PinnedBlocks>,
}

/// The allocator of a pool, with its backing.
struct PinnedBlocks {
    allocator: NativeAllocator,
    backing: Arc<HostBacking>,
    /// Frees of buffers dropped in host functions.
    deferred: DeferredFrees,
}

/// The figures of a pool, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// The most bytes that may be pinned.
    pub limit_bytes: u64,
    /// The bytes pinned.
    pub pinned_bytes: u64,
    /// The most bytes pinned at once.
    pub peak_pinned_bytes: u64,
    /// The number of chunks pinned.
    pub chunks: usize,
    /// The statistics of the blocks in the chunks.
    pub blocks: Statistics,
}

/// An error of pinned memory. Nothing more is mapped or pinned than before.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinnedError {
    /// The pool's limit is reached.
    #[error(
        "the limit on pinned memory is reached: {requested} bytes were asked for with {used} of {limit} in use; free \
         buffers that are no longer needed, or raise the limit if the host has memory to spare"
    )]
    LimitReached {
        /// Bytes asked for.
        requested: u64,
        /// Bytes of live buffers, and of freed ones whose copies are not done.
        used: u64,
        /// Bytes that may be pinned.
        limit: u64,
    },
    /// The request is larger than a driver registers at once.
    #[error("{requested} bytes cannot be pinned in one buffer: the most is {MAX_CHUNK_BYTES}; use several")]
    TooLarge {
        /// Bytes asked for.
        requested: u64,
    },
    /// A setting is not valid, or the driver or the system refused.
    #[error(transparent)]
    Allocator(#[from] AllocError),
}

impl PinnedPool {
    /// Creates a pool that pins memory with `driver`. Nothing is pinned yet.
    ///
    /// # Errors
    /// A setting of `config` is not valid.
    pub fn new(driver: Arc<dyn Driver>, config: PinnedConfig) -> Result<Self, PinnedError> {
        if !(1..=MAX_CHUNK_BYTES).contains(&config.chunk_bytes) {
            let setting = "chunk_bytes";
            let expected = "it must be more than 0 and at most 256 GiB";
            return Err(AllocError::InvalidSetting { setting, value: config.chunk_bytes.to_string(), expected }.into());
        }
        let backing = Arc::new(HostBacking::new(driver, config));
        // The limit may leave less than a segment of the usual size.
        let config = NativeConfig { shrink_segments: true, ..NativeConfig::default() };
        let allocator = NativeAllocator::new(Arc::clone(&backing) as _, config)?;
        let blocks = PinnedBlocks { allocator, backing, deferred: DeferredFrees::default() };
        Ok(Self { shared: Arc::new(PinnedShared { blocks: Arc::new(blocks) }) })
    }

    /// Allocates a buffer of `bytes` bytes, aligned to 512, with arbitrary contents. Registers a chunk if the present
    /// ones have no room, which takes about 0.1 s for each GiB: do it ahead of time. Freed buffers stay registered.
    ///
    /// # Errors
    /// [`PinnedError::LimitReached`], [`PinnedError::TooLarge`]; the system or the driver refused.
    pub fn allocate(&self, bytes: usize) -> Result<PinnedBuffer, PinnedError> {
        let requested = bytes as u64;
        if requested > MAX_CHUNK_BYTES {
            return Err(PinnedError::TooLarge { requested });
        }
        let block = self.blocks().allocator.allocate(Request::new(requested, HOST)).map_err(|error| match error {
            AllocError::OutOfMemory { .. } => self.limit_reached(requested),
            error => error.into(),
        })?;
        // The address was exposed when its chunk was mapped. It is 0 for a buffer of 0 bytes.
        let data = NonNull::new(std::ptr::with_exposed_provenance_mut(block.address as usize));
        Ok(PinnedBuffer { shared: Arc::clone(&self.shared), data: data.unwrap_or(NonNull::dangling()), bytes })
    }

    /// Unpins and unmaps every chunk in which no buffer lives. Waits for copies from and to freed buffers.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn release_cached(&self) -> Result<(), PinnedError> {
        Ok(self.blocks().allocator.release_cached()?)
    }

    /// Returns the pool's figures.
    pub fn statistics(&self) -> PinnedStatistics {
        let PinnedBlocks { allocator, backing, .. } = self.blocks();
        let blocks = allocator.statistics();
        let usage = backing.usage();
        PinnedStatistics {
            limit_bytes: usage.limit,
            pinned_bytes: usage.pinned,
            peak_pinned_bytes: usage.peak,
            chunks: usage.chunks,
            blocks,
        }
    }

    /// Returns the blocks, after it frees those that host functions dropped.
    fn blocks(&self) -> &PinnedBlocks {
        self.shared.blocks.free_deferred();
        &self.shared.blocks
    }

    #[cold]
    fn limit_reached(&self, requested: u64) -> PinnedError {
        let PinnedStatistics { limit_bytes, blocks, .. } = self.statistics();
        PinnedError::LimitReached { requested, used: blocks.all.active_bytes.current, limit: limit_bytes }
    }
}

impl PinnedBlocks {
    /// Frees the blocks that host functions dropped.
    fn free_deferred(&self) {
        self.deferred.free_deferred(|address| self.allocator.free(address));
    }

    /// Frees a block, or stores the free for the next call if it cannot be made now.
    fn free(&self, address: u64) {
        if in_host_function() {
            return self.deferred.push(address);
        }
        self.free_deferred();
        // A drop has no caller that could try again, for example after a host function that Tenure does not know of:
        // the next call does.
        if self.allocator.free(address).is_err() {
            self.deferred.push(address);
        }
    }

    /// Gives back all free chunks. If the driver fails to take one back, it stays mapped.
    fn release(&self) {
        self.free_deferred();
        let _ = self.allocator.release_cached();
    }
}

impl Drop for PinnedShared {
    /// Gives back all chunks: no buffer is left. The last one may have ended in a host function, which cannot call the
    /// driver: another thread does it then.
    fn drop(&mut self) {
        if in_host_function() {
            let blocks = Arc::clone(&self.blocks);
            // If no thread can be started, the chunks stay mapped.
            let _ = thread::Builder::new().spawn(move || blocks.release());
        } else {
            self.blocks.release();
        }
    }
}

/// A piece of pinned host memory, freed when it is dropped. It may be dropped in a host function.
///
/// An asynchronous copy reads or writes the buffer after the call that starts the copy. Such calls are unsafe: their
/// callers must leave the buffer alone until the copy is done. Recording the copy's stream makes a drop safe before
/// that.
pub struct PinnedBuffer {
    shared: Arc<PinnedShared>,
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the bytes belong to this buffer alone, and any thread may use the pool.
unsafe impl Send for PinnedBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Records that `stream` copies from or to the buffer. Once the buffer is dropped, its memory is not used again
    /// before the stream has passed what was put on it before the drop. The stream must be one of the pool's device.
    ///
    /// # Errors
    /// Never fails for a stream of the device.
    pub fn record_stream(&self, stream: StreamId) -> Result<(), PinnedError> {
        Ok(self.shared.blocks.allocator.record_stream(self.address(), stream)?)
    }

    /// Shortens the buffer to its first `bytes` bytes, at least one. It takes as much memory as before.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes.max(1));
    }

    /// Returns the buffer's address; 0 for a buffer of 0 bytes.
    fn address(&self) -> u64 {
        if self.bytes == 0 { 0 } else { self.data.addr().get() as u64 }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `bytes` bytes are mapped, initialised (the system's are zero) and belong to this buffer alone.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.bytes) }
    }
}

impl DerefMut for PinnedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and the reference is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        self.shared.blocks.free(self.address());
    }
}
