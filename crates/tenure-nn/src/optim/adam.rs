//! The Adam rule (Kingma and Ba, 2015), also with decoupled weight decay (Loshchilov and Hutter, 2019).

use num_traits::Float as Real;
use tenure_tensor::{Float, Kernel, Result, TensorError};

use super::cuda::{self, Step};
use super::{Numbers, Rule, Slot, StepKernel, Stepped, cpu, not_negative};

/// The kernels of [`Adam`].
pub static ADAM: Kernel<StepKernel> = kernels!("adam", adam, adam_on_cuda);

/// The Adam rule. PyTorch's `torch.optim.Adam`, or `AdamW` if the decay is decoupled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The decay factors of the averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// The number that is added to the denominator.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether the weight decay is separate from the gradient, as in AdamW.
    pub is_decoupled: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, is_decoupled: false }
    }
}

impl Adam {
    /// Makes AdamW with PyTorch's defaults: a decay of 0.01.
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
        check_betas("adam", betas)
    }

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        vec![Slot::new("exp_avg", 0.0, sizes), Slot::new("exp_avg_sq", 0.0, sizes)]
    }

    fn numbers(&self, step: u64, lr: f64) -> Vec<f64> {
        let Self { betas, eps, weight_decay, is_decoupled } = *self;
        let corrections = (1.0 - betas.0.powf(step as f64), 1.0 - betas.1.powf(step as f64));
        let (shrink, decay) = if is_decoupled { (1.0 - lr * weight_decay, 0.0) } else { (1.0, weight_decay) };
        vec![shrink, decay, 1.0 - betas.0, betas.1, 1.0 - betas.1, lr / corrections.0, corrections.1.sqrt(), eps]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &ADAM
    }
}

/// Returns an error if a decay factor is not from 0 to below 1.
pub(super) fn check_betas(op: &'static str, betas: (f64, f64)) -> Result<()> {
    match [betas.0, betas.1].into_iter().find(|beta| !(0.0..1.0).contains(beta)) {
        None => Ok(()),
        Some(beta) => {
            Err(TensorError::argument(op, format!("a beta is {beta}: a number from 0 to below 1 is expected")))
        }
    }
}

fn adam<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [shrink, decay, rest1, beta2, rest2, size, root, eps]: [T::Compute; 8] = numbers.of()?;
    cpu::for_each::<T, 3>(
        "adam",
        parameters,
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

fn adam_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const STEP: Step = Step {
        op: "adam",
        slots: 2,
        element: "value *= n0; grad += n1 * value; s0 += (grad - s0) * n2; s1 = s1 * n3 + grad * grad * n4; \
                  value -= n5 * s0 / (sqrt(s1) / n6 + n7);",
    };
    cuda::step(&STEP, T::DTYPE, numbers, parameters, adam::<T>)
}
