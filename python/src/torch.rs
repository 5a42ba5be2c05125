//! What `tenure.torch` needs to put Tenure under PyTorch.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::prelude::*;
use tenure_device::memory::{self, Preemption};
use tenure_device::{Clock, background};

use crate::errors::complaint;

/// The address of the table of functions that the shim stands on.
#[pyfunction]
pub(crate) fn torch_api() -> usize {
    tenure_capi::torch::run_waits_in(without_lock);
    tenure_capi::torch::tenure_torch_table().expose_provenance()
}

/// Lets other Python threads run during `wait`, whether this thread has Python's lock, as PyTorch's does when it opens
/// another process's block or makes a storage, or not. When Python ends there is no lock to be had.
pub(crate) fn without_lock(wait: &mut (dyn FnMut() + Send)) {
    if Python::try_attach(|py| py.detach(&mut *wait)).is_none() {
        wait();
    }
}

/// Says how devices are opened.
#[pyfunction]
pub(crate) fn torch_configure(py: Python<'_>, options: &str) -> PyResult<()> {
    py.detach(|| tenure_capi::torch::configure(options)).map_err(complaint)
}

/// The part of each device that this process may hold.
#[pyfunction]
pub(crate) fn torch_memory_fraction(py: Python<'_>) -> f64 {
    py.detach(tenure_capi::torch::memory_fraction)
}

/// Has this process yield its devices to the server of a socket.
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
