//! The Adagrad rule (Duchi et al., 2011).

use num_traits::Float as Real;
use tenure_tensor::{Float, Kernel, Result};

use super::cuda::{self, Step};
use super::{Numbers, Rule, Slot, StepKernel, Stepped, cpu, not_negative};

/// The kernels of [`Adagrad`].
pub static ADAGRAD: Kernel<StepKernel> = kernels!("adagrad", adagrad, adagrad_on_cuda);

/// The Adagrad rule. PyTorch's `torch.optim.Adagrad`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// The decay of the learning rate, which is divided by 1 + `lr_decay` times the number of earlier steps.
    pub lr_decay: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The initial sum of squares.
    pub initial_accumulator_value: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
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

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        vec![Slot::new("sum", self.initial_accumulator_value, sizes)]
    }

    fn numbers(&self, step: u64, lr: f64) -> Vec<f64> {
        vec![lr / (1.0 + (step - 1) as f64 * self.lr_decay), self.weight_decay, self.eps]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &ADAGRAD
    }
}

fn adagrad<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [lr, decay, eps]: [T::Compute; 3] = numbers.of()?;
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

fn adagrad_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const STEP: Step = Step {
        op: "adagrad",
        slots: 1,
        element: "grad += n1 * value; s0 += grad * grad; value -= n0 * grad / (sqrt(s0) + n2);",
    };
    cuda::step(&STEP, T::DTYPE, numbers, parameters, adagrad::<T>)
}
