//! What PyTorch's allocator of the CPU asks of Tenure: the table of `include/tenure_cpu.h`, which says what each function
//! does.

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use tenure_core::{AllocatorScope, DataPtr, Device};

use crate::failure::{Failure, Status, guarded};

/// `tenure_cpu_api` of `tenure_cpu.h`.
#[repr(C)]
pub struct Table {
    size: usize,
    abi: u32,
    last_error: extern "C" fn() -> *const c_char,
    is_chosen: extern "C" fn() -> bool,
    allocate: unsafe extern "C" fn(usize, *mut *mut c_void, *mut *mut c_void) -> Status,
    free: unsafe extern "C" fn(*mut c_void),
}

static TABLE: Table =
    Table { size: size_of::<Table>(), abi: 1, last_error: crate::tenure_last_error, is_chosen, allocate, free };

/// The table.
#[unsafe(no_mangle)]
pub extern "C" fn tenure_cpu_table() -> *const Table {
    &TABLE
}

extern "C" fn is_chosen() -> bool {
    AllocatorScope::current(Device::CPU).is_some()
}

unsafe extern "C" fn allocate(bytes: usize, data: *mut *mut c_void, owner: *mut *mut c_void) -> Status {
    guarded(|| {
        let chosen = AllocatorScope::current(Device::CPU);
        let chosen = chosen.ok_or_else(|| Failure::Invalid("this thread has chosen no allocator of the CPU".into()))?;
        let memory = chosen.allocate(bytes)?;
        let first = memory.as_ptr().cast();
        let context = if memory.is_null() { ptr::null_mut() } else { Box::into_raw(Box::new(memory)).cast() };
        // SAFETY: by the header, places to write to.
        unsafe {
            data.write(first);
            owner.write(context);
        }
        Ok(())
    })
}

unsafe extern "C" fn free(owner: *mut c_void) {
    if owner.is_null() {
        return;
    }
    // SAFETY: by the header, what `allocate` gave, for the last time.
    let memory = unsafe { Box::from_raw(owner.cast::<DataPtr>()) };
    // A deleter that panics leaks its block; nothing can be told of it here.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(memory)));
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tenure_core::CpuAllocator;

    use super::*;

    #[test]
    fn a_thread_gets_memory_where_it_has_chosen_and_an_error_where_it_has_not() {
        let (mut data, mut owner) = (ptr::null_mut(), ptr::null_mut());
        assert!(!is_chosen());
        // SAFETY: places to write to.
        assert_eq!(unsafe { allocate(8, &mut data, &mut owner) }, Status::Invalid);

        let allocator = Arc::new(CpuAllocator::new());
        let _scope = AllocatorScope::enter(allocator.clone());
        assert!(is_chosen());
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(8, &mut data, &mut owner) }, Status::Ok);
        assert!(!data.is_null() && allocator.allocated_bytes() == 8);
        // SAFETY: given once.
        unsafe { free(owner) };
        assert_eq!(allocator.allocated_bytes(), 0);
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(0, &mut data, &mut owner) }, Status::Ok);
        assert!(data.is_null() && owner.is_null());
        // SAFETY: as above.
        assert_eq!(unsafe { allocate(usize::MAX, &mut data, &mut owner) }, Status::Invalid);
    }
}
