//! Settings for the precision of matrix products and convolutions, for `tenure.backends`.

use pyo3::prelude::*;
use tenure::tensor::precision;

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
