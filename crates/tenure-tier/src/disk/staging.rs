//! Staging memory: the buffers that disks read into and write from, between the callers' bytes and files.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The block size in bytes of direct access, which bypasses the page cache: addresses, offsets and lengths are
/// multiples of it. Common disks have no larger blocks.
pub(crate) const DISK_BLOCK: usize = 4096;

/// The size of a chunk in bytes: the most that one request reads or writes.
pub(crate) const CHUNK: usize = 1 << 20;

/// A buffer of `CHUNK` bytes, aligned for direct access, with one owner.
pub(crate) struct Chunk {
    memory: Arc<StagingMemory>,
    index: usize,
}

/// The memory mapping that chunks are parts of.
pub(crate) struct StagingMemory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: this is a range of addresses; its contents belong to the chunks, which do not overlap.
unsafe impl Send for StagingMemory {}
// SAFETY: as above.
unsafe impl Sync for StagingMemory {}

impl StagingMemory {
    /// Maps memory for `count` chunks and returns the chunks. All of it is resident from the start, so that a process's
    /// memory use does not depend on the number of transfers under way.
    pub(crate) fn chunks(count: usize) -> io::Result<Vec<Chunk>> {
        let bytes = count * CHUNK;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the system chooses the address.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE | MapFlags::POPULATE)? };
        // The system maps nothing at address 0 unless it is asked to.
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Arc::new(Self { start, bytes });
        Ok((0..count).map(|index| Chunk { memory: Arc::clone(&memory), index }).collect())
    }

    /// Returns the start address and the length in bytes.
    pub(super) fn range(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }
}

impl Drop for StagingMemory {
    fn drop(&mut self) {
        // SAFETY: `chunks` mapped this range, and no chunk is left. A failure would only waste addresses.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Chunk {
    pub(super) fn memory(&self) -> &Arc<StagingMemory> {
        &self.memory
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: the memory holds every chunk's index.
        unsafe { self.memory.start.as_ptr().add(self.index * CHUNK) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped, zeroed at first, and used by this chunk alone.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), CHUNK) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), CHUNK) }
    }
}
