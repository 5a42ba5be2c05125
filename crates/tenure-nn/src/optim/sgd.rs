//! Gradient descent with momentum.

use tenure_tensor::{Entry, Float, Kernel, Result, Tensor, TensorError};

use super::cpu::{self, number, on_cpu};
use super::{Rule, StepKernel, not_negative};

/// The kernels of [`Sgd`].
pub static SGD: Kernel<StepKernel<SgdStep>> = Kernel::new("sgd", &[CPU]);

const CPU: &[Entry<StepKernel<SgdStep>>] = on_cpu!(sgd);

/// Gradient descent. PyTorch's `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// How much of the last step is made again.
    pub momentum: f64,
    /// How much of the gradient does not go into the momentum.
    pub dampening: f64,
    /// How much the parameter shrinks.
    pub weight_decay: f64,
    /// The gradient is that of the place where the momentum leads (Sutskever et al., 2013). There must be one, and no
    /// dampening.
    pub nesterov: bool,
}

/// What one step of [`Sgd`] computes with.
#[derive(Clone, Copy, Debug)]
pub struct SgdStep {
    /// The rule.
    pub rule: Sgd,
    /// The momentum begins as the gradient.
    pub is_first: bool,
    /// How far.
    pub lr: f64,
}

impl Rule for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn check(&self) -> Result<()> {
        let Self { momentum, dampening, weight_decay, nesterov } = *self;
        not_negative("sgd", [("momentum", momentum), ("weight_decay", weight_decay)])?;
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            let reason = format!(
                "nesterov needs a momentum above 0 and a dampening of 0, got momentum {momentum} and dampening {dampening}"
            );
            return Err(TensorError::argument("sgd", reason));
        }
        Ok(())
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        if self.momentum == 0.0 { Vec::new() } else { vec![("momentum_buffer", 0.0)] }
    }

    fn update(&self, step: u64, lr: f64, parameter: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Result<()> {
        let kernel = SGD.find(parameter.device().kind(), parameter.dtype())?;
        kernel(&SgdStep { rule: *self, is_first: step == 1, lr }, parameter, grad, slots)
    }
}

fn sgd<T: Float>(step: &SgdStep, parameter: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    let SgdStep { rule: Sgd { momentum, dampening, weight_decay, nesterov }, is_first, lr } = *step;
    let (lr, decay): (T::Compute, T::Compute) = (number(lr), number(weight_decay));
    if slots.is_empty() {
        return cpu::for_each::<T, 1>(
            "sgd",
            parameter,
            grad,
            slots,
            #[inline(always)]
            |[value], grad| [value - lr * (grad + decay * value)],
        );
    }
    let (kept, taken): (T::Compute, T::Compute) =
        if is_first { (number(0.0), number(1.0)) } else { (number(momentum), number(1.0 - dampening)) };
    let (of_grad, of_buffer): (T::Compute, T::Compute) =
        if nesterov { (number(1.0), number(momentum)) } else { (number(0.0), number(1.0)) };
    cpu::for_each::<T, 2>(
        "sgd",
        parameter,
        grad,
        slots,
        #[inline(always)]
        |[value, buffer], grad| {
            let grad = grad + decay * value;
            let buffer = kept * buffer + taken * grad;
            [value - lr * (of_grad * grad + of_buffer * buffer), buffer]
        },
    )
}
