//! Conversions of elements that keep their order, to the few dtypes that reductions and sorts have kernels for.

use crate::autograd::no_grad;
use crate::{DType, Result, Tensor};

/// The bit of `int64` that is the sign.
const SIGN: u64 = 1 << 63;

/// Converts integers to `int64`, which they are reduced in.
pub(crate) fn wide_integers(tensor: &Tensor) -> Result<Tensor> {
    let keeps_dtype = tensor.dtype().is_floating() || tensor.dtype() == DType::Bool;
    if keeps_dtype { Ok(tensor.clone()) } else { no_grad(|| tensor.to_dtype(DType::I64)) }
}

/// Converts integers to `int64` as [`wide_integers`] does, in the same order: the largest of `uint64` becomes the
/// largest of `int64`.
pub(crate) fn in_order(tensor: &Tensor) -> Result<Tensor> {
    if tensor.dtype() == DType::U64 { wide_integers(&tensor.bitwise_xor(SIGN)?) } else { wide_integers(tensor) }
}

/// Converts the result of [`in_order`] back.
pub(crate) fn out_of_order(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let tensor = tensor.to_dtype(dtype)?;
    if dtype == DType::U64 { tensor.bitwise_xor(SIGN) } else { Ok(tensor) }
}

/// Returns elements that are in the same order: floats, or `int64` for all others.
pub(crate) fn sort_keys(tensor: &Tensor) -> Result<Tensor> {
    let keys = in_order(tensor)?;
    if keys.dtype().is_floating() { Ok(keys) } else { keys.to_dtype(DType::I64) }
}
