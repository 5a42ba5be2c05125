//! Whether algorithms are measured.
//!
//! For a product of matrices, and a convolution, CUDA's libraries have many algorithms, and say which they think best. The
//! first time that one of some sizes is asked for it can be tried instead which is fastest, and that kept for the process:
//! PyTorch's `torch.backends.cudnn.benchmark`. Results may then differ in their last bits from one process to the next.

use std::sync::atomic::{AtomicBool, Ordering};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Whether algorithms are measured. They are not at first.
pub fn measures_algorithms() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

/// Measures algorithms from now on, or not: of what a thread captures, none is.
pub fn measure_algorithms(is_on: bool) {
    IS_ON.store(is_on, Ordering::Relaxed);
}
