//! Operations that write to their tensor in place.
//!
//! Each is an [`attach_in_place`] of a write and of the gradient formula of the same operation that is not in place.

use tenure_core::DType;

use super::arithmetic::{self, ADD, ADD_SCALED, ADDCDIV, ADDCMUL, DIV, LERP, MUL, SUB};
use super::pointwise::{self, Binary, Pair};
use super::select::{self, CLAMP, WHERE};
use crate::autograd::{Context, Grads, Saver, attach_in_place};
use crate::cpu::compare::Clamp;
use crate::cpu::pointwise::Scaled;
use crate::operation::operations;
use crate::{Elementwise, Kernel, Result, Scalar, Tensor, TensorError, Value, transfer};

operations! {
    static OPERATIONS;
    Method for all {
        /// Adds a tensor or number, broadcast and converted, to this tensor in place.
        ///
        /// # Errors
        /// Sizes that do not broadcast to this tensor's, a result whose dtype does not convert to this one (floats to
        /// integers), elements that share memory, a leaf that requires a gradient outside `no_grad`.
        add_(input: Tensor, other: Value) -> ();

        /// Subtracts a tensor or number, broadcast and converted, from this tensor in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        sub_(input: Tensor, other: Value) -> ();

        /// Multiplies this tensor by a tensor or number, broadcast and converted, in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        mul_(input: Tensor, other: Value) -> ();

        /// Divides this tensor by a tensor or number, broadcast and converted, in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_); this is an integer tensor.
        div_(input: Tensor, other: Value) -> ();

        /// Adds `alpha` times another tensor in place, in one pass. PyTorch's `add_(other, alpha=alpha)`.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        #[name(add_)]
        add_scaled_(input: Tensor, other: Tensor, alpha: Scalar) -> ();

        /// Adds `value` · `tensor1` · `tensor2` in place, in one pass.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        addcmul_(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = Scalar::Int(1)) -> ();

        /// Adds `value` · `tensor1` / `tensor2` in place, in one pass.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        addcdiv_(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Scalar = Scalar::Int(1)) -> ();

        /// Interpolates linearly towards `end` in place: a `weight` of 0 changes nothing, a weight of 1 gives `end`.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        lerp_(input: Tensor, end: Tensor, weight: Value) -> ();

        /// Sets every element to `value`.
        ///
        /// # Errors
        /// A number that does not fit an integer dtype, elements that share memory, a leaf that requires a gradient
        /// outside
        /// `no_grad`.
        fill_(input: Tensor, value: Scalar) -> ();

        /// Sets every element to 0.
        ///
        /// # Errors
        /// The errors of [`fill_`](Self::fill_).
        zero_(input: Tensor) -> ();

        /// Copies the elements of `src`, which may be on any device, broadcast and converted, into this tensor.
        ///
        /// ```
        /// use tenure_tensor::{DType, Device, Tensor};
        ///
        /// let table = Tensor::zeros(&[2, 3], DType::F32, Device::CPU)?;
        /// let row = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], &[3])?.requires_grad_(true)?;
        /// table.transpose(0, 1)?.copy_(&row.view(&[3, 1])?)?;
        /// table.sum_all()?.backward()?;
        /// assert_eq!(row.grad().expect("a leaf").to_vec::<f32>()?, [2.0, 2.0, 2.0]);
        /// # Ok::<(), tenure_tensor::TensorError>(())
        /// ```
        ///
        /// # Errors
        /// Sizes that do not broadcast to this tensor's, elements that share memory, a leaf that requires a gradient
        /// outside `no_grad`.
        copy_(input: Tensor, src: Tensor) -> ();

        /// Sets elements to `value` where `mask`, of `bool` and broadcast, is true.
        ///
        /// # Errors
        /// The mask is not `bool`; a number does not fit an integer dtype; the errors of [`add_`](Self::add_).
        masked_fill_(input: Tensor, mask: Tensor, value: Scalar) -> ();

        /// Limits each element to the range from `min` to `max` in place; if `min` is larger, sets it to `max`.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        clamp_(input: Tensor, min: Value, max: Value) -> ();
    }
    Method for front_ends {
        /// Adds `alpha` times a number in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Tensor::add_); a factor with a fraction for integers.
        #[name(add_)]
        add_scaled_number_(input: Tensor, other: Scalar, alpha: Scalar) -> () = |input: &Tensor, other, alpha| {
            input.add_(arithmetic::scaled_number("add_", input, other, alpha)?)
        };

        /// Subtracts `alpha` times another tensor in place, in one pass.
        ///
        /// # Errors
        /// The errors of [`add_`](Tensor::add_).
        #[name(sub_)]
        sub_scaled_(input: Tensor, other: Tensor, alpha: Scalar) -> () = |input: &Tensor, other, alpha| {
            input.add_scaled_(other, arithmetic::negative(alpha, input.dtype().is_floating()))
        };

        /// Subtracts `alpha` times a number in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Tensor::add_); a factor with a fraction for integers.
        #[name(sub_)]
        sub_scaled_number_(input: Tensor, other: Scalar, alpha: Scalar) -> () = |input: &Tensor, other, alpha| {
            input.sub_(arithmetic::scaled_number("sub_", input, other, alpha)?)
        };

        /// Divides this tensor in place, and rounds the quotient: down if `rounding_mode` is `floor`, towards zero if it
        /// is `trunc`, and not if it is none.
        ///
        /// # Errors
        /// Another `rounding_mode`; the errors of [`add_`](Tensor::add_); integers without a `rounding_mode`.
        #[name(div_)]
        div_rounded_(input: Tensor, other: Value, rounding_mode: Option<Text>) -> () = |input: &Tensor, other, mode: Option<&str>| {
            if mode.is_none() {
                return input.div_(other);
            }
            let rounded = arithmetic::div_rounded(input, other, mode)?;
            input.check_stores("div_", rounded.dtype())?;
            input.copy_(&rounded)
        };

        /// Limits each element to at least `min` in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Tensor::add_).
        #[name(clamp_)]
        clamp_from_(input: Tensor, min: Value) -> ();

        /// Limits each element to at most `max` in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Tensor::add_).
        #[name(clamp_)]
        clamp_to_(input: Tensor, max: Value) -> ();
    }
}

fn add_(input: &Tensor, other: Value<'_>) -> Result<()> {
    input.computed("add_", &ADD, other, |dtype| dtype, |_, _| Ok(arithmetic::sum))
}

fn sub_(input: &Tensor, other: Value<'_>) -> Result<()> {
    input.computed("sub_", &SUB, other, |dtype| dtype, |_, _| Ok(arithmetic::difference))
}

fn mul_(input: &Tensor, other: Value<'_>) -> Result<()> {
    input.computed(
        "mul_",
        &MUL,
        other,
        |dtype| dtype,
        |saver: &mut Saver, other: &Tensor| arithmetic::product(saver, input, other),
    )
}

fn div_(input: &Tensor, other: Value<'_>) -> Result<()> {
    input.computed("div_", &DIV, other, pointwise::floating, |saver: &mut Saver, other: &Tensor| {
        arithmetic::quotient(saver, input, other)
    })
}

fn add_scaled_(input: &Tensor, other: &Tensor, alpha: Scalar) -> Result<()> {
    input.scaled("add_scaled_", &ADD_SCALED, &[input, other], alpha, |_| Ok(arithmetic::scaled_sum(alpha)))
}

fn addcmul_(input: &Tensor, a: &Tensor, b: &Tensor, factor: Scalar) -> Result<()> {
    input.scaled("addcmul_", &ADDCMUL, &[input, a, b], factor, |saver: &mut Saver| {
        arithmetic::sum_with_product(saver, a, b, factor)
    })
}

fn addcdiv_(input: &Tensor, a: &Tensor, b: &Tensor, factor: Scalar) -> Result<()> {
    input.scaled("addcdiv_", &ADDCDIV, &[input, a, b], factor, |saver: &mut Saver| {
        arithmetic::sum_with_quotient(saver, a, b, factor)
    })
}

fn lerp_(input: &Tensor, end: &Tensor, weight: Value<'_>) -> Result<()> {
    let dtype = pointwise::promoted(&[input.into(), end.into(), weight])?;
    input.check_stores("lerp_", dtype)?;
    let weight = pointwise::tensor("lerp_", weight, dtype)?;
    let inputs = [input, end, &*weight];
    attach_in_place(
        input,
        "lerp_",
        &inputs,
        || pointwise::write("lerp_", &LERP, dtype, input, &inputs, |kernel, iter| kernel(iter)),
        |saver| arithmetic::way(saver, inputs),
    )
}

fn fill_(input: &Tensor, value: Scalar) -> Result<()> {
    attach_in_place(
        input,
        "fill_",
        &[input],
        || input.fill_raw("fill_", value),
        |_| Ok(|context: &Context<'_>| Ok([context.zeros(0)?].into_iter().collect())),
    )
}

fn zero_(input: &Tensor) -> Result<()> {
    input.fill_(0)
}

fn copy_(input: &Tensor, source: &Tensor) -> Result<()> {
    if input.is_same(source) {
        return Ok(());
    }
    pointwise::check_writes("copy_", input, source.sizes())?;
    let back = source.device();
    let is_here = back == input.device() || (source.rank() == 0 && back.is_cpu());
    attach_in_place(
        input,
        "copy_",
        &[input, source],
        || if is_here { input.copy_raw(source) } else { transfer::copy_across(input, source) },
        |_| {
            Ok(move |context: &Context<'_>| {
                let to_source = if is_here { context.grad(0)? } else { context.grad(0)?.to_device(back)? };
                Ok([context.zeros(0)?, Some(to_source)].into_iter().collect())
            })
        },
    )
}

fn masked_fill_(input: &Tensor, mask: &Tensor, value: Scalar) -> Result<()> {
    value.check_fits("masked_fill_", input.dtype())?;
    let value = Value::Number(value);
    input.check_stores("masked_fill_", pointwise::promoted(&[input.into(), value])?)?;
    let value = pointwise::tensor("masked_fill_", value, input.dtype())?;
    select::check_condition("masked_fill_", mask)?;
    let inputs = [mask, &value, input];
    attach_in_place(
        input,
        "masked_fill_",
        &[&value, input],
        || pointwise::write("masked_fill_", &WHERE, input.dtype(), input, &inputs, |kernel, iter| kernel(iter)),
        |saver| select::chosen(saver, mask),
    )
}

fn clamp_(input: &Tensor, min: Value<'_>, max: Value<'_>) -> Result<()> {
    match (min, max) {
        (Value::Number(min), Value::Number(max)) => input.clamp_numbers_(Some(min), Some(max)),
        (min, max) => {
            clamp_from_(input, min)?;
            clamp_to_(input, max)
        }
    }
}

fn clamp_from_(input: &Tensor, min: Value<'_>) -> Result<()> {
    match min {
        Value::Number(min) => input.clamp_numbers_(Some(min), None),
        Value::Tensor(min) => input.clamp_tensor_(min, |x, min| x.clamp_min(min)),
    }
}

fn clamp_to_(input: &Tensor, max: Value<'_>) -> Result<()> {
    match max {
        Value::Number(max) => input.clamp_numbers_(None, Some(max)),
        Value::Tensor(max) => input.clamp_tensor_(max, |x, max| x.clamp_max(max)),
    }
}

impl Tensor {
    /// Writes a kernel's result on this tensor and another operand. `compute` maps the dtype that they promote to, to
    /// the one that the kernel computes in.
    fn computed<F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static>(
        &self,
        op: &'static str,
        kernel: &'static Binary,
        other: Value<'_>,
        compute: impl Fn(DType) -> DType,
        save: impl FnOnce(&mut Saver, &Self) -> Result<F>,
    ) -> Result<()> {
        let pair = Pair::new(op, self, other, compute)?;
        self.check_stores(op, pair.dtype)?;
        attach_in_place(
            self,
            op,
            &[self, &pair.b],
            || pointwise::write(op, kernel, pair.dtype, self, &[self, &pair.b], |kernel, iter| kernel(iter)),
            |saver| save(saver, &pair.b),
        )
    }

    /// Writes a kernel's result on these inputs and a number.
    fn scaled<F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static>(
        &self,
        op: &'static str,
        kernel: &'static Kernel<Scaled>,
        inputs: &[&Self],
        factor: Scalar,
        save: impl FnOnce(&mut Saver) -> Result<F>,
    ) -> Result<()> {
        let operands: Vec<Value<'_>> = inputs.iter().map(|input| Value::from(*input)).collect();
        let dtype = pointwise::promoted(&operands)?;
        arithmetic::check_factor(op, factor, dtype)?;
        self.check_stores(op, dtype)?;
        attach_in_place(
            self,
            op,
            inputs,
            || pointwise::write(op, kernel, dtype, self, inputs, |kernel, iter| kernel(iter, factor)),
            save,
        )
    }

    fn clamp_numbers_(&self, min: Option<Scalar>, max: Option<Scalar>) -> Result<()> {
        let limits = min.iter().chain(&max);
        let operands: Vec<Value<'_>> =
            std::iter::once(self.into()).chain(limits.clone().map(|limit| Value::Number(*limit))).collect();
        let dtype = pointwise::promoted(&operands)?;
        self.check_stores("clamp_", dtype)?;
        limits.clone().try_for_each(|limit| limit.check_limits("clamp_", dtype))?;
        attach_in_place(
            self,
            "clamp_",
            &[self],
            || {
                pointwise::write("clamp_", &CLAMP, dtype, self, &[self], |kernel: Clamp, iter: &Elementwise<'_>| {
                    kernel(iter, min, max)
                })
            },
            |saver| select::clamped(saver, self, (min, max)),
        )
    }

    /// Limits the elements in place as `which` does.
    fn clamp_tensor_(&self, limit: &Self, which: impl Fn(&Self, &Self) -> Result<Self>) -> Result<()> {
        // The formula of the gradient needs the elements as they were.
        let is_recorded = self.requires_grad() || limit.requires_grad();
        let before = if is_recorded { self.copy()? } else { self.clone() };
        let limited = which(&before, limit)?;
        self.check_stores("clamp_", limited.dtype())?;
        self.copy_(&limited)
    }

    /// Checks that a result of `dtype` can be written to this tensor, by PyTorch's rules.
    pub(super) fn check_stores(&self, op: &'static str, dtype: DType) -> Result<()> {
        let own = self.dtype();
        if (own.is_floating() || !dtype.is_floating()) && (own != DType::Bool || dtype == DType::Bool) {
            return Ok(());
        }
        let expected = format!("the result is {dtype}, which it cannot hold: use the operation that is not in place");
        Err(TensorError::DType { op, found: own, expected })
    }
}
