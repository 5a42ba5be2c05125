//! Tensors from Python's data, and Python's data from tensors.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PySequence, PyString};
use tenure::core::{DType, Device};
use tenure::tensor::{Scalar, Tensor};

use super::{TensorObject, buffer, convert, device, dlpack, dtype, exception, wrapped};

/// Returns a new tensor with the values of an object: a number, nested sequences of numbers, an array or a tensor.
/// Without a dtype, the values decide it.
pub(super) fn tensor_of(object: &Bound<'_, PyAny>, dtype: Option<DType>, device: Device) -> PyResult<Tensor> {
    let py = object.py();
    if let Some(tensor) = convert::tensor(object) {
        return py.detach(|| copied(&tensor.detach(), dtype, device)).map_err(exception);
    }
    if let Some(tensor) = shared(object, None)? {
        return py.detach(|| copied(&tensor, dtype, device)).map_err(exception);
    }
    let mut elements = Elements { sizes: Vec::new(), numbers: Vec::new() };
    elements.add(object, 0)?;
    let tensor = elements.tensor(dtype).map_err(exception)?;
    tensor.to_device(device).map_err(exception)
}

/// Returns a copy in a dtype and on a device.
fn copied(tensor: &Tensor, dtype: Option<DType>, device: Device) -> tenure::tensor::Result<Tensor> {
    let converted = tensor.to_dtype(dtype.unwrap_or(tensor.dtype()))?.to_device(device)?;
    if converted.storage().is_alias_of(tensor.storage()) { converted.copy() } else { Ok(converted) }
}

/// Returns a tensor on the memory of an array, or `None` if the object is no array.
fn shared(object: &Bound<'_, PyAny>, copy: Option<bool>) -> PyResult<Option<Tensor>> {
    // An array that is to be copied is copied once, here.
    let copy = copy.filter(|copy| !copy);
    if object.hasattr("__dlpack__")? {
        return dlpack::imported(object, copy).map(Some);
    }
    // Arrays without DLPack.
    if object.hasattr("__array__")? {
        let array = object.py().import("numpy")?.call_method1("asarray", (object,))?;
        return dlpack::imported(&array, copy).map(Some);
    }
    Ok(None)
}

/// The numbers of nested sequences.
struct Elements {
    sizes: Vec<usize>,
    numbers: Vec<Scalar>,
}

impl Elements {
    /// Adds a number, or the numbers of a sequence, which is at this depth.
    fn add(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> PyResult<()> {
        if let Some(number) = convert::scalar(object)? {
            if depth != self.sizes.len() {
                return Err(uneven());
            }
            self.numbers.push(number);
            return Ok(());
        }
        if object.cast::<PyString>().is_ok() {
            return Err(PyTypeError::new_err("a tensor is made of numbers, not of strings"));
        }
        let is_sequence = object.cast::<PySequence>().is_ok() || convert::tensor(object).is_some();
        if !is_sequence {
            let text =
                format!("a tensor is made of numbers and sequences of them, not of {}", object.get_type().name()?);
            return Err(PyTypeError::new_err(text));
        }
        let length = object.len()?;
        match self.sizes.get(depth) {
            None if self.numbers.is_empty() => self.sizes.push(length),
            Some(size) if *size == length => {}
            _ => return Err(uneven()),
        }
        for part in object.try_iter()? {
            self.add(&part?, depth + 1)?;
        }
        Ok(())
    }

    fn tensor(self, dtype: Option<DType>) -> tenure::tensor::Result<Tensor> {
        let Self { sizes, numbers } = self;
        let has_floats = numbers.iter().any(|number| matches!(number, Scalar::Float(_)));
        let has_integers = numbers.iter().any(|number| matches!(number, Scalar::Int(_) | Scalar::Unsigned(_)));
        let dtype = dtype.unwrap_or(if has_floats || numbers.is_empty() {
            dtype::default_dtype()
        } else if has_integers {
            DType::I64
        } else {
            DType::Bool
        });
        let has_large = numbers.iter().any(|number| matches!(number, Scalar::Unsigned(_)));
        let tensor = if has_floats || dtype.is_floating() && (has_large || !has_integers) {
            Tensor::from_vec(numbers.iter().map(|number| number.to_f64()).collect(), &sizes)?
        } else {
            numbers.iter().try_for_each(|number| number.check_fits("tensor", dtype))?;
            // Those of 2⁶³ or more wrap, and are themselves again as `uint64`.
            Tensor::from_vec(numbers.iter().map(|number| number.to_i64()).collect(), &sizes)?
        };
        tensor.to_dtype(dtype)
    }
}

fn uneven() -> PyErr {
    PyValueError::new_err(
        "the sequences of one dimension must have the same length, and be all numbers or all sequences",
    )
}

/// Returns a new tensor with these values.
///
/// Parameters
/// ----------
/// data : number, sequence, array or Tensor
///     The values. They are copied.
/// dtype : dtype, default None
///     Without one, the values decide it: `bool`, `int64`, or the default dtype.
/// device : device, default "cpu"
/// requires_grad : bool, default False
#[pyfunction]
#[pyo3(signature = (data, dtype = None, device = None, requires_grad = false))]
pub(crate) fn tensor<'py>(
    data: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    requires_grad: bool,
) -> PyResult<Bound<'py, TensorObject>> {
    let made = tensor_of(data, dtype::asked(dtype)?, device::asked(device)?)?;
    wrapped(data.py(), if requires_grad { made.requires_grad_(true).map_err(exception)? } else { made })
}

/// Returns a tensor of an object's values, on the same memory if that is possible.
///
/// Parameters
/// ----------
/// data : number, sequence, array or Tensor
///     An array is an object with `__dlpack__`, `__array__` or Python's buffer protocol, such as `bytes`,
///     `array.array` or `memoryview`, whose format decides the dtype.
/// dtype : dtype, default None
/// device : device, default None
/// copy : bool, default None
///     True: always copy. False: never copy, and raise a `ValueError` where that is impossible. None: copy if needed.
#[pyfunction]
#[pyo3(signature = (data, dtype = None, device = None, *, copy = None))]
pub(crate) fn asarray<'py>(
    data: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, TensorObject>> {
    let py = data.py();
    let dtype = dtype::asked(dtype)?;
    let source = match convert::tensor(data) {
        Some(tensor) => Some(tensor),
        None => match shared(data, copy)? {
            None => buffer::array(data, copy)?,
            shared => shared,
        },
    };
    let Some(source) = source else {
        if copy == Some(false) {
            return Err(PyValueError::new_err("numbers and sequences cannot become a tensor without a copy"));
        }
        return wrapped(py, tensor_of(data, dtype, device::asked(device)?)?);
    };
    let device = match device {
        Some(device) => device::asked(Some(device))?,
        None => source.device(),
    };
    let dtype = dtype.unwrap_or(source.dtype());
    let changes = dtype != source.dtype() || device != source.device();
    if changes && copy == Some(false) {
        return Err(PyValueError::new_err("another dtype or device needs a copy, which copy=False forbids"));
    }
    if !changes && copy != Some(true) {
        return match data.cast::<TensorObject>() {
            Ok(tensor) => Ok(tensor.clone()),
            Err(_) => wrapped(py, source),
        };
    }
    wrapped(py, py.detach(|| copied(&source, Some(dtype), device)).map_err(exception)?)
}

/// Returns the dtype that a number has without a dtype. An integer that does not fit `int64` needs one.
pub(super) fn inferred(number: Scalar) -> DType {
    match number {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) | Scalar::Unsigned(_) => DType::I64,
        Scalar::Float(_) => dtype::default_dtype(),
    }
}

/// Returns a number as a Python object.
pub(super) fn number(py: Python<'_>, number: Scalar) -> PyResult<Bound<'_, PyAny>> {
    Ok(match number {
        Scalar::Bool(value) => value.into_pyobject(py)?.to_owned().into_any(),
        Scalar::Int(value) => value.into_pyobject(py)?.into_any(),
        Scalar::Unsigned(value) => value.into_pyobject(py)?.into_any(),
        Scalar::Float(value) => value.into_pyobject(py)?.into_any(),
    })
}

#[pymethods]
impl TensorObject {
    /// Returns the only element as a Python number.
    pub(super) fn item<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        number(py, py.detach(|| tensor.item_scalar()).map_err(exception)?)
    }

    /// Returns the elements as nested lists of Python numbers; one number if there are no dimensions.
    fn tolist<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        let mut numbers = py.detach(|| numbers_of(&tensor)).map_err(exception)?.into_iter();
        nested(py, tensor.sizes(), &mut numbers)
    }

    fn __bool__(slf: &Bound<'_, Self>) -> PyResult<bool> {
        let tensor = slf.get().tensor();
        if tensor.numel() > 1 {
            let text = "the truth value of a tensor of several elements is ambiguous: use any() or all()";
            return Err(pyo3::exceptions::PyRuntimeError::new_err(text));
        }
        Ok(slf.py().detach(|| tensor.item_scalar()).map_err(exception)?.to_bool())
    }

    fn __float__(slf: &Bound<'_, Self>) -> PyResult<f64> {
        let tensor = slf.get().tensor();
        Ok(slf.py().detach(|| tensor.item_scalar()).map_err(exception)?.to_f64())
    }

    fn __int__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let item = Self::item(slf)?;
        item.py().get_type::<pyo3::types::PyInt>().call1((item,))
    }

    fn __index__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = slf.get().tensor();
        if tensor.dtype().is_floating() || tensor.numel() != 1 {
            let text = "only a tensor of one integer can be converted to an index";
            return Err(PyTypeError::new_err(text));
        }
        let item = slf.py().detach(|| tensor.item_scalar()).map_err(exception)?;
        number(slf.py(), if let Scalar::Bool(value) = item { Scalar::Int(value.into()) } else { item })
    }
}

/// Returns all elements, the last dimension fastest.
fn numbers_of(tensor: &Tensor) -> tenure::tensor::Result<Vec<Scalar>> {
    Ok(match tensor.dtype() {
        DType::Bool => tensor.to_vec::<bool>()?.into_iter().map(Scalar::Bool).collect(),
        dtype if dtype.is_floating() => {
            tensor.detach().to_dtype(DType::F64)?.to_vec::<f64>()?.into_iter().map(Scalar::Float).collect()
        }
        DType::U64 => tensor.to_vec::<u64>()?.into_iter().map(Scalar::from).collect(),
        _ => tensor.to_dtype(DType::I64)?.to_vec::<i64>()?.into_iter().map(Scalar::Int).collect(),
    })
}

/// Returns nested lists of these sizes with the next numbers.
fn nested<'py>(
    py: Python<'py>,
    sizes: &[usize],
    numbers: &mut impl Iterator<Item = Scalar>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((size, inner)) = sizes.split_first() else {
        return number(py, numbers.next().unwrap_or(Scalar::Int(0)));
    };
    let parts = (0..*size).map(|_| nested(py, inner, numbers)).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, parts)?.into_any())
}
