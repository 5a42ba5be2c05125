//! Selection by conditions, limits, and masks.

use smallvec::SmallVec;
use tenure_core::DType;

use super::activation::band_backward;
use super::index::nonzero_by_dim;
use super::pointwise;
use crate::autograd::{Context, Grads, Saver, attach};
use crate::cpu::activation::Band;
use crate::cpu::compare::{self as kernels, Clamp, NanToNum, Where};
use crate::observe::observed;
use crate::operation::{arguments, operations};
use crate::{Kernel, Result, Scalar, Tensor, TensorError, Value, cuda};

pub(super) static WHERE: Kernel<Where> = Kernel::new("where_", &[kernels::WHERE, cuda::compare::WHERE]);
pub(super) static CLAMP: Kernel<Clamp> = Kernel::new("clamp", &[kernels::CLAMP, cuda::compare::CLAMP]);
static NAN_TO_NUM: Kernel<NanToNum> = Kernel::new("nan_to_num", &[kernels::NAN_TO_NUM, cuda::compare::NAN_TO_NUM]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns a copy with `value` where `mask`, of `bool`, is true. Tensor and mask are broadcast. `value` is a
        /// number or a tensor of no dimensions.
        ///
        /// # Errors
        /// The mask is not `bool`, sizes do not broadcast, different devices, a value with dimensions, a number that
        /// does not fit an integer dtype.
        masked_fill(input: Tensor, mask: Tensor, value: Value) -> Tensor;

        /// Limits each element to the range from `min` to `max`; where `min` is larger, the result is `max`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, `bool`.
        clamp(input: Tensor, min: Value, max: Value) -> Tensor;

        /// Limits each element to at least `min`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, `bool`.
        clamp_min(input: Tensor, min: Value) -> Tensor;

        /// Limits each element to at most `max`.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, `bool`.
        clamp_max(input: Tensor, max: Value) -> Tensor;

        /// Replaces NaN by `nan`, and infinities by `posinf` and `neginf`: by default the largest and lowest numbers of
        /// the dtype. Integers stay as they are.
        ///
        /// # Errors
        /// No memory.
        nan_to_num(input: Tensor, nan: Float = 0.0, posinf: Option<Float> = None, neginf: Option<Float> = None) -> Tensor;
    }
    Function for front_ends {
        /// Limits each element to at least `min`: [`Tensor::clamp_min`].
        ///
        /// # Errors
        /// The errors of [`Tensor::clamp`].
        #[name(clamp)]
        clamp_from(input: Tensor, min: Value) -> Tensor = |input: &Tensor, min| input.clamp_min(min);

        /// Limits each element to at most `max`: [`Tensor::clamp_max`].
        ///
        /// # Errors
        /// The errors of [`Tensor::clamp`].
        #[name(clamp)]
        clamp_to(input: Tensor, max: Value) -> Tensor = |input: &Tensor, max| input.clamp_max(max);

        /// Selects elements of `input` where `condition`, of `bool`, is true, and of `other` elsewhere:
        /// [`Tensor::where_`].
        ///
        /// # Errors
        /// The condition is not `bool`, sizes do not broadcast, different devices.
        #[name(where)]
        where_(condition: Tensor, input: Value, other: Value) -> Tensor = |condition: &Tensor, input, other| {
            condition.where_(input, other)
        };

        /// Returns the indices of the nonzero elements of `condition`, as `int64`, one tensor for each dimension:
        /// `nonzero(as_tuple=True)`.
        ///
        /// # Errors
        /// No memory.
        #[name(where)]
        where_nonzero(condition: Tensor) -> Vec<Tensor> = nonzero_by_dim;
    }
}

fn masked_fill(input: &Tensor, mask: &Tensor, value: Value<'_>) -> Result<Tensor> {
    if let Value::Tensor(value) = value
        && value.rank() != 0
    {
        let reason = format!("the value must be a number or a tensor of no dimension, got sizes {:?}", value.sizes());
        return Err(TensorError::shape("masked_fill", reason));
    }
    if let Value::Number(number) = value {
        number.check_fits("masked_fill", input.dtype())?;
    }
    mask.choose("masked_fill", value, input.into(), input.dtype())
}

fn clamp(input: &Tensor, min: Value<'_>, max: Value<'_>) -> Result<Tensor> {
    match (min, max) {
        (Value::Number(min), Value::Number(max)) => input.clamp_numbers(Some(min), Some(max)),
        (min, max) => input.clamp_min(min)?.clamp_max(max),
    }
}

fn clamp_min(input: &Tensor, min: Value<'_>) -> Result<Tensor> {
    match min {
        Value::Number(min) => input.clamp_numbers(Some(min), None),
        Value::Tensor(min) => input.limited("clamp_min", min, |x, min| x.maximum(min), |x, min| x.ge(min)),
    }
}

fn clamp_max(input: &Tensor, max: Value<'_>) -> Result<Tensor> {
    match max {
        Value::Number(max) => input.clamp_numbers(None, Some(max)),
        Value::Tensor(max) => input.limited("clamp_max", max, |x, max| x.minimum(max), |x, max| x.le(max)),
    }
}

fn nan_to_num(input: &Tensor, nan: f64, above: Option<f64>, below: Option<f64>) -> Result<Tensor> {
    let largest = match input.dtype() {
        DType::F16 => f64::from(half::f16::MAX),
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        _ => return input.copy(),
    };
    let values = [nan, above.unwrap_or(largest), below.unwrap_or(-largest)];
    let dtype = input.dtype();
    let out = pointwise::run(&NAN_TO_NUM, dtype, dtype, &[input], move |kernel, iter| kernel(iter, values))?;
    attach(out, "nan_to_num", &[input], |saver| {
        let x = saver.save(input)?;
        Ok(move |context: &Context<'_>| {
            let gradient = context.unpack(x)?.isfinite()?.where_(&context.grad(0)?, 0)?;
            Ok([Some(gradient)].into_iter().collect())
        })
    })
}

impl Tensor {
    /// Selects `a` where this `bool` tensor is true, and `b` elsewhere. All are broadcast, `a` and `b` promoted.
    /// PyTorch's `where`.
    ///
    /// # Errors
    /// The condition is not `bool`, sizes do not broadcast, different devices.
    pub fn where_<'a>(&'a self, a: impl Into<Value<'a>>, b: impl Into<Value<'a>>) -> Result<Self> {
        let a = a.into();
        let b = b.into();
        observed(
            "where_",
            || arguments![self, a, b],
            || pointwise::promoted(&[a, b]).and_then(|dtype| self.choose("where_", a, b, dtype)),
        )
    }

    fn choose(&self, op: &'static str, a: Value<'_>, b: Value<'_>, dtype: DType) -> Result<Self> {
        check_condition(op, self)?;
        for value in [a, b] {
            if let Value::Number(number) = value {
                number.check_fits(op, dtype)?;
            }
        }
        let a = pointwise::tensor(op, a, dtype)?;
        let b = pointwise::tensor(op, b, dtype)?;
        let out = pointwise::run(&WHERE, dtype, dtype, &[self, &a, &b], |kernel, iter| kernel(iter))?;
        attach(out, op, &[&a, &b], |saver| chosen(saver, self))
    }

    fn clamp_numbers(&self, min: Option<Scalar>, max: Option<Scalar>) -> Result<Self> {
        let limits: SmallVec<[Value<'_>; 3]> =
            std::iter::once(self.into()).chain(min.into_iter().chain(max).map(Value::Number)).collect();
        let dtype = pointwise::promoted(&limits)?;
        min.iter().chain(&max).try_for_each(|limit| limit.check_limits("clamp", dtype))?;
        let out = pointwise::run(&CLAMP, dtype, dtype, &[self], move |kernel, iter| kernel(iter, min, max))?;
        attach(out, "clamp", &[self], |saver| clamped(saver, self, (min, max)))
    }

    /// Limits the elements by `which`. Where `keeps` is true, the gradient goes to this tensor, elsewhere to the limit.
    fn limited(
        &self,
        op: &'static str,
        limit: &Self,
        which: impl Fn(&Self, &Self) -> Result<Self>,
        keeps: impl Fn(&Self, &Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        attach(which(&self.detach(), &limit.detach())?, op, &[self, limit], |saver| {
            let x = saver.save(self)?;
            let limit = saver.save(limit)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let kept = keeps(&context.unpack(x)?, &context.unpack(limit)?)?;
                let to_x = context.give(0, || kept.where_(&grad, 0))?;
                let to_limit = context.give(1, || kept.where_(0, &grad))?;
                Ok([to_x, to_limit].into_iter().collect())
            })
        })
    }
}

pub(super) fn check_condition(op: &'static str, condition: &Tensor) -> Result<()> {
    if condition.dtype() == DType::Bool {
        return Ok(());
    }
    let expected = "the condition must be bool: compare with ne(0)".to_owned();
    Err(TensorError::DType { op, found: condition.dtype(), expected })
}

/// Returns the formula for the gradients of a choice: of the operand where the condition is true, and of the other.
pub(super) fn chosen(saver: &mut Saver, condition: &Tensor) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let condition = saver.save(condition)?;
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let condition = context.unpack(condition)?;
        let to_a = context.give(0, || condition.where_(&grad, 0))?;
        let to_b = context.give(1, || condition.where_(0, &grad))?;
        Ok([to_a, to_b].into_iter().collect())
    })
}

/// Returns the formula for the gradient of a limited tensor.
pub(super) fn clamped(
    saver: &mut Saver,
    x: &Tensor,
    (min, max): (Option<Scalar>, Option<Scalar>),
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let x = saver.save(x)?;
    let low = min.map_or(f64::NEG_INFINITY, Scalar::to_f64);
    let high = max.map_or(f64::INFINITY, Scalar::to_f64);
    let band = Band { low, high, inclusive: true, inside: 1.0, outside: 0.0 };
    Ok(move |context: &Context<'_>| {
        let gradient = band_backward(&context.grad(0)?, &context.unpack(x)?, band)?;
        Ok([Some(gradient)].into_iter().collect())
    })
}
