//! Reductions of elements that an index writes to one place.

use super::{cat, entered};
use crate::autograd::{Context, attach, no_grad};
use crate::operation::operations;
use crate::ops::pointwise::wide;
use crate::{DType, Result, Scalar, Tensor, TensorError};

const OP: &str = "scatter_reduce";

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns a copy in which each place is the reduction of the elements of `src` that
        /// [`scatter`](Self::scatter) writes there, and of the element that was there if `include_self`. Other places
        /// keep their element. `reduce` is `sum`, `prod`, `mean`, `amax` or `amin`. Means of integers are rounded down.
        ///
        /// # Errors
        /// The errors of [`scatter`](Self::scatter); another reduction; `bool` with `sum`, `prod` or `mean`.
        scatter_reduce(input: Tensor, dim: Int, index: Tensor, src: Tensor, reduce: Text, include_self: Bool = true) -> Tensor;

        /// Does [`scatter_reduce`](Self::scatter_reduce) in place.
        ///
        /// # Errors
        /// The errors of [`scatter_reduce`](Self::scatter_reduce), and of every write in place.
        scatter_reduce_(input: Tensor, dim: Int, index: Tensor, src: Tensor, reduce: Text, include_self: Bool = true) -> ();
    }
}

/// A reduction that [`Tensor::scatter_reduce`] does.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    Sum,
    Mean,
    Product,
    Largest,
    Smallest,
}

fn scatter_reduce(
    input: &Tensor,
    dim: isize,
    index: &Tensor,
    source: &Tensor,
    reduce: &str,
    include_self: bool,
) -> Result<Tensor> {
    let _op = entered(OP);
    let reduction = match reduce {
        "sum" => Reduction::Sum,
        "mean" => Reduction::Mean,
        "prod" => Reduction::Product,
        "amax" => Reduction::Largest,
        "amin" => Reduction::Smallest,
        _ => {
            let reason = format!("reduce must be sum, prod, mean, amax or amin, got {reduce:?}");
            return Err(TensorError::argument(OP, reason));
        }
    };
    if input.rank() == 0 {
        let [line, index, source] = [input, index, source].map(|tensor| tensor.reshape(&[-1]));
        let reduced = line?.scatter_reduce(dim, &index?, &source?, reduce, include_self)?;
        return reduced.reshape(&[]);
    }
    let (index, source) = input.scatter_operands(OP, index, source.into())?;
    let target = Target { dim, index, include_self };
    match reduction {
        Reduction::Sum => target.emptied(input, 0)?.scatter_add(dim, &target.index, &source),
        Reduction::Mean => {
            let counts = no_grad(|| target.counts(&wide(input)?, &wide(&source)?))?;
            let sums = target.emptied(&wide(input)?, 0)?.scatter_add(dim, &target.index, &wide(&source)?)?;
            let means = if input.dtype().is_floating() { sums.div(&counts) } else { sums.div_floor(&counts) };
            means?.to_dtype(input.dtype())
        }
        Reduction::Product => target.products(&wide(input)?, &wide(&source)?)?.to_dtype(input.dtype()),
        Reduction::Largest | Reduction::Smallest => target.extremes(input, &source, reduction),
    }
}

fn scatter_reduce_(
    input: &Tensor,
    dim: isize,
    index: &Tensor,
    source: &Tensor,
    reduce: &str,
    include_self: bool,
) -> Result<()> {
    let _op = entered("scatter_reduce_");
    // The gradient may need the elements that are overwritten.
    input.copy_(&input.copy()?.scatter_reduce(dim, index, source, reduce, include_self)?)
}

/// The places that an index writes to.
#[derive(Clone)]
struct Target {
    dim: isize,
    index: Tensor,
    include_self: bool,
}

impl Target {
    /// Sets the places to the reduction's identity, unless their element is part of it.
    fn emptied(&self, input: &Tensor, identity: impl Into<Scalar>) -> Result<Tensor> {
        if self.include_self { Ok(input.clone()) } else { input.scatter(self.dim, &self.index, identity.into()) }
    }

    /// Counts the elements of each mean, in the dtype of the tensor.
    fn counts(&self, input: &Tensor, source: &Tensor) -> Result<Tensor> {
        let ones = source.full_like(1)?;
        self.emptied(&input.full_like(1)?, 0)?.scatter_add(self.dim, &self.index, &ones)?.clamp_min(1)
    }

    fn products(&self, input: &Tensor, source: &Tensor) -> Result<Tensor> {
        let out = no_grad(|| self.raw_products(input, source))?;
        let target = self.clone();
        attach(out.clone(), OP, &[input, source], |saver| {
            let input = saver.save(input)?;
            let source = saver.save(source)?;
            let out = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let input = context.unpack(input)?;
                let source = context.unpack(source)?;
                let to_input = context.give(0, || {
                    let nonzero = input.masked_fill(&input.eq(0)?, 1)?;
                    let others = target.products(&nonzero, &source)?.div(&nonzero)?;
                    target.emptied(&grad.mul(&others)?, 0)
                })?;
                let to_source = context.give(1, || {
                    let is_zero = source.eq(0)?;
                    let zeros = is_zero.to_dtype(source.dtype())?;
                    let zeros =
                        target.gathered(&input.zeros_like()?.scatter_add(target.dim, &target.index, &zeros)?)?;
                    // The product of the others of an only zero; other elements divide the whole product.
                    let is_only = is_zero.bitwise_and(&zeros.eq(1)?)?;
                    let others =
                        target.gathered(&grad.mul(&target.products(&input, &source.masked_fill(&is_only, 1)?)?)?)?;
                    let divided =
                        target.gathered(&grad.mul(&context.unpack(out)?)?)?.div(&source.masked_fill(&is_zero, 1)?)?;
                    is_only.where_(&others, &divided)
                })?;
                Ok([to_input, to_source].into_iter().collect())
            })
        })
    }

    /// Multiplies elements of one place: after a sort by place, each step multiplies products of twice as many
    /// neighbours. The last write to a place is the product of all.
    fn raw_products(&self, input: &Tensor, source: &Tensor) -> Result<Tensor> {
        let (places, order) = self.index.sort(self.dim, false, true)?;
        let mut products = source.gather(self.dim, &order)?;
        let length = places.size(self.dim)?;
        let mut step = 1;
        while step < length {
            let part = |tensor: &Tensor, start| tensor.narrow(self.dim, start, length - step);
            let is_same = part(&places, 0)?.eq(&part(&places, step)?)?;
            let before = is_same.where_(&part(&products, 0)?, 1)?;
            let after = part(&products, step)?.mul(&before)?;
            products = cat(&[&products.narrow(self.dim, 0, step)?, &after], self.dim)?;
            step *= 2;
        }
        let base = self.emptied(input, 1)?;
        let ones = base.full_like(1)?;
        base.mul(&ones.scatter(self.dim, &places, &products)?)
    }

    /// Reads the elements at the places of the source's.
    fn gathered(&self, tensor: &Tensor) -> Result<Tensor> {
        tensor.gather(self.dim, &self.index)
    }

    fn extremes(&self, input: &Tensor, source: &Tensor, reduction: Reduction) -> Result<Tensor> {
        let out = no_grad(|| self.raw_extremes(input, source, reduction))?;
        let target = self.clone();
        attach(out.clone(), OP, &[input, source], |saver| {
            let input = saver.save(input)?;
            let source = saver.save(source)?;
            let out = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let out = context.unpack(out)?;
                let is_input = target.emptied(&context.unpack(input)?.eq(&out)?.to_dtype(grad.dtype())?, 0)?;
                let is_source = context.unpack(source)?.eq(&target.gathered(&out)?)?.to_dtype(grad.dtype())?;
                // Elements that are equal share the gradient.
                let shared = is_input.scatter_add(target.dim, &target.index, &is_source)?;
                let share = grad.div(&shared)?;
                let to_input = context.give(0, || is_input.mul(&share))?;
                let to_source = context.give(1, || is_source.mul(&target.gathered(&share)?))?;
                Ok([to_input, to_source].into_iter().collect())
            })
        })
    }

    /// Writes the elements in sorted order, so that the last write to a place is the one that stays.
    fn raw_extremes(&self, input: &Tensor, source: &Tensor, reduction: Reduction) -> Result<Tensor> {
        if input.dtype() == DType::Bool {
            let [input, source] = [input, source].map(|tensor| tensor.to_dtype(DType::U8));
            return self.raw_extremes(&input?, &source?, reduction)?.to_dtype(DType::Bool);
        }
        let is_smallest = reduction == Reduction::Smallest;
        if is_smallest && input.dtype().is_floating() {
            // A sort puts NaN last, where it stays, in ascending order only.
            return self.raw_extremes(&input.neg()?, &source.neg()?, Reduction::Largest)?.neg();
        }
        let (values, order) = source.sort(self.dim, is_smallest, true)?;
        let written = input.scatter(self.dim, &self.index.gather(self.dim, &order)?, &values)?;
        match (self.include_self, is_smallest) {
            (false, _) => Ok(written),
            (true, false) => written.maximum(input),
            (true, true) => written.minimum(input),
        }
    }
}
