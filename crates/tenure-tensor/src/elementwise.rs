//! Iteration over several tensors element by element, like ATen's `TensorIterator`.

use smallvec::SmallVec;
use tenure_core::{DType, Device, Overlap};

use crate::access::{Access, overlap};
use crate::{Result, Tensor, TensorError};

pub(crate) type Dims = SmallVec<[usize; 5]>;

/// Tensors of the same sizes, at least one of them written, to be visited element by element in any order. Inputs are
/// broadcast to the outputs' sizes. Dimensions are ordered by the first output's memory, densest first; dimensions that
/// can be visited as one are merged.
pub struct Elementwise<'a> {
    op: &'static str,
    sizes: Dims,
    operands: SmallVec<[ElementwiseOperand; 4]>,
    outputs: usize,
    device: Device,
    /// Holds the locks that keep the pointers valid.
    access: Access<'a>,
}

/// A tensor's place in memory.
#[derive(Clone, Debug)]
pub struct ElementwiseOperand {
    /// A pointer to its first element.
    pub data: *mut u8,
    /// The distance in bytes between neighbours along each dimension; 0 where the operand is broadcast.
    pub strides: Dims,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The device of its memory: the CPU for a single element, even if the other operands are elsewhere.
    pub device: Device,
}

// SAFETY: the pointers are valid on any thread; the code that uses them answers for what it reads and writes where.
unsafe impl Send for ElementwiseOperand {}
// SAFETY: as for `Send`.
unsafe impl Sync for ElementwiseOperand {}

impl<'a> Elementwise<'a> {
    /// Prepares the operands of the operation `op`. The caller makes sure that outputs have no element in common.
    ///
    /// # Errors
    /// Outputs have different sizes; inputs do not broadcast to them; tensors are on different devices (except that an
    /// input without dimensions may be on the CPU); an output has elements that share memory, or overlaps an input
    /// without being the same.
    pub fn new(op: &'static str, outputs: &[&'a Tensor], inputs: &[&'a Tensor]) -> Result<Self> {
        let first = outputs[0];
        let sizes = first.sizes();
        for output in outputs {
            if output.sizes() != sizes {
                let reason = format!("outputs of sizes {sizes:?} and {:?} must be of the same", output.sizes());
                return Err(TensorError::shape(op, reason));
            }
            check_written(op, output, inputs)?;
        }
        for tensor in outputs.iter().chain(inputs) {
            if tensor.device() != first.device() && !(tensor.rank() == 0 && tensor.device().is_cpu()) {
                return Err(TensorError::Device { op, left: first.device(), right: tensor.device() });
            }
        }
        let mut access = Access::on_any(op, outputs, inputs)?;
        let mut operands: SmallVec<[ElementwiseOperand; 4]> = SmallVec::new();
        let is_one_run = outputs
            .iter()
            .chain(inputs)
            .all(|tensor| tensor.rank() == 0 || (tensor.is_contiguous() && tensor.sizes() == sizes));
        for (index, tensor) in outputs.iter().chain(inputs).enumerate() {
            let data = match index.checked_sub(outputs.len()) {
                None => access.write_ptr(index),
                Some(input) => access.read_ptr(input).cast_mut(),
            };
            let dtype = tensor.dtype();
            let strides = if is_one_run {
                Dims::from_elem(if tensor.rank() == 0 { 0 } else { dtype.size() }, sizes.len().min(1))
            } else {
                tensor.layout().expand(sizes)?.strides().iter().map(|stride| stride * dtype.size()).collect()
            };
            operands.push(ElementwiseOperand { data, strides, dtype, device: tensor.device() });
        }
        let sizes = match is_one_run {
            true => Dims::from_elem(first.numel(), sizes.len().min(1)),
            false => {
                let mut strides: SmallVec<[Dims; 4]> =
                    operands.iter_mut().map(|operand| std::mem::take(&mut operand.strides)).collect();
                let sizes = coalesce(sizes, &mut strides);
                operands.iter_mut().zip(strides).for_each(|(operand, strides)| operand.strides = strides);
                sizes
            }
        };
        Ok(Self { op, sizes, operands, outputs: outputs.len(), device: first.device(), access })
    }

    pub(crate) fn access(&self) -> &Access<'a> {
        &self.access
    }

    /// Returns the operation's name.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Returns the device that computes the operation.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the sizes, densest dimension first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Returns the outputs, then the inputs.
    pub fn operands(&self) -> &[ElementwiseOperand] {
        &self.operands
    }

    /// Returns the outputs.
    pub fn outputs(&self) -> &[ElementwiseOperand] {
        &self.operands[..self.outputs]
    }
}

fn check_written(op: &'static str, output: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    if !output.is_contiguous() && output.layout().overlap() == Overlap::Yes {
        let reason = format!("more than one element of the output of sizes {:?} is at one place", output.sizes());
        return Err(TensorError::Overlap { op, reason });
    }
    for input in inputs {
        // If their dtypes differ, a write to one element could come before the read of another.
        let is_same = input.layout() == output.layout() && input.dtype() == output.dtype();
        if !is_same && overlap(output, input) {
            let reason =
                format!("the output of sizes {:?} overlaps an input of sizes {:?}", output.sizes(), input.sizes());
            return Err(TensorError::Overlap { op, reason });
        }
    }
    Ok(())
}

/// Sorts dimensions by the operands' strides and merges those that every operand can walk as one. Returns the new
/// sizes.
pub(crate) fn coalesce(sizes: &[usize], operands: &mut [Dims]) -> Dims {
    let mut order: Dims = (0..sizes.len()).filter(|dim| sizes[*dim] != 1).collect();
    // The first operand whose strides differ decides; if all are equal, the last dimension is the densest.
    order.sort_by(|left, right| {
        let by_strides = operands.iter().map(|strides| strides[*left].cmp(&strides[*right]));
        by_strides.reduce(std::cmp::Ordering::then).unwrap_or(std::cmp::Ordering::Equal).then(right.cmp(left))
    });
    let mut merged: Dims = Dims::new();
    let mut after: SmallVec<[Dims; 4]> = operands.iter().map(|_| Dims::new()).collect();
    for dim in order {
        let continues = merged.last().is_some_and(|size| {
            operands.iter().zip(&after).all(|(strides, so_far)| strides[dim] == so_far[so_far.len() - 1] * size)
        });
        if continues {
            *merged.last_mut().expect("it continues one") *= sizes[dim];
        } else {
            merged.push(sizes[dim]);
            operands.iter().zip(&mut after).for_each(|(strides, so_far)| so_far.push(strides[dim]));
        }
    }
    operands.iter_mut().zip(after).for_each(|(strides, after)| *strides = after);
    merged
}
