//! Operations that write to their tensor.
//!
//! Each is [`attach_in_place`] of a write and of the formula of the operation that is not in place.

use smallvec::SmallVec;
use tenure_core::DType;

use super::arithmetic::{self, ADD, ADD_SCALED, ADDCDIV, ADDCMUL, DIV, LERP, MUL, SUB};
use super::pointwise::{self, Binary};
use crate::autograd::{Context, Grads, Saver, attach_in_place};
use crate::cpu::binary::{self, Scaled};
use crate::{Elementwise, Kernel, Result, Scalar, Tensor, TensorError, Value};

impl Tensor {
    /// Adds a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// Sizes that do not broadcast to these, a result of a dtype that does not convert to this one (floats to integers),
    /// elements that share memory, a leaf that requires a gradient outside `no_grad`.
    pub fn add_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed("add_", &ADD, other.into(), |dtype| dtype, |_, _| Ok(arithmetic::sum))
    }

    /// Subtracts a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn sub_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        self.computed("sub_", &SUB, other.into(), |dtype| dtype, |_, _| Ok(arithmetic::difference))
    }

    /// Multiplies by a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn mul_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        let save = |saver: &mut Saver, other: &Self| arithmetic::product(saver, self, other);
        self.computed("mul_", &MUL, other.into(), |dtype| dtype, save)
    }

    /// Divides by a tensor or number, broadcast and converted.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_); this is an integer tensor.
    pub fn div_<'a>(&self, other: impl Into<Value<'a>>) -> Result<()> {
        let save = |saver: &mut Saver, other: &Self| arithmetic::quotient(saver, self, other);
        self.computed("div_", &DIV, other.into(), pointwise::floating, save)
    }

    /// Adds `alpha` times another tensor, in one pass. PyTorch's `add_(other, alpha=alpha)`.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn add_scaled_(&self, other: &Self, alpha: impl Into<Scalar>) -> Result<()> {
        let alpha = alpha.into();
        let call = |kernel: Scaled, iter: &Elementwise<'_>| kernel(iter, alpha);
        self.fused("add_scaled_", &ADD_SCALED, Some(alpha), &[other], call, |_| Ok(arithmetic::scaled_sum(alpha)))
    }

    /// Adds `factor` · `a` · `b`, in one pass.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn addcmul_(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<()> {
        let factor = factor.into();
        let call = |kernel: Scaled, iter: &Elementwise<'_>| kernel(iter, factor);
        let save = |saver: &mut Saver| arithmetic::sum_of_product(saver, a, b, factor);
        self.fused("addcmul_", &ADDCMUL, Some(factor), &[a, b], call, save)
    }

    /// Adds `factor` · `a` / `b`, in one pass.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn addcdiv_(&self, a: &Self, b: &Self, factor: impl Into<Scalar>) -> Result<()> {
        let factor = factor.into();
        let call = |kernel: Scaled, iter: &Elementwise<'_>| kernel(iter, factor);
        let save = |saver: &mut Saver| arithmetic::sum_of_quotient(saver, a, b, factor);
        self.fused("addcdiv_", &ADDCDIV, Some(factor), &[a, b], call, save)
    }

    /// Goes towards `end`, as far as `weight` says: 0 stays, 1 is there.
    ///
    /// # Errors
    /// Those of [`add_`](Self::add_).
    pub fn lerp_<'a>(&self, end: &Self, weight: impl Into<Value<'a>>) -> Result<()> {
        let weight = pointwise::tensor(weight.into(), self.dtype())?;
        let call = |kernel: binary::Binary, iter: &Elementwise<'_>| kernel(iter);
        let save = |saver: &mut Saver| arithmetic::towards(saver, self, end, &weight);
        self.fused("lerp_", &LERP, None, &[end, &weight], call, save)
    }

    /// Makes every element this number.
    ///
    /// # Errors
    /// Elements that share memory, a leaf that requires a gradient outside `no_grad`.
    pub fn fill_(&self, value: impl Into<Scalar>) -> Result<()> {
        let value = value.into();
        let formula = |_: &Context<'_>| Ok([None].into_iter().collect());
        attach_in_place(self, "fill_", &[self], || self.fill_raw(value), |_| Ok(formula))
    }

    /// Makes every element 0.
    ///
    /// # Errors
    /// Those of [`fill_`](Self::fill_).
    pub fn zero_(&self) -> Result<()> {
        self.fill_(0)
    }

    /// Makes the elements those of another tensor, broadcast and converted.
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
    /// Sizes that do not broadcast to these, elements that share memory, a leaf that requires a gradient outside
    /// `no_grad`.
    pub fn copy_(&self, source: &Self) -> Result<()> {
        if self.is_same(source) {
            return Ok(());
        }
        self.check_broadcast("copy_", source)?;
        let formula = |context: &Context<'_>| Ok([None, Some(context.grad(0)?)].into_iter().collect());
        attach_in_place(self, "copy_", &[self, source], || self.copy_raw(source), |_| Ok(formula))
    }

    /// What a kernel computes of this tensor and another operand, in `dtype` of their common one.
    fn computed<F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static>(
        &self,
        op: &'static str,
        kernel: &'static Binary,
        other: Value<'_>,
        dtype: impl Fn(DType) -> DType,
        save: impl FnOnce(&mut Saver, &Self) -> Result<F>,
    ) -> Result<()> {
        let dtype = dtype(pointwise::promoted(&[self.into(), other]));
        self.check_stores(op, dtype)?;
        let other = pointwise::tensor(other, dtype)?;
        self.check_broadcast(op, &other)?;
        let write = || {
            let iter = Elementwise::new(op, &[self], &[self, &other])?;
            kernel.find(self.device().kind(), dtype)?(&iter)
        };
        attach_in_place(self, op, &[self, &other], write, |saver| save(saver, &other))
    }

    /// What a kernel computes of this tensor and others, one of which may be a factor.
    fn fused<K: Copy, F: Fn(&Context<'_>) -> Result<Grads> + Send + Sync + 'static>(
        &self,
        op: &'static str,
        kernel: &'static Kernel<K>,
        factor: Option<Scalar>,
        others: &[&Self],
        call: impl FnOnce(K, &Elementwise<'_>) -> Result<()>,
        save: impl FnOnce(&mut Saver) -> Result<F>,
    ) -> Result<()> {
        let inputs: SmallVec<[&Self; 3]> = std::iter::once(self).chain(others.iter().copied()).collect();
        let values: SmallVec<[Value<'_>; 3]> = inputs.iter().map(|input| Value::from(*input)).collect();
        let dtype = pointwise::promoted(&values);
        self.check_stores(op, dtype)?;
        factor.map_or(Ok(()), |factor| arithmetic::check_factor(op, factor, dtype))?;
        others.iter().try_for_each(|other| self.check_broadcast(op, other))?;
        let write = || {
            let iter = Elementwise::new(op, &[self], &inputs)?;
            call(kernel.find(self.device().kind(), dtype)?, &iter)
        };
        attach_in_place(self, op, &inputs, write, save)
    }

    /// Checks that a result of `dtype` can be written to this tensor, as PyTorch allows it.
    pub(crate) fn check_stores(&self, op: &'static str, dtype: DType) -> Result<()> {
        let loses =
            |to: DType| (dtype.is_floating() && !to.is_floating()) || (dtype != DType::Bool && to == DType::Bool);
        if !loses(self.dtype()) {
            return Ok(());
        }
        let expected = format!(
            "the result is {dtype}, which {} cannot hold: use the operation that is not in place",
            self.dtype()
        );
        Err(TensorError::DType { op, found: self.dtype(), expected })
    }

    fn check_broadcast(&self, op: &'static str, source: &Self) -> Result<()> {
        if pointwise::broadcast(op, self.sizes(), source.sizes())?[..] == *self.sizes() {
            return Ok(());
        }
        let reason = format!("sizes {:?} do not broadcast to {:?}, which is written", source.sizes(), self.sizes());
        Err(TensorError::shape(op, reason))
    }
}
