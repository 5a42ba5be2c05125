//! A pointer that owns the memory that it points to, and frees it.
#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::c_void;
use std::{fmt, ptr};

use crate::Device;

/// A function that frees the memory of a context. It is called once, with the context that it came with, from any
/// thread.
pub type Deleter = unsafe fn(context: *mut c_void);

/// The only owner of some memory: a pointer to its bytes, their device, and the function that frees them.
///
/// The *deleter* frees the bytes, and is given the *context*: often the pointer itself, but it may be anything, such as
/// the foreign object that contains the bytes. A null pointer still has a device, so that empty tensors are ordinary
/// ones. A `DataPtr` does not know how many bytes there are; [`Storage`](crate::Storage) does.
///
/// The counterpart of c10's `DataPtr` and `UniqueVoidPtr`.
///
/// ```
/// use tenure_core::{DataPtr, Device};
///
/// let mut pixels = vec![0_u8; 640 * 480];
/// let data = DataPtr::foreign(pixels.as_mut_ptr(), Device::CPU, move || drop(pixels));
/// assert!(!data.is_null());
/// drop(data); // calls the closure, which frees the vector
///
/// assert_eq!(DataPtr::null(Device::cuda(1)).device(), Device::cuda(1));
/// ```
pub struct DataPtr {
    data: *mut u8,
    context: *mut c_void,
    deleter: Option<Deleter>,
    device: Device,
}

// SAFETY: the pointers are only carried. Only the deleter uses their targets, and `new` demands that it can be called
// from any thread.
unsafe impl Send for DataPtr {}
// SAFETY: a shared reference gives copies of the fields and nothing else.
unsafe impl Sync for DataPtr {}

impl DataPtr {
    /// Returns a pointer to no bytes, on `device`.
    pub const fn null(device: Device) -> Self {
        Self { data: ptr::null_mut(), context: ptr::null_mut(), deleter: None, device }
    }

    /// Returns the owner of the bytes at `data`, which calls `deleter` with `context` to free them, unless `context` is
    /// null.
    ///
    /// # Safety
    /// Until it is replaced by [`compare_exchange_deleter`](Self::compare_exchange_deleter) or the context is
    /// released, `deleter` may be called with `context` at any time, once, from any thread.
    pub const unsafe fn new(data: *mut u8, context: *mut c_void, deleter: Deleter, device: Device) -> Self {
        Self { data, context, deleter: Some(deleter), device }
    }

    /// Returns a pointer to bytes at `data` that belong to another owner. It calls `release` to free them: a closure
    /// that owns the bytes, or that notifies their owner. c10's `InefficientStdFunctionContext`.
    pub fn foreign<F: FnOnce() + Send + 'static>(data: *mut u8, device: Device, release: F) -> Self {
        /// # Safety
        /// `context` comes from `Box::<F>::into_raw` and is not used again.
        unsafe fn call<F: FnOnce()>(context: *mut c_void) {
            // SAFETY: by the function's contract.
            let release = unsafe { Box::from_raw(context.cast::<F>()) };
            release();
        }
        let context = Box::into_raw(Box::new(release)).cast();
        // This meets the contract of `new`: `call::<F>` takes the box back, once, on any thread, as `F` is `Send`.
        Self { data, context, deleter: Some(call::<F>), device }
    }

    /// Returns the address of the first byte. It is valid until this owner, or the one that took over its context,
    /// frees the bytes.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.data
    }

    /// Returns whether there are no bytes.
    pub const fn is_null(&self) -> bool {
        self.data.is_null()
    }

    /// Returns the device that the bytes are on.
    pub const fn device(&self) -> Device {
        self.device
    }

    /// Returns the argument of the deleter. It is null if there is nothing to free.
    pub const fn context(&self) -> *mut c_void {
        self.context
    }

    /// Returns the function that frees the bytes, if there is one.
    pub const fn deleter(&self) -> Option<Deleter> {
        self.deleter
    }

    /// Replaces the deleter if it is `expected`. Returns whether it was.
    ///
    /// Deleters are compared by address. One function may have several addresses, so `expected` should be a pointer
    /// that [`deleter`](Self::deleter) or [`Allocator::raw_deleter`](crate::Allocator::raw_deleter) returned, not the
    /// function's name.
    ///
    /// # Safety
    /// `new` may be called with this context under the terms of [`new`](Self::new).
    pub unsafe fn compare_exchange_deleter(&mut self, expected: Deleter, new: Deleter) -> bool {
        let matches = self.deleter.is_some_and(|deleter| ptr::fn_addr_eq(deleter, expected));
        if matches {
            self.deleter = Some(new);
        }
        matches
    }

    /// Releases the context, which the caller must now free. The pointer stays, but owns nothing any more.
    #[must_use = "the memory leaks unless the context is freed"]
    pub fn release_context(&mut self) -> *mut c_void {
        std::mem::replace(&mut self.context, ptr::null_mut())
    }
}

impl Drop for DataPtr {
    fn drop(&mut self) {
        if let Some(deleter) = self.deleter
            && !self.context.is_null()
        {
            // SAFETY: `new` promised that this may happen once; the context is released at most once, to null.
            unsafe { deleter(self.context) }
        }
    }
}

impl fmt::Debug for DataPtr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DataPtr({:p} on {}, context {:p})", self.data, self.device, self.context)
    }
}
