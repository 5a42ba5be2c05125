//! Sums over dimensions.

use super::view::signed;
use crate::autograd::{Context, attach};
use crate::cpu;
use crate::cpu::reduce::Reduce;
use crate::{Kernel, Result, Tensor};

static SUM: Kernel<Reduce> = Kernel::new("sum", &[cpu::reduce::SUM]);

impl Tensor {
    /// The sum of all elements.
    ///
    /// # Errors
    /// No memory.
    pub fn sum_all(&self) -> Result<Self> {
        self.sum_to(&[])
    }

    /// Sums over what was broadcast from `sizes`.
    ///
    /// # Errors
    /// `sizes` do not broadcast to these.
    pub fn sum_to(&self, sizes: &[usize]) -> Result<Self> {
        let mut kept = vec![1; self.rank() - sizes.len()];
        kept.extend(sizes);
        let out = Self::empty(&kept, self.dtype(), self.device())?;
        let dense = crate::autograd::no_grad(|| self.contiguous())?;
        SUM.find(self.device().kind(), self.dtype())?(&out, &dense)?;
        let from = signed(self.sizes());
        let out = attach(out, "sum", &[self], |_| {
            Ok(move |context: &Context<'_>| Ok([Some(context.grad(0)?.expand(&from)?)].into_iter().collect()))
        })?;
        out.view(&signed(sizes))
    }
}
