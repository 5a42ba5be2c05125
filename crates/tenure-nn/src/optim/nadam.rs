//! The NAdam rule: Adam with Nesterov's momentum (Dozat, 2016).

use num_traits::Float as Real;
use tenure_tensor::{Float, Kernel, Result};

use super::adam::check_betas;
use super::cuda::{self, Step};
use super::{Numbers, Rule, Slot, StepKernel, Stepped, cpu, not_negative};

/// The kernels of [`NAdam`].
pub static NADAM: Kernel<StepKernel> = kernels!("nadam", nadam, nadam_on_cuda);

/// The NAdam rule. PyTorch's `torch.optim.NAdam`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NAdam {
    /// The decay factors of the averages of the gradient and of its square.
    pub betas: (f64, f64),
    /// The number that is added to the denominator.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The rate at which the momentum grows from half of the first beta to all of it.
    pub momentum_decay: f64,
    /// Whether the weight decay is separate from the gradient, as in AdamW.
    pub is_decoupled: bool,
}

impl Default for NAdam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, momentum_decay: 4e-3, is_decoupled: false }
    }
}

impl NAdam {
    /// Returns the momentum of a step.
    fn momentum(&self, step: u64) -> f64 {
        self.betas.0 * (1.0 - 0.5 * 0.96_f64.powf(step as f64 * self.momentum_decay))
    }

    /// Returns the product of the momenta of the first `steps` steps, or 0 where 1 minus the product rounds to 1.
    fn momentum_product(&self, steps: u64) -> f64 {
        let mut product = 1.0;
        for step in 1..=steps {
            product *= self.momentum(step);
            if product < f64::EPSILON / 4.0 {
                return 0.0;
            }
        }
        product
    }
}

impl Rule for NAdam {
    fn name(&self) -> &'static str {
        if self.is_decoupled { "nadamw" } else { "nadam" }
    }

    fn check(&self) -> Result<()> {
        let Self { betas, eps, weight_decay, momentum_decay, .. } = *self;
        not_negative("nadam", [("eps", eps), ("weight_decay", weight_decay), ("momentum_decay", momentum_decay)])?;
        check_betas("nadam", betas)
    }

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        vec![Slot::new("exp_avg", 0.0, sizes), Slot::new("exp_avg_sq", 0.0, sizes)]
    }

    fn numbers(&self, step: u64, lr: f64) -> Vec<f64> {
        let Self { betas, eps, weight_decay, is_decoupled, .. } = *self;
        let (shrink, decay) = if is_decoupled { (1.0 - lr * weight_decay, 0.0) } else { (1.0, weight_decay) };
        let product = self.momentum_product(step);
        let next = self.momentum(step + 1);
        let of_grad = lr * (1.0 - self.momentum(step)) / (1.0 - product);
        let of_average = lr * next / (1.0 - product * next);
        let root = (1.0 - betas.1.powf(step as f64)).sqrt();
        vec![shrink, decay, 1.0 - betas.0, betas.1, 1.0 - betas.1, of_grad, of_average, root, eps]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        &NADAM
    }
}

fn nadam<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [shrink, decay, rest1, beta2, rest2, of_grad, of_average, root, eps]: [T::Compute; 9] = numbers.of()?;
    cpu::for_each::<T, 3>(
        "nadam",
        parameters,
        #[inline(always)]
        |[value, average, square], grad| {
            let grad = grad + decay * value;
            let average = average + (grad - average) * rest1;
            let square = square * beta2 + grad * grad * rest2;
            let stepped = value * shrink - (of_grad * grad + of_average * average) / (square.sqrt() / root + eps);
            [stepped, average, square]
        },
    )
}

fn nadam_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const STEP: Step = Step {
        op: "nadam",
        slots: 2,
        element: "grad += n1 * value; s0 += (grad - s0) * n2; s1 = s1 * n3 + grad * grad * n4; \
                  value = value * n0 - (n5 * grad + n6 * s0) / (sqrt(s1) / n7 + n8);",
    };
    cuda::step(&STEP, T::DTYPE, numbers, parameters, nadam::<T>)
}
