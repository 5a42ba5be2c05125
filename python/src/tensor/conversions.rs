//! Short names for tensors of another dtype, and for new tensors like this one.

use pyo3::prelude::*;
use tenure::core::{DType, Device};
use tenure::tensor::{Scalar, Tensor};

use super::{TensorObject, convert, data, device, dtype, exception, wrapped};

/// Returns the tensor in a dtype: the object itself if it has that dtype.
fn converted<'py>(tensor: &Bound<'py, TensorObject>, dtype: DType) -> PyResult<Bound<'py, TensorObject>> {
    let source = tensor.get().tensor();
    if source.dtype() == dtype {
        return Ok(tensor.clone());
    }
    wrapped(tensor.py(), tensor.py().detach(|| source.to_dtype(dtype)).map_err(exception)?)
}

/// Returns a new tensor of these sizes, filled with a number, in the dtype and on the device of `like` unless others are
/// given.
fn filled<'py>(
    like: &Bound<'py, TensorObject>,
    size: &Bound<'py, PyAny>,
    value: Scalar,
    dtype: Option<&Bound<'py, PyAny>>,
    device: Option<&Bound<'py, PyAny>>,
    requires_grad: bool,
) -> PyResult<Bound<'py, TensorObject>> {
    let tensor = like.get().tensor();
    // One argument is a sequence of sizes, or a size.
    let size = match size.len() {
        Ok(1) => size.get_item(0)?,
        _ => size.clone(),
    };
    let sizes = convert::integers(&size)?
        .ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("sizes are integers, or one sequence of integers"))?;
    let sizes = convert::sizes(&sizes)?;
    let dtype = dtype::asked(dtype)?.unwrap_or(tensor.dtype());
    let device = match device.filter(|device| !device.is_none()) {
        None => tensor.device(),
        device => device::asked(device)?,
    };
    let made = like.py().detach(|| Tensor::full(&sizes, value, dtype, device)?.requires_grad_(requires_grad));
    wrapped(like.py(), made.map_err(exception)?)
}

#[pymethods]
impl TensorObject {
    /// Returns the tensor as `float32`.
    fn float<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::F32)
    }

    /// Returns the tensor as `float64`.
    fn double<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::F64)
    }

    /// Returns the tensor as `float16`.
    fn half<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::F16)
    }

    /// Returns the tensor as `bfloat16`.
    fn bfloat16<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::BF16)
    }

    /// Returns the tensor as `int64`.
    fn long<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::I64)
    }

    /// Returns the tensor as `int32`.
    fn int<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::I32)
    }

    /// Returns the tensor as `int16`.
    fn short<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::I16)
    }

    /// Returns the tensor as `bool`.
    fn bool<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        converted(slf, DType::Bool)
    }

    /// Returns the tensor in the dtype and on the device of another.
    fn type_as<'py>(slf: &Bound<'py, Self>, other: &Self) -> PyResult<Bound<'py, Self>> {
        let other = other.tensor();
        Self::moved(&converted(slf, other.dtype())?, other.device())
    }

    /// Returns a tensor of zeros of these sizes, in this tensor's dtype and on its device.
    #[pyo3(signature = (*size, dtype = None, device = None, requires_grad = false))]
    fn new_zeros<'py>(
        slf: &Bound<'py, Self>,
        size: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        requires_grad: bool,
    ) -> PyResult<Bound<'py, Self>> {
        filled(slf, size, Scalar::Int(0), dtype, device, requires_grad)
    }

    /// Returns a tensor of ones of these sizes, in this tensor's dtype and on its device.
    #[pyo3(signature = (*size, dtype = None, device = None, requires_grad = false))]
    fn new_ones<'py>(
        slf: &Bound<'py, Self>,
        size: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        requires_grad: bool,
    ) -> PyResult<Bound<'py, Self>> {
        filled(slf, size, Scalar::Int(1), dtype, device, requires_grad)
    }

    /// Returns a tensor of these sizes filled with a number, in this tensor's dtype and on its device.
    #[pyo3(signature = (size, fill_value, *, dtype = None, device = None, requires_grad = false))]
    fn new_full<'py>(
        slf: &Bound<'py, Self>,
        size: &Bound<'py, PyAny>,
        fill_value: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        requires_grad: bool,
    ) -> PyResult<Bound<'py, Self>> {
        let value = convert::scalar(fill_value)?
            .ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("fill_value must be a number"))?;
        filled(slf, size, value, dtype, device, requires_grad)
    }

    /// Returns a new tensor with these values, in this tensor's dtype and on its device.
    #[pyo3(signature = (data, *, dtype = None, device = None, requires_grad = false))]
    fn new_tensor<'py>(
        slf: &Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
        device: Option<&Bound<'py, PyAny>>,
        requires_grad: bool,
    ) -> PyResult<Bound<'py, Self>> {
        let like = slf.get().tensor();
        let dtype = dtype::asked(dtype)?.unwrap_or(like.dtype());
        let device: Device = match device.filter(|device| !device.is_none()) {
            None => like.device(),
            device => device::asked(device)?,
        };
        let made = data::tensor_of(data, Some(dtype), device)?;
        wrapped(slf.py(), made.requires_grad_(requires_grad).map_err(exception)?)
    }
}
