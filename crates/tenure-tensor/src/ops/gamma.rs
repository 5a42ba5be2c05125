//! The logarithm of the gamma function and its derivatives.

use super::pointwise::floating;
use super::unary::functions;
use crate::cpu::activation::Curve;
use crate::cpu::gamma as kernels;
use crate::cuda::gamma as cuda;
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, TensorError};

static POLYGAMMA: Kernel<Curve<1>> = Kernel::new("polygamma", &[kernels::POLYGAMMA, cuda::POLYGAMMA]);

functions! {
    /// Computes the logarithm of the absolute value of the gamma function.
    lgamma = gamma::LGAMMA, by input |grad, x| grad.mul(&x.digamma()?);
    /// Computes the derivative of [`lgamma`](Self::lgamma).
    digamma = gamma::DIGAMMA, by input |grad, x| grad.mul(&x.polygamma(1)?);
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes the derivative of the order `n` of [`digamma`](Self::digamma), which is that of order 0.
        ///
        /// # Errors
        /// A negative order; no memory.
        polygamma(input: Tensor, n: Int) -> Tensor;
    }
    Function for front_ends {
        /// Computes [`polygamma`](Tensor::polygamma) with the order first, as PyTorch's function has it.
        ///
        /// # Errors
        /// A negative order; no memory.
        #[name(polygamma)]
        polygamma_of(n: Int, input: Tensor) -> Tensor = |n, input: &Tensor| input.polygamma(n);
    }
}

fn polygamma(input: &Tensor, n: isize) -> Result<Tensor> {
    if n < 0 {
        return Err(TensorError::argument("polygamma", format!("n = {n}: an order of 0 or more is needed")));
    }
    if n == 0 {
        return input.digamma();
    }
    let input = input.to_dtype(floating(input.dtype()))?;
    input.curve(&POLYGAMMA, [n as f64], move |grad, x| grad.mul(&x.polygamma(n + 1)?))
}
