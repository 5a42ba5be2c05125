//! Adagrad (Duchi et al., 2011).

use num_traits::Float as _;
use tenure_tensor::{Entry, Float, Kernel, Result};

use super::cpu::{self, numbers, on_cpu};
use super::cuda::{self, Step, on_cuda};
use super::{Rule, StepKernel, Stepped, not_negative};

/// The kernels of [`Adagrad`].
pub static ADAGRAD: Kernel<StepKernel<AdagradStep>> = Kernel::new("adagrad", &[CPU, CUDA]);

const CPU: &[Entry<StepKernel<AdagradStep>>] = on_cpu!(adagrad);
const CUDA: &[Entry<StepKernel<AdagradStep>>] = on_cuda!(adagrad_on_cuda);

/// Adagrad. PyTorch's `torch.optim.Adagrad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// Steps become shorter: the rate is divided by 1 + this for each step made.
    pub lr_decay: f64,
    /// How much the parameter shrinks.
    pub weight_decay: f64,
    /// Where the sum of squares begins.
    pub initial_accumulator_value: f64,
    /// Added to the denominator.
    pub eps: f64,
}

/// What one step of [`Adagrad`] computes with.
#[derive(Clone, Copy, Debug)]
pub struct AdagradStep {
    /// The rule.
    pub rule: Adagrad,
    /// How far.
    pub lr: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self { lr_decay: 0.0, weight_decay: 0.0, initial_accumulator_value: 0.0, eps: 1e-10 }
    }
}

impl Rule for Adagrad {
    fn name(&self) -> &'static str {
        "adagrad"
    }

    fn check(&self) -> Result<()> {
        let Self { lr_decay, weight_decay, initial_accumulator_value, eps } = *self;
        let begin = ("initial_accumulator_value", initial_accumulator_value);
        not_negative("adagrad", [("lr_decay", lr_decay), ("weight_decay", weight_decay), begin, ("eps", eps)])
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("sum", self.initial_accumulator_value)]
    }

    fn update(&self, step: u64, lr: f64, parameters: &[Stepped<'_>]) -> Result<()> {
        let first = parameters[0].parameter;
        let kernel = ADAGRAD.find(first.device().kind(), first.dtype())?;
        let lr = lr / (1.0 + (step - 1) as f64 * self.lr_decay);
        kernel(&AdagradStep { rule: *self, lr }, parameters)
    }
}

impl AdagradStep {
    /// What elements are computed with.
    fn numbers(&self) -> [f64; 3] {
        [self.lr, self.rule.weight_decay, self.rule.eps]
    }
}

fn adagrad<T: Float>(step: &AdagradStep, parameters: &[Stepped<'_>]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    let [lr, decay, eps] = numbers::<T::Compute, 3>(step.numbers());
    cpu::for_each::<T, 2>(
        "adagrad",
        parameters,
        #[inline(always)]
        |[value, sum], grad| {
            let grad = grad + decay * value;
            let sum = sum + grad * grad;
            [value - lr * grad / (sum.sqrt() + eps), sum]
        },
    )
}

fn adagrad_on_cuda<T: Float>(step: &AdagradStep, parameters: &[Stepped<'_>]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    const STEP: Step = Step {
        op: "adagrad",
        slots: 1,
        element: "grad += n1 * value; s0 += grad * grad; value -= n0 * grad / (sqrt(s0) + n2);",
    };
    let again = *step;
    cuda::step(&STEP, T::DTYPE, &step.numbers(), parameters, move |parameters| adagrad::<T>(&again, parameters))
}
