//! The RMSprop rule (Tieleman and Hinton, 2012), also centered (Graves, 2013).

use num_traits::Float as Real;
use tenure_tensor::{Float, Kernel, Result};

use super::cuda::{self, Step};
use super::{Numbers, Rule, Slot, StepKernel, Stepped, cpu, not_negative};

/// The kernels of [`RmsProp`] that is not centered. A second slot is a momentum.
pub static RMSPROP: Kernel<StepKernel> = kernels!("rmsprop", rmsprop, rmsprop_on_cuda);

/// The kernels of [`RmsProp`] that is centered. A third slot is a momentum.
pub static RMSPROP_CENTERED: Kernel<StepKernel> = kernels!("rmsprop_centered", centered, centered_on_cuda);

/// The RMSprop rule. PyTorch's `torch.optim.RMSprop`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// The decay factor of the averages of the gradient and of its square.
    pub alpha: f64,
    /// The number that is added to the denominator.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// The share of the last step that is added again.
    pub momentum: f64,
    /// Whether the gradient is divided by its standard deviation rather than by its root mean square.
    pub centered: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self { alpha: 0.99, eps: 1e-8, weight_decay: 0.0, momentum: 0.0, centered: false }
    }
}

impl Rule for RmsProp {
    fn name(&self) -> &'static str {
        "rmsprop"
    }

    fn check(&self) -> Result<()> {
        let Self { alpha, eps, weight_decay, momentum, .. } = *self;
        let numbers = [("alpha", alpha), ("eps", eps), ("weight_decay", weight_decay), ("momentum", momentum)];
        not_negative("rmsprop", numbers)
    }

    fn slots(&self, sizes: &[usize]) -> Vec<Slot> {
        let mut slots = vec![Slot::new("square_avg", 0.0, sizes)];
        if self.centered {
            slots.push(Slot::new("grad_avg", 0.0, sizes));
        }
        if self.momentum > 0.0 {
            slots.push(Slot::new("momentum_buffer", 0.0, sizes));
        }
        slots
    }

    fn numbers(&self, _step: u64, lr: f64) -> Vec<f64> {
        vec![lr, self.weight_decay, self.alpha, 1.0 - self.alpha, self.eps, self.momentum]
    }

    fn kernel(&self) -> &'static Kernel<StepKernel> {
        if self.centered { &RMSPROP_CENTERED } else { &RMSPROP }
    }
}

fn rmsprop<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [lr, decay, alpha, rest, eps, momentum]: [T::Compute; 6] = numbers.of()?;
    if !has_slots(parameters, 2) {
        return cpu::for_each::<T, 2>(
            "rmsprop",
            parameters,
            #[inline(always)]
            |[value, square], grad| {
                let grad = grad + decay * value;
                let square = square * alpha + grad * grad * rest;
                [value - lr * grad / (square.sqrt() + eps), square]
            },
        );
    }
    cpu::for_each::<T, 3>(
        "rmsprop",
        parameters,
        #[inline(always)]
        |[value, square, buffer], grad| {
            let grad = grad + decay * value;
            let square = square * alpha + grad * grad * rest;
            let buffer = buffer * momentum + grad / (square.sqrt() + eps);
            [value - lr * buffer, square, buffer]
        },
    )
}

fn centered<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    let [lr, decay, alpha, rest, eps, momentum]: [T::Compute; 6] = numbers.of()?;
    if !has_slots(parameters, 3) {
        return cpu::for_each::<T, 3>(
            "rmsprop_centered",
            parameters,
            #[inline(always)]
            |[value, square, average], grad| {
                let grad = grad + decay * value;
                let square = square * alpha + grad * grad * rest;
                let average = average + (grad - average) * rest;
                let deviation = (square - average * average).sqrt();
                [value - lr * grad / (deviation + eps), square, average]
            },
        );
    }
    cpu::for_each::<T, 4>(
        "rmsprop_centered",
        parameters,
        #[inline(always)]
        |[value, square, average, buffer], grad| {
            let grad = grad + decay * value;
            let square = square * alpha + grad * grad * rest;
            let average = average + (grad - average) * rest;
            let deviation = (square - average * average).sqrt();
            let buffer = buffer * momentum + grad / (deviation + eps);
            [value - lr * buffer, square, average, buffer]
        },
    )
}

fn rmsprop_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const PLAIN: Step = Step {
        op: "rmsprop",
        slots: 1,
        element: "grad += n1 * value; s0 = s0 * n2 + grad * grad * n3; value -= n0 * grad / (sqrt(s0) + n4);",
    };
    const WITH_MOMENTUM: Step = Step {
        op: "rmsprop_momentum",
        slots: 2,
        element: "grad += n1 * value; s0 = s0 * n2 + grad * grad * n3; s1 = s1 * n5 + grad / (sqrt(s0) + n4); \
                  value -= n0 * s1;",
    };
    let how = if has_slots(parameters, 2) { &WITH_MOMENTUM } else { &PLAIN };
    cuda::step(how, T::DTYPE, numbers, parameters, rmsprop::<T>)
}

fn centered_on_cuda<T: Float<Compute: Real>>(numbers: &Numbers, parameters: &[Stepped<'_>]) -> Result<()> {
    const PLAIN: Step = Step {
        op: "rmsprop_centered",
        slots: 2,
        element: "grad += n1 * value; s0 = s0 * n2 + grad * grad * n3; s1 += (grad - s1) * n3; \
                  value -= n0 * grad / (sqrt(s0 - s1 * s1) + n4);",
    };
    const WITH_MOMENTUM: Step = Step {
        op: "rmsprop_centered_momentum",
        slots: 3,
        element: "grad += n1 * value; s0 = s0 * n2 + grad * grad * n3; s1 += (grad - s1) * n3; \
                  s2 = s2 * n5 + grad / (sqrt(s0 - s1 * s1) + n4); value -= n0 * s2;",
    };
    let how = if has_slots(parameters, 3) { &WITH_MOMENTUM } else { &PLAIN };
    cuda::step(how, T::DTYPE, numbers, parameters, centered::<T>)
}

/// Returns whether each parameter has `count` slots.
fn has_slots(parameters: &[Stepped<'_>], count: usize) -> bool {
    parameters.iter().all(|stepped| stepped.slots.len() == count)
}
