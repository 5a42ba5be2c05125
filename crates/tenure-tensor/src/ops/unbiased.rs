//! Variances and standard deviations whose correction is a truth value.

use crate::operation::operations;
use crate::{Result, Tensor};

operations! {
    static OPERATIONS;
    Function for front_ends {
        /// Computes variances over all dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(var)]
        var_unbiased(input: Tensor, unbiased: Bool) -> Tensor = |input: &Tensor, unbiased| {
            input.var(&[], correction(unbiased), false)
        };

        /// Computes variances over dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(var)]
        var_unbiased_over(input: Tensor, dim: Ints, unbiased: Bool, keepdim: Bool = false) -> Tensor =
            |input: &Tensor, dim, unbiased, keepdim| input.var(dim, correction(unbiased), keepdim);

        /// Computes standard deviations over all dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(std)]
        std_unbiased(input: Tensor, unbiased: Bool) -> Tensor = |input: &Tensor, unbiased| {
            input.std(&[], correction(unbiased), false)
        };

        /// Computes standard deviations over dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(std)]
        std_unbiased_over(input: Tensor, dim: Ints, unbiased: Bool, keepdim: Bool = false) -> Tensor =
            |input: &Tensor, dim, unbiased, keepdim| input.std(dim, correction(unbiased), keepdim);

        /// Computes variances and means over all dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(var_mean)]
        var_mean_unbiased(input: Tensor, unbiased: Bool) -> (Tensor, Tensor) = |input: &Tensor, unbiased| {
            input.var_mean(&[], correction(unbiased), false)
        };

        /// Computes variances and means over dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(var_mean)]
        var_mean_unbiased_over(input: Tensor, dim: Ints, unbiased: Bool, keepdim: Bool = false) -> (Tensor, Tensor) =
            |input: &Tensor, dim, unbiased, keepdim| input.var_mean(dim, correction(unbiased), keepdim);

        /// Computes standard deviations and means over dimensions, given as for [`std`](Tensor::std).
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        std_mean(input: Tensor, dim: Ints = &[], correction: Float = 1.0, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes standard deviations and means over all dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(std_mean)]
        std_mean_unbiased(input: Tensor, unbiased: Bool) -> (Tensor, Tensor) = |input: &Tensor, unbiased| {
            std_mean(input, &[], correction(unbiased), false)
        };

        /// Computes standard deviations and means over dimensions: the unbiased estimate, or with `unbiased` false, without a correction.
        ///
        /// # Errors
        /// The errors of [`mean`](Tensor::mean).
        #[name(std_mean)]
        std_mean_unbiased_over(input: Tensor, dim: Ints, unbiased: Bool, keepdim: Bool = false) -> (Tensor, Tensor) =
            |input: &Tensor, dim, unbiased, keepdim| std_mean(input, dim, correction(unbiased), keepdim);
    }
}

fn std_mean(input: &Tensor, dims: &[isize], correction: f64, keep: bool) -> Result<(Tensor, Tensor)> {
    Ok((input.std(dims, correction, keep)?, input.mean(dims, keep)?))
}

/// Returns the number by which the divisor of a variance is smaller than the number of elements.
fn correction(unbiased: bool) -> f64 {
    if unbiased { 1.0 } else { 0.0 }
}
