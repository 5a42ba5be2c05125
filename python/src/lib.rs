//! The extension module `tenure._native`: what the Python package `tenure` has from Rust. It is documented where it
//! is public, in `python/tenure`.

mod torch;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
    #[pymodule_export]
    use super::torch::{torch_api, torch_configure, torch_devices};
}
