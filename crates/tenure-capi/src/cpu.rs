//! The functions of Tenure that PyTorch's CPU allocator calls, as `include/tenure_cpu.h` declares and documents them.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Once};

use rustc_hash::FxHashMap;
use tenure_core::{Allocator, AllocatorScope, AtFork, DataPtr, Device, Unforked};
use tenure_device::host::HostMemory;

use crate::failure::{Failure, Status, guarded};
use crate::shared;

/// `tenure_cpu_api` of `tenure_cpu.h`.
#[repr(C)]
pub struct Table {
    size: usize,
    abi: u32,
    last_error: extern "C" fn() -> *const c_char,
    is_chosen: extern "C" fn() -> bool,
    allocate: unsafe extern "C" fn(usize, *mut *mut c_void) -> Status,
    free: extern "C" fn(*mut c_void) -> bool,
}

static TABLE: Table =
    Table { size: size_of::<Table>(), abi: 1, last_error: crate::tenure_last_error, is_chosen, allocate, free };

/// The live blocks by address. PyTorch frees some of them with nothing but the address.
static LIVE: LazyLock<Unforked<FxHashMap<usize, DataPtr>>> = LazyLock::new(Unforked::default);

/// The number of guards that give host memory to threads without an allocator of their own.
static ON_HOST_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Whether this process is a fork of one that had host memory, whose locks may be held for ever here.
static IS_FORKED: AtomicBool = AtomicBool::new(false);

/// Returns the table.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_cpu_table() -> *const Table {
    &TABLE
}

/// Gives host memory to threads that have chosen no allocator, until [`leave_host_memory`] is called as often.
pub(crate) fn enter_host_memory() {
    static LISTENING: Once = Once::new();
    LISTENING.call_once(|| {
        let in_child = || {
            ON_HOST_MEMORY.store(0, Ordering::Relaxed);
            IS_FORKED.store(true, Ordering::Relaxed);
        };
        AtFork { before: || (), in_parent: || (), in_child }.register();
    });
    ON_HOST_MEMORY.fetch_add(1, Ordering::Relaxed);
}

/// Ends one [`enter_host_memory`]. In a forked child, where all of them have ended, does nothing.
pub(crate) fn leave_host_memory() {
    let _ = ON_HOST_MEMORY.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |wanted| wanted.checked_sub(1));
}

/// Returns [`IS_FORKED`].
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Ordering::Relaxed)
}

/// Returns the allocator that serves the calling thread, or `None` if PyTorch's own allocator does.
fn chosen() -> Option<Arc<dyn Allocator>> {
    AllocatorScope::current(Device::CPU).or_else(|| {
        let host = || HostMemory::installed().map(|host| host as Arc<dyn Allocator>);
        (ON_HOST_MEMORY.load(Ordering::Relaxed) > 0 || shared::is_lending()).then(host).flatten()
    })
}

/// Takes a live block out of [`LIVE`]: the caller must from now on find it when PyTorch frees the address. Returns the
/// block's owner, and the allocator for more memory of its kind.
pub(crate) fn take(address: usize) -> Option<(DataPtr, Arc<dyn Allocator>)> {
    let allocator = HostMemory::installed()?;
    Some((LIVE.lock().remove(&address)?, allocator))
}

extern "C" fn is_chosen() -> bool {
    chosen().is_some()
}

pub(crate) unsafe extern "C" fn allocate(bytes: usize, data: *mut *mut c_void) -> Status {
    guarded(|| {
        if let Some(lent) = shared::take_lent(Device::CPU, bytes) {
            // SAFETY: by the header, a place to write to.
            unsafe { data.write(lent.cast()) };
            return Ok(());
        }
        let chosen = chosen();
        let chosen = chosen.ok_or_else(|| Failure::Invalid("this thread has chosen no allocator of the CPU".into()))?;
        let memory = chosen.allocate(bytes)?;
        let first = memory.as_ptr();
        if !memory.is_null() {
            LIVE.lock().insert(first.addr(), memory);
        }
        // SAFETY: by the header, a place to write to.
        unsafe { data.write(first.cast()) };
        Ok(())
    })
}

pub(crate) extern "C" fn free(data: *mut c_void) -> bool {
    if shared::free(data.addr()) {
        return true;
    }
    let Some(mut memory) = LIVE.lock().remove(&data.addr()) else { return false };
    if is_forked() && is_of_host_memory(&memory) {
        let _ = memory.release_context();
        return true;
    }
    // No lock is held here. A deleter that panics leaks its block; the panic cannot be reported from here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(memory)));
    true
}

fn is_of_host_memory(memory: &DataPtr) -> bool {
    let of_host = HostMemory::installed().and_then(|host| host.raw_deleter());
    memory.deleter().zip(of_host).is_some_and(|(own, of_host)| ptr::fn_addr_eq(own, of_host))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::{Mutex, PoisonError};

    use tenure_core::CpuAllocator;

    use super::*;

    /// A lock for tests that depend on the memory of threads without an allocator of their own.
    pub(crate) static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn a_thread_gets_memory_where_it_has_chosen_and_an_error_where_it_has_not() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut data = ptr::null_mut();
        assert!(!is_chosen());
        // SAFETY: a place to write to.
        assert_eq!(unsafe { allocate(8, &mut data) }, Status::Invalid);

        let allocator = Arc::new(CpuAllocator::new());
        let _scope = AllocatorScope::enter(allocator.clone());
        assert!(is_chosen());
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(8, &mut data) }, Status::Ok);
        assert!(!data.is_null() && allocator.allocated_bytes() == 8);
        assert!(free(data) && !free(data));
        assert_eq!(allocator.allocated_bytes(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(0, &mut data) }, Status::Ok);
        assert!(data.is_null() && !free(data));
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(usize::MAX, &mut data) }, Status::Invalid);
    }
}
