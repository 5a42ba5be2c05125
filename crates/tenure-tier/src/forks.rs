//! Mapped files and devices are shared with forked children, unlike all other memory of a process: each would see what the
//! other writes. So a child has ordinary memory in their place, with what was in the blocks in use when it was forked.
//!
//! The copy is made by the parent, before it forks: only then nobody has written to it since. It costs as much memory, and
//! the time to copy it, for each child. Where memory is short there is none, and a child that touches a block ends.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Relaxed};
use std::sync::{Arc, Once};

use tenure_core::{AtFork, Unforked};

use crate::system;
use crate::tier::Blocks;

/// Tiers that are shared with children.
static SHARED: Unforked<Vec<Arc<Shared>>> = Unforked::new(Vec::new());

struct Shared {
    start: *mut u8,
    bytes: usize,
    blocks: Arc<Unforked<Blocks>>,
    /// While the process forks: as many bytes, with the content of the blocks. None if memory was short.
    copy: AtomicPtr<u8>,
    memory: AtomicU8,
}

// SAFETY: the addresses of a mapping, which is nobody's in particular.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// What a process has of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Memory {
    /// The tier.
    Own,
    /// In a child: a copy of the blocks, in ordinary memory.
    Copied,
    /// In a child: nothing, as memory was too short for a copy.
    Absent,
}

/// Sees to a tier's being copied for forked children, as long as it lives.
pub(crate) struct Copied(Arc<Shared>);

impl Copied {
    /// For blocks that live in the mapping of so many bytes there.
    pub(crate) fn new(start: *mut u8, bytes: usize, blocks: Arc<Unforked<Blocks>>) -> Self {
        static FORKS: Once = Once::new();
        FORKS.call_once(|| AtFork { before, in_parent, in_child }.register());
        let (copy, memory) = (AtomicPtr::default(), AtomicU8::new(Memory::Own as u8));
        let shared = Arc::new(Shared { start, bytes, blocks, copy, memory });
        SHARED.lock().push(Arc::clone(&shared));
        Self(shared)
    }

    /// What this process has.
    pub(crate) fn memory(&self) -> Memory {
        match self.0.memory.load(Relaxed) {
            own if own == Memory::Own as u8 => Memory::Own,
            copied if copied == Memory::Copied as u8 => Memory::Copied,
            _ => Memory::Absent,
        }
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        SHARED.lock().retain(|shared| !Arc::ptr_eq(shared, &self.0));
    }
}

fn before() {
    let all = SHARED.lock_forking();
    let needed = |shared: &Arc<Shared>| shared.blocks.lock_forking().held_bytes();
    // What a child writes for itself needs memory, too.
    if all.iter().map(needed).sum::<u64>() > system::available_bytes() / 2 {
        return;
    }
    for shared in all.iter() {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: at an address that the system chooses.
        let copy = unsafe { libc::mmap(ptr::null_mut(), shared.bytes, access, flags | libc::MAP_NORESERVE, -1, 0) };
        if copy == libc::MAP_FAILED {
            continue;
        }
        let copy = copy.cast::<u8>();
        for range in shared.blocks.lock_forking().held() {
            let (offset, bytes) = (range.start as usize - shared.start.addr(), (range.end - range.start) as usize);
            // SAFETY: in both mappings, which are as long as each other. Somebody may write to a block meanwhile, as to
            // any memory while it is forked: such bytes are copied from before or after.
            unsafe { ptr::copy_nonoverlapping(shared.start.add(offset), copy.add(offset), bytes) };
        }
        shared.copy.store(copy, Relaxed);
    }
}

fn in_parent() {
    for shared in SHARED.lock_forking().iter() {
        let copy = shared.copy.swap(ptr::null_mut(), Relaxed);
        if !copy.is_null() {
            // SAFETY: mapped by `before`, and nobody else knows it.
            unsafe { libc::munmap(copy.cast(), shared.bytes) };
        }
    }
}

fn in_child() {
    let mut all = SHARED.lock_forking();
    for shared in all.iter() {
        let (start, bytes) = (shared.start.cast(), shared.bytes);
        let copy = shared.copy.load(Relaxed);
        let (mapped, memory) = if copy.is_null() {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
            // SAFETY: in the place of the tier's mapping, as long as that. A call of the system alone.
            (unsafe { libc::mmap(start, bytes, libc::PROT_NONE, flags, -1, 0) }, Memory::Absent)
        } else {
            let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
            // SAFETY: as above; the same content is there again, and the only thread of the child is here.
            (unsafe { libc::mremap(copy.cast(), bytes, bytes, flags, start) }, Memory::Copied)
        };
        if mapped == libc::MAP_FAILED {
            // Rather end than write to what is the parent's.
            // SAFETY: ends the child.
            unsafe { libc::abort() }
        }
        shared.memory.store(memory as u8, Relaxed);
    }
    // They are the child's own now, as all its memory, and are copied as that when it forks.
    all.clear();
}
