//! Device memory as a tensor, in DLPack's format (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use std::any::Any;
use std::ffi::{CStr, c_void};
use std::ptr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

const NAME: &CStr = c"dltensor";
const CUDA: i32 = 2;
const UNSIGNED: u8 = 1;

/// `DLManagedTensor`, followed by the shape and strides that it points to and by the owner of the memory.
#[repr(C)]
struct Managed {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    size: i64,
    stride: i64,
    owner: Box<dyn Any + Send>,
}

/// Returns a DLPack capsule of `bytes` bytes at `address` on a CUDA device. `owner` lives until the last tensor of
/// these bytes is freed.
pub(crate) fn bytes(
    py: Python<'_>,
    address: u64,
    bytes: u64,
    device: u8,
    owner: impl Any + Send,
) -> PyResult<Py<PyCapsule>> {
    let size = i64::try_from(bytes).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let managed = Box::into_raw(Box::new(Managed {
        data: ptr::with_exposed_provenance_mut(address as usize),
        device_type: CUDA,
        device_id: device.into(),
        dimensions: 1,
        code: UNSIGNED,
        bits: 8,
        lanes: 1,
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
        context: ptr::null_mut(),
        deleter: Some(delete),
        size,
        stride: 1,
        owner: Box::new(owner),
    }));
    // SAFETY: `managed` was allocated above and has no other user. The consumer of the capsule deletes it, or else the
    // capsule.
    unsafe {
        (*managed).shape = &raw mut (*managed).size;
        (*managed).strides = &raw mut (*managed).stride;
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(delete_unused));
        let capsule = Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(managed))?;
        Ok(capsule.cast_into_unchecked().unbind())
    }
}

/// Frees a [`Managed`] when no tensor uses it any more.
///
/// # Safety
/// `managed` was made by [`bytes`] and has no other user.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: by the function's contract.
    drop(unsafe { Box::from_raw(managed) });
}

/// Frees the tensor of a capsule that was never consumed. A consumer renames the capsule, so that it is skipped here.
///
/// # Safety
/// `capsule` was made by [`bytes`].
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: by the function's contract, `capsule` is a capsule that contains what [`bytes`] put in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
