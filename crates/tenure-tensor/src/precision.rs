//! How exactly devices multiply.
//!
//! Matrix units of CUDA devices take `f32` as TF32, of which they read 10 bits of the mantissa in place of 23, several times
//! as fast. As in PyTorch, convolutions do at first and matrix products do not. Nothing else is affected, and no other
//! dtype.

use std::sync::atomic::{AtomicBool, Ordering};

static PRODUCTS: AtomicBool = AtomicBool::new(false);
static CONVOLUTIONS: AtomicBool = AtomicBool::new(true);

/// Whether matrix products may take `f32` as TF32. PyTorch's `torch.backends.cuda.matmul.allow_tf32`.
pub fn tf32_in_products() -> bool {
    PRODUCTS.load(Ordering::Relaxed)
}

/// Lets matrix products take `f32` as TF32, or not, from now on.
pub fn allow_tf32_in_products(is_allowed: bool) {
    PRODUCTS.store(is_allowed, Ordering::Relaxed);
}

/// Whether convolutions may take `f32` as TF32. PyTorch's `torch.backends.cudnn.allow_tf32`.
pub fn tf32_in_convolutions() -> bool {
    CONVOLUTIONS.load(Ordering::Relaxed)
}

/// Lets convolutions take `f32` as TF32, or not, from now on.
pub fn allow_tf32_in_convolutions(is_allowed: bool) {
    CONVOLUTIONS.store(is_allowed, Ordering::Relaxed);
}
