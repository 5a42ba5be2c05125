//! Settings for the precision of matrix products and convolutions.
//!
//! Matrix units of CUDA devices can take `f32` as TF32: they read 10 of the 23 bits of the mantissa, and are several
//! times as fast. As in PyTorch, convolutions do so by default and matrix products do not. No other operation and no
//! other dtype is affected.

use std::sync::atomic::{AtomicBool, Ordering};

static PRODUCTS: AtomicBool = AtomicBool::new(false);
static CONVOLUTIONS: AtomicBool = AtomicBool::new(true);

/// Returns whether matrix products may take `f32` as TF32, like PyTorch's `torch.backends.cuda.matmul.allow_tf32`.
pub fn tf32_in_products() -> bool {
    PRODUCTS.load(Ordering::Relaxed)
}

/// Sets whether matrix products may take `f32` as TF32 from now on.
pub fn allow_tf32_in_products(is_allowed: bool) {
    PRODUCTS.store(is_allowed, Ordering::Relaxed);
}

/// Returns whether convolutions may take `f32` as TF32, like PyTorch's `torch.backends.cudnn.allow_tf32`.
pub fn tf32_in_convolutions() -> bool {
    CONVOLUTIONS.load(Ordering::Relaxed)
}

/// Sets whether convolutions may take `f32` as TF32 from now on.
pub fn allow_tf32_in_convolutions(is_allowed: bool) {
    CONVOLUTIONS.store(is_allowed, Ordering::Relaxed);
}
