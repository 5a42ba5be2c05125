//! What `tenure.torch` needs to put Tenure under PyTorch.

use crate::errors::complaint;
use pyo3::prelude::*;

/// The address of the table of functions that the shim stands on.
#[pyfunction]
pub(crate) fn torch_api() -> usize {
    tenure_capi::torch::tenure_torch_table().expose_provenance()
}

/// Says how devices are opened.
#[pyfunction]
pub(crate) fn torch_configure(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| tenure_capi::torch::configure(options)).map_err(complaint)
}
