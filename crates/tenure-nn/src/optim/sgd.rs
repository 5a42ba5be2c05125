//! The rule of gradient descent with momentum.

use num_traits::Float as Real;
use tenure_tensor::{Float, Kernel, Result, TensorError};

use super::cuda::{self, Step};
use super::{Numbers, Rule, Slot, StepKernel, Stepped, cpu, not_negative};

/// The kernels of [`Sgd`].
pub static SGD: Kernel<StepKernel> = kernels!("sgd", sgd, sgd_on_cuda);

/// Gradient descent. PyTorch's `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sgd {
    /// The share of the last step that is added again.
    pub momentum: f64,
    /// The share of the gradient that does not enter the momentum.
    pub dampening: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether the gradient is taken at the place where the momentum leads (Sutskever et al., 2013). This requires a
    /// momentum and no dampening.
    pub nesterov: bool,
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

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        if self.momentum == 0.0 { Vec::new() } else { vec![Slot::new("momentum_buffer", 0.0, sizes)] }
    }

    fn numbers(&self, step: u64, lr: f64) -> Vec<f64> {
        let Self { momentum, dampening, weight_decay, nesterov } = *self;
        // The momentum begins as the gradient.
        let (kept, taken) = if step == 1 { (0.0, 1.0) } else { (momentum, 1.0 - dampening) };
        let (of_grad, of_buffer) = if nesterov { (1.0, momentum) } else { (0.0, 1.0) };
        vec![lr, weight_decay, kept, taken, of_grad, of_buffer]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &SGD
    }
}

fn sgd<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [lr, decay, kept, taken, of_grad, of_buffer]: [T::Compute; 6] = numbers.of()?;
    if is_plain(parameters) {
        return cpu::for_each::<T, 1>(
            "sgd",
            parameters,
            #[inline(always)]
            |[value], grad| [value - lr * (grad + decay * value)],
        );
    }
    cpu::for_each::<T, 2>(
        "sgd",
        parameters,
        #[inline(always)]
        |[value, buffer], grad| {
            let grad = grad + decay * value;
            let buffer = kept * buffer + taken * grad;
            [value - lr * (of_grad * grad + of_buffer * buffer), buffer]
        },
    )
}

fn sgd_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const PLAIN: Step = Step { op: "sgd", slots: 0, element: "value -= n0 * (grad + n1 * value);" };
    const WITH_MOMENTUM: Step = Step {
        op: "sgd_momentum",
        slots: 1,
        element: "grad += n1 * value; s0 = n2 * s0 + n3 * grad; value -= n0 * (n4 * grad + n5 * s0);",
    };
    let how = if is_plain(parameters) { &PLAIN } else { &WITH_MOMENTUM };
    cuda::step(how, T::DTYPE, numbers, parameters, sgd::<T>)
}

/// Returns whether there is no momentum, and so no slot.
fn is_plain(parameters: &[Stepped<'_>]) -> bool {
    parameters.iter().all(|stepped| stepped.slots.is_empty())
}
