//! Gradient descent with momentum.

use tenure_tensor::{Entry, Float, Kernel, Result, TensorError};

use super::cpu::{self, numbers, on_cpu};
use super::cuda::{self, Step, on_cuda};
use super::{Rule, StepKernel, Stepped, not_negative};

/// The kernels of [`Sgd`].
pub static SGD: Kernel<StepKernel<SgdStep>> = Kernel::new("sgd", &[CPU, CUDA]);

const CPU: &[Entry<StepKernel<SgdStep>>] = on_cpu!(sgd);
const CUDA: &[Entry<StepKernel<SgdStep>>] = on_cuda!(sgd_on_cuda);

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

    fn update(&self, step: u64, lr: f64, parameters: &[Stepped<'_>]) -> Result<()> {
        let first = parameters[0].parameter;
        let kernel = SGD.find(first.device().kind(), first.dtype())?;
        kernel(&SgdStep { rule: *self, is_first: step == 1, lr }, parameters)
    }
}

impl SgdStep {
    /// What elements are computed with.
    fn numbers(&self) -> [f64; 6] {
        let Self { rule: Sgd { momentum, dampening, weight_decay, nesterov }, is_first, lr } = *self;
        let [kept, taken] = if is_first { [0.0, 1.0] } else { [momentum, 1.0 - dampening] };
        let [of_grad, of_buffer] = if nesterov { [1.0, momentum] } else { [0.0, 1.0] };
        [lr, weight_decay, kept, taken, of_grad, of_buffer]
    }
}

fn sgd<T: Float>(step: &SgdStep, parameters: &[Stepped<'_>]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    let [lr, decay, kept, taken, of_grad, of_buffer] = numbers::<T::Compute, 6>(step.numbers());
    if step.rule.momentum == 0.0 {
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

fn sgd_on_cuda<T: Float>(step: &SgdStep, parameters: &[Stepped<'_>]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    const PLAIN: Step = Step { op: "sgd", slots: 0, element: "value -= n0 * (grad + n1 * value);" };
    const WITH_MOMENTUM: Step = Step {
        op: "sgd_momentum",
        slots: 1,
        element: "grad += n1 * value; s0 = n2 * s0 + n3 * grad; value -= n0 * (n4 * grad + n5 * s0);",
    };
    let how = if step.rule.momentum == 0.0 { &PLAIN } else { &WITH_MOMENTUM };
    let again = *step;
    cuda::step(how, T::DTYPE, &step.numbers(), parameters, move |parameters| sgd::<T>(&again, parameters))
}
