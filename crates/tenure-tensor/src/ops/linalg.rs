//! Checks of matrices, shared by the operations of linear algebra, and their way to the host.
//!
//! Matrices of a CUDA device are computed on the host: the thread's stream copies them there and the results back, in
//! order. cuSOLVER is not used.

use crate::autocast::raise;
use crate::autograd::no_grad;
use crate::cpu::linalg::Failed;
use crate::{DType, Device, Result, Tensor, TensorError};

/// Returns matrices of floats as they are computed, after checking their dimensions and dtype.
pub(super) fn matrices(op: &'static str, input: &Tensor) -> Result<Tensor> {
    if input.rank() < 2 {
        return Err(TensorError::shape(op, "The input tensor A must have at least 2 dimensions."));
    }
    let input = raise(input)?;
    check_dtype(op, &input)?;
    Ok(input)
}

/// Returns square matrices of floats as they are computed.
pub(super) fn square(op: &'static str, input: &Tensor) -> Result<Tensor> {
    check_square(op, input)?;
    matrices(op, input)
}

/// Checks that the last two dimensions are of one size.
pub(super) fn check_square(op: &'static str, input: &Tensor) -> Result<()> {
    let [.., rows, columns] = *input.sizes() else {
        return Err(TensorError::shape(op, "The input tensor A must have at least 2 dimensions."));
    };
    if rows == columns {
        return Ok(());
    }
    let reason = format!("A must be batches of square matrices, but they are {rows} by {columns} matrices");
    Err(TensorError::shape(op, reason))
}

/// Checks that elements are `float32` or `float64`.
pub(super) fn check_dtype(op: &'static str, input: &Tensor) -> Result<()> {
    let expected = match input.dtype() {
        DType::F32 | DType::F64 => return Ok(()),
        DType::F16 | DType::BF16 => "low precision dtypes are not supported: convert with to_dtype(float32) first",
        _ => "a floating point tensor is needed: convert with to_dtype(float32) first",
    };
    Err(TensorError::DType { op, found: input.dtype(), expected: expected.to_owned() })
}

/// Returns the sizes of the batch, the rows and the columns.
pub(super) fn parts(matrices: &Tensor) -> (Vec<usize>, usize, usize) {
    let (sizes, rank) = (matrices.sizes(), matrices.rank());
    (sizes[..rank - 2].to_vec(), sizes[rank - 2], sizes[rank - 1])
}

/// Returns the elements on the host, row by row, without a gradient.
pub(super) fn on_host(input: &Tensor) -> Result<Tensor> {
    no_grad(|| input.detach().to_device(Device::CPU)?.contiguous())
}

/// Allocates a result on the host, of the sizes of a batch and `rest`.
pub(super) fn room(batch: &[usize], rest: &[usize], dtype: DType) -> Result<Tensor> {
    Tensor::empty(&[batch, rest].concat(), dtype, Device::CPU)
}

/// Copies a result of the host to the device of the input.
pub(super) fn to_device_of(input: &Tensor, result: Tensor) -> Result<Tensor> {
    no_grad(|| result.to_device(input.device()))
}

/// Returns identity matrices of the sizes of a batch.
pub(super) fn identities(batch: &[usize], n: usize, like: &Tensor) -> Result<Tensor> {
    let eye = Tensor::eye(n, n, like.dtype(), like.device())?;
    eye.expand(&super::view::signed(&[batch, &[n, n]].concat()))?.contiguous()
}

/// Returns the error of the first matrix of the batch that has no result, if there is one.
pub(super) fn check<F>(
    op: &'static str,
    input: &Tensor,
    failed: Failed<F>,
    reason: impl FnOnce(F) -> String,
) -> Result<()> {
    let Some((matrix, failure)) = failed else { return Ok(()) };
    let reason = reason(failure);
    let reason = if input.rank() > 2 { format!("(Batch element {matrix}): {reason}") } else { reason };
    Err(TensorError::Matrix { op, reason })
}
