//! Elementwise arithmetic of two operands.

use tenure_core::DType;

use super::pointwise::{self, Binary, Pair, floating};
use crate::autograd::{Context, Grads, Saver, attach};
use crate::cpu::binary as kernels;
use crate::cpu::binary::Scaled;
use crate::cuda::binary as cuda;
use crate::{Elementwise, Kernel, Result, Scalar, Tensor, TensorError, Value};

pub(super) static ADD: Binary = Kernel::new("add", &[kernels::ADD, kernels::ADD_BOOL, cuda::ADD, cuda::ADD_BOOL]);
pub(super) static SUB: Binary = Kernel::new("sub", &[kernels::SUB, cuda::SUB]);
pub(super) static MUL: Binary = Kernel::new("mul", &[kernels::MUL, kernels::MUL_BOOL, cuda::MUL, cuda::MUL_BOOL]);
pub(super) static DIV: Binary = Kernel::new("div", &[kernels::DIV, cuda::DIV]);
static DIV_FLOOR: Binary = Kernel::new("div_floor", &[kernels::DIV_FLOOR, cuda::DIV_FLOOR]);
static DIV_TRUNC: Binary = Kernel::new("div_trunc", &[kernels::DIV_TRUNC, cuda::DIV_TRUNC]);
static REMAINDER: Binary = Kernel::new("remainder", &[kernels::REMAINDER, cuda::REMAINDER]);
static FMOD: Binary = Kernel::new("fmod", &[kernels::FMOD, cuda::FMOD]);
static MAXIMUM: Binary = Kernel::new("maximum", &[kernels::MAXIMUM, cuda::MAXIMUM]);
static MINIMUM: Binary = Kernel::new("minimum", &[kernels::MINIMUM, cuda::MINIMUM]);
static ATAN2: Binary = Kernel::new("atan2", &[kernels::ATAN2, cuda::ATAN2]);
pub(super) static LERP: Binary = Kernel::new("lerp", &[kernels::LERP, cuda::LERP]);
pub(super) static ADD_SCALED: Kernel<Scaled> = Kernel::new("add_scaled", &[kernels::ADD_SCALED, cuda::ADD_SCALED]);
pub(super) static ADDCMUL: Kernel<Scaled> = Kernel::new("addcmul", &[kernels::ADDCMUL, cuda::ADDCMUL]);
pub(super) static ADDCDIV: Kernel<Scaled> = Kernel::new("addcdiv", &[kernels::ADDCDIV, cuda::ADDCDIV]);

/// Operands are broadcast, and promoted as in PyTorch. A number never makes a dtype wider within its kind.
///
/// # Errors
/// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
impl Tensor {
    /// Computes the sum; of `bool`, the logical or.
    pub fn add<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        let pair = Pair::new("add", self, other.into(), |dtype| dtype)?;
        attach(pair.compute(&ADD, pair.dtype)?, "add", &[self, &pair.b], |_| Ok(sum))
    }

    /// Adds a tensor of the same dtype in place. It bumps no version and records no gradient.
    pub(crate) fn add_raw(&self, other: &Self) -> Result<()> {
        let iter = Elementwise::new("add", &[self], &[self, other])?;
        ADD.find(self.device().kind(), self.dtype())?(&iter)
    }

    /// Adds `alpha` times another tensor, in one pass. PyTorch's `add(other, alpha=alpha)`.
    pub fn add_scaled(&self, other: &Self, alpha: impl Into<Scalar>) -> Result<Self> {
        let alpha = alpha.into();
        let pair = Pair::new("add_scaled", self, other.into(), |dtype| dtype)?;
        check_factor("add_scaled", alpha, pair.dtype)?;
        let inputs = [self, other];
        let out =
            pointwise::run(&ADD_SCALED, pair.dtype, pair.dtype, &inputs, move |kernel, iter| kernel(iter, alpha))?;
        attach(out, "add_scaled", &inputs, |_| Ok(scaled_sum(alpha)))
    }

    /// Computes the difference.
    pub fn sub<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        let pair = Pair::new("sub", self, other.into(), |dtype| dtype)?;
        if [self.dtype(), pair.b.dtype()].contains(&DType::Bool) {
            let expected = "truth values have no difference: use logical_xor(), or logical_not() to invert a mask";
            return Err(TensorError::DType { op: "sub", found: DType::Bool, expected: expected.to_owned() });
        }
        attach(pair.compute(&SUB, pair.dtype)?, "sub", &[self, &pair.b], |_| Ok(difference))
    }

    /// Computes the product; of `bool`, the logical and.
    pub fn mul<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        let pair = Pair::new("mul", self, other.into(), |dtype| dtype)?;
        attach(pair.compute(&MUL, pair.dtype)?, "mul", &[self, &pair.b], |saver| product(saver, self, &pair.b))
    }

    /// Computes the quotient. Integers are divided as floats.
    pub fn div<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        let pair = Pair::new("div", self, other.into(), floating)?;
        attach(pair.compute(&DIV, pair.dtype)?, "div", &[self, &pair.b], |saver| quotient(saver, self, &pair.b))
    }

    /// Computes the quotient, rounded down. Its gradient is zero. PyTorch's `div(rounding_mode="floor")`.
    pub fn div_floor<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.rounded_quotient(&DIV_FLOOR, other.into())
    }

    /// Computes the quotient, rounded towards zero. Its gradient is zero. PyTorch's `div(rounding_mode="trunc")`.
    pub fn div_trunc<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.rounded_quotient(&DIV_TRUNC, other.into())
    }

    fn rounded_quotient(&self, kernel: &'static Binary, other: Value<'_>) -> Result<Self> {
        let pair = Pair::new(kernel.name(), self, other, |dtype| dtype)?;
        attach(pair.compute(kernel, pair.dtype)?, kernel.name(), &[self, &pair.b], |_| {
            Ok(|context: &Context<'_>| Ok([context.zeros(0)?, context.zeros(1)?].into_iter().collect()))
        })
    }

    /// Computes the remainder with the divisor's sign: Python's `%`.
    pub fn remainder<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.rest(&REMAINDER, other.into(), |a, b| a.div_floor(b))
    }

    /// Computes the remainder with the dividend's sign: C's `fmod`.
    pub fn fmod<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.rest(&FMOD, other.into(), |a, b| a.div_trunc(b))
    }

    /// Computes the remainder of a division that `quotient` rounds.
    fn rest(
        &self,
        kernel: &'static Binary,
        other: Value<'_>,
        quotient: impl Fn(&Self, &Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let pair = Pair::new(kernel.name(), self, other, |dtype| dtype)?;
        attach(pair.compute(kernel, pair.dtype)?, kernel.name(), &[self, &pair.b], |saver| {
            let needs = saver.needs(1);
            let left = saver.save_if(needs, self)?;
            let right = saver.save_if(needs, &pair.b)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let to_right =
                    context.give(1, || grad.mul(&quotient(&context.unpack(left)?, &context.unpack(right)?)?)?.neg())?;
                Ok([Some(grad), to_right].into_iter().collect())
            })
        })
    }

    /// Computes the larger element of each pair. NaN counts as the largest. Equal elements get half of the gradient
    /// each.
    pub fn maximum<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.extreme(&MAXIMUM, other.into(), |a, b| a.lt(b))
    }

    /// Computes the smaller element of each pair. NaN counts as the smallest. Equal elements get half of the gradient
    /// each.
    pub fn minimum<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
        self.extreme(&MINIMUM, other.into(), |a, b| a.gt(b))
    }

    fn extreme(
        &self,
        kernel: &'static Binary,
        other: Value<'_>,
        loses: impl Fn(&Self, &Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let pair = Pair::new(kernel.name(), self, other, |dtype| dtype)?;
        attach(pair.compute(kernel, pair.dtype)?, kernel.name(), &[self, &pair.b], |saver| {
            let left = saver.save(self)?;
            let right = saver.save(&pair.b)?;
            Ok(move |context: &Context<'_>| {
                let a = context.unpack(left)?;
                let b = context.unpack(right)?;
                let grad = context.grad(0)?;
                let shared = a.eq(&b)?.where_(&grad.mul(0.5)?, &grad)?;
                let to_left = context.give(0, || shared.masked_fill(&loses(&a, &b)?, 0))?;
                let to_right = context.give(1, || shared.masked_fill(&loses(&b, &a)?, 0))?;
                Ok([to_left, to_right].into_iter().collect())
            })
        })
    }

    /// Computes the angle of the point (`x`, `self`), from -π to π. At the origin the gradient is zero.
    pub fn atan2(&self, x: &Self) -> Result<Self> {
        let pair = Pair::new("atan2", self, x.into(), floating)?;
        attach(pair.compute(&ATAN2, pair.dtype)?, "atan2", &[self, x], |saver| {
            let y = saver.save(self)?;
            let x = saver.save(x)?;
            Ok(move |context: &Context<'_>| {
                let y = context.unpack(y)?;
                let x = context.unpack(x)?;
                let squares = y.square()?.add(&x.square()?)?;
                let scaled = context.grad(0)?.div(&squares.masked_fill(&squares.eq(0.0)?, f64::INFINITY)?)?;
                let to_y = context.give(0, || scaled.mul(&x))?;
                let to_x = context.give(1, || scaled.mul(&y)?.neg())?;
                Ok([to_y, to_x].into_iter().collect())
            })
        })
    }

    /// Interpolates linearly from `self` at weight 0 to `end` at weight 1.
    pub fn lerp<'a>(&'a self, end: &'a Self, weight: impl Into<Value<'a>>) -> Result<Self> {
        let weight = weight.into();
        let dtype = pointwise::promoted(&[self.into(), end.into(), weight]);
        let weight = pointwise::tensor("lerp", weight, dtype)?;
        let inputs = [self, end, &*weight];
        let out = pointwise::run(&LERP, dtype, dtype, &inputs, |kernel, iter| kernel(iter))?;
        attach(out, "lerp", &inputs, |saver| way(saver, inputs))
    }

    /// Adds `factor` · `a` · `b`, in one pass.
    pub fn addcmul(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<Self> {
        let factor = factor.into();
        let inputs = [self, a, b];
        let dtype = pointwise::promoted(&inputs.map(Value::from));
        check_factor("addcmul", factor, dtype)?;
        let out = pointwise::run(&ADDCMUL, dtype, dtype, &inputs, move |kernel, iter| kernel(iter, factor))?;
        attach(out, "addcmul", &inputs, |saver| sum_with_product(saver, a, b, factor))
    }

    /// Adds `factor` · `a` / `b`, in one pass.
    pub fn addcdiv(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<Self> {
        let factor = factor.into();
        let inputs = [self, a, b];
        let dtype = pointwise::promoted(&inputs.map(Value::from));
        let out = pointwise::run(&ADDCDIV, dtype, dtype, &inputs, move |kernel, iter| kernel(iter, factor))?;
        attach(out, "addcdiv", &inputs, |saver| sum_with_quotient(saver, a, b, factor))
    }
}

/// Computes the gradients of a sum.
pub(super) fn sum(context: &Context<'_>) -> Result<Grads> {
    let grad = context.grad(0)?;
    Ok([Some(grad.clone()), Some(grad)].into_iter().collect())
}

/// Computes the gradients of a difference.
pub(super) fn difference(context: &Context<'_>) -> Result<Grads> {
    let grad = context.grad(0)?;
    Ok([Some(grad.clone()), context.give(1, || grad.neg())?].into_iter().collect())
}

/// Returns the formula for the gradients of a product.
pub(super) fn product(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let left = saver.save_if(saver.needs(1), a)?;
    let right = saver.save_if(saver.needs(0), b)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let to_left = context.give(0, || grad.mul(&context.unpack(right)?))?;
        let to_right = context.give(1, || grad.mul(&context.unpack(left)?))?;
        Ok([to_left, to_right].into_iter().collect())
    })
}

/// Returns the formula for the gradients of a quotient.
pub(super) fn quotient(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let left = saver.save_if(saver.needs(1), a)?;
    let right = saver.save(b)?;
    Ok(move |context: &Context<'_>| {
        let scaled = context.grad(0)?.div(&context.unpack(right)?)?;
        let to_right = context.give(1, || {
            let quotient = context.unpack(left)?.div(&context.unpack(right)?)?;
            scaled.mul(&quotient)?.neg()
        })?;
        Ok([Some(scaled), to_right].into_iter().collect())
    })
}

/// Returns the formula for the gradients of a sum with `alpha` times another tensor.
pub(super) fn scaled_sum(alpha: Scalar) -> impl Fn(&Context<'_>) -> Result<Grads> {
    move |context| {
        let grad = context.grad(0)?;
        Ok([Some(grad.clone()), context.give(1, || grad.mul(alpha))?].into_iter().collect())
    }
}

/// Returns the formula for the gradients of [`lerp`](Tensor::lerp).
pub(super) fn way(
    saver: &mut Saver,
    [from, to, weight]: [&Tensor; 3],
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let needs = saver.needs(2);
    let from = saver.save_if(needs, from)?;
    let to = saver.save_if(needs, to)?;
    let weight = saver.save(weight)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let weight = context.unpack(weight)?;
        let to_start = context.give(0, || grad.sub(&grad.mul(&weight)?))?;
        let to_end = context.give(1, || grad.mul(&weight))?;
        let to_weight = context.give(2, || grad.mul(&context.unpack(to)?.sub(&context.unpack(from)?)?))?;
        Ok([to_start, to_end, to_weight].into_iter().collect())
    })
}

/// Returns the formula for the gradients of a sum with `factor` times a product.
pub(super) fn sum_with_product(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
    factor: Scalar,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let a = saver.save_if(saver.needs(2), a)?;
    let b = saver.save_if(saver.needs(1), b)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let to_a = context.give(1, || grad.mul(&context.unpack(b)?)?.mul(factor))?;
        let to_b = context.give(2, || grad.mul(&context.unpack(a)?)?.mul(factor))?;
        Ok([Some(grad), to_a, to_b].into_iter().collect())
    })
}

/// Returns the formula for the gradients of a sum with `factor` times a quotient.
pub(super) fn sum_with_quotient(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
    factor: Scalar,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let a = saver.save_if(saver.needs(2), a)?;
    let b = saver.save(b)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let b = context.unpack(b)?;
        let scaled = grad.mul(&b.reciprocal()?.mul(factor)?)?;
        let to_b = context.give(2, || scaled.mul(&context.unpack(a)?.div(&b)?)?.neg())?;
        Ok([Some(grad), Some(scaled), to_b].into_iter().collect())
    })
}

/// Checks that a factor with a fraction scales no integers.
pub(super) fn check_factor(op: &'static str, factor: Scalar, dtype: DType) -> Result<()> {
    if matches!(factor, Scalar::Float(_)) && !dtype.is_floating() {
        let expected = "a factor with a fraction needs tensors of a floating dtype: convert one with to_dtype()";
        return Err(TensorError::DType { op, found: dtype, expected: expected.to_owned() });
    }
    Ok(())
}
