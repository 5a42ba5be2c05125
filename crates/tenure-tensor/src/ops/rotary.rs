//! Rotary positions.

use super::join::cat;
use super::pointwise::{broadcast, output};
use crate::autograd::{Context, attach, is_grad_enabled};
use crate::cpu::rotary::Rotate;
use crate::{Elementwise, Kernel, Result, Tensor, TensorError, cpu, cuda};

static ROTATE: Kernel<Rotate> = Kernel::new("rotary", &[cpu::rotary::ROTATE, cuda::rotary::ROTATE]);

impl Tensor {
    /// Each number in the first half of the last dimension and its partner in the second turned by an angle, whose cosine
    /// and sine are given for each pair, broadcast to the half's sizes (Su et al., 2021). What Hugging Face's
    /// `apply_rotary_pos_emb` does with both twice in a row, rounded once.
    ///
    /// # Errors
    /// An integer dtype; an odd last dimension; sizes that do not broadcast to those of a half.
    pub fn rotary(&self, cos: &Self, sin: &Self) -> Result<Self> {
        const OP: &str = "rotary";
        let size = self.sizes().last().copied().unwrap_or(1);
        if !self.dtype().is_floating() || size % 2 != 0 {
            let reason =
                format!("pairs of floating numbers are needed, got {} of sizes {:?}", self.dtype(), self.sizes());
            return Err(TensorError::shape(OP, reason));
        }
        let mut half = self.sizes().to_vec();
        half[self.rank() - 1] = size / 2;
        for angles in [cos, sin] {
            if broadcast(OP, &half, angles.sizes())?[..] != half[..] {
                let reason = format!("sizes {:?} do not broadcast to {half:?}, the pairs", angles.sizes());
                return Err(TensorError::shape(OP, reason));
            }
        }
        let is_plain = |angles: &Self| angles.dtype() == self.dtype() && !(is_grad_enabled() && angles.requires_grad());
        if is_plain(cos) && is_plain(sin) {
            return self.turned(cos, sin, 1.0);
        }
        let [a, b] = [0, 1].map(|number| self.narrow(-1, number * size / 2, size / 2));
        let (a, b) = (a?, b?);
        let parts = [a.mul(cos)?.sub(&b.mul(sin)?)?, b.mul(cos)?.add(&a.mul(sin)?)?];
        cat(&[&parts[0], &parts[1]], -1)
    }

    /// Turned forwards or backwards, by the `sign` of the angles. Their gradient is that of no angle.
    fn turned(&self, cos: &Self, sin: &Self, sign: f64) -> Result<Self> {
        let out = output(self.sizes(), self.dtype(), &[self])?;
        let (dim, size) = (self.rank() - 1, self.sizes()[self.rank() - 1] / 2);
        let half = |tensor: &Self, number: usize| {
            Ok::<_, TensorError>(tensor.alias(tensor.layout().narrow(dim, number * size, size)?))
        };
        let rotate = ROTATE.find(self.device().kind(), self.dtype())?;
        for (number, sign) in [(0, -sign), (1, sign)] {
            let (to, own, partner) = (half(&out, number)?, half(self, number)?, half(self, 1 - number)?);
            rotate(&Elementwise::new("rotary", &[&to], &[&own, cos, &partner, sin])?, sign)?;
        }
        attach(out, "rotary", &[self], |saver| {
            let (cos, sin) = (saver.save(cos)?, saver.save(sin)?);
            Ok(move |context: &Context<'_>| {
                let turned = context.grad(0)?.turned(&context.unpack(cos)?, &context.unpack(sin)?, -sign)?;
                Ok([Some(turned)].into_iter().collect())
            })
        })
    }
}
