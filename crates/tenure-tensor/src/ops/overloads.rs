//! Overloads that PyTorch has: without a dimension, with repeats that differ from entry to entry, and norms whose order
//! is a word or none.

use crate::operation::operations;
use crate::{DType, Result, Tensor, TensorError};

operations! {
    static OPERATIONS;
    Method for front_ends {
        /// Repeats each element `repeats` times, next to each other, in one dimension.
        ///
        /// # Errors
        /// No memory.
        #[name(repeat_interleave)]
        repeat_interleave_flat(input: Tensor, repeats: Size) -> Tensor = |input: &Tensor, repeats| {
            input.reshape(&[-1])?.repeat_interleave(repeats, 0)
        };

        /// Repeats each entry of a dimension as many times as `repeats` says, next to each other; without a dimension, each
        /// element, in one dimension.
        ///
        /// # Errors
        /// The dimension does not exist; there is neither one repeat nor one for each entry; a negative repeat, or one
        /// that is no integer; no memory.
        #[name(repeat_interleave)]
        repeat_interleave_each(input: Tensor, repeats: Tensor, dim: Option<Int> = None) -> Tensor;

        /// Selects elements by their places among all elements, in one dimension.
        ///
        /// # Errors
        /// An index is out of range, or no integer.
        #[name(take_along_dim)]
        take_along_flat(input: Tensor, indices: Tensor) -> Tensor = |input: &Tensor, indices: &Tensor| {
            input.reshape(&[-1])?.gather(0, &indices.reshape(&[-1])?)
        };

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

fn repeat_interleave_each(input: &Tensor, repeats: &Tensor, dim: Option<isize>) -> Result<Tensor> {
    const OP: &str = "repeat_interleave";
    let Some(dim) = dim else {
        return repeat_interleave_each(&input.reshape(&[-1])?, repeats, Some(0));
    };
    let count = input.sizes()[input.existing_dim(OP, dim)?];
    if repeats.rank() > 1 || ![1, count].contains(&repeats.numel()) {
        let reason = format!("repeats of sizes {:?} are not one for each of {count} entries", repeats.sizes());
        return Err(TensorError::shape(OP, reason));
    }
    if ![DType::I64, DType::I32].contains(&repeats.dtype()) {
        let expected = "repeats are int64 or int32: convert them with to_dtype()".to_owned();
        return Err(TensorError::DType { op: OP, found: repeats.dtype(), expected });
    }
    if repeats.lt(0)?.any(&[], false)?.item::<bool>()? {
        return Err(TensorError::argument(OP, "repeats cannot be negative"));
    }
    let ends = repeats.reshape(&[-1])?.expand(&[count as isize])?.cumsum(0)?;
    let total = if count == 0 { 0 } else { ends.select(0, -1)?.item::<i64>()? };
    let places = Tensor::arange(0, total, 1, DType::I64, input.device())?;
    input.index_select(dim, &ends.searchsorted(&places, true, None)?)
}

fn norm_of_order(input: &Tensor, p: Option<f64>, dims: &[isize], keep: bool, dtype: Option<DType>) -> Result<Tensor> {
    input.to_dtype(dtype.unwrap_or(input.dtype()))?.norm(p.unwrap_or(2.0), dims, keep)
}
