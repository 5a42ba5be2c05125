//! Sums, differences, products and quotients.

use tenure_core::DType;

use super::pointwise::{self, Binary};
use crate::autograd::{Context, Grads, Saver, attach};
use crate::cpu;
use crate::{Elementwise, Kernel, Result, Tensor, Value};

pub(super) static ADD: Binary = Kernel::new("add", &[cpu::binary::ADD]);
pub(super) static SUB: Binary = Kernel::new("sub", &[cpu::binary::SUB]);
pub(super) static MUL: Binary = Kernel::new("mul", &[cpu::binary::MUL]);
pub(super) static DIV: Binary = Kernel::new("div", &[cpu::binary::DIV]);

impl Tensor {
    /// The sum with a tensor or number, broadcast and promoted.
    ///
    /// # Errors
    /// Sizes that do not broadcast, `bool`, different devices.
    pub fn add<'a>(&self, other: impl Into<Value<'a>>) -> Result<Self> {
        let (a, b) = operands(self, other.into(), |dtype| dtype)?;
        attach(pointwise::binary(&ADD, &a, &b, a.dtype())?, "add", &[&a, &b], |_| Ok(sum))
    }

    /// Adds a tensor of the same dtype in place; nobody is told.
    pub(crate) fn add_raw(&self, other: &Self) -> Result<()> {
        let iter = Elementwise::new("add", &[self], &[self, other])?;
        ADD.find(self.device().kind(), self.dtype())?(&iter)
    }

    /// The difference to a tensor or number, broadcast and promoted.
    ///
    /// # Errors
    /// Sizes that do not broadcast, `bool`, different devices.
    pub fn sub<'a>(&self, other: impl Into<Value<'a>>) -> Result<Self> {
        let (a, b) = operands(self, other.into(), |dtype| dtype)?;
        attach(pointwise::binary(&SUB, &a, &b, a.dtype())?, "sub", &[&a, &b], |_| Ok(difference))
    }

    /// The product with a tensor or number, broadcast and promoted.
    ///
    /// # Errors
    /// Sizes that do not broadcast, `bool`, different devices.
    pub fn mul<'a>(&self, other: impl Into<Value<'a>>) -> Result<Self> {
        let (a, b) = operands(self, other.into(), |dtype| dtype)?;
        attach(pointwise::binary(&MUL, &a, &b, a.dtype())?, "mul", &[&a, &b], |saver| product(saver, &a, &b))
    }

    /// The quotient by a tensor or number, broadcast and promoted; integers are divided as floats.
    ///
    /// # Errors
    /// Sizes that do not broadcast, different devices.
    pub fn div<'a>(&self, other: impl Into<Value<'a>>) -> Result<Self> {
        let (a, b) = operands(self, other.into(), floating)?;
        attach(pointwise::binary(&DIV, &a, &b, a.dtype())?, "div", &[&a, &b], |saver| quotient(saver, &a, &b))
    }

    /// With the other sign.
    ///
    /// # Errors
    /// `bool`.
    pub fn neg(&self) -> Result<Self> {
        self.mul(-1)
    }
}

/// The gradients of a sum.
pub(super) fn sum(context: &Context<'_>) -> Result<Grads> {
    let grad = context.grad(0)?;
    Ok([Some(grad.clone()), Some(grad)].into_iter().collect())
}

/// The gradients of a difference.
pub(super) fn difference(context: &Context<'_>) -> Result<Grads> {
    let grad = context.grad(0)?;
    Ok([Some(grad.clone()), context.give(1, || grad.neg())?].into_iter().collect())
}

/// The gradients of a product.
pub(super) fn product(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let (left, right) = (saver.save_if(saver.needs(1), a)?, saver.save_if(saver.needs(0), b)?);
    Ok(move |context: &Context<'_>| {
        let grad = context.grad(0)?;
        let to_left = context.give(0, || grad.mul(&context.unpack(right)?))?;
        let to_right = context.give(1, || grad.mul(&context.unpack(left)?))?;
        Ok([to_left, to_right].into_iter().collect())
    })
}

/// The gradients of a quotient.
pub(super) fn quotient(
    saver: &mut Saver,
    a: &Tensor,
    b: &Tensor,
) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + use<>> {
    let (left, right) = (saver.save_if(saver.needs(1), a)?, saver.save(b)?);
    Ok(move |context: &Context<'_>| {
        let scaled = context.grad(0)?.div(&context.unpack(right)?)?;
        let to_right = context.give(1, || {
            let quotient = context.unpack(left)?.div(&context.unpack(right)?)?;
            scaled.mul(&quotient)?.neg()
        })?;
        Ok([Some(scaled), to_right].into_iter().collect())
    })
}

/// Both operands in the dtype that they are computed in.
fn operands(a: &Tensor, b: Value<'_>, dtype: impl Fn(DType) -> DType) -> Result<(Tensor, Tensor)> {
    let dtype = dtype(pointwise::promoted(&[a.into(), b]));
    Ok((a.to_dtype(dtype)?, pointwise::operand(b, dtype)?))
}

/// What quotients and analysis are computed in: PyTorch's default where it would be an integer.
pub(crate) fn floating(dtype: DType) -> DType {
    if dtype.is_floating() { dtype } else { DType::F32 }
}
