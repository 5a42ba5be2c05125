//! `tenure.dtype`: the types of a tensor's elements. The precision that products and convolutions compute `float32` in.

use std::sync::atomic::{AtomicU8, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyFloat, PyInt};
use tenure::core::DType;
use tenure::tensor::precision;

use crate::errors::complaint;

/// The type of a tensor's elements, such as `tenure.float32`.
#[pyclass(frozen, name = "dtype", module = "tenure")]
pub(crate) struct DTypeObject {
    dtype: DType,
}

impl DTypeObject {
    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }
}

/// The dtype that floating-point tensors are created with, as a position in [`DType::ALL`].
static DEFAULT: AtomicU8 = AtomicU8::new(DType::F32 as u8);

/// Returns the dtype that floating-point tensors are created with.
pub(super) fn default_dtype() -> DType {
    DType::ALL[usize::from(DEFAULT.load(Ordering::Relaxed))]
}

/// Returns the one object of a dtype.
pub(super) fn object(py: Python<'_>, dtype: DType) -> PyResult<Py<DTypeObject>> {
    static OBJECTS: [PyOnceLock<Py<DTypeObject>>; DType::ALL.len()] = [const { PyOnceLock::new() }; DType::ALL.len()];
    let made = OBJECTS[dtype as usize].get_or_try_init(py, || Py::new(py, DTypeObject { dtype }))?;
    Ok(made.clone_ref(py))
}

#[pymethods]
impl DTypeObject {
    /// The number of bytes of an element.
    #[getter]
    fn itemsize(&self) -> usize {
        self.dtype.size()
    }

    /// Whether the elements are floating-point numbers.
    #[getter]
    fn is_floating_point(&self) -> bool {
        self.dtype.is_floating()
    }

    /// Whether the elements are complex numbers, which Tenure does not have.
    #[getter]
    fn is_complex(&self) -> bool {
        false
    }

    /// Whether the elements can be negative.
    #[getter]
    fn is_signed(&self) -> bool {
        self.dtype != DType::Bool && !self.dtype.is_unsigned()
    }

    /// The name without `tenure.`.
    #[getter]
    fn name(&self) -> &'static str {
        self.dtype.name()
    }

    fn __repr__(&self) -> String {
        format!("tenure.{}", self.dtype.name())
    }

    fn __reduce__(&self, py: Python<'_>) -> PyResult<(Py<PyAny>, (&'static str,))> {
        Ok((py.import("tenure._native")?.getattr("dtype_named")?.unbind(), (self.dtype.name(),)))
    }
}

/// Returns the dtype of a name, such as `float32`.
#[pyfunction]
pub(crate) fn dtype_named(py: Python<'_>, name: &str) -> PyResult<Py<DTypeObject>> {
    let dtype = name.parse().map_err(|error: tenure::core::DTypeError| complaint(error.to_string()))?;
    object(py, dtype)
}

/// Returns the dtype that floating-point tensors are created with.
#[pyfunction]
pub(crate) fn get_default_dtype(py: Python<'_>) -> PyResult<Py<DTypeObject>> {
    object(py, default_dtype())
}

/// Sets the dtype that floating-point tensors are created with.
///
/// Parameters
/// ----------
/// d : dtype
///     A floating-point dtype.
#[pyfunction]
pub(crate) fn set_default_dtype(d: &Bound<'_, PyAny>) -> PyResult<()> {
    match converted(d).filter(|dtype| dtype.is_floating()) {
        Some(dtype) => {
            DEFAULT.store(dtype as u8, Ordering::Relaxed);
            Ok(())
        }
        None => Err(PyTypeError::new_err("the default dtype must be a floating-point dtype")),
    }
}

/// Returns the dtype that the elements of two dtypes promote to. `uint64` and a signed integer type promote to none.
#[pyfunction]
pub(crate) fn promote_types(py: Python<'_>, type1: &DTypeObject, type2: &DTypeObject) -> PyResult<Py<DTypeObject>> {
    let promoted = type1.dtype.promote(type2.dtype).map_err(|error| complaint(error.to_string()))?;
    object(py, promoted)
}

/// Returns whether matrix products may take `float32` as TF32.
#[pyfunction]
pub(crate) fn tf32_in_products() -> bool {
    precision::tf32_in_products()
}

/// Sets whether matrix products may take `float32` as TF32 from now on.
#[pyfunction]
pub(crate) fn allow_tf32_in_products(is_allowed: bool) {
    precision::allow_tf32_in_products(is_allowed);
}

/// Returns whether convolutions may take `float32` as TF32.
#[pyfunction]
pub(crate) fn tf32_in_convolutions() -> bool {
    precision::tf32_in_convolutions()
}

/// Sets whether convolutions may take `float32` as TF32 from now on.
#[pyfunction]
pub(crate) fn allow_tf32_in_convolutions(is_allowed: bool) {
    precision::allow_tf32_in_convolutions(is_allowed);
}

/// Converts a dtype, or Python's `bool`, `int` or `float`.
pub(super) fn converted(object: &Bound<'_, PyAny>) -> Option<DType> {
    if let Ok(dtype) = object.cast::<DTypeObject>() {
        return Some(dtype.get().dtype());
    }
    let py = object.py();
    if object.is(py.get_type::<PyFloat>()) {
        Some(default_dtype())
    } else if object.is(py.get_type::<PyInt>()) {
        Some(DType::I64)
    } else if object.is(py.get_type::<PyBool>()) {
        Some(DType::Bool)
    } else {
        None
    }
}

/// Returns the dtype that a caller asks for.
pub(super) fn asked(dtype: Option<&Bound<'_, PyAny>>) -> PyResult<Option<DType>> {
    dtype
        .filter(|dtype| !dtype.is_none())
        .map(|dtype| converted(dtype).ok_or_else(|| PyTypeError::new_err("dtype must be a tenure.dtype")))
        .transpose()
}
