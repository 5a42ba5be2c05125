//! Tensors of Tenure as DLPack's.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use tenure::core::{DType, DataPtr, Device, Layout, Storage};
use tenure::tensor::{Tensor, TensorError};

use super::super::exception;
use super::abi::{
    LEGACY, LegacyTensor, READ_ONLY, TensorView, VERSION, VERSIONED, VersionedTensor, code_of, device_of,
};

/// The owner of an exported tensor: the tensor, and the sizes and strides that its description points to.
struct Exported {
    _tensor: Tensor,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

/// Returns the address of a tensor's first element, which stays where it is from now on. Null if there is no element.
pub(in super::super) fn pinned_address(tensor: &Tensor) -> Result<*mut u8, TensorError> {
    tensor.storage().set_resizable(false)?;
    let offset = tensor.layout().offset() * tensor.dtype().size();
    let first = tensor.storage().lock().as_ptr();
    Ok(if tensor.numel() == 0 { ptr::null_mut() } else { first.wrapping_add(offset) })
}

/// Returns the description of a tensor, with these sizes and strides.
pub(super) fn view(tensor: &Tensor, shape: *mut i64, strides: *mut i64) -> Result<TensorView, TensorError> {
    let (device_type, device_id) = device_of(tensor.device());
    let (code, bits) = code_of(tensor.dtype());
    let data = pinned_address(tensor)?.cast();
    let dimensions = tensor.rank() as i32;
    Ok(TensorView { data, device_type, device_id, dimensions, code, bits, lanes: 1, shape, strides, byte_offset: 0 })
}

impl Exported {
    /// Returns the description of a tensor, and its owner, to which the description points.
    fn described(tensor: Tensor) -> Result<(TensorView, *mut c_void), TensorError> {
        let [sizes, strides] =
            [tensor.sizes(), tensor.strides()].map(|numbers| numbers.iter().map(|number| *number as i64).collect());
        let mut owner = Box::new(Self { sizes, strides, _tensor: tensor.clone() });
        let view = view(&tensor, owner.sizes.as_mut_ptr(), owner.strides.as_mut_ptr())?;
        Ok((view, Box::into_raw(owner).cast()))
    }
}

/// Returns a tensor in the versioned form, which the caller owns. It is read-only if the tensor's memory is.
pub(super) fn versioned(tensor: Tensor, flags: u64) -> Result<Box<VersionedTensor>, TensorError> {
    let flags = if tensor.storage().is_read_only() { flags | READ_ONLY } else { flags };
    let (tensor, context) = Exported::described(tensor)?;
    Ok(Box::new(VersionedTensor { version: VERSION, context, deleter: Some(delete_versioned), flags, tensor }))
}

/// Returns a capsule with a tensor in the versioned form.
pub(super) fn versioned_capsule(py: Python<'_>, tensor: Tensor, flags: u64) -> PyResult<Bound<'_, PyAny>> {
    let managed = Box::into_raw(versioned(tensor, flags).map_err(exception)?);
    // SAFETY: the pointer is not null, and the name lives as long as the process.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(delete_unused)) };
    // SAFETY: `PyCapsule_New` returns a new reference, or null with an exception; then nothing else has the tensor.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete_versioned(managed)) }
}

/// Returns a capsule with a tensor in the form before DLPack 1.0, which cannot say that the memory is read-only.
pub(super) fn legacy_capsule(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    let (tensor, context) = Exported::described(tensor).map_err(exception)?;
    let managed = Box::into_raw(Box::new(LegacyTensor { tensor, context, deleter: Some(delete_legacy) }));
    // SAFETY: the pointer is not null, and the name lives as long as the process.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), LEGACY.as_ptr(), Some(delete_unused)) };
    // SAFETY: `PyCapsule_New` returns a new reference, or null with an exception; then nothing else has the tensor.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule).inspect_err(|_| delete_legacy(managed)) }
}

/// Returns a capsule of `bytes` bytes at `address` on a CUDA device. `owner` lives until the last tensor of these bytes
/// is freed.
pub(crate) fn bytes(
    py: Python<'_>,
    address: u64,
    bytes: u64,
    device: u8,
    owner: impl Any + Send,
) -> PyResult<Bound<'_, PyAny>> {
    let bytes = usize::try_from(bytes).map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
    let layout = Layout::contiguous(&[bytes]).map_err(|error| exception(error.into()))?;
    let data = ptr::with_exposed_provenance_mut(address as usize);
    let data = DataPtr::foreign(data, Device::cuda(device), move || drop(owner));
    // SAFETY: the caller has this many bytes at the address, and `owner` keeps them.
    let storage = unsafe { Storage::from_data_ptr(data, bytes, None) };
    legacy_capsule(py, Tensor::from_storage(storage, layout, DType::U8).map_err(exception)?)
}

unsafe extern "C" fn delete_legacy(managed: *mut LegacyTensor) {
    // SAFETY: the consumer calls this once, with a tensor that `legacy_capsule` made.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Exported>()));
        drop(Box::from_raw(managed));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut VersionedTensor) {
    // SAFETY: the consumer calls this once, with a tensor that `versioned` made.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Exported>()));
        drop(Box::from_raw(managed));
    }
}

/// Frees the tensor of a capsule that was not consumed. A consumer renames the capsule.
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: this module made the capsule, so that its pointer is of the type that its name tells.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}
