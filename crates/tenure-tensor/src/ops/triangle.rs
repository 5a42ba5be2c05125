//! Triangular matrices: zeros on one side of a diagonal.

use crate::autograd::{Context, attach};
use crate::cpu;
use crate::cpu::index::Triangle;
use crate::{Kernel, Result, Tensor, TensorError, cuda};

static TRIANGLE: Kernel<Triangle> = Kernel::new("triangle", &[cpu::index::TRIANGLE, cuda::index::TRIANGLE]);

impl Tensor {
    /// Returns the matrices of the last two dimensions with zeros above a diagonal: `diagonal` above the main one, or
    /// below it if it is negative.
    ///
    /// # Errors
    /// Fewer than two dimensions.
    pub fn tril(&self, diagonal: isize) -> Result<Self> {
        self.triangle("tril", diagonal, true)
    }

    /// Returns the matrices of the last two dimensions with zeros below a diagonal.
    ///
    /// # Errors
    /// Fewer than two dimensions.
    pub fn triu(&self, diagonal: isize) -> Result<Self> {
        self.triangle("triu", diagonal, false)
    }

    fn triangle(&self, op: &'static str, diagonal: isize, is_lower: bool) -> Result<Self> {
        if self.rank() < 2 {
            let reason = format!("at least two dimensions are needed, got sizes {:?}", self.sizes());
            return Err(TensorError::shape(op, reason));
        }
        let dense = self.contiguous()?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        TRIANGLE.find(self.device().kind(), self.dtype())?(&out, &dense, diagonal, is_lower)?;
        attach(out, op, &[&dense], |_| {
            Ok(move |context: &Context<'_>| {
                Ok([Some(context.grad(0)?.triangle(op, diagonal, is_lower)?)].into_iter().collect())
            })
        })
    }
}
