//! Functions that `tenure.torch` calls to put Tenure under PyTorch.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use tenure_device::memory::{self, Preemption};
use tenure_device::{Clock, background};

use crate::errors::complaint;

/// Returns the address of the function table that the shim calls.
#[pyfunction]
pub(crate) fn torch_api() -> usize {
    tenure_capi::torch::run_waits_in(without_lock);
    tenure_capi::torch::tenure_torch_table().expose_provenance()
}

/// Lets other libraries have memory that is cached, and counts theirs.
#[pyfunction]
pub(crate) fn torch_yield_to_libraries() {
    tenure_capi::torch::yield_to_libraries();
}

/// Runs `wait` without the GIL, so that other Python threads run meanwhile. The calling thread may hold the GIL, as
/// PyTorch's does when it opens another process's block or makes a storage, or not. While Python shuts down, the GIL
/// cannot be taken: `wait` then runs directly.
pub(crate) fn without_lock(wait: &mut (dyn FnMut() + Send)) {
    if Python::try_attach(|py| py.detach(&mut *wait)).is_none() {
        wait();
    }
}

/// Sets how devices are opened, from options in JSON.
#[pyfunction]
pub(crate) fn torch_configure(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| tenure_capi::torch::configure(options)).map_err(complaint)
}

/// Returns the fraction of each device's memory that this process may hold.
#[pyfunction]
pub(crate) fn torch_memory_fraction(py: Python<'_>) -> f64 {
    py.detach(tenure_capi::torch::memory_fraction)
}

/// Makes this process yield its devices to the server at a socket.
#[pyfunction]
pub(crate) fn torch_background(py: Python<'_>, socket: PathBuf) -> PyResult<()> {
    py.detach(|| {
        let server = background::connect(&socket)?;
        let preemption = Arc::new(Preemption::new(without_lock, Clock::default()));
        memory::preempt(Arc::clone(&preemption));
        server.attend(preemption)
    })
    .map_err(|error| complaint(error.to_string()))
}
