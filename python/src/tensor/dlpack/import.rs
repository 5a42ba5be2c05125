//! DLPack's tensors as tensors of Tenure.

use std::ptr::NonNull;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use tenure::core::Layout;
use tenure::tensor::Tensor;

use super::super::exception;
use super::abi::{
    CPU, IS_COPIED, LEGACY, LegacyTensor, READ_ONLY, TensorView, USED_LEGACY, USED_VERSIONED, VERSION, VERSIONED,
    Version, VersionedTensor, device_from, dtype_of,
};
use super::foreign::ForeignArray;
use super::streams;

/// Returns a tensor on the memory of another library's array. With `copy`, the other library is asked for a copy, or
/// for none.
///
/// # Errors
/// An element type, a device or a version that Tenure does not have; a copy that is needed and forbidden; the errors of
/// the other library.
pub(in super::super) fn imported(object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Tensor> {
    let py = object.py();
    let (kind, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    let arguments = PyDict::new(py);
    let device = device_from(kind, number);
    if let Some(device) = device.filter(|device| !device.is_cpu()) {
        arguments.set_item("stream", streams::current_number(device)?)?;
    }
    let first = arguments.copy()?;
    first.set_item("max_version", (VERSION.major, VERSION.minor))?;
    if let Some(copy) = copy {
        first.set_item("copy", copy)?;
    }
    if device.is_none() {
        // The producer may have a way to bring its memory to the CPU.
        first.set_item("dl_device", (CPU, 0))?;
    }
    let capsule = match object.call_method("__dlpack__", (), Some(&first)) {
        // Libraries of DLPack before 1.0 know none of these arguments, and never copy.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            object.call_method("__dlpack__", (), Some(&arguments)).map_err(|_| error)
        }
        result => result,
    }?;
    from_capsule(&capsule, copy)
}

/// Takes the tensor out of a capsule.
pub(in super::super) fn from_capsule(capsule: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Tensor> {
    let py = capsule.py();
    let capsule = capsule.cast::<PyCapsule>().map_err(|_| PyTypeError::new_err("__dlpack__ must return a capsule"))?;
    let pointer = capsule.as_ptr();
    // SAFETY: a capsule of one of these names has a pointer of the type that DLPack defines for it. Renaming it makes
    // this the only owner, which calls the deleter once.
    let (tensor, is_copied) = unsafe {
        if ffi::PyCapsule_IsValid(pointer, VERSIONED.as_ptr()) == 1 {
            let managed: *mut VersionedTensor = ffi::PyCapsule_GetPointer(pointer, VERSIONED.as_ptr()).cast();
            let managed = NonNull::new_unchecked(managed);
            check_version(managed.as_ref().version)?;
            ffi::PyCapsule_SetName(pointer, USED_VERSIONED.as_ptr());
            let is_copied = managed.as_ref().flags & IS_COPIED != 0;
            (from_versioned(managed, copy)?, is_copied)
        } else if ffi::PyCapsule_IsValid(pointer, LEGACY.as_ptr()) == 1 {
            let managed: *mut LegacyTensor = ffi::PyCapsule_GetPointer(pointer, LEGACY.as_ptr()).cast();
            ffi::PyCapsule_SetName(pointer, USED_LEGACY.as_ptr());
            let managed = Owner(NonNull::new_unchecked(managed), |managed| {
                if let Some(deleter) = managed.as_ref().deleter {
                    deleter(managed.as_ptr());
                }
            });
            let view = managed.0.as_ref().tensor;
            (adopt(&view, false, copy, managed)?, false)
        } else {
            return Err(PyBufferError::new_err("the capsule has no DLPack tensor, or it was consumed before"));
        }
    };
    if copy == Some(true) && !is_copied { py.detach(|| tensor.copy()).map_err(exception) } else { Ok(tensor) }
}

/// Fails unless a version can be read.
pub(super) fn check_version(version: Version) -> PyResult<()> {
    let Version { major, minor } = version;
    if major == VERSION.major {
        return Ok(());
    }
    Err(PyBufferError::new_err(format!("DLPack {major}.{minor} is not supported: {}.x is", VERSION.major)))
}

/// Returns a tensor on the memory of DLPack's, which it owns.
///
/// # Safety
/// The tensor is one of DLPack 1.x that no other code owns.
pub(super) unsafe fn from_versioned(managed: NonNull<VersionedTensor>, copy: Option<bool>) -> PyResult<Tensor> {
    let managed = Owner(managed, |managed| {
        // SAFETY: the owner calls this once, with a tensor that it owns.
        unsafe {
            if let Some(deleter) = managed.as_ref().deleter {
                deleter(managed.as_ptr());
            }
        }
    });
    // SAFETY: by the function's contract.
    unsafe {
        let VersionedTensor { tensor, flags, .. } = managed.0.as_ref();
        let (view, is_read_only) = (*tensor, flags & READ_ONLY != 0);
        adopt(&view, is_read_only, copy, managed)
    }
}

/// An imported tensor, which its deleter gives back.
struct Owner<T>(NonNull<T>, unsafe fn(NonNull<T>));

// SAFETY: DLPack's deleters may be called from any thread; those that need Python's lock take it.
unsafe impl<T> Send for Owner<T> {}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned, and the deleter is called once.
        unsafe { (self.1)(self.0) }
    }
}

/// Returns a tensor on the described memory, which `owner` keeps.
///
/// # Safety
/// The description is one of DLPack, whose memory lives as long as `owner`.
unsafe fn adopt(
    view: &TensorView,
    is_read_only: bool,
    copy: Option<bool>,
    owner: impl Send + 'static,
) -> PyResult<Tensor> {
    let TensorView { code, bits, lanes, device_type, device_id, .. } = *view;
    let refuse = |text: String| Err(PyBufferError::new_err(text));
    let Some(dtype) = dtype_of(code, bits).filter(|_| lanes == 1) else {
        let kind = if code == 5 { "complex numbers" } else { "elements" };
        return refuse(format!(
            "{kind} of DLPack's type code {code} with {bits} bits and {lanes} lanes are not supported"
        ));
    };
    let Some(device) = device_from(device_type, device_id) else {
        return refuse(format!("memory of DLPack's device type {device_type}, number {device_id}, is not supported"));
    };
    let Ok(rank) = usize::try_from(view.dimensions) else {
        return refuse(format!("an array of {} dimensions", view.dimensions));
    };
    let numbers = |first: *mut i64| {
        // SAFETY: by the function's contract, there is a number for each dimension.
        if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, rank) } }
    };
    let sizes: Option<Vec<usize>> = numbers(view.shape).iter().map(|size| usize::try_from(*size).ok()).collect();
    let Some(sizes) = sizes else {
        return refuse(format!("an array of negative sizes {:?}", numbers(view.shape)));
    };
    let strides: Vec<isize> = if view.strides.is_null() {
        let dense = Layout::contiguous(&sizes).map_err(|error| exception(error.into()))?;
        dense.strides().iter().map(|stride| *stride as isize).collect()
    } else {
        numbers(view.strides).iter().map(|stride| *stride as isize).collect()
    };
    let first = view.data.cast::<u8>().wrapping_add(view.byte_offset as usize);
    // SAFETY: by the function's contract.
    unsafe { ForeignArray { first, device, dtype, sizes, strides, is_read_only }.adopt(copy, owner) }
}
