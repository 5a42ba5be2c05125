//! What PyTorch's allocator of the CPU asks of Tenure: the table of `include/tenure_cpu.h`, which says what each function
//! does.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;

use rustc_hash::FxHashMap;
use tenure_core::{AllocatorScope, DataPtr, Device, Unforked};

use crate::failure::{Failure, Status, guarded};

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

/// Blocks by their addresses: PyTorch frees some by nothing else.
static LIVE: LazyLock<Unforked<FxHashMap<usize, DataPtr>>> = LazyLock::new(Unforked::default);

/// The table.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_cpu_table() -> *const Table {
    &TABLE
}

extern "C" fn is_chosen() -> bool {
    AllocatorScope::current(Device::CPU).is_some()
}

unsafe extern "C" fn allocate(bytes: usize, data: *mut *mut c_void) -> Status {
    guarded(|| {
        let chosen = AllocatorScope::current(Device::CPU);
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

extern "C" fn free(data: *mut c_void) -> bool {
    let Some(memory) = LIVE.lock().remove(&data.addr()) else { return false };
    // With no lock held. A deleter that panics leaks its block; nothing can be told of it here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(memory)));
    true
}

#[cfg(test)]
mod tests {
    use std::ptr;
    use std::sync::Arc;

    use tenure_core::CpuAllocator;

    use super::*;

    #[test]
    fn a_thread_gets_memory_where_it_has_chosen_and_an_error_where_it_has_not() {
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
