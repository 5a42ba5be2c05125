//! Copies of shared tiers for forked children. Mapped files and devices are shared with forked children, unlike all
//! other memory of a process: parent and child would see each other's writes. So a child gets ordinary memory in their
//! place, with the contents that the blocks in use had when it was forked.
//!
//! The parent makes the copy before it forks, since only then nothing has been written after the fork. Each child costs
//! as much memory, and the time to copy it. If memory is short there is no copy, and a child that touches a block is
//! ended by the system.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Once};

use tenure_core::{AtFork, Unforked};

use crate::blocks::TierBlocks;
use crate::system;

/// The tiers of this process that forked children would share.
static SHARED: Unforked<Vec<Arc<SharedTier>>> = Unforked::new(Vec::new());

/// A tier whose memory forked children would share.
struct SharedTier {
    start: *mut u8,
    bytes: usize,
    blocks: Arc<Unforked<TierBlocks>>,
    /// The copy while the process forks: as many bytes, with the contents of the blocks. Null if memory was short.
    copy: AtomicPtr<u8>,
    /// A [`TierMemory`].
    memory: AtomicU8,
}

// SAFETY: these are the addresses of a mapping, which no thread owns.
unsafe impl Send for SharedTier {}
// SAFETY: as above.
unsafe impl Sync for SharedTier {}

/// The memory that a process has in a tier's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum TierMemory {
    /// The tier itself.
    Own,
    /// In a child: a copy of the blocks in ordinary memory.
    Copied,
    /// In a child: nothing, since memory was too short for a copy.
    Absent,
}

/// Registers a tier to be copied for forked children. Dropping it ends that.
pub(crate) struct Copied(Arc<SharedTier>);

impl Copied {
    /// Registers `blocks`, which are in the mapping of `bytes` bytes at `start`.
    pub(crate) fn new(start: *mut u8, bytes: usize, blocks: Arc<Unforked<TierBlocks>>) -> Self {
        static FORKS: Once = Once::new();
        FORKS.call_once(|| AtFork { before, in_parent, in_child }.register());
        let copy = AtomicPtr::default();
        let memory = AtomicU8::new(TierMemory::Own as u8);
        let shared = Arc::new(SharedTier { start, bytes, blocks, copy, memory });
        SHARED.lock().push(Arc::clone(&shared));
        Self(shared)
    }

    /// Returns the memory that this process has.
    pub(crate) fn memory(&self) -> TierMemory {
        match self.0.memory.load(Relaxed) {
            own if own == TierMemory::Own as u8 => TierMemory::Own,
            copied if copied == TierMemory::Copied as u8 => TierMemory::Copied,
            _ => TierMemory::Absent,
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        SHARED.lock().retain(|shared| !Arc::ptr_eq(shared, &self.0));
    }
}

/// Copies the blocks of all shared tiers, if there is memory for that.
fn before() {
    let all = SHARED.lock_forking();
    let needed: u64 = all.iter().map(|shared| shared.blocks.lock_forking().held_bytes()).sum();
    // A child's own writes need memory too.
    if needed > system::available_bytes() / 2 {
        return;
    }
    for shared in all.iter() {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: the system chooses the address.
        let copy = unsafe { libc::mmap(ptr::null_mut(), shared.bytes, access, flags, -1, 0) };
        if copy == libc::MAP_FAILED {
            continue;
        }
        let copy = copy.cast::<u8>();
        for range in shared.blocks.lock_forking().held() {
            let offset = range.start as usize - shared.start.addr();
            let bytes = (range.end - range.start) as usize;
            // SAFETY: both ranges are within mappings of the same length. Another thread may write to a block
            // meanwhile, as to any memory during a fork: such bytes are copied from before or after the write.
            unsafe { ptr::copy_nonoverlapping(shared.start.add(offset), copy.add(offset), bytes) };
        }
        shared.copy.store(copy, Relaxed);
    }
}

/// Unmaps the copies.
fn in_parent() {
    for shared in SHARED.lock_forking().iter() {
        let copy = shared.copy.swap(ptr::null_mut(), Relaxed);
        if !copy.is_null() {
            // SAFETY: `before` mapped it, and nothing else uses it.
            unsafe { libc::munmap(copy.cast(), shared.bytes) };
        }
    }
}

/// Maps the copies in the tiers' place, or nothing where there is no copy.
fn in_child() {
    let mut all = SHARED.lock_forking();
    for shared in all.iter() {
        let start = shared.start.cast();
        let bytes = shared.bytes;
        let copy = shared.copy.load(Relaxed);
        let (mapped, memory) = if copy.is_null() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: replaces the tier's mapping by one of the same length. This only makes a system call.
            (unsafe { libc::mmap(start, bytes, libc::PROT_NONE, flags, -1, 0) }, TierMemory::Absent)
        } else {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: as above; the contents stay the same, and the child's only thread is here.
            (unsafe { libc::mremap(copy.cast(), bytes, bytes, flags, start) }, TierMemory::Copied)
        };
        if mapped == libc::MAP_FAILED {
            // Ending is better than writing to the parent's memory.
            // SAFETY: ends the child.
            unsafe { libc::abort() }
        }
        shared.memory.store(memory as u8, Relaxed);
    }
    // The memory is private to the child now, so the system copies it if the child forks.
    all.clear();
}
