//! Adam (Kingma and Ba, 2015), and with decay apart from the gradient (Loshchilov and Hutter, 2019).

use num_traits::Float as _;
use tenure_tensor::{Entry, Float, Kernel, Result, Tensor, TensorError};

use super::cpu::{self, number, on_cpu};
use super::{Rule, StepKernel, not_negative};

/// The kernels of [`Adam`].
pub static ADAM: Kernel<StepKernel<AdamStep>> = Kernel::new("adam", &[CPU]);

const CPU: &[Entry<StepKernel<AdamStep>>] = on_cpu!(adam);

/// Adam. PyTorch's `torch.optim.Adam`, or `AdamW` if the decay is decoupled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// How much of the averages of the gradient, and of its square, stays.
    pub betas: (f64, f64),
    /// Added to the denominator.
    pub eps: f64,
    /// How much the parameter shrinks.
    pub weight_decay: f64,
    /// The parameter shrinks apart from the gradient: AdamW.
    pub is_decoupled: bool,
}

/// What one step of [`Adam`] computes with.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// The rule.
    pub rule: Adam,
    /// From 1.
    pub step: u64,
    /// How far.
    pub lr: f64,
}

impl Default for Adam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, is_decoupled: false }
    }
}

impl Adam {
    /// AdamW with PyTorch's defaults: a decay of 0.01.
    pub fn w() -> Self {
        Self { weight_decay: 0.01, is_decoupled: true, ..Self::default() }
    }
}

impl Rule for Adam {
    fn name(&self) -> &'static str {
        if self.is_decoupled { "adamw" } else { "adam" }
    }

    fn check(&self) -> Result<()> {
        let Self { betas, eps, weight_decay, .. } = *self;
        not_negative("adam", [("eps", eps), ("weight_decay", weight_decay)])?;
        match [betas.0, betas.1].into_iter().find(|beta| !(0.0..1.0).contains(beta)) {
            None => Ok(()),
            Some(beta) => {
                Err(TensorError::argument("adam", format!("a beta is {beta}: a number from 0 to below 1 is expected")))
            }
        }
    }

    fn slots(&self) -> Vec<(&'static str, f64)> {
        vec![("exp_avg", 0.0), ("exp_avg_sq", 0.0)]
    }

    fn update(&self, step: u64, lr: f64, parameter: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Result<()> {
        let kernel = ADAM.find(parameter.device().kind(), parameter.dtype())?;
        kernel(&AdamStep { rule: *self, step, lr }, parameter, grad, slots)
    }
}

fn adam<T: Float>(step: &AdamStep, parameter: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Result<()>
where
    T::Compute: num_traits::Float,
{
    let AdamStep { rule: Adam { betas, eps, weight_decay, is_decoupled }, step, lr } = *step;
    let corrections = (1.0 - betas.0.powf(step as f64), 1.0 - betas.1.powf(step as f64));
    let shrink: T::Compute = number(if is_decoupled { 1.0 - lr * weight_decay } else { 1.0 });
    let decay: T::Compute = number(if is_decoupled { 0.0 } else { weight_decay });
    let (rest1, beta2, rest2) = (number(1.0 - betas.0), number(betas.1), number(1.0 - betas.1));
    let (size, root): (T::Compute, T::Compute) = (number(lr / corrections.0), number(corrections.1.sqrt()));
    let eps: T::Compute = number(eps);
    cpu::for_each::<T, 3>(
        "adam",
        parameter,
        grad,
        slots,
        #[inline(always)]
        |[value, average, square], grad| {
            let value = value * shrink;
            let grad = grad + decay * value;
            let average = average + (grad - average) * rest1;
            let square = square * beta2 + grad * grad * rest2;
            let stepped = value - size * average / (square.sqrt() / root + eps);
            [stepped, average, square]
        },
    )
}
