//! The functions of Tenure that PyTorch's CPU allocator calls, as `include/tenure_cpu.h` declares and documents them.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tenure_core::{Allocator, AllocatorScope, Device};
use tenure_device::allocation_clock::AllocationClock;
use tenure_device::exchange;
use tenure_device::host::{HostMemory, OnHostMemory};

use crate::failure::{Failure, Status, guarded};

/// `tenure_cpu_api` of `tenure_cpu.h`.
#[repr(C)]
pub struct CpuTable {
    size: usize,
    abi: u32,
    last_error: extern "C" fn() -> *const c_char,
    is_chosen: extern "C" fn() -> bool,
    allocate: unsafe extern "C" fn(usize, *mut *mut c_void) -> Status,
    free: extern "C" fn(*mut c_void) -> bool,
}

static TABLE: CpuTable =
    CpuTable { size: size_of::<CpuTable>(), abi: 1, last_error: crate::tenure_last_error, is_chosen, allocate, free };

/// Returns the table of functions, which lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_cpu_table() -> *const CpuTable {
    &TABLE
}

/// Returns the allocator that serves the calling thread, or `None` if PyTorch's own allocator does.
fn chosen() -> Option<Arc<dyn Allocator>> {
    AllocatorScope::current(Device::CPU).or_else(|| {
        let host = || HostMemory::installed().map(|host| host as Arc<dyn Allocator>);
        (OnHostMemory::is_entered() || exchange::is_lending()).then(host).flatten()
    })
}

/// Returns whether an allocator of Tenure serves the calling thread.
extern "C" fn is_chosen() -> bool {
    chosen().is_some()
}

unsafe extern "C" fn allocate(bytes: usize, data: *mut *mut c_void) -> Status {
    guarded(|| {
        if let Some(lent) = exchange::take_lent(Device::CPU, bytes) {
            // SAFETY: by the header, a place to write to.
            unsafe { data.write(lent.cast()) };
            return Ok(());
        }
        let chosen = chosen();
        let chosen = chosen.ok_or_else(|| Failure::Invalid("this thread has chosen no allocator of the CPU".into()))?;
        AllocationClock::of(Device::CPU).allocate(bytes);
        let memory = chosen.allocate(bytes)?;
        let address = exchange::hand_out(memory);
        // SAFETY: by the header, a place to write to.
        unsafe { data.write(address.cast()) };
        Ok(())
    })
}

extern "C" fn free(data: *mut c_void) -> bool {
    if exchange::release(data.addr()) {
        return true;
    }
    let Some(memory) = exchange::take_back(data.addr()) else { return false };
    // No lock is held here. A deleter that panics leaks its block; the panic cannot be reported from here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(memory)));
    true
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::{Mutex, PoisonError};

    use tenure_core::{CpuAllocator, Storage};

    use super::*;

    /// A lock for tests that depend on the memory of threads without an allocator of their own.
    static ONE: Mutex<()> = Mutex::new(());

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

    const BYTES: usize = 1 << 20;

    fn allocate_one() -> usize {
        let mut data = ptr::null_mut();
        // SAFETY: a place to write to.
        assert_eq!(unsafe { allocate(BYTES, &mut data) }, Status::Ok);
        data.addr()
    }

    fn free_at(address: usize) -> bool {
        free(ptr::without_provenance_mut(address))
    }

    fn shared(address: usize, bytes: usize) -> Option<Storage> {
        // SAFETY: the caller allocated the block, and frees it later.
        unsafe { exchange::share(Device::CPU, address, bytes) }
    }

    #[test]
    fn a_block_is_freed_when_neither_pytorch_nor_anybody_else_has_it() -> Result<(), Box<dyn std::error::Error>> {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = HostMemory::installed().ok_or("no address space")?;
        let _on_host = OnHostMemory::enter().ok_or("no address space")?;
        let live = || memory.statistics().all.allocated_bytes.current;
        let before = live();

        let address = allocate_one();
        let storage = shared(address, BYTES).ok_or("it is Tenure's")?;
        assert!(shared(address, BYTES).is_some_and(|again| again.is_alias_of(&storage)));
        assert!(shared(address, BYTES / 2).is_none() && shared(address + 64, 64).is_none());
        assert_eq!(storage.handles(), 2);
        let weak = storage.downgrade();
        assert!(free_at(address));
        assert_eq!((storage.handles(), live()), (1, before + BYTES as u64));

        // It goes back to PyTorch, twice, and is freed with the last handle.
        for _ in 0..2 {
            let lent = exchange::lend(storage.clone());
            assert!(exchange::take_lent(Device::CPU, BYTES / 2).is_none() && !lent.is_taken());
            assert_eq!(allocate_one(), address);
            assert!(lent.is_taken());
        }
        drop(storage);
        assert!(free_at(address) && weak.upgrade().is_some());
        assert!(free_at(address) && weak.upgrade().is_none());
        assert_eq!(live(), before);

        // A storage that was lent and not taken is freed too.
        let address = allocate_one();
        let lent = exchange::lend(shared(address, BYTES).ok_or("it is Tenure's")?);
        assert!(free_at(address));
        drop(lent);
        assert_eq!(live(), before);
        Ok(())
    }
}
