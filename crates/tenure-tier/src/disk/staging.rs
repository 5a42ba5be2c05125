//! Memory that bytes pass through on their way between tensors and disks.

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Addresses, offsets and lengths of direct access are multiples of this: the largest block of common disks.
pub(crate) const BLOCK: usize = 4096;

/// As many bytes go at once.
pub(crate) const CHUNK: usize = 1 << 20;

/// `CHUNK` bytes, aligned for direct access, which nobody else has.
pub(crate) struct Chunk {
    memory: Arc<Memory>,
    index: usize,
}

/// What chunks are pieces of.
pub(crate) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a range of addresses; what is there is the chunks', which are apart.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// As many chunks as that, each once. All of them are resident from the start, so that what a process takes does not
    /// depend on how far a disk lags behind.
    pub(crate) fn chunks(count: usize) -> io::Result<Vec<Chunk>> {
        let bytes = count * CHUNK;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: at an address that the system chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE | MapFlags::POPULATE)? };
        // The system maps nothing at 0 that it was not asked to.
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let memory = Arc::new(Self { start, bytes });
        Ok((0..count).map(|index| Chunk { memory: Arc::clone(&memory), index }).collect())
    }

    /// Where it begins, and its bytes.
    pub(super) fn range(&self) -> (*mut u8, usize) {
        (self.start.as_ptr(), self.bytes)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped so, and no chunk is left. That it fails is no harm but for the addresses.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

impl Chunk {
    pub(super) fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        // SAFETY: there are as many chunks as fit.
        unsafe { self.memory.start.as_ptr().add(self.index * CHUNK) }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, full of zeros at first, and this chunk's alone.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), CHUNK) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), CHUNK) }
    }
}
