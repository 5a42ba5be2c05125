//! Pinned host memory, for fast asynchronous copies between host and device.
//!
//! This process maps and touches memory and then registers it with the driver. That is three times as fast as
//! allocating it from the driver, can place it next to a device, and is as fast to read on the host as any memory.
//! Registering is slow all the same, and takes a lock of the whole driver, so what is registered, a *chunk*, is kept.
//! Blocks are cut from chunks. A freed block is used again once all streams that were recorded for it have passed.

mod allocator;
mod blocks;
mod chunk;
mod pools;
mod sealed;
mod uses;

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;

use tenure_alloc::{AllocError, BackingError};
use tenure_core::StreamId;

use crate::deferred::in_host_function;
use crate::{DeviceBacking, Driver};
use allocator::MAX_CHUNK_BYTES;
pub use allocator::{CallTimes, PinnedAllocator, PinnedBlock, PinnedConfig, PinnedStatistics, PinnedUse};
pub use chunk::Forks;
pub use pools::PoolFilter;
pub use sealed::{Draft, Reading, Sealed, SealedError};
pub use uses::Use;

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
/// let pool = PinnedPool::new(driver.clone(), PinnedConfig::new(1 << 30));
/// let mut buffer = pool.allocate(4096)?;
/// buffer.fill(7);
///
/// let target = driver.malloc(4096)?;
/// // SAFETY: no code writes the buffer after this; the record keeps it until the copy is done.
/// unsafe { driver.copy_to_device_async(target, buffer.as_ptr(), 4096, StreamId::NULL)? };
/// buffer.record_stream(StreamId::NULL);
/// drop(buffer); // at once; it is not reused before the copy is done
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PinnedPool {
    shared: Arc<PinnedShared>,
}

/// The state of a pool, which its buffers share. The last of them to be dropped gives the chunks back.
struct PinnedShared {
    allocator: Arc<PinnedAllocator>,
    /// The backing that records marks on the device's streams.
    marks: Arc<DeviceBacking>,
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
    /// The system or the driver does not pin more memory.
    #[error(
        "{requested} bytes of host memory could not be pinned: {source}; {pinned} bytes are pinned, {used} of them in \
         use: free pinned buffers, or raise what the system lets this process lock"
    )]
    NotPinned {
        /// Bytes asked for.
        requested: u64,
        /// Bytes pinned.
        pinned: u64,
        /// Bytes of live buffers, and of freed ones whose copies are not done.
        used: u64,
        /// The refusal.
        source: BackingError,
    },
    /// The driver failed.
    #[error(transparent)]
    Allocator(#[from] AllocError),
}

impl PinnedPool {
    /// Creates a pool that pins memory with `driver`. Nothing is pinned yet.
    pub fn new(driver: Arc<dyn Driver>, config: PinnedConfig) -> Self {
        let marks = Arc::new(DeviceBacking::new(Arc::clone(&driver)));
        let allocator = PinnedAllocator::new(driver, config);
        Self { shared: Arc::new(PinnedShared { allocator, marks }) }
    }

    /// Allocates a buffer of `bytes` bytes, aligned to 512, with arbitrary contents. Registers memory if what is
    /// registered has no room, which takes about 0.1 s for each GiB: do it ahead of time. Freed buffers stay registered.
    ///
    /// # Errors
    /// [`PinnedError::LimitReached`], [`PinnedError::TooLarge`], [`PinnedError::NotPinned`].
    pub fn allocate(&self, bytes: usize) -> Result<PinnedBuffer, PinnedError> {
        let address = self.shared.allocator.allocate(bytes as u64, || None)?;
        // The address was exposed when its chunk was mapped. It is 0 for a buffer of 0 bytes.
        let data = NonNull::new(std::ptr::with_exposed_provenance_mut(address as usize));
        Ok(PinnedBuffer { shared: Arc::clone(&self.shared), data: data.unwrap_or(NonNull::dangling()), bytes })
    }

    /// Unpins and unmaps every chunk in which no buffer lives. Waits for copies from and to freed buffers.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn release_cached(&self) -> Result<(), PinnedError> {
        self.shared.allocator.release_cached()
    }

    /// Returns the pool's figures.
    pub fn statistics(&self) -> PinnedStatistics {
        self.shared.allocator.statistics()
    }
}

impl Drop for PinnedShared {
    /// Gives back all chunks: no buffer is left. The last one may have ended in a host function, which cannot call the
    /// driver: another thread does it then. If the driver fails to take one back, it stays mapped.
    fn drop(&mut self) {
        let allocator = Arc::clone(&self.allocator);
        let release = move || drop(allocator.release_cached());
        if in_host_function() {
            // If no thread can be started, the chunks stay mapped.
            let _ = thread::Builder::new().spawn(release);
        } else {
            release();
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
    pub fn record_stream(&self, stream: StreamId) {
        let of = Use { device: Arc::clone(&self.shared.marks), stream };
        self.shared.allocator.record(self.address(), &of);
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
        // A buffer's address is that of a live block.
        let _ = self.shared.allocator.free(self.address());
    }
}
