//! Reductions over dimensions: sums, means, products, variances, norms.

use smallvec::SmallVec;
use tenure_core::DType;

use super::entered;
use super::pointwise::wide;
use super::view::signed;
use crate::autocast::{raise, raises};
use crate::autograd::{Context, attach, attach_all, no_grad, recipe};
use crate::cpu;
use crate::cpu::reduce::{Moments, Reduce, ReduceWith};
use crate::element::computed;
use crate::operation::operations;
use crate::order::wide_integers;
use crate::{Kernel, Result, Tensor, TensorError, cuda};

static SUM: Kernel<Reduce> =
    Kernel::new("sum", &[cpu::reduce::SUM[0], cpu::reduce::SUM[1], cuda::reduce::SUM[0], cuda::reduce::SUM[1]]);
static MEAN: Kernel<Reduce> = Kernel::new("mean", &[cpu::reduce::MEAN, cuda::reduce::MEAN]);
static PROD: Kernel<Reduce> =
    Kernel::new("prod", &[cpu::reduce::PROD[0], cpu::reduce::PROD[1], cuda::reduce::PROD[0], cuda::reduce::PROD[1]]);
static LOGSUMEXP: Kernel<ReduceWith> = Kernel::new("logsumexp", &[cpu::reduce::LOGSUMEXP, cuda::reduce::LOGSUMEXP]);

static MOMENTS: Kernel<Moments> = Kernel::new("var", &[cpu::reduce::MOMENTS, cuda::reduce::MOMENTS]);
static NORM_1: Kernel<Reduce> = Kernel::new("norm", &[cpu::reduce::NORM_1, cuda::reduce::NORM_1]);
static NORM_2: Kernel<Reduce> = Kernel::new("norm", &[cpu::reduce::NORM_2, cuda::reduce::NORM_2]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes sums over the dimensions `dim`, or over all if `dim` is empty. If `keepdim`, these dimensions are
        /// kept with size 1. Integers and `bool` are summed as `int64`.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice.
        sum(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Sums this tensor to the sizes `size`, which must broadcast to its own: the gradient of a broadcast.
        ///
        /// # Errors
        /// `size` do not broadcast to this tensor's.
        #[name(sum_to_size)]
        sum_to(input: Tensor, size: Sizes) -> Tensor;

        /// Computes means over dimensions, given as for [`sum`](Self::sum).
        ///
        /// # Errors
        /// The errors of [`sum`](Self::sum); an integer dtype.
        mean(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Counts the nonzero elements over dimensions, given as for [`sum`](Self::sum), as `int64`.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice.
        count_nonzero(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Computes products over dimensions, given as for [`sum`](Self::sum). Integers and `bool` are multiplied as
        /// `int64`.
        ///
        /// # Errors
        /// A dimension does not exist, or is given twice.
        prod(input: Tensor, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Computes variances over dimensions, given as for [`sum`](Self::sum): the sum of squared deviations from the
        /// mean, divided by the number of elements minus `correction`, which is 1 for the unbiased estimate. PyTorch's
        /// `var`.
        ///
        /// # Errors
        /// The errors of [`mean`](Self::mean).
        var(input: Tensor, dim: Ints = &[], correction: Float = 1.0, keepdim: Bool = false) -> Tensor;

        /// Computes standard deviations: square roots of [`var`](Self::var).
        ///
        /// # Errors
        /// The errors of [`mean`](Self::mean).
        std(input: Tensor, dim: Ints = &[], correction: Float = 1.0, keepdim: Bool = false) -> Tensor;

        /// Computes [`var`](Self::var) and [`mean`](Self::mean), in two passes.
        ///
        /// # Errors
        /// The errors of [`mean`](Self::mean).
        var_mean(input: Tensor, dim: Ints = &[], correction: Float = 1.0, keepdim: Bool = false) -> (Tensor, Tensor);

        /// Computes norms over dimensions, given as for [`sum`](Self::sum): the `p`-th root of the sum of the absolute
        /// values' `p`-th powers; the largest and smallest absolute value for infinite `p`, and the count of elements
        /// that are not zero for 0. PyTorch's `vector_norm`.
        ///
        /// # Errors
        /// The errors of [`mean`](Self::mean).
        #[name(vector_norm)]
        norm(input: Tensor, p: Float = 2.0, dim: Ints = &[], keepdim: Bool = false) -> Tensor;

        /// Computes logarithms of sums of exponentials over dimensions, given as for [`sum`](Self::sum): of integers as
        /// `float32`.
        ///
        /// # Errors
        /// The errors of [`sum`](Self::sum).
        logsumexp(input: Tensor, dim: Ints, keepdim: Bool = false) -> Tensor;
    }
    Function for front_ends {
        /// Computes [`sum`](crate::Tensor::sum) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(sum)]
        sum_as(input: Tensor, dim: Ints = &[], keepdim: Bool = false, dtype: DType) -> Tensor = |input: &Tensor, dim, keepdim, dtype| {
            input.to_dtype(dtype)?.sum(dim, keepdim)?.to_dtype(dtype)
        };

        /// Computes [`mean`](crate::Tensor::mean) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(mean)]
        mean_as(input: Tensor, dim: Ints = &[], keepdim: Bool = false, dtype: DType) -> Tensor = |input: &Tensor, dim, keepdim, dtype| {
            input.to_dtype(dtype)?.mean(dim, keepdim)
        };

        /// Computes [`prod`](crate::Tensor::prod) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(prod)]
        prod_as(input: Tensor, dim: Ints = &[], keepdim: Bool = false, dtype: DType) -> Tensor = |input: &Tensor, dim, keepdim, dtype| {
            input.to_dtype(dtype)?.prod(dim, keepdim)?.to_dtype(dtype)
        };
    }
}

fn sum(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    if raises(&[input]) {
        return raise(input)?.sum(dims, keep);
    }
    let dims = Reduced::new("sum", input, dims)?;
    let out = dims.run(&SUM, input, summed(input.dtype()))?;
    input.spread("sum", &dims, dims.finish(out, keep)?, Ok)
}

fn sum_to(input: &Tensor, sizes: &[usize]) -> Result<Tensor> {
    if sizes == input.sizes() {
        return Ok(input.clone());
    }
    let added = input.rank().checked_sub(sizes.len());
    let Some(added) = added.filter(|added| {
        let mut pairs = sizes.iter().zip(&input.sizes()[*added..]);
        pairs.all(|(to, from)| to == from || *to == 1)
    }) else {
        let reason = format!("sizes {sizes:?} do not broadcast to {:?}", input.sizes());
        return Err(TensorError::shape("sum_to", reason));
    };
    let dims = Reduced::of(input, |dim| dim < added || sizes[dim - added] != input.sizes()[dim]);
    let out = dims.run(&SUM, input, summed(input.dtype()))?;
    input.spread("sum_to", &dims, out.alias(out.layout().view(sizes)?), Ok)
}

fn mean(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    floating("mean", input)?;
    let dims = Reduced::new("mean", input, dims)?;
    let out = dims.run(&MEAN, input, input.dtype())?;
    let count = dims.count(input) as f64;
    input.spread("mean", &dims, dims.finish(out, keep)?, move |grad| grad.div(count))
}

fn count_nonzero(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    input.to_dtype(DType::Bool)?.sum(dims, keep)
}

fn prod(tensor: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    if raises(&[tensor]) {
        return raise(tensor)?.prod(dims, keep);
    }
    let input = if tensor.dtype() == DType::Bool { tensor.to_dtype(DType::I64)? } else { tensor.clone() };
    let dims = Reduced::new("prod", tensor, dims)?;
    let out = dims.run(&PROD, &input, summed(tensor.dtype()))?;
    let kept = signed(&dims.sizes);
    attach(dims.finish(out, keep)?, "prod", &[tensor], |saver| {
        let saved = saver.save(tensor)?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?.reshape(&kept)?;
            Ok([Some(grad.mul(&others(&context.unpack(saved)?, &dims)?)?)].into_iter().collect())
        })
    })
}

fn var(input: &Tensor, dims: &[isize], correction: f64, keep: bool) -> Result<Tensor> {
    Ok(input.var_mean(dims, correction, keep)?.0)
}

fn std(input: &Tensor, dims: &[isize], correction: f64, keep: bool) -> Result<Tensor> {
    if computed(input.dtype()) != input.dtype() {
        return wide(input)?.std(dims, correction, keep)?.to_dtype(input.dtype());
    }
    let variance = input.var(dims, correction, keep)?;
    let out = no_grad(|| variance.sqrt())?;
    attach(out.clone(), "std", &[&variance], |saver| {
        let saved = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let out = context.unpack(saved)?;
            // Where the deviation is 0, the root's slope is infinite, and the gradient is set to 0.
            let to_variance = context.grad(0)?.div(&out.mul(2.0)?)?.masked_fill(&out.eq(0.0)?, 0.0)?;
            Ok([Some(to_variance)].into_iter().collect())
        })
    })
}

fn var_mean(input: &Tensor, dims: &[isize], correction: f64, keep: bool) -> Result<(Tensor, Tensor)> {
    let (variance, mean) = input.moments("var", dims, correction)?;
    let reduced = Reduced::new("var", input, dims)?;
    let [variance, mean] = [variance, mean].map(|out| no_grad(|| reduced.finish(out.to_dtype(input.dtype())?, keep)));
    let variance = variance?;
    let mean = mean?;
    let count = reduced.count(input) as f64;
    let kept = signed(&reduced.sizes);
    let from = signed(input.sizes());
    let dims = dims.to_vec();
    attach_all(&[&variance, &mean], "var_mean", &[input], |saver| {
        let saved = saver.save(input)?;
        Ok(move |context: &Context<'_>| {
            let mut grads = SmallVec::<[Tensor; 2]>::new();
            if let Some(grad) = context.grad_if_any(0) {
                let x = context.unpack(saved)?;
                let slope = 2.0 / (count - correction).max(0.0);
                grads.push(x.sub(&x.mean(&dims, true)?)?.mul(&grad.reshape(&kept)?.mul(slope)?)?);
            }
            if let Some(grad) = context.grad_if_any(1) {
                grads.push(grad.reshape(&kept)?.div(count)?.expand(&from)?);
            }
            let sum = grads.into_iter().map(Ok).reduce(|a, b| a?.add(&b?)).transpose()?;
            Ok([sum].into_iter().collect())
        })
    })?;
    Ok((variance, mean))
}

fn norm(input: &Tensor, p: f64, dims: &[isize], keep: bool) -> Result<Tensor> {
    if raises(&[input]) {
        return raise(input)?.norm(p, dims, keep);
    }
    floating("norm", input)?;
    let reduced = Reduced::new("norm", input, dims)?;
    if p == 1.0 {
        let out = reduced.run(&NORM_1, input, input.dtype())?;
        let kept = signed(&reduced.sizes);
        return attach(reduced.finish(out, keep)?, "norm", &[input], |saver| {
            let saved = saver.save(input)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?.reshape(&kept)?;
                Ok([Some(context.unpack(saved)?.sign()?.mul(&grad)?)].into_iter().collect())
            })
        });
    }
    if p == 2.0 {
        let out = reduced.run(&NORM_2, input, input.dtype())?;
        let out = reduced.finish(out, keep)?;
        let kept = signed(&reduced.sizes);
        return attach(out.clone(), "norm", &[input], |saver| {
            let saved = saver.save(input)?;
            let norm = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let norm = context.unpack(norm)?;
                // At zero the norm has no slope; the gradient is set to 0.
                let scale = context.grad(0)?.div(&norm)?.masked_fill(&norm.eq(0.0)?, 0.0)?;
                Ok([Some(context.unpack(saved)?.mul(&scale.reshape(&kept)?)?)].into_iter().collect())
            })
        });
    }
    match p {
        0.0 => input.ne(0.0)?.to_dtype(input.dtype())?.sum(dims, keep),
        f64::INFINITY => input.abs()?.shared_extreme("norm", dims, keep, true),
        f64::NEG_INFINITY => input.abs()?.shared_extreme("norm", dims, keep, false),
        _ => wide(input)?.abs()?.pow(p)?.sum(dims, keep)?.pow(1.0 / p)?.to_dtype(input.dtype()),
    }
}

fn logsumexp(input: &Tensor, dims: &[isize], keep: bool) -> Result<Tensor> {
    if raises(&[input]) {
        return raise(input)?.logsumexp(dims, keep);
    }
    if !input.dtype().is_floating() {
        return input.to_dtype(DType::F32)?.logsumexp(dims, keep);
    }
    let reduced = Reduced::new("logsumexp", input, dims)?;
    let largest = match reduced.count(input) {
        0 => Tensor::full(&reduced.sizes, f64::NEG_INFINITY, input.dtype(), input.device())?,
        _ => no_grad(|| input.amax(dims, true))?,
    };
    let out = reduced.output(input, input.dtype())?;
    LOGSUMEXP.find(input.device().kind(), input.dtype())?(&out, input, &largest)?;
    let out = reduced.finish(out, keep)?;
    let kept = signed(&reduced.sizes);
    let dims = dims.to_vec();
    attach(out.clone(), "logsumexp", &[input], |saver| {
        let saved = saver.save(input)?;
        let output = saver.save_output(&out, 0)?;
        Ok(move |context: &Context<'_>| {
            let x = context.unpack(saved)?;
            let output = context.unpack(output)?;
            let x = wide(&x)?;
            // An output that was rounded to 16 bits is computed again: its error would be in all weights.
            let output = if output.dtype() == x.dtype() { output } else { x.logsumexp(&dims, true)? };
            let weights = x.sub(&output.reshape(&kept)?)?.exp()?;
            Ok([Some(weights.mul(&context.grad(0)?.reshape(&kept)?)?)].into_iter().collect())
        })
    })
}

impl Tensor {
    /// Computes the sum of all elements.
    ///
    /// # Errors
    /// No memory.
    pub fn sum_all(&self) -> Result<Self> {
        self.sum(&[], false)
    }

    /// Computes the mean of all elements.
    ///
    /// # Errors
    /// An integer dtype.
    pub fn mean_all(&self) -> Result<Self> {
        self.mean(&[], false)
    }

    /// Computes variance and mean with dimensions kept, in the dtype that they are computed in. They have no gradient.
    pub(super) fn moments(&self, op: &'static str, dims: &[isize], correction: f64) -> Result<(Self, Self)> {
        let (squares, mean) = self.squared_deviations(op, dims)?;
        let count = Reduced::new(op, self, dims)?.count(self) as f64;
        Ok((no_grad(|| squares.div((count - correction).max(0.0)))?, mean))
    }

    /// Computes sums of squared deviations, and means, with dimensions kept, in the dtype that they are computed in.
    /// They have no gradient.
    pub(super) fn squared_deviations(&self, op: &'static str, dims: &[isize]) -> Result<(Self, Self)> {
        floating(op, self)?;
        let dims = Reduced::new(op, self, dims)?;
        let compute = computed(self.dtype());
        let mean = dims.output(self, compute)?;
        let squares = dims.output(self, compute)?;
        MOMENTS.find(self.device().kind(), self.dtype())?(&mean, &squares, self)?;
        Ok((squares, mean))
    }

    /// Attaches the gradient of a reduction that weighs all elements of an output the same.
    fn spread(
        &self,
        op: &'static str,
        dims: &Reduced,
        out: Self,
        scale: impl Fn(Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let kept = signed(&dims.sizes);
        let from = signed(self.sizes());
        attach(out, op, &[self], |_| {
            Ok(move |context: &Context<'_>| {
                let grad = scale(context.grad(0)?)?.reshape(&kept)?.expand(&from)?;
                Ok([Some(grad)].into_iter().collect())
            })
        })
    }
}

/// Returns for each element the product of the others that are reduced with it.
fn others(x: &Tensor, dims: &Reduced) -> Result<Tensor> {
    let over: Vec<isize> =
        (0..).zip(&dims.is_reduced).filter(|(_, is_reduced)| **is_reduced).map(|(dim, _)| dim).collect();
    if over.is_empty() {
        return Tensor::ones(x.sizes(), x.dtype(), x.device());
    }
    let is_zero = x.eq(0.0)?;
    let zeros = is_zero.sum(&over, true)?;
    // If exactly one element is zero, it gets the product of the others, and the others get 0. If more are zero, all
    // get 0.
    let without = x.masked_fill(&is_zero, 1.0)?;
    let product = without.prod(&over, true)?;
    let quotient = product.div(&without)?.masked_fill(&zeros.gt(0)?, 0.0)?;
    is_zero.logical_and(&zeros.eq(1)?)?.where_(&product, &quotient)
}

/// The dimensions that are reduced.
#[derive(Clone)]
pub(super) struct Reduced {
    /// The tensor's sizes, with 1 for each reduced dimension.
    pub(super) sizes: Vec<usize>,
    is_reduced: Vec<bool>,
}

impl Reduced {
    /// Returns the dimensions `dims` of a tensor, or all if `dims` is empty.
    pub(super) fn new(op: &'static str, tensor: &Tensor, dims: &[isize]) -> Result<Self> {
        let mut is_reduced = vec![dims.is_empty(); tensor.rank()];
        for dim in tensor.distinct_dims(op, dims)? {
            // A tensor of no dimensions accepts dimension 0, but has none to reduce.
            if let Some(is_reduced) = is_reduced.get_mut(dim) {
                *is_reduced = true;
            }
        }
        Ok(Self::of(tensor, |dim| is_reduced[dim]))
    }

    fn of(tensor: &Tensor, is_reduced: impl Fn(usize) -> bool) -> Self {
        let is_reduced: Vec<bool> = (0..tensor.rank()).map(is_reduced).collect();
        let sizes = tensor
            .sizes()
            .iter()
            .zip(&is_reduced)
            .map(|(size, is_reduced)| if *is_reduced { 1 } else { *size })
            .collect();
        Self { sizes, is_reduced }
    }

    /// Returns the number of elements that one output is reduced from.
    pub(super) fn count(&self, tensor: &Tensor) -> usize {
        tensor
            .sizes()
            .iter()
            .zip(&self.is_reduced)
            .filter(|(_, is_reduced)| **is_reduced)
            .map(|(size, _)| size)
            .product()
    }

    /// Allocates the output.
    pub(super) fn output(&self, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        Tensor::empty(&self.sizes, dtype, tensor.device())
    }

    /// Runs a kernel and returns its output.
    pub(super) fn run(&self, kernel: &'static Kernel<Reduce>, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
        let _op = entered(kernel.name());
        let out = self.output(tensor, dtype)?;
        let terms = wide_integers(tensor)?;
        kernel.find(terms.device().kind(), terms.dtype())?(&out, &terms)?;
        recipe::note(&out, kernel.name(), [tensor], [], || {
            let dims = self.clone();
            move |[x], []| dims.run(kernel, x, dtype)
        });
        Ok(out)
    }

    /// Removes the reduced dimensions from the output, unless they are kept.
    pub(super) fn finish(&self, out: Tensor, keep: bool) -> Result<Tensor> {
        if keep {
            return Ok(out);
        }
        let left = self.sizes.iter().zip(&self.is_reduced).filter(|(_, is_reduced)| !**is_reduced);
        let sizes: Vec<usize> = left.map(|(size, _)| *size).collect();
        Ok(out.alias(out.layout().view(&sizes)?))
    }
}

/// Returns the dtype of sums.
fn summed(dtype: DType) -> DType {
    if dtype.is_floating() { dtype } else { DType::I64 }
}

pub(super) fn floating(op: &'static str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_floating() {
        return Ok(());
    }
    let expected = "a floating dtype is needed: convert first with to_dtype(DType::F32)".to_owned();
    Err(TensorError::DType { op, found: tensor.dtype(), expected })
}
