//! Largest and smallest elements, and their positions.

use tenure_core::DType;

use super::reduce::Reduced;
use super::view::signed;
use crate::autograd::{Context, attach, attach_all};
use crate::cpu;
use crate::cpu::reduce::{Extreme, ReduceWith};
use crate::operation::operations;
use crate::order::{in_order, out_of_order};
use crate::{Kernel, Result, Tensor, TensorError, cuda};

static EXTREME: Kernel<Extreme> = Kernel::new(
    "amax",
    &[cpu::reduce::EXTREME[0], cpu::reduce::EXTREME[1], cuda::reduce::EXTREME[0], cuda::reduce::EXTREME[1]],
);
static POSITION: Kernel<ReduceWith> = Kernel::new(
    "argmax",
    &[cpu::reduce::POSITION[0], cpu::reduce::POSITION[1], cuda::reduce::POSITION[0], cuda::reduce::POSITION[1]],
);

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the largest element over the dimensions `dim`, or over all if `dim` is empty. If `keepdim`, these
        /// dimensions are kept with size 1. NaN counts as the largest. Equal elements share the gradient.
        ///
        /// # Errors
        /// A dimension does not exist, is given twice, or has no elements.
        amax(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Computes the smallest element over the dimensions `dim`, as [`amax`](Self::amax) computes the largest.
        ///
        /// # Errors
        /// The errors of [`amax`](Self::amax).
        amin(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Computes the largest element.
        ///
        /// # Errors
        /// There are no elements.
        #[name(max)]
        max_all(input: Tensor) -> Tensor;

        /// Computes the smallest element.
        ///
        /// # Errors
        /// There are no elements.
        #[name(min)]
        min_all(input: Tensor) -> Tensor;

        /// Computes the largest element along a dimension, and the index of its first occurrence, which gets the
        /// gradient. NaN counts as the largest.
        ///
        /// # Errors
        /// The dimension does not exist, or has no elements.
        max(input: Tensor, dim: Int, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes the smallest element along a dimension and its index, as [`max`](Self::max) computes the largest.
        ///
        /// # Errors
        /// The errors of [`max`](Self::max).
        min(input: Tensor, dim: Int, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Returns the index of the first occurrence of the largest element along a dimension, or among all elements.
        ///
        /// # Errors
        /// The errors of [`max`](Self::max).
        argmax(input: Tensor, dim: Option<Int> = None, keepdim: Bool = false) -> Tensor;

        /// Returns the index of the first occurrence of the smallest element along a dimension, or among all elements.
        ///
        /// # Errors
        /// The errors of [`max`](Self::max).
        argmin(input: Tensor, dim: Option<Int> = None, keepdim: Bool = false) -> Tensor;

        /// Tells whether all elements over the dimensions `dim`, or over all if `dim` is empty, are nonzero. The result
        /// for `uint8` is `uint8`, as in PyTorch.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice.
        all(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Tells whether any element over the dimensions `dim`, or over all if `dim` is empty, is nonzero. The result for
        /// `uint8` is `uint8`, as in PyTorch.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice.
        any(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;
    }
    Function for front_ends {
        /// Computes the larger of each two elements: [`Tensor::maximum`].
        ///
        /// # Errors
        /// The errors of [`Tensor::maximum`].
        #[name(max)]
        max_with(input: Tensor, other: Tensor) -> Tensor = |input: &Tensor, other| input.maximum(other);

        /// Computes the smaller of each two elements: [`Tensor::minimum`].
        ///
        /// # Errors
        /// The errors of [`Tensor::minimum`].
        #[name(min)]
        min_with(input: Tensor, other: Tensor) -> Tensor = |input: &Tensor, other| input.minimum(other);
    }
}

fn amax(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    input.shared_extreme("amax", dims, keep, true)
}

fn amin(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    input.shared_extreme("amin", dims, keep, false)
}

fn max_all(input: &Tensor) -> Result<Tensor> {
    input.shared_extreme("max_all", &[], false, true)
}

fn min_all(input: &Tensor) -> Result<Tensor> {
    input.shared_extreme("min_all", &[], false, false)
}

fn max(input: &Tensor, dim: isize, keep: bool) -> Result<(Tensor, Tensor)> {
    input.placed_extreme("max", dim, keep, true)
}

fn min(input: &Tensor, dim: isize, keep: bool) -> Result<(Tensor, Tensor)> {
    input.placed_extreme("min", dim, keep, false)
}

fn argmax(input: &Tensor, dim: Option<isize>, keep: bool) -> Result<Tensor> {
    input.position("argmax", dim, keep, true)
}

fn argmin(input: &Tensor, dim: Option<isize>, keep: bool) -> Result<Tensor> {
    input.position("argmin", dim, keep, false)
}

fn all(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    input.truth("all", dims, keep, false)
}

fn any(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    input.truth("any", dims, keep, true)
}

impl Tensor {
    fn truth(&self, op: &'static str, dims: &[isize], keep: bool, largest: bool) -> Result<Self> {
        let reduced = Reduced::new(op, self, dims)?;
        let out = match reduced.count(self) {
            // Without elements, all are true and none is.
            0 => Self::full(&reduced.sizes, !largest, DType::Bool, self.device())?,
            _ => extreme(&self.to_dtype(DType::Bool)?, &reduced, largest)?,
        };
        let out = if self.dtype() == DType::U8 { out.to_dtype(DType::U8)? } else { out };
        reduced.finish(out, keep)
    }

    /// Computes [`amax`](Self::amax) or [`amin`](Self::amin) for the operation `op`.
    pub(super) fn shared_extreme(&self, op: &'static str, dims: &[isize], keep: bool, largest: bool) -> Result<Self> {
        let reduced = reduced(op, self, dims)?;
        let kept = signed(&reduced.sizes);
        let out = reduced.finish(extreme(self, &reduced, largest)?, keep)?;
        let over = dims.to_vec();
        attach(out.clone(), op, &[self], |saver| {
            let saved = saver.save(self)?;
            let output = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let is_it = context.unpack(saved)?.eq(&context.unpack(output)?.reshape(&kept)?)?;
                let share = context.grad(0)?.reshape(&kept)?.div(&is_it.sum(&over, true)?)?;
                Ok([Some(is_it.where_(&share, 0.0)?)].into_iter().collect())
            })
        })
    }

    fn placed_extreme(&self, op: &'static str, dim: isize, keep: bool, largest: bool) -> Result<(Self, Self)> {
        let reduced = reduced(op, self, &[dim])?;
        let (values, places) = placed(self, &reduced, largest)?;
        let values = reduced.finish(values, keep)?;
        let places = reduced.finish(places, keep)?;
        let kept = signed(&reduced.sizes);
        let from = self.sizes().to_vec();
        attach_all(&[&values], op, &[self], |saver| {
            let saved = saver.save(&places)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?.reshape(&kept)?;
                let places = context.unpack(saved)?.reshape(&kept)?;
                let to_input = match from.is_empty() {
                    true => grad,
                    false => Self::zeros(&from, grad.dtype(), grad.device())?.scatter(dim, &places, &grad)?,
                };
                Ok([Some(to_input)].into_iter().collect())
            })
        })?;
        Ok((values, places))
    }

    fn position(&self, op: &'static str, dim: Option<isize>, keep: bool, largest: bool) -> Result<Self> {
        let input = self.detach();
        let Some(dim) = dim else {
            reduced(op, &input, &[])?;
            let flat = input.reshape(&[-1])?;
            let (_, place) = placed(&flat, &reduced(op, &flat, &[0])?, largest)?;
            return place.reshape(&vec![1; if keep { self.rank() } else { 0 }]);
        };
        let reduced = reduced(op, &input, &[dim])?;
        reduced.finish(placed(&input, &reduced, largest)?.1, keep)
    }
}

/// Returns the dimensions to reduce, after checking that they have elements.
fn reduced(op: &'static str, tensor: &Tensor, dims: &[isize]) -> Result<Reduced> {
    let reduced = Reduced::new(op, tensor, dims)?;
    if reduced.count(tensor) == 0 {
        let along = if dims.is_empty() { String::new() } else { format!(" along {dims:?}") };
        let reason = format!("sizes {:?} have no element to find{along}", tensor.sizes());
        return Err(TensorError::shape(op, reason));
    }
    Ok(reduced)
}

/// Computes the largest or smallest elements, with dimensions kept.
fn extreme(tensor: &Tensor, reduced: &Reduced, largest: bool) -> Result<Tensor> {
    let input = in_order(&tensor.detach())?;
    let out = reduced.output(&input, input.dtype())?;
    EXTREME.find(input.device().kind(), input.dtype())?(&out, &input, largest)?;
    out_of_order(&out, tensor.dtype())
}

/// Computes the largest or smallest elements, and the index of the first of each.
fn placed(tensor: &Tensor, reduced: &Reduced, largest: bool) -> Result<(Tensor, Tensor)> {
    let input = in_order(&tensor.detach())?;
    let input = if input.dtype() == DType::Bool { input.to_dtype(DType::I64)? } else { input };
    let values = extreme(&input, reduced, largest)?;
    let places = reduced.output(&input, DType::I64)?;
    POSITION.find(input.device().kind(), input.dtype())?(&places, &input, &values)?;
    Ok((out_of_order(&values, tensor.dtype())?, places))
}
