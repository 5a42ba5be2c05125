//! Indexing: `x[1, 2:, mask]`, as in PyTorch and NumPy.

use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyEllipsis, PyInt, PyList, PySlice, PyTuple};
use tenure::core::{DType, Device};
use tenure::tensor::ops::Index;
use tenure::tensor::{Scalar, Tensor, observe};

use super::{TensorObject, convert, data, exception, wrapped};

/// Converts the object between the brackets.
fn indices(object: &Bound<'_, PyAny>) -> PyResult<Vec<Index>> {
    match object.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter_borrowed().map(|part| index(&part)).collect(),
        Err(_) => Ok(vec![index(object)?]),
    }
}

fn index(object: &Bound<'_, PyAny>) -> PyResult<Index> {
    if let Ok(value) = object.cast::<PyBool>() {
        return Tensor::scalar(value.is_true(), DType::Bool).map(Index::Tensor).map_err(exception);
    }
    if object.cast::<PyInt>().is_ok() {
        return Ok(Index::At(object.extract()?));
    }
    if object.is_none() {
        return Ok(Index::New);
    }
    if let Ok(range) = object.cast::<PySlice>() {
        return slice(range);
    }
    if object.cast::<PyEllipsis>().is_ok() {
        return Ok(Index::Ellipsis);
    }
    if let Some(tensor) = convert::tensor(object) {
        // An integer without dimensions selects as a number does.
        let is_number = tensor.rank() == 0 && tensor.dtype() != DType::Bool && !tensor.dtype().is_floating();
        return Ok(if is_number { Index::At(object.extract()?) } else { Index::Tensor(tensor) });
    }
    if object.cast::<PyList>().is_ok() || object.hasattr("__array__")? || object.hasattr("__dlpack__")? {
        let tensor = data::tensor_of(object, None, Device::CPU)?;
        // An empty list has no dtype of its own.
        let tensor = if tensor.numel() == 0 { tensor.to_dtype(DType::I64).map_err(exception)? } else { tensor };
        if object.cast::<PyList>().is_ok() {
            observe::tell_literal(&tensor);
        }
        return Ok(Index::Tensor(tensor));
    }
    match convert::integer(object)? {
        Some(number) => Ok(Index::At(number as isize)),
        None => {
            let text = "an index is an integer, a slice, an ellipsis, None, a tensor, or a list, not";
            Err(PyTypeError::new_err(format!("{text} {}", object.get_type().name()?)))
        }
    }
}

/// Returns the part of a slice with this name.
fn part(range: &Bound<'_, PySlice>, name: &str) -> PyResult<Option<isize>> {
    let part = range.getattr(name)?;
    if part.is_none() {
        return Ok(None);
    }
    let number = convert::integer(&part)?
        .ok_or_else(|| PyTypeError::new_err("the parts of a slice are integers, or tensors of one integer, or None"))?;
    Ok(Some(number as isize))
}

fn slice(range: &Bound<'_, PySlice>) -> PyResult<Index> {
    let step = part(range, "step")?.unwrap_or(1);
    let step = usize::try_from(step).ok().filter(|step| *step > 0).ok_or_else(|| {
        PyValueError::new_err(format!("the step of a slice must be greater than zero, got {step}: flip() reverses"))
    })?;
    Ok(Index::Slice { start: part(range, "start")?.unwrap_or(0), end: part(range, "stop")?, step })
}

#[pymethods]
impl TensorObject {
    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        let indices = on_device(indices(index)?, tensor.device())?;
        let computes = indices.iter().any(|index| matches!(index, Index::Tensor(_)));
        let result = if computes { py.detach(|| tensor.index(indices)) } else { tensor.index(indices) };
        wrapped(py, result.map_err(exception)?)
    }

    fn __setitem__(slf: &Bound<'_, Self>, index: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        let indices = on_device(indices(index)?, tensor.device())?;
        let value = match convert::tensor(value) {
            Some(value) => value,
            None => match convert::scalar(value)? {
                Some(number) => return set_number(py, &tensor, indices, number),
                None => data::tensor_of(value, None, Device::CPU)?,
            },
        };
        py.detach(|| {
            let value = value.to_dtype(tensor.dtype())?.to_device(tensor.device())?;
            // Dimensions of size 1 in front that the place does not have are left out, as in NumPy.
            let selected = tensor.index(indices.clone())?;
            let mut value = value;
            while value.rank() > selected.rank() && value.sizes()[0] == 1 {
                value = value.squeeze(0)?;
            }
            tensor.index_put_(indices, &value, false)
        })
        .map_err(exception)
    }

    /// Returns the elements of this tensor where `condition` is true, and those of `other` elsewhere.
    ///
    /// Parameters
    /// ----------
    /// condition : Tensor
    /// other : Tensor or number
    #[pyo3(name = "where")]
    fn where_<'py>(slf: &Bound<'py, Self>, condition: &Self, other: &Bound<'py, PyAny>) -> PyResult<Bound<'py, Self>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        let condition = condition.tensor();
        let result = match (convert::tensor(other), convert::scalar(other)?) {
            (Some(other), _) => py.detach(|| condition.where_(&tensor, &other)),
            (None, Some(number)) => py.detach(|| condition.where_(&tensor, number)),
            (None, None) => {
                let text = "where(): argument 'other' must be a tensor or a number, not";
                return Err(PyTypeError::new_err(format!("{text} {}", other.get_type().name()?)));
            }
        };
        wrapped(py, result.map_err(exception)?)
    }

    fn __len__(slf: &Bound<'_, Self>) -> PyResult<usize> {
        let sizes = slf.get().tensor();
        sizes.sizes().first().copied().ok_or_else(|| PyTypeError::new_err("len() of a tensor without dimensions"))
    }

    fn __iter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let tensor = slf.get().tensor();
        if tensor.rank() == 0 {
            return Err(PyTypeError::new_err("iteration over a tensor without dimensions"));
        }
        let parts = tensor.unbind(0).map_err(exception)?;
        let objects = parts.into_iter().map(|part| wrapped(py, part)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, objects)?.into_any().try_iter().map(Bound::into_any)
    }

    fn __contains__(slf: &Bound<'_, Self>, value: &Bound<'_, PyAny>) -> PyResult<bool> {
        let equal = slf.as_any().rich_compare(value, pyo3::basic::CompareOp::Eq)?;
        match convert::tensor(&equal) {
            Some(equal) => slf.py().detach(|| equal.any(&[], false)?.item::<bool>()).map_err(exception),
            None => Ok(false),
        }
    }
}

/// Writes a number to the elements that the indices select.
fn set_number(py: Python<'_>, tensor: &Tensor, indices: Vec<Index>, number: Scalar) -> PyResult<()> {
    let selects = indices.iter().any(|index| matches!(index, Index::Tensor(_)));
    py.detach(|| {
        if selects {
            let value = Tensor::scalar(number, tensor.dtype())?.to_device(tensor.device())?;
            tensor.index_put_(indices, &value, false)
        } else {
            tensor.index(indices)?.fill_(number)
        }
    })
    .map_err(exception)
}

/// Copies index tensors to the device of the tensor that they index.
fn on_device(mut indices: Vec<Index>, device: Device) -> PyResult<Vec<Index>> {
    for index in &mut indices {
        if let Index::Tensor(tensor) = index
            && tensor.device() != device
        {
            if !tensor.device().is_cpu() {
                let text = format!("an index on {} for a tensor on {device}", tensor.device());
                return Err(PyIndexError::new_err(text));
            }
            *tensor = tensor.to_device(device).map_err(exception)?;
        }
    }
    Ok(indices)
}
