//! A chunk of pinned host memory: mapped, touched and registered.

use std::io;
use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use memmap2::{Advice, MmapMut, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tenure_alloc::{Address, BackingError};
use tenure_core::move_to_numa_node;

use super::PinnedConfig;
use crate::{AccessMode, CallError, Driver};

/// The bytes to touch for each thread, at least.
const BYTES_PER_THREAD: usize = 32 << 20;
/// The most threads that touch memory: more are not faster.
const MAX_THREADS: usize = 8;
/// The size of the smallest page, in bytes.
const PAGE_BYTES: usize = 4096;

/// A mapping of this process, registered with a driver.
pub(super) struct PinnedChunk {
    driver: Arc<dyn Driver>,
    /// Must not be unmapped while it is registered.
    memory: ManuallyDrop<MmapRaw>,
    is_pinned: bool,
}

impl PinnedChunk {
    /// Maps, touches and registers `bytes` bytes. A failure leaves nothing mapped.
    pub(super) fn new(driver: Arc<dyn Driver>, bytes: u64, config: &PinnedConfig) -> Result<Self, BackingError> {
        let failed = |call, reason: &dyn ToString| BackingError::Failed { call, reason: reason.to_string() };
        let mut memory = config.forks.map(bytes).map_err(|error| failed("mmap", &error))?;
        if let Some(node) = config.numa_node {
            // Before the first touch, so that no page has to move. Where the system cannot choose a node, any node will
            // do.
            let _ =
                move_to_numa_node(memory.as_mut_ptr(), memory.len(), node).map_err(|error| failed("mbind", &error))?;
        }
        touch(&mut memory);
        let memory = MmapRaw::from(memory);
        // SAFETY: `drop` unmaps the memory only once it is no longer registered.
        unsafe { driver.register_host(memory.as_mut_ptr(), bytes, AccessMode::ReadWrite)? };
        Ok(Self { driver, memory: ManuallyDrop::new(memory), is_pinned: true })
    }

    /// Returns the address of the first byte.
    pub(super) fn address(&self) -> Address {
        // Exposed: buffers make pointers from addresses.
        self.memory.as_mut_ptr().expose_provenance() as Address
    }

    /// Ends the registration; the drop unmaps the memory.
    pub(super) fn unpin(&mut self) -> Result<(), CallError> {
        if self.is_pinned {
            self.driver.unregister_host(self.memory.as_mut_ptr())?;
            self.is_pinned = false;
        }
        Ok(())
    }
}

impl Drop for PinnedChunk {
    /// Unmaps the memory. If the driver does not unregister it, it stays mapped.
    fn drop(&mut self) {
        if self.unpin().is_ok() {
            // SAFETY: dropped only here, once.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// What a process that is forked from this one sees of pinned memory. The pages of private memory that a device uses
/// cannot be shared: a fork copies them at once, which takes a second and as many bytes again for each 2 GiB or so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forks {
    /// A child does not have the memory: touching it is a fault. A fork costs nothing.
    Without,
    /// A child has the same memory, as it has what the driver allocates. The system maps it in small pages, which is
    /// slower: by a factor of 4 at first.
    Shared,
}

impl Forks {
    /// Maps `bytes` bytes, not yet touched.
    fn map(self, bytes: u64) -> io::Result<MmapMut> {
        let memory = match self {
            Self::Without => MmapMut::map_anon(bytes as usize)?,
            Self::Shared => {
                let file = memfd_create("tenure-pinned", MemfdFlags::CLOEXEC)?;
                ftruncate(&file, bytes)?;
                // SAFETY: no other mapping or process has the file.
                unsafe { MmapMut::map_mut(&file)? }
            }
        };
        // Fewer, larger pages are touched and pinned faster. A system without huge pages ignores the advice.
        let _ = memory.advise(Advice::HugePage);
        if self == Self::Without {
            memory.advise(Advice::DontFork)?;
        }
        Ok(memory)
    }
}

/// Writes to every page, on several threads: the kernel gives pages to several threads faster than to one, and so
/// faster than the registration would get them. If a thread cannot be started, the registration faults its pages in.
fn touch(memory: &mut [u8]) {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (memory.len() / BYTES_PER_THREAD).clamp(1, cores.min(MAX_THREADS));
    let share = memory.len().div_ceil(threads).next_multiple_of(PAGE_BYTES);
    thread::scope(|scope| {
        let mut shares = memory.chunks_mut(share);
        let own = shares.next();
        for share in shares {
            let _ = thread::Builder::new().spawn_scoped(scope, || touch_pages(share));
        }
        own.into_iter().for_each(touch_pages);
    });
}

fn touch_pages(memory: &mut [u8]) {
    for page in memory.chunks_mut(PAGE_BYTES) {
        // Black-boxed, since the compiler may leave out a zero written over a zero.
        *std::hint::black_box(&mut page[0]) = 0;
    }
}
