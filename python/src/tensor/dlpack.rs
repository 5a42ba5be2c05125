//! Exchange of tensors with other libraries without a copy, by DLPack 1.x
//! (<https://dmlc.github.io/dlpack/latest/c_api.html>).

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use tenure::core::{DType, DataPtr, Device, Layout, Storage};
use tenure::tensor::{Tensor, TensorError};

use super::{TensorObject, exception};

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const USED_LEGACY: &CStr = c"used_dltensor";
const USED_VERSIONED: &CStr = c"used_dltensor_versioned";
/// The version that is exported, and the newest that is understood. Later minor versions are understood too.
const VERSION: Version = Version { major: 1, minor: 1 };
const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Described {
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
}

/// `DLManagedTensor`.
#[repr(C)]
struct LegacyTensor {
    tensor: Described,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut LegacyTensor)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct VersionedTensor {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut VersionedTensor)>,
    flags: u64,
    tensor: Described,
}

/// What an exported tensor owns: the tensor, and the sizes and strides that its description points to.
struct Exported {
    _tensor: Tensor,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

/// Returns the code and the bits of a dtype in DLPack.
fn code_of(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => 0,
        DType::U8 => 1,
        DType::F16 | DType::F32 | DType::F64 => 2,
        DType::BF16 => 4,
        DType::Bool => 6,
    };
    (code, (dtype.size() * 8) as u8)
}

/// Returns the dtype of a code and bits.
fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| code_of(*dtype) == (code, bits))
}

/// Returns DLPack's type and number of a device.
pub(super) fn device_of(device: Device) -> (i32, i32) {
    if device.is_cpu() { (CPU, 0) } else { (CUDA, device.index().into()) }
}

impl Exported {
    /// Returns the description of a tensor, and its owner, to which the description points.
    fn new(tensor: Tensor) -> Result<(Described, Box<Self>), TensorError> {
        let signed = |numbers: &[usize]| numbers.iter().map(|number| *number as i64).collect::<Vec<_>>();
        let (device_type, device_id) = device_of(tensor.device());
        let (code, bits) = code_of(tensor.dtype());
        // The bytes stay where they are, as long as the other library uses them.
        tensor.storage().set_resizable(false)?;
        let first = tensor.storage().lock().as_ptr();
        let offset = tensor.layout().offset() * tensor.dtype().size();
        let data = if tensor.numel() == 0 { ptr::null_mut() } else { first.wrapping_add(offset) };
        let mut owner =
            Box::new(Self { sizes: signed(tensor.sizes()), strides: signed(tensor.strides()), _tensor: tensor });
        let described = Described {
            data: data.cast(),
            device_type,
            device_id,
            dimensions: owner.sizes.len() as i32,
            code,
            bits,
            lanes: 1,
            shape: owner.sizes.as_mut_ptr(),
            strides: owner.strides.as_mut_ptr(),
            byte_offset: 0,
        };
        Ok((described, owner))
    }
}

unsafe extern "C" fn delete_legacy(managed: *mut LegacyTensor) {
    // SAFETY: the consumer calls this once, with a tensor that `capsule` made.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Exported>()));
        drop(Box::from_raw(managed));
    }
}

unsafe extern "C" fn delete_versioned(managed: *mut VersionedTensor) {
    // SAFETY: as above.
    unsafe {
        drop(Box::from_raw((*managed).context.cast::<Exported>()));
        drop(Box::from_raw(managed));
    }
}

/// Frees the tensor of a capsule that was not consumed. A consumer renames the capsule.
unsafe extern "C" fn delete_unused(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule was made by `capsule`, so that its pointer is of the type that its name tells.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            delete_legacy(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule with a tensor, in the newest form that the consumer understands.
fn capsule(py: Python<'_>, tensor: Tensor, is_versioned: bool, is_copied: bool) -> PyResult<Bound<'_, PyAny>> {
    let (tensor, owner) = Exported::new(tensor).map_err(exception)?;
    let context = Box::into_raw(owner).cast();
    let (managed, name): (*mut c_void, _) = if is_versioned {
        let flags = if is_copied { IS_COPIED } else { 0 };
        let managed = VersionedTensor { version: VERSION, context, deleter: Some(delete_versioned), flags, tensor };
        (Box::into_raw(Box::new(managed)).cast(), VERSIONED)
    } else {
        let managed = LegacyTensor { tensor, context, deleter: Some(delete_legacy) };
        (Box::into_raw(Box::new(managed)).cast(), LEGACY)
    };
    // SAFETY: the pointer is not null, and the name lives as long as the process.
    unsafe {
        let capsule = ffi::PyCapsule_New(managed, name.as_ptr(), Some(delete_unused));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// Returns a tensor on the memory of another library's array. With `copy`, the other library is asked for a copy, or
/// for none.
///
/// # Errors
/// An element type, a device or a version that Tenure does not have; the errors of the other library.
pub(super) fn imported(object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Tensor> {
    let py = object.py();
    let arguments = PyDict::new(py);
    arguments.set_item("max_version", (VERSION.major, VERSION.minor))?;
    if let Some(copy) = copy {
        arguments.set_item("copy", copy)?;
    }
    let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
        // Libraries of DLPack before 1.0 do not know the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) && copy.is_none() => object.call_method0("__dlpack__"),
        result => result,
    }?;
    from_capsule(&capsule)
}

/// Takes the tensor out of a capsule.
pub(super) fn from_capsule(capsule: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let capsule = capsule.cast::<PyCapsule>().map_err(|_| PyTypeError::new_err("__dlpack__ must return a capsule"))?;
    let pointer = capsule.as_ptr();
    // SAFETY: a capsule of one of these names has a pointer of the type that DLPack defines for it. Renaming it makes
    // this the only owner, which calls the deleter once.
    unsafe {
        if ffi::PyCapsule_IsValid(pointer, VERSIONED.as_ptr()) == 1 {
            let managed: *mut VersionedTensor = ffi::PyCapsule_GetPointer(pointer, VERSIONED.as_ptr()).cast();
            if (*managed).version.major != VERSION.major {
                let Version { major, minor } = (*managed).version;
                return Err(PyBufferError::new_err(format!("DLPack {major}.{minor} is not supported: 1.x is")));
            }
            ffi::PyCapsule_SetName(pointer, USED_VERSIONED.as_ptr());
            let managed = Owner(NonNull::new_unchecked(managed), |managed| {
                if let Some(deleter) = managed.as_ref().deleter {
                    deleter(managed.as_ptr());
                }
            });
            let VersionedTensor { tensor, flags, .. } = managed.0.as_ref();
            let (tensor, is_read_only) = (*tensor, flags & READ_ONLY != 0);
            adopt(capsule.py(), tensor, is_read_only, managed)
        } else if ffi::PyCapsule_IsValid(pointer, LEGACY.as_ptr()) == 1 {
            let managed: *mut LegacyTensor = ffi::PyCapsule_GetPointer(pointer, LEGACY.as_ptr()).cast();
            ffi::PyCapsule_SetName(pointer, USED_LEGACY.as_ptr());
            let managed = Owner(NonNull::new_unchecked(managed), |managed| {
                if let Some(deleter) = managed.as_ref().deleter {
                    deleter(managed.as_ptr());
                }
            });
            let tensor = managed.0.as_ref().tensor;
            adopt(capsule.py(), tensor, false, managed)
        } else {
            Err(PyBufferError::new_err("the capsule has no DLPack tensor, or it was consumed before"))
        }
    }
}

/// An imported tensor, which is given back by its deleter.
struct Owner<T>(NonNull<T>, unsafe fn(NonNull<T>));

// SAFETY: DLPack's deleters may be called from any thread; those that need Python's lock take it.
unsafe impl<T> Send for Owner<T> {}

impl<T> Drop for Owner<T> {
    fn drop(&mut self) {
        // SAFETY: the pointer is owned, and the deleter is called once.
        unsafe { (self.1)(self.0) }
    }
}

/// Returns a tensor on the described memory, which `owner` keeps. A copy of it, if it may not be written to or has
/// negative strides.
///
/// # Safety
/// The description is one of DLPack, whose memory lives as long as `owner`.
unsafe fn adopt(
    py: Python<'_>,
    described: Described,
    is_read_only: bool,
    owner: impl Send + 'static,
) -> PyResult<Tensor> {
    let dtype = dtype_of(described.code, described.bits).filter(|_| described.lanes == 1).ok_or_else(|| {
        let Described { code, bits, lanes, .. } = described;
        let text =
            format!("elements of DLPack's type code {code} with {bits} bits and {lanes} lanes are not supported");
        PyBufferError::new_err(text)
    })?;
    let device = match (described.device_type, u8::try_from(described.device_id)) {
        (CPU | CUDA_HOST, _) => Device::CPU,
        (CUDA, Ok(index)) => Device::cuda(index),
        (kind, _) => {
            return Err(PyBufferError::new_err(format!("memory of DLPack's device type {kind} is not supported")));
        }
    };
    let rank = described.dimensions.unsigned_abs() as usize;
    let numbers = |first: *mut i64| {
        // SAFETY: by the function's contract, there is a number for each dimension.
        if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, rank) } }
    };
    let sizes: Vec<usize> = numbers(described.shape).iter().map(|size| *size as usize).collect();
    let dense = Layout::contiguous(&sizes).map_err(|error| exception(error.into()))?;
    let strides: Vec<isize> = if described.strides.is_null() {
        dense.strides().iter().map(|stride| *stride as isize).collect()
    } else {
        numbers(described.strides).iter().map(|stride| *stride as isize).collect()
    };
    let first = described.data.cast::<u8>().wrapping_add(described.byte_offset as usize);
    let is_empty = dense.numel() == 0;
    if is_empty {
        return Tensor::empty(&sizes, dtype, device).map_err(exception);
    }
    let unsigned: Option<Vec<usize>> = strides.iter().map(|stride| usize::try_from(*stride).ok()).collect();
    match unsigned {
        Some(strides) if first.addr() % dtype.alignment() == 0 => {
            let layout = Layout::strided(&sizes, &strides, 0).map_err(|error| exception(error.into()))?;
            let bytes = layout.required_bytes(dtype).map_err(|error| exception(error.into()))?;
            let data = DataPtr::foreign(first, device, move || drop(owner));
            // SAFETY: by the function's contract, these bytes live until `owner` is dropped.
            let storage = unsafe { Storage::from_data_ptr(data, bytes, None) };
            let tensor = Tensor::from_storage(storage, layout, dtype).map_err(exception)?;
            if is_read_only { py.detach(|| tensor.copy()).map_err(exception) } else { Ok(tensor) }
        }
        _ if device.is_cpu() => {
            // SAFETY: as above, for memory that the host can read.
            let bytes = unsafe { gathered(first, &sizes, &strides, dtype.size()) };
            drop(owner);
            Tensor::from_bytes(&bytes, &sizes, dtype).map_err(exception)
        }
        _ => Err(PyBufferError::new_err("negative strides are not supported on devices: copy the array first")),
    }
}

/// Copies the elements of an array with any strides, the last dimension fastest.
///
/// # Safety
/// Every element of these sizes and strides, in elements of `size` bytes from `first`, can be read.
unsafe fn gathered(first: *const u8, sizes: &[usize], strides: &[isize], size: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(sizes.iter().product::<usize>() * size);
    let mut index = vec![0; sizes.len()];
    loop {
        let offset: isize = index.iter().zip(strides).map(|(index, stride)| *index as isize * stride).sum();
        // SAFETY: by the function's contract.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(first.offset(offset * size as isize), size) });
        let Some(dim) = (0..sizes.len()).rev().find(|dim| index[*dim] + 1 < sizes[*dim]) else { return bytes };
        index[dim] += 1;
        index[dim + 1..].fill(0);
    }
}

#[pymethods]
impl TensorObject {
    /// Returns the tensor as a DLPack capsule, for libraries that take tensors without a copy.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        if tensor.requires_grad() {
            return Err(PyBufferError::new_err(
                "a tensor that requires a gradient cannot be exported: detach() it first",
            ));
        }
        if tensor.device().is_cpu() && stream.is_some_and(|stream| !stream.is_none()) {
            return Err(PyBufferError::new_err("a tensor on the CPU has no stream: stream must be None"));
        }
        let target = match dl_device {
            None => tensor.device(),
            Some((CPU, _)) => Device::CPU,
            Some(device) if device == device_of(tensor.device()) => tensor.device(),
            Some(device) => {
                return Err(PyBufferError::new_err(format!(
                    "a tensor on {} cannot be exported to DLPack's device {device:?}",
                    tensor.device()
                )));
            }
        };
        let moves = target != tensor.device();
        if moves && copy == Some(false) {
            return Err(PyBufferError::new_err("another device needs a copy, which copy=False forbids"));
        }
        let copies = moves || copy == Some(true);
        let exported = if copies {
            let copy = || if moves { tensor.to_device(target) } else { tensor.copy() };
            py.detach(copy).map_err(exception)?
        } else {
            tensor
        };
        capsule(py, exported, max_version.is_some_and(|(major, _)| major >= VERSION.major), copies)
    }

    /// Returns DLPack's type and number of the device that the tensor is on.
    fn __dlpack_device__(&self) -> (i32, i32) {
        device_of(self.tensor().device())
    }
}

/// Returns a tensor on the memory of another library's array or tensor.
///
/// Parameters
/// ----------
/// x : object with `__dlpack__`, or a DLPack capsule
/// device : device, default None
///     The device of the result; by default the array's.
/// copy : bool, default None
///     True: always copy. False: never copy. None: copy if the array may not be written to.
#[pyfunction]
#[pyo3(signature = (x, /, *, device = None, copy = None))]
pub(crate) fn from_dlpack<'py>(
    x: &Bound<'py, PyAny>,
    device: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, TensorObject>> {
    let py = x.py();
    let tensor = if x.cast::<PyCapsule>().is_ok() { from_capsule(x)? } else { imported(x, copy)? };
    let tensor = match device.filter(|device| !device.is_none()) {
        None => tensor,
        Some(device) => {
            let device = super::data::asked_device(Some(device))?;
            if device != tensor.device() && copy == Some(false) {
                return Err(PyBufferError::new_err("another device needs a copy, which copy=False forbids"));
            }
            py.detach(|| tensor.to_device(device)).map_err(exception)?
        }
    };
    super::wrapped(py, tensor)
}
