//! Layers without parameters, applied to each element or to none.

use tenure_tensor::{Result, Tensor, TensorError};

use super::Layer;
use crate::{Mode, module};

/// A function of each element. PyTorch's modules of the same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// What is above 0.
    Relu,
    /// What is above 0, up to 6.
    Relu6,
    /// What is above 0, and `slope` times what is below.
    LeakyRelu {
        /// PyTorch's is 0.01.
        slope: f64,
    },
    /// What is above 0, and `alpha` (eˣ - 1) below.
    Elu {
        /// How far below 0 it goes: 1 in PyTorch.
        alpha: f64,
    },
    /// The same, scaled so that layers keep mean 0 and variance 1.
    Selu,
    /// What is above 0, and `alpha` (exp(x / `alpha`) - 1) below.
    Celu {
        /// How far below 0 it goes: 1 in PyTorch.
        alpha: f64,
    },
    /// x Φ(x), exactly.
    Gelu,
    /// The same, by the hyperbolic tangent.
    GeluTanh,
    /// x σ(x).
    Silu,
    /// x tanh(log(1 + eˣ)).
    Mish,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// The logarithm of it.
    LogSigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// x / (1 + |x|).
    Softsign,
    /// log(1 + exp(`beta` x)) / `beta`; x where `beta` x is above `threshold`.
    Softplus {
        /// How sharp the bend is: 1 in PyTorch.
        beta: f64,
        /// Where it is over: 20 in PyTorch.
        threshold: f64,
    },
    /// (x + 3) / 6, from 0 to 1.
    Hardsigmoid,
    /// The same times x.
    Hardswish,
    /// x from `min` to `max`.
    Hardtanh {
        /// The least: -1 in PyTorch.
        min: f64,
        /// The greatest: 1 in PyTorch.
        max: f64,
    },
}
module!(Activation {});

impl Layer for Activation {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match *self {
            Self::Relu => input.relu(),
            Self::Relu6 => input.relu6(),
            Self::LeakyRelu { slope } => input.leaky_relu(slope),
            Self::Elu { alpha } => input.elu(alpha),
            Self::Selu => input.selu(),
            Self::Celu { alpha } => input.celu(alpha),
            Self::Gelu => input.gelu(),
            Self::GeluTanh => input.gelu_tanh(),
            Self::Silu => input.silu(),
            Self::Mish => input.mish(),
            Self::Sigmoid => input.sigmoid(),
            Self::LogSigmoid => input.logsigmoid(),
            Self::Tanh => input.tanh(),
            Self::Softsign => input.softsign(),
            Self::Softplus { beta, threshold } => input.softplus(beta, threshold),
            Self::Hardsigmoid => input.hardsigmoid(),
            Self::Hardswish => input.hardswish(),
            Self::Hardtanh { min, max } => input.hardtanh(min, max),
        }
    }
}

/// Positive numbers that add up to 1 along a dimension. PyTorch's `nn.Softmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax(pub isize);
module!(Softmax {});

impl Layer for Softmax {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.softmax(self.0)
    }
}

/// Their logarithms. PyTorch's `nn.LogSoftmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSoftmax(pub isize);
module!(LogSoftmax {});

impl Layer for LogSoftmax {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.log_softmax(self.0)
    }
}

/// Leaves elements out while it is trained. PyTorch's `nn.Dropout`.
pub struct Dropout {
    probability: f64,
    mode: Mode,
}
module!(Dropout { mode });

impl Dropout {
    /// Each element is left out with this probability.
    ///
    /// # Errors
    /// It is not between 0 and 1.
    pub fn new(probability: f64) -> Result<Self> {
        Ok(Self { probability: check_probability("Dropout", probability)?, mode: Mode::default() })
    }
}

impl Layer for Dropout {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.dropout(self.probability, self.mode.is_training())
    }
}

/// The same number, if it is a probability.
pub(crate) fn check_probability(op: &'static str, probability: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(probability);
    }
    Err(TensorError::argument(op, format!("dropout is a probability, between 0 and 1, got {probability}")))
}

/// Makes one dimension of all but the first. PyTorch's `nn.Flatten`.
#[derive(Clone, Copy, Debug)]
pub struct Flatten;
module!(Flatten {});

impl Layer for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(1, -1)
    }
}
