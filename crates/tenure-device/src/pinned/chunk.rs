use std::mem::ManuallyDrop;
use std::num::NonZero;
use std::sync::Arc;
use std::thread;

use memmap2::{MmapMut, MmapRaw};
use tenure_alloc::{Address, BackingError};
use tenure_core::move_to_numa_node;

use crate::{Access, CallError, Driver};

/// No less than this is worth a thread to touch it.
const BYTES_PER_THREAD: usize = 32 << 20;
/// More threads than this do not touch memory faster.
const MAX_THREADS: usize = 8;
/// The smallest page there is.
const PAGE_BYTES: usize = 4096;

/// A mapping of this process, registered with a driver.
pub(super) struct Chunk {
    driver: Arc<dyn Driver>,
    /// Not unmapped while it is registered.
    memory: ManuallyDrop<MmapRaw>,
    is_pinned: bool,
}

impl Chunk {
    /// Maps, touches and registers `bytes` bytes. On failure nothing is left of them.
    pub(super) fn new(driver: Arc<dyn Driver>, bytes: u64, numa_node: Option<u32>) -> Result<Self, BackingError> {
        let failed = |call, reason: &dyn ToString| BackingError::Failed { call, reason: reason.to_string() };
        let mut memory = MmapMut::map_anon(bytes as usize).map_err(|error| failed("mmap", &error))?;
        // Fewer, larger pages are touched and pinned faster. A system without them does as well as it can.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        if let Some(node) = numa_node {
            // Before the first touch, so that there is nothing to move. Where the system has no say in it, any node does.
            let _ =
                move_to_numa_node(memory.as_mut_ptr(), memory.len(), node).map_err(|error| failed("mbind", &error))?;
        }
        touch(&mut memory);
        let memory = MmapRaw::from(memory);
        // SAFETY: `drop` unmaps the memory only once it is no longer registered.
        unsafe { driver.register_host(memory.as_mut_ptr(), bytes, Access::ReadWrite)? };
        Ok(Self { driver, memory: ManuallyDrop::new(memory), is_pinned: true })
    }

    /// The first byte.
    pub(super) fn address(&self) -> Address {
        // Exposed: buffers make pointers of addresses.
        self.memory.as_mut_ptr().expose_provenance() as Address
    }

    /// Ends the registration; the memory is unmapped with the drop.
    pub(super) fn unpin(&mut self) -> Result<(), CallError> {
        if self.is_pinned {
            self.driver.unregister_host(self.memory.as_mut_ptr())?;
            self.is_pinned = false;
        }
        Ok(())
    }
}

impl Drop for Chunk {
    /// Memory that the driver does not let go of stays mapped.
    fn drop(&mut self) {
        if self.unpin().is_ok() {
            // SAFETY: dropped here alone, once.
            unsafe { ManuallyDrop::drop(&mut self.memory) }
        }
    }
}

/// Writes to every page, so that registering finds them there: the kernel gives pages to several threads faster than
/// to one. Pages that were not touched, for want of a thread, are found by the registration itself.
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
        // Black-boxed, since a zero written over a zero may be left out.
        *std::hint::black_box(&mut page[0]) = 0;
    }
}
