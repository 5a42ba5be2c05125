//! Conversion of Rust's errors to Python exceptions with the same messages.

use pyo3::PyErr;
use tenure::Error;
use tenure::alloc::AllocError;
use tenure::device::memory::MemoryError;

/// The exceptions, declared in `python/tenure/_errors.py`.
mod exceptions {
    pyo3::import_exception!(tenure, Error);
    pyo3::import_exception!(tenure, DeviceError);
    pyo3::import_exception!(tenure, OutOfMemoryError);
    pyo3::import_exception!(tenure, TraceError);
}

/// Returns the exception for `error`.
pub(crate) fn exception(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let text = error.to_string();
    match error {
        Error::Memory(MemoryError::OutOfMemory(_))
        | Error::Memory(MemoryError::Allocator(AllocError::OutOfMemory { .. }))
        | Error::Alloc(AllocError::OutOfMemory { .. })
        | Error::Replay { source: AllocError::OutOfMemory { .. }, .. } => exceptions::OutOfMemoryError::new_err(text),
        Error::Device(_) | Error::Memory(MemoryError::Driver(_)) | Error::Damaged { .. } => {
            exceptions::DeviceError::new_err(text)
        }
        Error::Trace(_) => exceptions::TraceError::new_err(text),
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
