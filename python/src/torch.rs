//! What `tenure.torch` needs to put Tenure under PyTorch.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The address of the table of functions that the shim stands on.
#[pyfunction]
pub(crate) fn torch_api() -> usize {
    tenure_capi::torch::tenure_torch_table().expose_provenance()
}

/// Says how devices are opened.
#[pyfunction]
pub(crate) fn torch_configure(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| tenure_capi::torch::configure(options)).map_err(PyRuntimeError::new_err)
}

/// The devices that PyTorch has used so far.
#[pyfunction]
pub(crate) fn torch_devices() -> Vec<i32> {
    tenure_capi::torch::open_devices()
}
