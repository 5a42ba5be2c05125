#![deny(unsafe_op_in_unsafe_fn)]

use std::ffi::c_void;
use std::{fmt, ptr};

use crate::Device;

/// Frees what a context stands for. Called once, with the context it came with, from any thread.
pub type Deleter = unsafe fn(context: *mut c_void);

/// The one owner of some memory: a pointer to its bytes, the device they are on, and what frees them.
///
/// The bytes are freed by the *deleter*, which is given the *context*: often the pointer itself, but it may be
/// anything, such as the foreign object that the bytes are part of. A null pointer still has a device, so that empty
/// tensors are ordinary ones. A `DataPtr` does not know how many bytes there are; [`Storage`](crate::Storage) does.
///
/// c10's `DataPtr` and `UniqueVoidPtr`.
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

// SAFETY: the pointers are only carried; what is behind them is used by the deleter alone, which `new` demands to be
// callable from any thread.
unsafe impl Send for DataPtr {}
// SAFETY: a shared reference gives copies of the fields and nothing else.
unsafe impl Sync for DataPtr {}

impl DataPtr {
    /// No bytes, on `device`.
    pub const fn null(device: Device) -> Self {
        Self { data: ptr::null_mut(), context: ptr::null_mut(), deleter: None, device }
    }

    /// The bytes at `data`, freed by calling `deleter` with `context` unless `context` is null.
    ///
    /// # Safety
    /// Until it is replaced by [`compare_exchange_deleter`](Self::compare_exchange_deleter) or the context is
    /// released, `deleter` may be called with `context` at any time, once, from any thread.
    pub const unsafe fn new(data: *mut u8, context: *mut c_void, deleter: Deleter, device: Device) -> Self {
        Self { data, context, deleter: Some(deleter), device }
    }

    /// The bytes at `data`, which belong to somebody else, freed by calling `release`: a closure that owns them, or
    /// that tells their owner. c10's `InefficientStdFunctionContext`.
    pub fn foreign<F: FnOnce() + Send + 'static>(data: *mut u8, device: Device, release: F) -> Self {
        /// # Safety
        /// `context` comes from `Box::<F>::into_raw` and is not used again.
        unsafe fn call<F: FnOnce()>(context: *mut c_void) {
            // SAFETY: by the function's contract.
            let release = unsafe { Box::from_raw(context.cast::<F>()) };
            release();
        }
        let context = Box::into_raw(Box::new(release)).cast();
        // What `new` demands: `call::<F>` takes the box back, once, on any thread, as `F` is `Send`.
        Self { data, context, deleter: Some(call::<F>), device }
    }

    /// The first byte. Valid as long as this owner, or whoever took over its context, has not freed it.
    pub const fn as_ptr(&self) -> *mut u8 {
        self.data
    }

    /// Whether there are no bytes.
    pub const fn is_null(&self) -> bool {
        self.data.is_null()
    }

    /// The device the bytes are on.
    pub const fn device(&self) -> Device {
        self.device
    }

    /// What the deleter is called with; null if there is nothing to free.
    pub const fn context(&self) -> *mut c_void {
        self.context
    }

    /// What frees the bytes, if anything does.
    pub const fn deleter(&self) -> Option<Deleter> {
        self.deleter
    }

    /// Replaces the deleter if it is `expected`, and says whether it was.
    ///
    /// Deleters are compared by address. One function may have several, so `expected` should be a pointer that
    /// [`deleter`](Self::deleter) or [`Allocator::raw_deleter`](crate::Allocator::raw_deleter) gave, not the function's
    /// name.
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

    /// Gives up the context, which the caller must now free. The pointer stays, and owns nothing.
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
