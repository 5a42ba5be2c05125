//! Settings of the process: precision and the choice of algorithms.

pub mod precision {
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
}

pub mod tuning {
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
}
