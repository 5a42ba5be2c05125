//! C functions that the allocators of all devices call.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::devices::configure_all;
use super::object::Object;
use crate::failure::{Status, guarded};

/// `tenure_out_of_memory` of `tenure_torch.h`.
#[derive(Debug)]
#[repr(C)]
pub(super) struct COutOfMemory {
    device: c_int,
    requested: u64,
    allowed: u64,
    allocated: u64,
    total: u64,
    free: u64,
    rejected: bool,
}

/// A C function to call with its object when memory is out.
pub(super) type Observer = unsafe extern "C" fn(*mut c_void, *const COutOfMemory);
/// A C function to call with its object to free memory. Returns whether it freed any.
pub(super) type FreeMemory = unsafe extern "C" fn(*mut c_void) -> bool;

pub(super) extern "C" fn add_out_of_memory_observer(observer: Observer, user: Object) -> Status {
    guarded(|| {
        let user = Arc::new(user);
        configure_all(None, move |device, allocator| {
            let user = Arc::clone(&user);
            allocator.add_out_of_memory_observer(Box::new(move |error| {
                let tenure_alloc::OutOfMemory { requested, allowed, allocated, total, free, rejected, .. } = *error;
                let error = COutOfMemory { device, requested, allowed, allocated, total, free, rejected };
                // SAFETY: the observer was handed over with its object, which lives as long as this closure.
                unsafe { observer(user.pointer(), &error) }
            }));
            Ok(())
        })
    })
}

pub(super) extern "C" fn add_free_memory_callback(callback: FreeMemory, user: Object) -> Status {
    guarded(|| {
        let user = Arc::new(user);
        configure_all(None, move |_, allocator| {
            let user = Arc::clone(&user);
            // SAFETY: the callback was handed over with its object, which lives as long as this closure.
            allocator.add_free_memory_callback(Box::new(move || unsafe { callback(user.pointer()) }));
            Ok(())
        })
    })
}
