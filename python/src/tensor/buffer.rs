//! Python's buffer protocol: tensors as buffers, and buffers as tensors.

use std::ffi::{CStr, c_int};
use std::ptr;

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use tenure::core::{DType, Device};
use tenure::tensor::Tensor;

use super::dlpack::{ForeignArray, pinned_address};
use super::{TensorObject, dtype, exception, wrapped};

/// Returns the format of a dtype's elements in the module `struct`, if it has one.
fn format_of(dtype: DType) -> Option<&'static CStr> {
    match dtype {
        DType::Bool => Some(c"?"),
        DType::U8 => Some(c"B"),
        DType::I8 => Some(c"b"),
        DType::I16 => Some(c"h"),
        DType::I32 => Some(c"i"),
        DType::I64 => Some(c"q"),
        DType::F16 => Some(c"e"),
        DType::F32 => Some(c"f"),
        DType::F64 => Some(c"d"),
        DType::U16 => Some(c"H"),
        DType::U32 => Some(c"I"),
        DType::U64 => Some(c"Q"),
        DType::BF16 => None,
    }
}

/// Returns the dtype of a format of the module `struct`, for elements of `size` bytes in this machine's order.
fn dtype_of(format: &CStr, size: usize) -> Option<DType> {
    let native: &[u8] = if cfg!(target_endian = "little") { b"@=<" } else { b"@=>!" };
    let letter = match format.to_bytes() {
        [letter] => *letter,
        [order, letter] if native.contains(order) => *letter,
        _ => return None,
    };
    let candidates: &[DType] = match letter {
        b'?' => &[DType::Bool],
        b'c' => &[DType::U8],
        b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => &[DType::U8, DType::U16, DType::U32, DType::U64],
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => &[DType::I8, DType::I16, DType::I32, DType::I64],
        b'e' | b'f' | b'd' => &[DType::F16, DType::F32, DType::F64],
        _ => return None,
    };
    candidates.iter().copied().find(|dtype| dtype.size() == size)
}

/// A buffer of another object, which keeps its memory.
struct ForeignBuffer(Box<ffi::Py_buffer>);

// SAFETY: the description is constant, and it is given back with Python's lock.
unsafe impl Send for ForeignBuffer {}

impl ForeignBuffer {
    /// Asks an object for its buffer.
    fn new(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the description lives at one place until it is given back.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self(view))
    }
}

impl Drop for ForeignBuffer {
    fn drop(&mut self) {
        // Python that has ended frees nothing any more.
        Python::try_attach(|_| {
            // SAFETY: the buffer was filled by `PyObject_GetBuffer`, and is given back once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
        });
    }
}

/// Returns a tensor on the memory of an object with the buffer protocol. `None` if it has none, or if Tenure has no
/// dtype of its format.
///
/// # Errors
/// The object gives no buffer; its elements need a copy, which is forbidden.
pub(super) fn array(object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Option<Tensor>> {
    // SAFETY: the pointer is one to an object.
    if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } == 0 {
        return Ok(None);
    }
    let buffer = ForeignBuffer::new(object, ffi::PyBUF_FULL_RO)?;
    let view = &*buffer.0;
    let size = view.itemsize as usize;
    // SAFETY: a format is a string that lives as long as the buffer; without one, elements are bytes.
    let format = if view.format.is_null() { c"B" } else { unsafe { CStr::from_ptr(view.format) } };
    let Some(dtype) = dtype_of(format, size) else { return Ok(None) };
    if !view.suboffsets.is_null() {
        return Err(PyBufferError::new_err("buffers of pointers are not supported"));
    }
    let rank = view.ndim as usize;
    // SAFETY: the flags ask for sizes and strides, which buffers with dimensions then have.
    let numbers = |first: *mut isize| if rank == 0 { &[] } else { unsafe { std::slice::from_raw_parts(first, rank) } };
    if numbers(view.strides).iter().any(|stride| stride % view.itemsize != 0) {
        return Ok(None);
    }
    let array = ForeignArray {
        first: view.buf.cast(),
        device: Device::CPU,
        dtype,
        sizes: numbers(view.shape).iter().map(|size| size.unsigned_abs()).collect(),
        strides: numbers(view.strides).iter().map(|stride| stride / view.itemsize).collect(),
        is_read_only: view.readonly != 0,
    };
    // SAFETY: the buffer describes memory that lives until it is given back.
    unsafe { array.adopt(copy, buffer) }.map(Some)
}

/// Returns a tensor of one dimension on the memory of an object with the buffer protocol.
///
/// Parameters
/// ----------
/// buffer : object
///     Its memory is dense. If it is read-only, as that of `bytes` is, the tensor is read-only too.
/// dtype : dtype
/// count : int, default -1
///     The number of elements; -1 for all.
/// offset : int, default 0
///     The position of the first element, in bytes.
/// requires_grad : bool, default False
#[pyfunction]
#[pyo3(
    signature = (buffer, *, dtype, count = -1, offset = 0, requires_grad = false),
    text_signature = "(buffer, *, dtype, count=-1, offset=0, requires_grad=False)"
)]
pub(crate) fn frombuffer<'py>(
    buffer: &Bound<'py, PyAny>,
    dtype: &Bound<'py, PyAny>,
    count: isize,
    offset: isize,
    requires_grad: bool,
) -> PyResult<Bound<'py, TensorObject>> {
    let dtype = dtype::converted(dtype).ok_or_else(|| PyTypeError::new_err("dtype must be a tenure.dtype"))?;
    let held = ForeignBuffer::new(buffer, ffi::PyBUF_SIMPLE)?;
    let (first, length, size) = (held.0.buf.cast::<u8>(), held.0.len.unsigned_abs(), dtype.size());
    let start = offset.unsigned_abs();
    if offset < 0 || start >= length.max(1) {
        let text = format!("offset ({offset} bytes) must be at least 0 and less than the buffer's {length} bytes");
        return Err(PyValueError::new_err(text));
    }
    let available = length - start;
    let elements = match usize::try_from(count) {
        Ok(count) => count,
        Err(_) if count != -1 => {
            return Err(PyValueError::new_err(format!("count must be at least 0, or -1 for all, got {count}")));
        }
        Err(_) if !available.is_multiple_of(size) => {
            return Err(PyValueError::new_err(format!(
                "the {available} bytes from offset {offset} are not a multiple of the {size} bytes of an element"
            )));
        }
        Err(_) => available / size,
    };
    if elements.checked_mul(size).is_none_or(|bytes| bytes > available) {
        return Err(PyValueError::new_err(format!(
            "{elements} elements of {size} bytes are more than the {available} bytes from offset {offset}"
        )));
    }
    let array = ForeignArray {
        first: first.wrapping_add(start),
        device: Device::CPU,
        dtype,
        sizes: vec![elements],
        strides: vec![1],
        is_read_only: held.0.readonly != 0,
    };
    // SAFETY: the elements are within the buffer, whose memory lives until it is given back.
    let tensor = unsafe { array.adopt(None, held)? };
    wrapped(buffer.py(), if requires_grad { tensor.requires_grad_(true).map_err(exception)? } else { tensor })
}

/// The owner of an exported buffer: the tensor, and the sizes and strides in bytes that the buffer points to.
struct Exported {
    tensor: Tensor,
    sizes: Vec<isize>,
    strides: Vec<isize>,
}

#[pymethods]
impl TensorObject {
    /// Fills a description of the elements, as `memoryview` asks for it.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let tensor = slf.get().tensor();
        // SAFETY: Python passes a description to fill. It has no object unless this succeeds.
        let view = unsafe {
            (*view).obj = ptr::null_mut();
            &mut *view
        };
        let refuse = |text: &str| Err(PyBufferError::new_err(text.to_owned()));
        let has = |flag: c_int| flags & flag == flag;
        if tensor.requires_grad() {
            return refuse("a tensor that requires a gradient has no buffer: detach() it first");
        }
        if !tensor.device().is_cpu() {
            return refuse("a tensor on a device has no buffer: use cpu() first");
        }
        let Some(format) = format_of(tensor.dtype()) else {
            return refuse("Python's buffers have no bfloat16: convert the tensor to float32 first");
        };
        let is_read_only = tensor.storage().is_read_only();
        if is_read_only && has(ffi::PyBUF_WRITABLE) {
            return refuse("the tensor's memory is read-only: write to a copy of it instead");
        }
        let needs_dense = !has(ffi::PyBUF_STRIDES) || has(ffi::PyBUF_C_CONTIGUOUS);
        let needs_other_order = has(ffi::PyBUF_F_CONTIGUOUS) && tensor.rank() > 1;
        if needs_dense && !tensor.is_contiguous() || needs_other_order {
            return refuse("the tensor's elements are not in the order that is asked for: use contiguous() first");
        }
        let size = tensor.dtype().size();
        let address = pinned_address(&tensor).map_err(exception)?;
        let sizes = tensor.sizes().iter().map(|size| *size as isize).collect();
        let strides = tensor.strides().iter().map(|stride| (stride * size) as isize).collect();
        let mut owner = Box::new(Exported { sizes, strides, tensor });
        // Buffers of no bytes have an address too.
        view.buf = if address.is_null() { owner.sizes.as_mut_ptr().cast() } else { address.cast() };
        view.len = (owner.tensor.numel() * size) as isize;
        view.itemsize = size as isize;
        view.readonly = is_read_only.into();
        view.ndim = owner.tensor.rank() as c_int;
        view.format = if has(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
        view.shape = if has(ffi::PyBUF_ND) { owner.sizes.as_mut_ptr() } else { ptr::null_mut() };
        view.strides = if has(ffi::PyBUF_STRIDES) { owner.strides.as_mut_ptr() } else { ptr::null_mut() };
        view.suboffsets = ptr::null_mut();
        view.internal = Box::into_raw(owner).cast();
        view.obj = slf.into_ptr();
        Ok(())
    }

    /// Frees what [`__getbuffer__`](Self::__getbuffer__) made.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python calls this once for each description that was filled.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Exported>()) });
    }
}
