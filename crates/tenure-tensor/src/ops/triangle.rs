//! Triangular matrices: zeros on one side of a diagonal.

use crate::autograd::{Context, attach};
use crate::cpu;
use crate::cpu::index::Triangle;
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, TensorError, cuda};

static TRIANGLE: Kernel<Triangle> = Kernel::new("triangle", &[cpu::index::TRIANGLE, cuda::index::TRIANGLE]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Returns the matrices of the last two dimensions with zeros above a diagonal: `diagonal` above the main one,
        /// or below it if it is negative.
        ///
        /// # Errors
        /// Fewer than two dimensions.
        tril(input: Tensor, diagonal: Int = 0) -> Tensor;

        /// Returns the matrices of the last two dimensions with zeros below a diagonal, given as for
        /// [`tril`](Self::tril).
        ///
        /// # Errors
        /// Fewer than two dimensions.
        triu(input: Tensor, diagonal: Int = 0) -> Tensor;
    }
}

fn tril(input: &Tensor, diagonal: isize) -> Result<Tensor> {
    input.triangle("tril", diagonal, true)
}

fn triu(input: &Tensor, diagonal: isize) -> Result<Tensor> {
    input.triangle("triu", diagonal, false)
}

impl Tensor {
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
