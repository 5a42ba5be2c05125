//! DLPack's functions for C: `__dlpack_c_exchange_api__`, of DLPack 1.3.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use tenure::tensor::Tensor;

use super::super::{TensorObject, exception, wrapped};
use super::abi::{TensorView, VERSION, Version, VersionedTensor, device_from, dtype_of};
use super::{export, import, streams};

const NAME: &CStr = c"dlpack_exchange_api";

/// `DLPackExchangeAPI`.
#[repr(C)]
struct ExchangeApi {
    version: Version,
    previous: *const ExchangeApi,
    allocate: unsafe extern "C" fn(*mut TensorView, *mut *mut VersionedTensor, *mut c_void, SetError) -> c_int,
    from_object: unsafe extern "C" fn(*mut ffi::PyObject, *mut *mut VersionedTensor) -> c_int,
    to_object: unsafe extern "C" fn(*mut VersionedTensor, *mut *mut ffi::PyObject) -> c_int,
    view_of_object: unsafe extern "C" fn(*mut ffi::PyObject, *mut TensorView) -> c_int,
    current_stream: unsafe extern "C" fn(i32, i32, *mut *mut c_void) -> c_int,
}

// SAFETY: the struct is constant.
unsafe impl Sync for ExchangeApi {}

/// Takes the kind and the text of an error.
type SetError = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char);

static API: ExchangeApi = ExchangeApi {
    version: VERSION,
    previous: ptr::null(),
    allocate,
    from_object,
    to_object,
    view_of_object,
    current_stream,
};

/// Returns the capsule of the functions. They live as long as the process.
pub(super) fn capsule(py: Python<'_>) -> PyResult<Py<PyAny>> {
    // SAFETY: the pointer is not null, and no consumer writes to what it points to.
    unsafe {
        let capsule = ffi::PyCapsule_New((&raw const API).cast_mut().cast(), NAME.as_ptr(), None);
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?.unbind())
    }
}

/// Runs `action`, and returns 0, or -1 with a Python exception set.
fn status(action: impl FnOnce(Python<'_>) -> PyResult<()>) -> c_int {
    Python::attach(|py| match action(py) {
        Ok(()) => 0,
        Err(error) => {
            error.restore(py);
            -1
        }
    })
}

/// Returns the tensor of an object.
///
/// # Safety
/// The pointer is one to a Python object.
unsafe fn tensor_of(py: Python<'_>, object: *mut ffi::PyObject) -> PyResult<Tensor> {
    // SAFETY: by the function's contract.
    let object = unsafe { Bound::from_borrowed_ptr(py, object) };
    Ok(object.cast::<TensorObject>()?.get().tensor())
}

/// Makes a new tensor with the sizes, dtype and device of a prototype.
unsafe extern "C" fn allocate(
    prototype: *mut TensorView,
    out: *mut *mut VersionedTensor,
    context: *mut c_void,
    set_error: SetError,
) -> c_int {
    // SAFETY: the caller passes a prototype, of which these fields are set, and a place for the result.
    let made = unsafe {
        let TensorView { dimensions, shape, code, bits, lanes, device_type, device_id, .. } = *prototype;
        let rank = dimensions.unsigned_abs() as usize;
        let numbers = if rank == 0 { &[] } else { std::slice::from_raw_parts(shape, rank) };
        new_tensor(numbers, dtype_of(code, bits).filter(|_| lanes == 1), device_from(device_type, device_id))
    };
    match made {
        Ok(managed) => {
            // SAFETY: as above.
            unsafe { out.write(Box::into_raw(managed)) };
            0
        }
        Err(text) => {
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: the caller passes its function with its context; both strings end with a zero.
            unsafe { set_error(context, c"BufferError".as_ptr(), text.as_ptr()) };
            -1
        }
    }
}

fn new_tensor(
    sizes: &[i64],
    dtype: Option<tenure::core::DType>,
    device: Option<tenure::core::Device>,
) -> Result<Box<VersionedTensor>, String> {
    let dtype = dtype.ok_or("the dtype is not supported")?;
    let device = device.ok_or("the device is not supported")?;
    let unsigned: Option<Vec<usize>> = sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
    let sizes = unsigned.ok_or_else(|| format!("sizes cannot be negative, got {sizes:?}"))?;
    let made = Tensor::empty(&sizes, dtype, device).and_then(|tensor| export::versioned(tensor, 0));
    made.map_err(|error| error.to_string())
}

/// Exports a tensor. The caller uses it on the thread's current stream.
unsafe extern "C" fn from_object(object: *mut ffi::PyObject, out: *mut *mut VersionedTensor) -> c_int {
    status(|py| {
        // SAFETY: the caller passes an object, and a place for the result.
        unsafe {
            let tensor = tensor_of(py, object)?;
            streams::record_current(&tensor)?;
            out.write(Box::into_raw(export::versioned(tensor, 0).map_err(exception)?));
        }
        Ok(())
    })
}

/// Imports a tensor, whose work is on the thread's current stream.
unsafe extern "C" fn to_object(managed: *mut VersionedTensor, out: *mut *mut ffi::PyObject) -> c_int {
    status(|py| {
        let managed = NonNull::new(managed).ok_or_else(|| PyBufferError::new_err("the DLPack tensor is null"))?;
        // SAFETY: the caller passes a tensor that it owns, and a place for the result.
        unsafe {
            import::check_version(managed.as_ref().version)?;
            let tensor = import::from_versioned(managed, None)?;
            out.write(wrapped(py, tensor)?.into_ptr());
        }
        Ok(())
    })
}

/// Describes a tensor, which the caller uses before it returns to Python.
unsafe extern "C" fn view_of_object(object: *mut ffi::PyObject, out: *mut TensorView) -> c_int {
    status(|py| {
        // SAFETY: the caller passes an object, and a place for the result.
        unsafe {
            let tensor = tensor_of(py, object)?;
            streams::record_current(&tensor)?;
            // Sizes and strides are less than 2^63. The object keeps them.
            let shape = tensor.sizes().as_ptr().cast_mut().cast();
            let strides = tensor.strides().as_ptr().cast_mut().cast();
            out.write(export::view(&tensor, shape, strides).map_err(exception)?);
        }
        Ok(())
    })
}

/// Returns the thread's current stream of a device; null for the CPU.
unsafe extern "C" fn current_stream(kind: i32, number: i32, out: *mut *mut c_void) -> c_int {
    status(|_| {
        let device = device_from(kind, number)
            .ok_or_else(|| PyBufferError::new_err(format!("device type {kind}, number {number}, is not supported")))?;
        let handle = if device.is_cpu() { 0 } else { streams::current_handle(device)? };
        // SAFETY: the caller passes a place for the result.
        unsafe { out.write(ptr::with_exposed_provenance_mut(handle as usize)) };
        Ok(())
    })
}
