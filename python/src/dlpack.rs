//! Memory of the device's as a tensor, in the words of DLPack (<https://dmlc.github.io/dlpack/latest/c_api.html>).

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

/// `DLManagedTensor`, with what its pointers point to and whose memory it is behind it.
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

/// So many bytes at an address of a CUDA device, which `owner` keeps while somebody has a tensor of them.
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
    // SAFETY: it was made above, and nobody else has it; who takes it out of the capsule, or else the capsule, deletes it.
    unsafe {
        (*managed).shape = &raw mut (*managed).size;
        (*managed).strides = &raw mut (*managed).stride;
        let capsule = ffi::PyCapsule_New(managed.cast(), NAME.as_ptr(), Some(delete_unused));
        let capsule = Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete(managed))?;
        Ok(capsule.cast_into_unchecked().unbind())
    }
}

/// Nobody has a tensor of it any more.
///
/// # Safety
/// It was made by [`bytes`], and is used by nobody.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: by the function's contract.
    drop(unsafe { Box::from_raw(managed) });
}

/// Python lets go of a capsule. Who has taken a tensor out of it has given it another name.
///
/// # Safety
/// It is one of [`bytes`].
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: by the function's contract, a capsule, which has what was put in it.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, NAME.as_ptr()) == 1 {
            delete(ffi::PyCapsule_GetPointer(capsule, NAME.as_ptr()).cast());
        }
    }
}
