//! How algorithms are chosen.
//!
//! For a product of matrices, and a convolution, CUDA's libraries have many algorithms, and say which they think best. The
//! first time that one of some sizes is asked for it can be tried instead which is fastest, and that kept for the process:
//! PyTorch's `torch.backends.cudnn.benchmark`. Results may then differ in their last bits from one process to the next.
//!
//! Results are the same bits every time, where PyTorch's are not unless `torch.use_deterministic_algorithms` is said. The
//! exception are gradients of attention in halves over sequences whose weights of the heads that share keys take more than
//! a GiB. Those of all sequences can be exceptions too, which takes less time and memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_MEASURED: AtomicBool = AtomicBool::new(false);
static IS_IN_ANY_ORDER: AtomicBool = AtomicBool::new(false);

thread_local! {
    static COUNTS_IN_64_BITS: Cell<bool> = const { Cell::new(false) };
}

/// Whether algorithms are measured. They are not at first.
pub fn measures_algorithms() -> bool {
    IS_MEASURED.load(Ordering::Relaxed)
}

/// Measures algorithms from now on, or not: of what a thread captures, none is.
pub fn measure_algorithms(is_on: bool) {
    IS_MEASURED.store(is_on, Ordering::Relaxed);
}

/// Whether what a device adds up may be added in any order. At first it may not.
pub fn sums_in_any_order() -> bool {
    IS_IN_ANY_ORDER.load(Ordering::Relaxed)
}

/// Adds up in any order from now on, where that is faster, or not: the last bits of results then differ from time to time.
pub fn sum_in_any_order(is_on: bool) {
    IS_IN_ANY_ORDER.store(is_on, Ordering::Relaxed);
}

/// Whether kernels that this thread launches count in 64 bits, however small their tensors are.
pub(crate) fn counts_in_64_bits() -> bool {
    COUNTS_IN_64_BITS.get()
}

/// Has kernels that this thread launches count in 64 bits, or only where that is needed. For tests, whose tensors are small.
#[doc(hidden)]
pub fn count_in_64_bits(is_on: bool) {
    COUNTS_IN_64_BITS.set(is_on);
}
