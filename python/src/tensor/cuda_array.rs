//! The CUDA array interface (<https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html>), version 3.

use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use tenure::core::DType;

use super::dlpack::{current_number, pinned_address};
use super::{TensorObject, exception};

/// Returns NumPy's name of a dtype, if it has one.
fn type_string(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bool => Some("|b1"),
        DType::U8 => Some("|u1"),
        DType::I8 => Some("|i1"),
        DType::I16 => Some("<i2"),
        DType::I32 => Some("<i4"),
        DType::I64 => Some("<i8"),
        DType::F16 => Some("<f2"),
        DType::F32 => Some("<f4"),
        DType::F64 => Some("<f8"),
        DType::U16 => Some("<u2"),
        DType::U32 => Some("<u4"),
        DType::U64 => Some("<u8"),
        DType::BF16 => None,
    }
}

#[pymethods]
impl TensorObject {
    /// The description of the elements on a CUDA device. Consumers wait for its stream, the thread's current one.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let tensor = self.tensor();
        if tensor.device().is_cpu() {
            return Err(PyAttributeError::new_err(
                "a tensor on the CPU has no __cuda_array_interface__: use cuda() first",
            ));
        }
        if tensor.requires_grad() {
            return Err(PyRuntimeError::new_err(
                "a tensor that requires a gradient has no __cuda_array_interface__: detach() it first",
            ));
        }
        let dtype = tensor.dtype();
        let name = type_string(dtype)
            .ok_or_else(|| PyAttributeError::new_err(format!("{dtype} has no name in __cuda_array_interface__")))?;
        let address = pinned_address(&tensor).map_err(exception)?;
        let interface = PyDict::new(py);
        interface.set_item("shape", PyTuple::new(py, tensor.sizes())?)?;
        interface.set_item("typestr", name)?;
        interface.set_item("data", (address.addr(), tensor.storage().is_read_only()))?;
        let strides = tensor.strides().iter().map(|stride| stride * dtype.size()).collect::<Vec<_>>();
        let strides = if tensor.is_contiguous() { None } else { Some(PyTuple::new(py, strides)?) };
        interface.set_item("strides", strides)?;
        interface.set_item("stream", current_number(tensor.device())?)?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}
