//! Norms whose order may be a word or none: PyTorch's `norm`.

use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for front_ends {
        /// Computes norms over dimensions as [`vector_norm`](Tensor::norm) does. `p` is 2 if it is none. The elements are
        /// converted to `dtype` first.
        ///
        /// # Errors
        /// The errors of [`vector_norm`](Tensor::norm).
        #[name(norm)]
        norm_of_order(
            input: Tensor, p: Option<Float> = None, dim: Ints = &[], keepdim: Bool = false, dtype: Option<DType> = None,
        ) -> Tensor;

        /// Computes the Frobenius norm, the root of the sum of squares, over dimensions: `p` is `fro`.
        ///
        /// # Errors
        /// Another word; the errors of [`vector_norm`](Tensor::norm).
        #[name(norm)]
        norm_of_name(
            input: Tensor, p: Text, dim: Ints = &[], keepdim: Bool = false, dtype: Option<DType> = None,
        ) -> Tensor = |input: &Tensor, p, dim, keepdim, dtype| match p {
            "fro" => norm_of_order(input, None, dim, keepdim, dtype),
            _ => Err(TensorError::argument("norm", format!("p must be a number, \"fro\" or None, got {p:?}"))),
        };
    }
}

fn norm_of_order(input: &Tensor, p: Option<f64>, dims: &[isize], keep: bool, dtype: Option<DType>) -> Result<Tensor> {
    input.to_dtype(dtype.unwrap_or(input.dtype()))?.norm(p.unwrap_or(2.0), dims, keep)
}
