//! Pinned host memory: the host's end of fast, asynchronous copies.
//!
//! Memory is mapped and touched by this process and then registered with the driver, which is three times as fast as
//! asking the driver for it, can be placed next to a device, and is as fast to read on the host as any. Registering is
//! slow all the same, and takes a lock of the whole driver, so it is done in chunks, which are kept.
//!
//! To the allocator of blocks, the host is a stream of its own: every stream of the device that copies from or to a
//! block is *another* stream, and the block is reused once all that were recorded have passed.

mod backing;
mod chunk;
mod sealed;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use tenure_alloc::{AllocError, CachingAllocator, NativeAllocator, Request, Resource, Statistics, native};
use tenure_core::StreamId;

use crate::deferred::{DeferredFrees, in_host_function};
use crate::{Driver, Properties};
use backing::HostBacking;
pub use sealed::{Draft, Reading, Sealed, SealedError};

/// The stream that every block is allocated on. No driver is asked about it.
const HOST: StreamId = StreamId(u64::MAX);

/// Bytes registered at once at most: half of what a driver refuses.
const MAX_CHUNK_BYTES: u64 = 256 << 30;

/// How a pool of pinned memory behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedConfig {
    /// Bytes that may be pinned at a time. Less than 2 MiB is room for nothing.
    pub limit_bytes: u64,
    /// Bytes registered at once, in which blocks share; larger blocks have a chunk of their own.
    pub chunk_bytes: u64,
    /// The host's memory node to take memory from if it has any: the one next to the device.
    pub numa_node: Option<u32>,
}

impl PinnedConfig {
    /// At most `limit_bytes` bytes, in chunks of 64 MiB, from any node.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, chunk_bytes: 64 << 20, numa_node: None }
    }

    /// The same, from the node next to a device, if the system tells which that is.
    pub fn near(self, device: &Properties) -> Self {
        Self { numa_node: device.numa_node, ..self }
    }
}

/// Pinned host memory for one device. PyTorch's `CachingHostAllocator`. Clones share it.
///
/// ```
/// use std::sync::Arc;
/// use tenure_core::StreamId;
/// use tenure_device::Driver;
/// use tenure_device::pinned::{PinnedConfig, PinnedPool};
/// use tenure_device::sim::{SimConfig, SimDriver};
///
/// let driver = Arc::new(SimDriver::new(SimConfig::default()));
/// let pool = PinnedPool::new(driver.clone(), PinnedConfig::new(1 << 30))?;
/// let mut buffer = pool.allocate(4096)?;
/// buffer.fill(7);
///
/// let target = driver.malloc(4096)?;
/// // SAFETY: nobody writes the buffer after this; the record keeps it until the copy is done.
/// unsafe { driver.copy_to_device_async(target, buffer.as_ptr(), 4096, StreamId::NULL)? };
/// buffer.record_stream(StreamId::NULL)?;
/// drop(buffer); // at once; it is not reused before the copy is done
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedPool {
    shared: Arc<Shared>,
}

struct Shared {
    blocks: Arc<Blocks>,
}

struct Blocks {
    allocator: NativeAllocator,
    backing: Arc<HostBacking>,
    /// Buffers dropped in host functions.
    deferred: DeferredFrees,
}

/// The figures of a pool, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// What may be pinned.
    pub limit_bytes: u64,
    /// What is.
    pub pinned_bytes: u64,
    /// The most that was at once.
    pub peak_pinned_bytes: u64,
    /// In how many chunks.
    pub chunks: usize,
    /// The blocks in them.
    pub blocks: Statistics,
}

/// Why there is no pinned memory. Nothing was mapped or pinned that was not before.
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
    /// A setting makes no sense, or the driver or the system refused.
    #[error(transparent)]
    Allocator(#[from] AllocError),
}

impl PinnedPool {
    /// A pool that pins memory with `driver`. Nothing is pinned yet.
    ///
    /// # Errors
    /// A setting of `config` makes no sense.
    pub fn new(driver: Arc<dyn Driver>, config: PinnedConfig) -> Result<Self, PinnedError> {
        if !(1..=MAX_CHUNK_BYTES).contains(&config.chunk_bytes) {
            let (setting, expected) = ("chunk_bytes", "it must be more than 0 and at most 256 GiB");
            return Err(AllocError::InvalidSetting { setting, value: config.chunk_bytes.to_string(), expected }.into());
        }
        let backing = Arc::new(HostBacking::new(driver, config));
        // A limit may leave less than a segment of the usual size.
        let config = native::Config { shrink_segments: true, ..native::Config::default() };
        let allocator = NativeAllocator::new(Arc::clone(&backing) as _, config)?;
        let blocks = Blocks { allocator, backing, deferred: DeferredFrees::default() };
        Ok(Self { shared: Arc::new(Shared { blocks: Arc::new(blocks) }) })
    }

    /// A buffer of `bytes` bytes, aligned to 512, which hold anything. Registers a chunk if there is no room in those
    /// there are: at about 0.1 s for each GiB, to be done ahead of time. Freed buffers stay registered.
    ///
    /// # Errors
    /// [`PinnedError::LimitReached`], [`PinnedError::TooLarge`]; what the system or the driver refused.
    pub fn allocate(&self, bytes: usize) -> Result<PinnedBuffer, PinnedError> {
        let requested = bytes as u64;
        if requested > MAX_CHUNK_BYTES {
            return Err(PinnedError::TooLarge { requested });
        }
        let block = self.blocks().allocator.allocate(Request::new(requested, HOST)).map_err(|error| match error {
            AllocError::OutOfMemory { .. } => self.limit_reached(requested),
            error => error.into(),
        })?;
        // The address was exposed when its chunk was mapped. It is 0 for no bytes.
        let data = NonNull::new(std::ptr::with_exposed_provenance_mut(block.address as usize));
        Ok(PinnedBuffer { shared: Arc::clone(&self.shared), data: data.unwrap_or(NonNull::dangling()), bytes })
    }

    /// Unpins and unmaps every chunk that no buffer lives in. Waits for copies from and to freed buffers.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn release_cached(&self) -> Result<(), PinnedError> {
        Ok(self.blocks().allocator.release_cached()?)
    }

    /// The pool's figures.
    pub fn statistics(&self) -> PinnedStatistics {
        let Blocks { allocator, backing, .. } = self.blocks();
        let (blocks, usage) = (allocator.statistics(), backing.usage());
        PinnedStatistics {
            limit_bytes: usage.limit,
            pinned_bytes: usage.pinned,
            peak_pinned_bytes: usage.peak,
            chunks: usage.chunks,
            blocks,
        }
    }

    /// With what host functions dropped freed.
    fn blocks(&self) -> &Blocks {
        self.shared.blocks.settle();
        &self.shared.blocks
    }

    #[cold]
    fn limit_reached(&self, requested: u64) -> PinnedError {
        let PinnedStatistics { limit_bytes, blocks, .. } = self.statistics();
        PinnedError::LimitReached { requested, used: blocks.all.active_bytes.current, limit: limit_bytes }
    }
}

impl Blocks {
    fn settle(&self) {
        self.deferred.settle(|address| self.allocator.free(address));
    }

    fn free(&self, address: u64) {
        if in_host_function() {
            return self.deferred.push(address);
        }
        self.settle();
        // Nobody is there to try again, as after a callback that Tenure does not know of: the next call does.
        if self.allocator.free(address).is_err() {
            self.deferred.push(address);
        }
    }

    /// Chunks that cannot be given back because the driver fails stay mapped.
    fn release(&self) {
        self.settle();
        let _ = self.allocator.release_cached();
    }
}

impl Drop for Shared {
    /// There is no buffer any more. A host function, where the last may have ended, cannot call the driver: a thread
    /// does it.
    fn drop(&mut self) {
        if in_host_function() {
            let blocks = Arc::clone(&self.blocks);
            // Without a thread the chunks stay mapped.
            let _ = thread::Builder::new().spawn(move || blocks.release());
        } else {
            self.blocks.release();
        }
    }
}

/// A piece of pinned host memory, freed when it is dropped, which may be in a host function.
///
/// An asynchronous copy reads or writes it after the call that asks for it: such calls are unsafe, and ask their
/// callers to leave the buffer alone until the copy is done. Recording the copy's stream does that for a drop.
pub struct PinnedBuffer {
    shared: Arc<Shared>,
    data: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the bytes are this buffer's alone, and the pool may be used from any thread.
unsafe impl Send for PinnedBuffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for PinnedBuffer {}

impl PinnedBuffer {
    /// Says that `stream` copies from or to the buffer: once dropped, its memory is not used again before the stream
    /// has passed what was put on it before the drop. The stream is one of the pool's device.
    ///
    /// # Errors
    /// None for a stream of the device.
    pub fn record_stream(&self, stream: StreamId) -> Result<(), PinnedError> {
        Ok(self.shared.blocks.allocator.record_stream(self.address(), stream)?)
    }

    /// Shows only the first `bytes` bytes from now on, at least one. It takes as much memory as before.
    pub fn truncate(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes.max(1));
    }

    /// Where the buffer is; 0 for one of no bytes.
    fn address(&self) -> u64 {
        if self.bytes == 0 { 0 } else { self.data.addr().get() as u64 }
    }
}

impl Deref for PinnedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped, initialised (the system's are zero) and this buffer's alone.
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
