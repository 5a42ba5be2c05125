//! Settings for the choice of algorithms.
//!
//! CUDA's libraries have many algorithms for a matrix product or a convolution, and recommend one. Tenure can instead
//! measure which is fastest the first time a size is used, and keep the choice for the process, like PyTorch's
//! `torch.backends.cudnn.benchmark`. Results may then differ in their last bits from one process to the next.
//!
//! Otherwise, results have the same bits every time; PyTorch's have only with `torch.use_deterministic_algorithms`. The
//! one exception: gradients of attention in 16-bit floats, over sequences whose weights, for the heads that share keys,
//! take more than a GiB. [`sum_in_any_order`] extends the exception to all sequence lengths, which takes less time and
//! memory.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

static IS_MEASURED: AtomicBool = AtomicBool::new(false);
static IS_IN_ANY_ORDER: AtomicBool = AtomicBool::new(false);

thread_local! {
    static COUNTS_IN_64_BITS: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether algorithms are measured. Default: no.
pub fn measures_algorithms() -> bool {
    IS_MEASURED.load(Ordering::Relaxed)
}

/// Sets whether algorithms are measured from now on. During a capture, none is measured.
pub fn measure_algorithms(is_on: bool) {
    IS_MEASURED.store(is_on, Ordering::Relaxed);
}

/// Returns whether a device may add up in any order. Default: no.
pub fn sums_in_any_order() -> bool {
    IS_IN_ANY_ORDER.load(Ordering::Relaxed)
}

/// Sets whether a device may add up in any order from now on, where that is faster. The last bits of results then
/// differ from run to run.
pub fn sum_in_any_order(is_on: bool) {
    IS_IN_ANY_ORDER.store(is_on, Ordering::Relaxed);
}

/// Returns whether kernels that this thread launches use 64-bit indices even for small tensors.
pub(crate) fn counts_in_64_bits() -> bool {
    COUNTS_IN_64_BITS.get()
}

/// Sets whether kernels that this thread launches always use 64-bit indices, or only where they need them. For tests,
/// whose tensors are small.
#[doc(hidden)]
pub fn count_in_64_bits(is_on: bool) {
    COUNTS_IN_64_BITS.set(is_on);
}
