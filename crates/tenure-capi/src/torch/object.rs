//! C objects that Rust owns.

use std::ffi::c_void;
use std::ptr;

use tenure_alloc::{HistoryContext, HistoryContextGuard};

/// `tenure_object` of `tenure_torch.h`: a pointer that means something to C, and the function that drops it.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Object {
    pointer: *mut c_void,
    drop: Option<unsafe extern "C" fn(*mut c_void)>,
}

// SAFETY: by the header, an object is used and dropped from any thread.
unsafe impl Send for Object {}
// SAFETY: as above.
unsafe impl Sync for Object {}

impl Object {
    /// The absence of an object.
    pub(super) const NOTHING: Self = Self { pointer: ptr::null_mut(), drop: None };

    /// Makes an object that is freed with `drop`.
    pub(super) fn new(pointer: *mut c_void, drop: unsafe extern "C" fn(*mut c_void)) -> Self {
        Self { pointer, drop: Some(drop) }
    }

    /// Returns the pointer of the object in a context; null if the context contains no object of C.
    pub(super) fn pointer_of(context: Option<&HistoryContext>) -> *mut c_void {
        context.and_then(HistoryContext::downcast::<Self>).map_or(ptr::null_mut(), Self::pointer)
    }

    /// Puts the object into a context. Returns `None` if there is no object.
    pub(super) fn into_context(self) -> Option<HistoryContext> {
        (!self.pointer.is_null()).then(|| HistoryContext::new(self))
    }

    /// Returns the pointer to pass to the object's functions.
    pub(super) fn pointer(&self) -> *mut c_void {
        self.pointer
    }

    /// Makes the object the context of the thread's calls while the guard lives. Without an object, nothing changes.
    #[inline]
    pub(super) fn enter(self) -> Option<HistoryContextGuard> {
        self.into_context().map(|context| HistoryContext::enter(Some(context)))
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        if let Some(drop) = self.drop
            && !self.pointer.is_null()
        {
            // SAFETY: the object was handed over with the function that drops it, and this is the only call.
            unsafe { drop(self.pointer) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static DROPPED: Cell<usize> = const { Cell::new(0) };
    }

    unsafe extern "C" fn count(_: *mut c_void) {
        DROPPED.set(DROPPED.get() + 1);
    }

    #[test]
    fn an_object_is_dropped_once_and_nothing_is_not_dropped() {
        drop(Object { pointer: ptr::without_provenance_mut(8), drop: Some(count) });
        assert_eq!(DROPPED.get(), 1);
        drop(Object { pointer: ptr::null_mut(), drop: Some(count) });
        drop(Object { pointer: ptr::without_provenance_mut(8), drop: None });
        assert_eq!(DROPPED.get(), 1);
    }
}
