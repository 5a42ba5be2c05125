//! Operations that write to their tensor.
//!
//! Each is [`attach_in_place`] of a write and of the formula of the operation that is not in place.

use tenure_core::DType;

use super::arithmetic::{self, ADD, DIV, MUL, SUB};
use super::pointwise::{self, Binary};
use crate::autograd::{Context, Grads, Saver, attach_in_place};
use crate::{Elementwise, Result, Scalar, Tensor, TensorError, Value};

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
            if dtype == self.dtype() {
                let iter = Elementwise::new(op, &[self], &[self, &other])?;
                return kernel.find(self.device().kind(), dtype)?(&iter);
            }
            self.copy_raw(&pointwise::run(kernel, dtype, dtype, &[self, &other], |kernel, iter| kernel(iter))?)
        };
        attach_in_place(self, op, &[self, &other], write, |saver| save(saver, &other))
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
