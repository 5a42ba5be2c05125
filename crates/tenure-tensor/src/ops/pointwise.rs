//! Functions that all elementwise operations share.

use std::borrow::Cow;

use smallvec::SmallVec;
use tenure_core::{DType, Device, Operand, result_type};

use super::entered;
use crate::autograd::recipe;
use crate::element::computed;
pub(crate) use crate::scalar::floating;
use crate::tensor::create::dense_like;
use crate::{Elementwise, Kernel, Result, Tensor, TensorError, Value, cpu};

/// Returns the sizes that two tensors broadcast to.
///
/// # Errors
/// [`TensorError::Broadcast`].
pub(crate) fn broadcast(op: &'static str, left: &[usize], right: &[usize]) -> Result<SmallVec<[usize; 5]>> {
    let rank = left.len().max(right.len());
    (1..=rank)
        .rev()
        .map(|from_end| match (size_from_end(left, from_end), size_from_end(right, from_end)) {
            (a, b) if a == b => Ok(a),
            (1, b) => Ok(b),
            (a, 1) => Ok(a),
            _ => Err(TensorError::Broadcast { op, left: left.to_vec(), right: right.to_vec(), dim: from_end }),
        })
        .collect()
}

/// Returns a size by its distance from the end; 1 before the first.
fn size_from_end(sizes: &[usize], from_end: usize) -> usize {
    sizes.len().checked_sub(from_end).map_or(1, |dim| sizes[dim])
}

/// Returns the dtype that operands are computed in, promoted as in PyTorch.
///
/// # Errors
/// No dtype holds the values of all.
pub(crate) fn promoted(operands: &[Value<'_>]) -> Result<DType> {
    let dtype = result_type(operands.iter().map(|value| match value {
        Value::Tensor(tensor) if tensor.rank() == 0 => Operand::ZeroDim(tensor.dtype()),
        Value::Tensor(tensor) => Operand::Tensor(tensor.dtype()),
        Value::Number(number) => Operand::Number(number.dtype()),
    }))?;
    Ok(dtype.unwrap_or(DType::F32))
}

/// Allocates the result of these inputs, on their device. Its memory order is that of the first input that has the
/// result's sizes, so that channels stay last.
pub(crate) fn output(sizes: &[usize], dtype: DType, inputs: &[&Tensor]) -> Result<Tensor> {
    let device = inputs.iter().map(|input| input.device()).find(|device| !device.is_cpu()).unwrap_or(Device::CPU);
    let like = inputs.iter().find(|input| input.sizes() == sizes);
    Tensor::empty_strided(dense_like(sizes, like.map(|input| input.layout()))?, dtype, device)
}

/// A kernel of one input.
pub(crate) type Unary = Kernel<cpu::pointwise::PointwiseKernel>;
/// A kernel of two inputs.
pub(crate) type Binary = Kernel<cpu::pointwise::PointwiseKernel>;

/// Two operands, and the dtype that they are computed in. They keep their own dtypes: kernels convert as they read.
pub(crate) struct Pair<'a> {
    pub(crate) a: &'a Tensor,
    pub(crate) b: Cow<'a, Tensor>,
    pub(crate) dtype: DType,
}

impl<'a> Pair<'a> {
    /// Returns the operands of the operation `op`. `compute` maps the dtype that they promote to, to the one they are
    /// computed in.
    pub(crate) fn new(op: &'static str, a: &'a Tensor, b: Value<'a>, compute: impl Fn(DType) -> DType) -> Result<Self> {
        let dtype = match b {
            Value::Tensor(b) if b.dtype() == a.dtype() => compute(a.dtype()),
            _ => compute(promoted(&[a.into(), b])?),
        };
        Ok(Self { a, b: tensor(op, b, dtype)?, dtype })
    }

    /// Runs `kernel` on the operands, with a result of dtype `result`. It records no gradient.
    pub(crate) fn compute(&self, kernel: &'static Binary, result: DType) -> Result<Tensor> {
        run(kernel, self.dtype, result, &[self.a, &self.b], |kernel, iter| kernel(iter))
    }
}

/// Returns a tensor, or a number as one, for the operation `op`. A number is as wide as floats are computed in, so that
/// it is not rounded before.
pub(crate) fn tensor<'a>(op: &'static str, value: Value<'a>, dtype: DType) -> Result<Cow<'a, Tensor>> {
    let _op = entered(op);
    match value {
        Value::Tensor(tensor) => Ok(Cow::Borrowed(tensor)),
        Value::Number(number) => Ok(Cow::Owned(Tensor::scalar(number, computed(dtype))?)),
    }
}

/// Converts 16-bit floats to `f32`, so that several steps round once.
pub(crate) fn wide(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(computed(tensor.dtype()))
}

/// Runs the `kernel` for `compute` on inputs that are broadcast. Returns a fresh tensor of dtype `result`. It records
/// no gradient.
pub(crate) fn run<F: Copy + Send + Sync>(
    kernel: &'static Kernel<F>,
    compute: DType,
    result: DType,
    inputs: &[&Tensor],
    call: impl Fn(F, &Elementwise<'_>) -> Result<()> + Copy + Send + Sync + 'static,
) -> Result<Tensor> {
    let _op = entered(kernel.name());
    let sizes = common_sizes(kernel.name(), inputs)?;
    check_devices(kernel.name(), inputs)?;
    let out = output(&sizes, result, inputs)?;
    let function = kernel.find(out.device().kind(), compute)?;
    let iter = Elementwise::new(kernel.name(), &[&out], inputs)?;
    call(function, &iter)?;
    drop(iter);
    recipe::note_list(&out, kernel.name(), inputs, || move |inputs| run(kernel, compute, result, inputs, call));
    Ok(out)
}

/// Runs the `kernel` for the operation `op` as [`run`] does, but writes to `target`, which may be one of the inputs.
pub(crate) fn write<F: Copy>(
    op: &'static str,
    kernel: &'static Kernel<F>,
    compute: DType,
    target: &Tensor,
    inputs: &[&Tensor],
    call: impl FnOnce(F, &Elementwise<'_>) -> Result<()>,
) -> Result<()> {
    check_writes(op, target, &common_sizes(op, inputs)?)?;
    let function = kernel.find(target.device().kind(), compute)?;
    call(function, &Elementwise::new(op, &[target], inputs)?)
}

/// Checks that `sizes` broadcast to those of a tensor that is written.
pub(crate) fn check_writes(op: &'static str, target: &Tensor, sizes: &[usize]) -> Result<()> {
    if broadcast(op, target.sizes(), sizes)?[..] == *target.sizes() {
        return Ok(());
    }
    let reason = format!("sizes {sizes:?} do not broadcast to {:?}, which is written", target.sizes());
    Err(TensorError::shape(op, reason))
}

/// Checks that all tensors are on one device. A scalar on the CPU goes with any device.
pub(super) fn check_devices(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let bound = tensors.iter().filter(|tensor| !(tensor.rank() == 0 && tensor.device().is_cpu()));
    let mut devices = bound.map(|tensor| tensor.device());
    let Some(left) = devices.next() else { return Ok(()) };
    match devices.find(|device| *device != left) {
        Some(right) => Err(TensorError::Device { op, left, right }),
        None => Ok(()),
    }
}

/// Returns the sizes that all tensors broadcast to.
fn common_sizes(op: &'static str, tensors: &[&Tensor]) -> Result<SmallVec<[usize; 5]>> {
    let mut sizes: SmallVec<[usize; 5]> = tensors[0].sizes().into();
    for tensor in &tensors[1..] {
        if tensor.sizes() != &sizes[..] {
            sizes = broadcast(op, &sizes, tensor.sizes())?;
        }
    }
    Ok(sizes)
}
