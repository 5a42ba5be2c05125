//! Operands side by side, element by element: ATen's `TensorIterator`.

use smallvec::SmallVec;
use tenure_core::{DType, Device, Overlap};

use crate::access::{Access, overlap};
use crate::{Result, Tensor, TensorError};

pub(crate) type Dims = SmallVec<[usize; 5]>;

/// Some tensors of the same sizes, one or more of them written, to be gone through element by element in any order.
/// Inputs are broadcast to the outputs' sizes. Dimensions are in the order that suits the memory of the first output,
/// densest first, and those that can be gone through as one are one.
pub struct Elementwise<'a> {
    op: &'static str,
    sizes: Dims,
    operands: SmallVec<[Operand; 4]>,
    outputs: usize,
    device: Device,
    /// Keeps the pointers valid.
    access: Access<'a>,
}

/// A tensor's place in memory.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Its first element.
    pub data: *mut u8,
    /// Distance of neighbours along each dimension, in bytes; 0 where it is broadcast.
    pub strides: Dims,
    /// What its elements are.
    pub dtype: DType,
    /// Where it is: on the CPU though the others are not, if it is one element.
    pub device: Device,
}

// SAFETY: the pointers are valid on any thread, and who uses them says what it writes from where.
unsafe impl Send for Operand {}
// SAFETY: the same.
unsafe impl Sync for Operand {}

impl<'a> Elementwise<'a> {
    /// Operands of the operation `op`. All outputs have the same sizes, and no element in common: that is the caller's to
    /// see to.
    ///
    /// # Errors
    /// Inputs that do not broadcast to them, different devices (but that an input of no dimension may be on the CPU), an
    /// output with elements that share memory, or one that overlaps an input without being the same.
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
        let mut operands: SmallVec<[Operand; 4]> = SmallVec::new();
        let is_flat = |tensor: &&Tensor| tensor.rank() == 0 || (tensor.is_contiguous() && tensor.sizes() == sizes);
        let is_one_run = outputs.iter().chain(inputs).all(is_flat);
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
            operands.push(Operand { data, strides, dtype, device: tensor.device() });
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

    /// The operation.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// Where it is computed.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Sizes, densest dimension first.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.sizes.iter().product()
    }

    /// The outputs, then the inputs.
    pub fn operands(&self) -> &[Operand] {
        &self.operands
    }

    /// The outputs.
    pub fn outputs(&self) -> &[Operand] {
        &self.operands[..self.outputs]
    }
}

fn check_written(op: &'static str, output: &Tensor, inputs: &[&Tensor]) -> Result<()> {
    if !output.is_contiguous() && output.layout().overlap() == Overlap::Yes {
        let reason = format!("more than one element of the output of sizes {:?} is at one place", output.sizes());
        return Err(TensorError::Overlap { op, reason });
    }
    for input in inputs {
        // Of two dtypes, one could be written before the other is read.
        let is_same = input.layout() == output.layout() && input.dtype() == output.dtype();
        if !is_same && overlap(output, input) {
            let reason =
                format!("the output of sizes {:?} overlaps an input of sizes {:?}", output.sizes(), input.sizes());
            return Err(TensorError::Overlap { op, reason });
        }
    }
    Ok(())
}

/// Brings dimensions, of which each operand has its strides, in order, and makes one of those that are one for all.
pub(crate) fn coalesce(sizes: &[usize], operands: &mut [Dims]) -> Dims {
    let mut order: Dims = (0..sizes.len()).filter(|dim| sizes[*dim] != 1).collect();
    // By the first operand that tells; among equals, the last dimension is the densest.
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
