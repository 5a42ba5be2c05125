//! Operations that write to their tensor in place.
//!
//! Each is an [`attach_in_place`] of a write and of the gradient formula of the same operation that is not in place.

use tenure_core::DType;

use super::arithmetic::{self, ADD, ADD_SCALED, ADDCDIV, ADDCMUL, DIV, LERP, MUL, SUB};
use super::pointwise::{self, Binary, Pair};
use super::select::{self, CLAMP, WHERE};
use crate::autograd::{Context, Grads, Saver, attach_in_place};
use crate::cpu::binary::Scaled;
use crate::cpu::select::Clamp;
use crate::{Elementwise, Kernel, Result, Scalar, Tensor, TensorError, Value, transfer};

impl Tensor {
    /// Adds a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// Sizes that do not broadcast to this tensor's, a result whose dtype does not convert to this one (floats to
    /// integers), elements that share memory, a leaf that requires a gradient outside `no_grad`.
    pub fn add_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed("add_", &ADD, other.into(), |dtype| dtype, |_, _| Ok(arithmetic::sum))
    }

    /// Subtracts a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn sub_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed("sub_", &SUB, other.into(), |dtype| dtype, |_, _| Ok(arithmetic::difference))
    }

    /// Multiplies by a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn mul_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed(
            "mul_",
            &MUL,
            other.into(),
            |dtype| dtype,
            |saver: &mut Saver, other: &Self| arithmetic::product(saver, self, other),
        )
    }

    /// Divides by a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_); this is an integer tensor.
    pub fn div_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed("div_", &DIV, other.into(), pointwise::floating, |saver: &mut Saver, other: &Self| {
            arithmetic::quotient(saver, self, other)
        })
    }

    /// Adds `alpha` times another tensor, in one pass. PyTorch's `add_(other, alpha=alpha)`.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn add_scaled_(&self, other: &Self, alpha: impl Into<Scalar>) -> Result<()> {
        let alpha = alpha.into();
        self.scaled("add_scaled_", &ADD_SCALED, &[self, other], alpha, |_| Ok(arithmetic::scaled_sum(alpha)))
    }

    /// Adds `factor` · `a` · `b`, in one pass.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn addcmul_(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<()> {
        let factor = factor.into();
        self.scaled("addcmul_", &ADDCMUL, &[self, a, b], factor, |saver: &mut Saver| {
            arithmetic::sum_with_product(saver, a, b, factor)
        })
    }

    /// Adds `factor` · `a` / `b`, in one pass.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn addcdiv_(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<()> {
        let factor = factor.into();
        self.scaled("addcdiv_", &ADDCDIV, &[self, a, b], factor, |saver: &mut Saver| {
            arithmetic::sum_with_quotient(saver, a, b, factor)
        })
    }

    /// Interpolates linearly towards `end`: a `weight` of 0 changes nothing, a weight of 1 gives `end`.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn lerp_<'a>(&'a self, end: &'a Self, weight: impl Into<Value<'a>>) -> Result<()> {
        let weight = weight.into();
        let dtype = pointwise::promoted(&[self.into(), end.into(), weight]);
        self.check_stores("lerp_", dtype)?;
        let weight = pointwise::tensor("lerp_", weight, dtype)?;
        let inputs = [self, end, &*weight];
        attach_in_place(
            self,
            "lerp_",
            &inputs,
            || pointwise::write("lerp_", &LERP, dtype, self, &inputs, |kernel, iter| kernel(iter)),
            |saver| arithmetic::way(saver, inputs),
        )
    }

    /// Sets every element to this number.
    ///
    /// # Errors
    /// A number that does not fit an integer dtype, elements that share memory, a leaf that requires a gradient outside
    /// `no_grad`.
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        attach_in_place(
            self,
            "fill_",
            &[self],
            || self.fill_raw("fill_", value),
            |_| Ok(|context: &Context<'_>| Ok([context.zeros(0)?].into_iter().collect())),
        )
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// The errors of [`fill_`](Self::fill_).
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0)
    }

    /// Copies the elements of another tensor, broadcast and converted, from any device.
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
    pub fn copy_(&self, source: &Self) -> Result<()> {
        if self.is_same(source) {
            return Ok(());
        }
        pointwise::check_writes("copy_", self, source.sizes())?;
        let back = source.device();
        let is_here = back == self.device() || (source.rank() == 0 && back.is_cpu());
        attach_in_place(
            self,
            "copy_",
            &[self, source],
            || if is_here { self.copy_raw(source) } else { transfer::copy_across(self, source) },
            |_| {
                Ok(move |context: &Context<'_>| {
                    let to_source = if is_here { context.grad(0)? } else { context.grad(0)?.to_device(back)? };
                    Ok([context.zeros(0)?, Some(to_source)].into_iter().collect())
                })
            },
        )
    }

    /// Sets elements to `value` where `mask`, of `bool` and broadcast, is true.
    ///
    /// # Errors
    /// The mask is not `bool`; a number does not fit an integer dtype; the errors of [`add_`](Self::add_).
    pub fn masked_fill_(&self, mask: &Self, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        value.check_fits("masked_fill_", self.dtype())?;
        let value = Value::Number(value);
        self.check_stores("masked_fill_", pointwise::promoted(&[self.into(), value]))?;
        let value = pointwise::tensor("masked_fill_", value, self.dtype())?;
        select::check_condition("masked_fill_", mask)?;
        let inputs = [mask, &value, self];
        let write =
            || pointwise::write("masked_fill_", &WHERE, self.dtype(), self, &inputs, |kernel, iter| kernel(iter));
        attach_in_place(self, "masked_fill_", &[&value, self], write, |saver| select::chosen(saver, mask))
    }

    /// Limits each element to `min` and `max`; to `max` where `min` is larger.
    ///
    /// # Errors
    /// The errors of [`add_`](Self::add_).
    pub fn clamp_(&self, min: impl Into<Scalar>, max: impl Into<Scalar>) -> Result<()> {
        let min = min.into();
        let max = max.into();
        let dtype = pointwise::promoted(&[self.into(), min.into(), max.into()]);
        self.check_stores("clamp_", dtype)?;
        let limits = (Some(min), Some(max));
        attach_in_place(
            self,
            "clamp_",
            &[self],
            || {
                pointwise::write("clamp_", &CLAMP, dtype, self, &[self], |kernel: Clamp, iter: &Elementwise<'_>| {
                    kernel(iter, limits.0, limits.1)
                })
            },
            |saver| select::clamped(saver, self, limits),
        )
    }

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
        let dtype = pointwise::promoted(&operands);
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
