//! Conversion of Python objects to tensors and numbers.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use tenure::core::{DType, MemoryFormat};
use tenure::tensor::{Scalar, Tensor};

use super::{TensorObject, exception};
use crate::errors::complaint;

/// Returns the tensor of a tensor object.
pub(crate) fn tensor(object: &Bound<'_, PyAny>) -> Option<Tensor> {
    object.cast::<TensorObject>().ok().map(|tensor| tensor.get().tensor())
}

/// Returns the tensors of a list or a tuple of tensors.
pub(super) fn tensors(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<Tensor>>> {
    let mut tensors = Vec::new();
    if let Ok(list) = object.cast::<PyList>() {
        for item in list.iter() {
            let Some(tensor) = tensor(&item) else { return Ok(None) };
            tensors.push(tensor);
        }
    } else if let Ok(tuple) = object.cast::<PyTuple>() {
        for item in tuple.iter_borrowed() {
            let Some(tensor) = tensor(&item) else { return Ok(None) };
            tensors.push(tensor);
        }
    } else {
        return Ok(None);
    }
    Ok(Some(tensors))
}

/// Converts a number of Python or NumPy, or a tensor of no dimensions.
pub(crate) fn scalar(object: &Bound<'_, PyAny>) -> PyResult<Option<Scalar>> {
    if let Ok(value) = object.cast::<PyFloat>() {
        return Ok(Some(Scalar::Float(value.value())));
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Some(Scalar::Bool(value.is_true())));
    }
    if object.cast::<PyInt>().is_ok() {
        return whole(object).map(Some);
    }
    if let Some(tensor) = tensor(object) {
        return if tensor.rank() == 0 {
            object.py().detach(|| tensor.item_scalar()).map(Some).map_err(exception)
        } else {
            Ok(None)
        };
    }
    let kind = object.get_type();
    // Arrays convert to numbers too, but have a length.
    if kind.hasattr("__len__")? || object.cast::<PyString>().is_ok() {
        return Ok(None);
    }
    if kind.hasattr("__index__")? {
        return whole(object).map(Some);
    }
    if kind.name()?.to_cow()? == "bool" || kind.name()?.to_cow()? == "bool_" {
        return object.is_truthy().map(|value| Some(Scalar::Bool(value)));
    }
    if kind.hasattr("__float__")? {
        return object.extract().map(|number| Some(Scalar::Float(number)));
    }
    Ok(None)
}

/// Converts an integer of up to 64 bits.
fn whole(object: &Bound<'_, PyAny>) -> PyResult<Scalar> {
    match object.extract::<i64>() {
        Ok(number) => Ok(Scalar::Int(number)),
        // The first error says that the number is too small, or is no number.
        Err(error) => object.extract::<u64>().map(Scalar::from).map_err(|_| error),
    }
}

/// Converts an integer, or an object that stands for one, such as a tensor of one integer.
pub(super) fn integer(object: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if object.cast::<PyBool>().is_ok() {
        return Ok(None);
    }
    if object.cast::<PyInt>().is_ok() {
        return object.extract().map(Some);
    }
    if let Some(tensor) = tensor(object) {
        let is_integer = tensor.rank() == 0 && !tensor.dtype().is_floating() && tensor.dtype() != DType::Bool;
        return if is_integer { object.extract().map(Some) } else { Ok(None) };
    }
    if object.get_type().hasattr("__index__")? && !object.get_type().hasattr("__len__")? {
        return object.extract().map(Some);
    }
    Ok(None)
}

/// Converts an integer or a sequence of integers.
pub(super) fn integers(object: &Bound<'_, PyAny>) -> PyResult<Option<SmallVec<[isize; 6]>>> {
    let mut numbers = SmallVec::new();
    if let Some(number) = integer(object)? {
        numbers.push(number as isize);
        return Ok(Some(numbers));
    }
    if object.cast::<PyTuple>().is_err() && object.cast::<PyList>().is_err() {
        return Ok(None);
    }
    for item in object.try_iter()? {
        let Some(number) = integer(&item?)? else { return Ok(None) };
        numbers.push(number as isize);
    }
    Ok(Some(numbers))
}

/// Converts numbers of elements.
///
/// # Errors
/// A negative number.
pub(super) fn sizes(numbers: &[isize]) -> PyResult<SmallVec<[usize; 6]>> {
    let sizes = numbers.iter().map(|number| usize::try_from(*number));
    sizes
        .collect::<Result<_, _>>()
        .map_err(|_| pyo3::exceptions::PyRuntimeError::new_err(format!("sizes cannot be negative, got {numbers:?}")))
}

/// Returns the memory format of a name.
pub(super) fn memory_format(name: &str) -> PyResult<MemoryFormat> {
    MemoryFormat::named(name).ok_or_else(|| {
        let formats = "contiguous_format, channels_last or channels_last_3d";
        complaint(format!("memory_format: must be {formats}, got {name:?}"))
    })
}
