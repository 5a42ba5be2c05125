//! Conversion of Rust's errors to Python exceptions with the same messages.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use tenure::Error;
use tenure::alloc::AllocError;
use tenure::core::{self, AllocatorError, StorageError};
use tenure::device::memory::MemoryError;
use tenure::tensor::TensorError;

/// The exceptions, declared in `python/tenure/_errors.py`.
mod exceptions {
    pyo3::import_exception!(tenure, Error);
    pyo3::import_exception!(tenure, DeviceError);
    pyo3::import_exception!(tenure._errors, LinAlgError);
    pyo3::import_exception!(tenure, OutOfMemoryError);
    pyo3::import_exception!(tenure, TraceError);
}

/// Returns the exception for `error`.
pub(crate) fn exception(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        Error::Memory(error) => memory_exception(&error, text),
        Error::Tensor(TensorError::Memory { error, .. }) => memory_exception(&error, text),
        Error::Core(error) | Error::Tensor(TensorError::Core(error)) if is_out_of_memory(&error) => {
            exceptions::OutOfMemoryError::new_err(text)
        }
        Error::Alloc(AllocError::OutOfMemory { .. }) | Error::Replay { source: AllocError::OutOfMemory { .. }, .. } => {
            exceptions::OutOfMemoryError::new_err(text)
        }
        Error::Tensor(TensorError::Matrix { .. }) => exceptions::LinAlgError::new_err(text),
        Error::Device(_) | Error::Damaged { .. } => exceptions::DeviceError::new_err(text),
        Error::Trace(_) => exceptions::TraceError::new_err(text),
        _ => exceptions::Error::new_err(text),
    }
}

/// Returns whether a storage could not be allocated for lack of memory.
fn is_out_of_memory(error: &core::Error) -> bool {
    let (core::Error::Allocator(error) | core::Error::Storage(StorageError::Allocator(error))) = error else {
        return false;
    };
    matches!(error, AllocatorError::OutOfMemory { .. } | AllocatorError::DeviceOutOfMemory { .. })
}

/// Returns the exception for an error of a device's memory, whose text is `text`.
fn memory_exception(error: &MemoryError, text: String) -> PyErr {
    match error {
        MemoryError::OutOfMemory(_) | MemoryError::Allocator(AllocError::OutOfMemory { .. }) => {
            exceptions::OutOfMemoryError::new_err(text)
        }
        MemoryError::Driver(_) => exceptions::DeviceError::new_err(text),
        _ => exceptions::Error::new_err(text),
    }
}

/// Returns a `tenure.Error` with the message `text`.
pub(crate) fn complaint(text: String) -> PyErr {
    exceptions::Error::new_err(text)
}

/// Returns a `tenure.OutOfMemoryError` with the message `text`.
pub(crate) fn memory_complaint(text: String) -> PyErr {
    exceptions::OutOfMemoryError::new_err(text)
}

/// Returns a `tenure.DeviceError` with the message `text`.
pub(crate) fn device_complaint(text: String) -> PyErr {
    exceptions::DeviceError::new_err(text)
}

/// Warns of an argument that changes nothing, the first time that `warned` is passed.
pub(crate) fn warn_once(py: Python<'_>, warned: &AtomicBool, text: &CStr) -> PyResult<()> {
    if warned.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    PyErr::warn(py, &py.get_type::<PyUserWarning>(), text, 1)
}
