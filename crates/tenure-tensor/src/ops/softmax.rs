//! Softmax and its logarithm.

use super::entered;
use super::pointwise::wide;
use super::reduce::floating;
use crate::autocast::raise;
use crate::autograd::{Context, attach, is_grad_enabled, recipe};
use crate::cpu;
use crate::cpu::softmax::{Softmax, SoftmaxBackward};
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, cuda};

static SOFTMAX: Kernel<Softmax> = Kernel::new("softmax", &[cpu::softmax::SOFTMAX, cuda::softmax::SOFTMAX]);
static SOFTMAX_BACKWARD: Kernel<SoftmaxBackward> =
    Kernel::new("softmax_backward", &[cpu::softmax::SOFTMAX_BACKWARD, cuda::softmax::SOFTMAX_BACKWARD]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the exponential of each element, divided by the sum of the exponentials along a dimension.
        ///
        /// # Errors
        /// An integer dtype, a dimension that does not exist.
        softmax(input: Tensor, dim: Int) -> Tensor;

        /// Computes the logarithm of [`softmax`](Self::softmax), in one kernel.
        ///
        /// # Errors
        /// The errors of [`softmax`](Self::softmax).
        log_softmax(input: Tensor, dim: Int) -> Tensor;
    }
    Function for front_ends {
        /// Computes [`softmax`](crate::Tensor::softmax) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(softmax)]
        softmax_as(input: Tensor, dim: Int, dtype: DType) -> Tensor = |input: &Tensor, dim, dtype| {
            input.to_dtype(dtype)?.softmax(dim)
        };

        /// Computes [`log_softmax`](crate::Tensor::log_softmax) of the elements in another dtype.
        ///
        /// # Errors
        /// The errors of the operation, in that dtype.
        #[name(log_softmax)]
        log_softmax_as(input: Tensor, dim: Int, dtype: DType) -> Tensor = |input: &Tensor, dim, dtype| {
            input.to_dtype(dtype)?.log_softmax(dim)
        };
    }
}

fn softmax(input: &Tensor, dim: isize) -> Result<Tensor> {
    raise(input)?.exponentials("softmax", dim, false)
}

fn log_softmax(input: &Tensor, dim: isize) -> Result<Tensor> {
    raise(input)?.exponentials("log_softmax", dim, true)
}

impl Tensor {
    fn exponentials(&self, op: &'static str, dim: isize, logarithmic: bool) -> Result<Self> {
        let _op = entered(op);
        floating(op, self)?;
        let along = self.dim(op, dim)?;
        let input = crate::autograd::no_grad(|| self.contiguous())?;
        let out = Self::empty(self.sizes(), self.dtype(), self.device())?;
        SOFTMAX.find(self.device().kind(), self.dtype())?(&out, &input, along, logarithmic)?;
        recipe::note(&out, op, [self], [], || move |[x], []| x.exponentials(op, dim, logarithmic));
        attach(out.clone(), op, &[self], |saver| {
            let saved = saver.save_output(&out, 0)?;
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let output = context.unpack(saved)?;
                let to_input = if is_grad_enabled() {
                    composed(&wide(&grad)?, &wide(&output)?, dim, logarithmic)?
                } else {
                    backward(&grad, &output, along, logarithmic)?
                };
                Ok([Some(to_input)].into_iter().collect())
            })
        })
    }
}

fn backward(grad: &Tensor, output: &Tensor, dim: usize, logarithmic: bool) -> Result<Tensor> {
    let grad = grad.contiguous()?;
    let output = output.contiguous()?;
    let out = Tensor::empty(grad.sizes(), output.dtype(), output.device())?;
    SOFTMAX_BACKWARD.find(output.device().kind(), output.dtype())?(&out, &grad, &output, dim, logarithmic)?;
    Ok(out)
}

/// Computes the gradient as [`backward`] does, with operations that have gradients themselves.
fn composed(grad: &Tensor, output: &Tensor, dim: isize, logarithmic: bool) -> Result<Tensor> {
    if logarithmic {
        return grad.sub(&output.exp()?.mul(&grad.sum(&[dim], true)?)?);
    }
    output.mul(&grad.sub(&grad.mul(output)?.sum(&[dim], true)?)?)
}
