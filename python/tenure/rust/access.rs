//! Access to the elements of tensors.

use std::ptr::{self, NonNull};

use crate::ffi::{self, RawAccess};
use crate::function::check;
use crate::tensor::handles;
use crate::{Element, Error, Result, Tensor};

/// Access to the elements of tensors: while it lives, no other thread writes to those that are read, and none reads or
/// writes those that are written. Until it ends, its own thread begins no other access and calls no operation: these
/// fail.
pub struct Access(NonNull<RawAccess>);

impl Access {
    /// Begins an access.
    ///
    /// # Errors
    /// The tensors are on several devices, or a thread's other access lives.
    pub fn new(written: &[&Tensor], read: &[&Tensor]) -> Result<Self> {
        let written = handles(written);
        let read = handles(read);
        let mut access = ptr::null_mut();
        // SAFETY: so many handles, and a place for the access.
        check(unsafe {
            ffi::tenure_access_begin(written.as_ptr(), written.len(), read.as_ptr(), read.len(), &raw mut access)
        })?;
        NonNull::new(access).map(Self).ok_or_else(|| Error::new("there is no access"))
    }

    /// Returns the address of a tensor's first element. Others are at the tensor's strides. The address is valid until
    /// the access ends, for writes only if the tensor is one of those that are written.
    ///
    /// # Errors
    /// The elements are of another dtype, or the tensor is none of the access.
    pub fn data<T: Element>(&self, tensor: &Tensor) -> Result<*mut T> {
        tensor.check_elements::<T>()?;
        let mut data = ptr::null_mut();
        // SAFETY: an access, a handle, and a place for the address.
        check(unsafe { ffi::tenure_access_data(self.0.as_ptr(), tensor.handle(), &raw mut data) })?;
        Ok(data.cast())
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        // SAFETY: an access that this thread has begun: it cannot be sent to another.
        unsafe { ffi::tenure_access_end(self.0.as_ptr()) }
    }
}
