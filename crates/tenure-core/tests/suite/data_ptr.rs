//! Tests that a `DataPtr` frees the memory that it owns, once.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tenure_core::{DataPtr, Deleter, Device};

/// A context that counts the calls of two deleters separately.
#[derive(Default)]
struct Calls {
    first: AtomicU32,
    second: AtomicU32,
}

impl Calls {
    fn counts(&self) -> (u32, u32) {
        (self.first.load(Ordering::Relaxed), self.second.load(Ordering::Relaxed))
    }

    fn context(&self) -> *mut c_void {
        ptr::from_ref(self).cast_mut().cast()
    }

    /// Returns a `DataPtr` with this context and the first deleter. It must not outlive `self`.
    fn data(&self) -> DataPtr {
        // SAFETY: the deleter only counts, and every test keeps `self` longer.
        unsafe { DataPtr::new(ptr::dangling_mut(), self.context(), FIRST, Device::CPU) }
    }
}

/// There is one pointer for each deleter, as deleters are compared by address.
static FIRST: Deleter = count_first;
static SECOND: Deleter = count_second;

/// # Safety
/// `context` points to a `Calls`.
unsafe fn count_first(context: *mut c_void) {
    // SAFETY: by the function's contract.
    unsafe { &*context.cast::<Calls>() }.first.fetch_add(1, Ordering::Relaxed);
}

/// # Safety
/// `context` points to a `Calls`.
unsafe fn count_second(context: *mut c_void) {
    // SAFETY: by the function's contract.
    unsafe { &*context.cast::<Calls>() }.second.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn the_deleter_is_called_once_with_the_context() {
    let calls = Calls::default();
    let data = calls.data();
    assert_eq!(data.context(), calls.context());
    assert_eq!(calls.counts(), (0, 0));
    drop(data);
    assert_eq!(calls.counts(), (1, 0));
}

#[test]
fn a_null_pointer_has_a_device_and_nothing_to_free() {
    let null = DataPtr::null(Device::cuda(3));
    assert!(null.is_null() && null.context().is_null() && null.deleter().is_none());
    assert_eq!(null.device(), Device::cuda(3));
}

#[test]
fn it_shows_its_pointers_and_its_device() {
    let calls = Calls::default();
    let data = calls.data();
    let expected = format!("DataPtr({:p} on cpu, context {:p})", data.as_ptr(), calls.context());
    assert_eq!(format!("{data:?}"), expected);
}

#[test]
fn the_expected_deleter_is_exchanged() {
    let calls = Calls::default();
    let mut data = calls.data();
    // SAFETY: both deleters take a `Calls`.
    unsafe {
        assert!(data.compare_exchange_deleter(FIRST, SECOND));
        assert!(!data.compare_exchange_deleter(FIRST, SECOND), "it is the second by now");
    }
    drop(data);
    assert_eq!(calls.counts(), (0, 1));
}

#[test]
fn an_unexpected_deleter_stays() {
    let calls = Calls::default();
    let mut data = calls.data();
    let mut null = DataPtr::null(Device::CPU);
    // SAFETY: both deleters take a `Calls`. A null pointer calls none.
    unsafe {
        assert!(!data.compare_exchange_deleter(SECOND, SECOND));
        assert!(!null.compare_exchange_deleter(FIRST, SECOND));
    }
    drop((data, null));
    assert_eq!(calls.counts(), (1, 0));
}

#[test]
fn a_released_context_is_the_callers_to_free() {
    let calls = Calls::default();
    let mut data = calls.data();
    let address = data.as_ptr();
    assert_eq!(data.release_context(), calls.context());
    assert!(data.release_context().is_null(), "it is given up once");
    assert_eq!(data.as_ptr(), address);
    drop(data);
    assert_eq!(calls.counts(), (0, 0));
}

#[test]
fn foreign_data_is_released_by_its_closure() {
    let owner = Arc::new([7_u8; 16]);
    let data = DataPtr::foreign(owner.as_ptr().cast_mut(), Device::CPU, {
        let owner = Arc::clone(&owner);
        move || drop(owner)
    });
    assert_eq!(data.as_ptr().cast_const(), owner.as_ptr());
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(data);
    assert_eq!(Arc::strong_count(&owner), 1);
}

#[test]
fn a_closure_that_owns_nothing_is_called_too() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    drop(DataPtr::foreign(ptr::null_mut(), Device::cuda(0), || {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }));
    assert_eq!(CALLS.load(Ordering::Relaxed), 1);
}

#[test]
fn a_panic_while_it_is_held_frees_it_once() {
    let calls = Arc::new(Calls::default());
    let data = DataPtr::foreign(ptr::null_mut(), Device::CPU, {
        let calls = Arc::clone(&calls);
        move || {
            calls.first.fetch_add(1, Ordering::Relaxed);
        }
    });
    let result = std::thread::spawn(move || {
        let _held = data;
        panic!("on purpose");
    })
    .join();
    assert!(result.is_err());
    assert_eq!(calls.counts(), (1, 0));
}
