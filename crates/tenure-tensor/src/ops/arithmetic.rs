//! Elementwise arithmetic of two operands.

use tenure_core::DType;

use super::pointwise::{self, Binary, Pair, floating};
use crate::autograd::{Context, Grads, Saver, attach};
use crate::cpu::pointwise as kernels;
use crate::cpu::pointwise::Scaled;
use crate::cuda::pointwise as cuda;
use crate::operation::operations;
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

operations! {
    static OPERATIONS;
    Method for all {
        /// Adds a tensor or number; of `bool`, computes the logical or.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        add(input: Tensor, other: Value) -> Tensor;

        /// Computes the sum of this tensor and `alpha` times `other`, in one pass. PyTorch's `add(other, alpha=alpha)`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        #[name(add)]
        add_scaled(input: Tensor, other: Tensor, alpha: Scalar) -> Tensor;

        /// Subtracts a tensor or number.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        sub(input: Tensor, other: Value) -> Tensor;

        /// Multiplies by a tensor or number, element by element; of `bool`, computes the logical and.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        mul(input: Tensor, other: Value) -> Tensor;

        /// Divides by a tensor or number. Integers are divided as floats.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        div(input: Tensor, other: Value) -> Tensor;

        /// Computes the quotient, rounded down. Its gradient is zero. PyTorch's `div(rounding_mode="floor")`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        #[name(floor_divide)]
        div_floor(input: Tensor, other: Value) -> Tensor;

        /// Computes the quotient, rounded towards zero. Its gradient is zero. PyTorch's `div(rounding_mode="trunc")`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        div_trunc(input: Tensor, other: Value) -> Tensor;

        /// Computes the remainder with the divisor's sign: Python's `%`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        remainder(input: Tensor, other: Value) -> Tensor;

        /// Computes the remainder with the dividend's sign: C's `fmod`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        fmod(input: Tensor, other: Value) -> Tensor;

        /// Computes the larger element of each pair. NaN counts as the largest. Equal elements get half of the gradient
        /// each.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        maximum(input: Tensor, other: Value) -> Tensor;

        /// Computes the smaller element of each pair. NaN counts as the smallest. Equal elements get half of the
        /// gradient each.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        minimum(input: Tensor, other: Value) -> Tensor;

        /// Computes the angle of the point with the abscissa `other` and this tensor as ordinate, from -π to π. At the
        /// origin the gradient is zero.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        atan2(input: Tensor, other: Tensor) -> Tensor;

        /// Interpolates linearly from this tensor, at a weight of 0, to `end`, at a weight of 1.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        lerp(input: Tensor, end: Tensor, weight: Value) -> Tensor;

        /// Computes this tensor plus `value` · `tensor1` · `tensor2`, in one pass.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = Scalar::Int(1)) -> Tensor;

        /// Computes this tensor plus `value` · `tensor1` / `tensor2`, in one pass.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, dtypes that an operation does not support.
        addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = Scalar::Int(1)) -> Tensor;
    }
    Function for front_ends {
        /// Divides by a tensor or number, and rounds the quotient: down if `rounding_mode` is `floor`, towards zero if it is
        /// `trunc`, and not if it is none.
        ///
        /// # Errors
        /// Another `rounding_mode`; the errors of [`div`](crate::Tensor::div).
        #[name(div)]
        div_rounded(input: Tensor, other: Value, rounding_mode: Option<Text>) -> Tensor;

        /// Computes the difference of this tensor and `alpha` times `other`, in one pass.
        ///
        /// # Errors
        /// The errors of [`add_scaled`](crate::Tensor::add_scaled).
        #[name(sub)]
        sub_scaled(input: Tensor, other: Tensor, alpha: Scalar) -> Tensor = |input: &Tensor, other, alpha| {
            input.add_scaled(other, negative(alpha, input.dtype().is_floating()))
        };
    }
    Method for front_ends {
        /// Adds `alpha` times a number.
        ///
        /// # Errors
        /// A factor with a fraction for integers.
        #[name(add)]
        add_scaled_number(input: Tensor, other: Scalar, alpha: Scalar) -> Tensor = |input: &Tensor, other, alpha| {
            input.add(scaled_number("add", input, other, alpha)?)
        };

        /// Subtracts `alpha` times a number.
        ///
        /// # Errors
        /// A factor with a fraction for integers.
        #[name(sub)]
        sub_scaled_number(input: Tensor, other: Scalar, alpha: Scalar) -> Tensor = |input: &Tensor, other, alpha| {
            input.sub(scaled_number("sub", input, other, alpha)?)
        };
    }
}

/// Returns the product of a number, which is added to a tensor or subtracted from it, and its factor.
pub(super) fn scaled_number(op: &'static str, input: &Tensor, number: Scalar, factor: Scalar) -> Result<Scalar> {
    check_factor(op, factor, pointwise::promoted(&[input.into(), number.into()])?)?;
    Ok(number.times(factor))
}

pub(super) fn div_rounded(input: &Tensor, other: Value<'_>, mode: Option<&str>) -> Result<Tensor> {
    match mode {
        None => input.div(other),
        Some("floor") => input.div_floor(other),
        Some("trunc") => input.div_trunc(other),
        Some(mode) => {
            Err(TensorError::argument("div", format!("rounding_mode is \"floor\" or \"trunc\", not {mode:?}")))
        }
    }
}

/// Returns the number with the other sign. Integers wrap, unless the result `is_floating`.
pub(super) fn negative(number: Scalar, is_floating: bool) -> Scalar {
    match number {
        Scalar::Float(number) => Scalar::Float(-number),
        Scalar::Unsigned(number) if is_floating => Scalar::Float(-(number as f64)),
        number => Scalar::Int(number.to_i64().wrapping_neg()),
    }
}

fn add(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    let pair = Pair::new("add", input, other, |dtype| dtype)?;
    attach(pair.compute(&ADD, pair.dtype)?, "add", &[input, &pair.b], |_| Ok(sum))
}

fn add_scaled(input: &Tensor, other: &Tensor, alpha: Scalar) -> Result<Tensor> {
    let pair = Pair::new("add_scaled", input, other.into(), |dtype| dtype)?;
    check_factor("add_scaled", alpha, pair.dtype)?;
    let inputs = [input, other];
    let out = pointwise::run(&ADD_SCALED, pair.dtype, pair.dtype, &inputs, move |kernel, iter| kernel(iter, alpha))?;
    attach(out, "add_scaled", &inputs, |_| Ok(scaled_sum(alpha)))
}

fn sub(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    let pair = Pair::new("sub", input, other, |dtype| dtype)?;
    let is_truth = matches!(other, Value::Number(Scalar::Bool(_)));
    if is_truth || [input.dtype(), pair.b.dtype()].contains(&DType::Bool) {
        let expected = "truth values have no difference: use logical_xor(), or logical_not() to invert a mask";
        return Err(TensorError::DType { op: "sub", found: DType::Bool, expected: expected.to_owned() });
    }
    attach(pair.compute(&SUB, pair.dtype)?, "sub", &[input, &pair.b], |_| Ok(difference))
}

fn mul(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    let pair = Pair::new("mul", input, other, |dtype| dtype)?;
    attach(pair.compute(&MUL, pair.dtype)?, "mul", &[input, &pair.b], |saver| product(saver, input, &pair.b))
}

fn div(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    let pair = Pair::new("div", input, other, floating)?;
    attach(pair.compute(&DIV, pair.dtype)?, "div", &[input, &pair.b], |saver| quotient(saver, input, &pair.b))
}

fn div_floor(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.rounded_quotient(&DIV_FLOOR, other)
}

fn div_trunc(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.rounded_quotient(&DIV_TRUNC, other)
}

fn remainder(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.rest(&REMAINDER, other, |a, b| a.div_floor(b))
}

fn fmod(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.rest(&FMOD, other, |a, b| a.div_trunc(b))
}

fn maximum(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.extreme(&MAXIMUM, other, |a, b| a.lt(b))
}

fn minimum(input: &Tensor, other: Value<'_>) -> Result<Tensor> {
    input.extreme(&MINIMUM, other, |a, b| a.gt(b))
}

fn atan2(input: &Tensor, x: &Tensor) -> Result<Tensor> {
    let pair = Pair::new("atan2", input, x.into(), floating)?;
    attach(pair.compute(&ATAN2, pair.dtype)?, "atan2", &[input, x], |saver| {
        let y = saver.save(input)?;
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

fn lerp(input: &Tensor, end: &Tensor, weight: Value<'_>) -> Result<Tensor> {
    let dtype = pointwise::promoted(&[input.into(), end.into(), weight])?;
    let weight = pointwise::tensor("lerp", weight, dtype)?;
    let inputs = [input, end, &*weight];
    let out = pointwise::run(&LERP, dtype, dtype, &inputs, |kernel, iter| kernel(iter))?;
    attach(out, "lerp", &inputs, |saver| way(saver, inputs))
}

fn addcmul(input: &Tensor, a: &Tensor, b: &Tensor, factor: Scalar) -> Result<Tensor> {
    let inputs = [input, a, b];
    let dtype = pointwise::promoted(&inputs.map(Value::from))?;
    check_factor("addcmul", factor, dtype)?;
    let out = pointwise::run(&ADDCMUL, dtype, dtype, &inputs, move |kernel, iter| kernel(iter, factor))?;
    attach(out, "addcmul", &inputs, |saver| sum_with_product(saver, a, b, factor))
}

fn addcdiv(input: &Tensor, a: &Tensor, b: &Tensor, factor: Scalar) -> Result<Tensor> {
    let inputs = [input, a, b];
    let dtype = pointwise::promoted(&inputs.map(Value::from))?;
    let out = pointwise::run(&ADDCDIV, dtype, dtype, &inputs, move |kernel, iter| kernel(iter, factor))?;
    attach(out, "addcdiv", &inputs, |saver| sum_with_quotient(saver, a, b, factor))
}

impl Tensor {
    /// Adds a tensor of the same dtype in place. It bumps no version and records no gradient.
    pub(crate) fn add_raw(&self, other: &Self) -> Result<()> {
        let iter = Elementwise::new("add", &[self], &[self, other])?;
        ADD.find(self.device().kind(), self.dtype())?(&iter)
    }

    fn rounded_quotient(&self, kernel: &'static Binary, other: Value<'_>) -> Result<Self> {
        let pair = Pair::new(kernel.name(), self, other, |dtype| dtype)?;
        attach(pair.compute(kernel, pair.dtype)?, kernel.name(), &[self, &pair.b], |_| {
            Ok(|context: &Context<'_>| Ok([context.zeros(0)?, context.zeros(1)?].into_iter().collect()))
        })
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

    fn extreme(
        &self,
        kernel: &'static Binary,
        other: Value<'_>,
        loses: impl Fn(&Self, &Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let pair = Pair::new(kernel.name(), self, other, |dtype| dtype)?;
        if let Value::Number(number) = other {
            number.check_holds(kernel.name(), pair.dtype)?;
        }
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
