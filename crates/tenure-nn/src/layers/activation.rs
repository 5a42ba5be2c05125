//! Layers without parameters: activations, softmax, dropout and flatten.

use tenure_tensor::{Result, Tensor, TensorError};

use super::Layer;
use crate::{Mode, module};

/// A function of each element. The variants are PyTorch's modules of the same names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// max(x, 0).
    Relu,
    /// x from 0 to 6.
    Relu6,
    /// x above 0, `slope` x below.
    LeakyRelu {
        /// The slope below 0: 0.01 in PyTorch.
        slope: f64,
    },
    /// x above 0, `alpha` (eˣ - 1) below.
    Elu {
        /// The negative limit's size: 1 in PyTorch.
        alpha: f64,
    },
    /// ELU, scaled so that layers keep mean 0 and variance 1.
    Selu,
    /// x above 0, `alpha` (exp(x / `alpha`) - 1) below.
    Celu {
        /// The negative limit's size: 1 in PyTorch.
        alpha: f64,
    },
    /// x Φ(x), exactly.
    Gelu,
    /// GELU, approximated by the hyperbolic tangent.
    GeluTanh,
    /// x σ(x).
    Silu,
    /// x tanh(log(1 + eˣ)).
    Mish,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// The logarithm of the sigmoid.
    LogSigmoid,
    /// The hyperbolic tangent.
    Tanh,
    /// x / (1 + |x|).
    Softsign,
    /// log(1 + exp(`beta` x)) / `beta`; x where `beta` x is above `threshold`.
    Softplus {
        /// The sharpness of the bend: 1 in PyTorch.
        beta: f64,
        /// The value of `beta` x above which the function is x: 20 in PyTorch.
        threshold: f64,
    },
    /// (x + 3) / 6, from 0 to 1.
    Hardsigmoid,
    /// Hardsigmoid times x.
    Hardswish,
    /// x from `min` to `max`.
    Hardtanh {
        /// The lower bound: -1 in PyTorch.
        min: f64,
        /// The upper bound: 1 in PyTorch.
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

/// Softmax along a dimension: positive numbers that add up to 1. PyTorch's `nn.Softmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Softmax(pub isize);
module!(Softmax {});

impl Layer for Softmax {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.softmax(self.0)
    }
}

/// The logarithms of softmax. PyTorch's `nn.LogSoftmax`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSoftmax(pub isize);
module!(LogSoftmax {});

impl Layer for LogSoftmax {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.log_softmax(self.0)
    }
}

/// Dropout: sets random elements to 0 in training. PyTorch's `nn.Dropout`.
pub struct Dropout {
    probability: f64,
    mode: Mode,
}
module!(Dropout { mode });

impl Dropout {
    /// Makes a layer that drops each element with this probability.
    ///
    /// # Errors
    /// The probability is not between 0 and 1.
    pub fn new(probability: f64) -> Result<Self> {
        Ok(Self { probability: check_probability("Dropout", probability)?, mode: Mode::default() })
    }
}

impl Layer for Dropout {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.dropout(self.probability, self.mode.is_training())
    }
}

/// Returns the number if it is a probability.
pub(crate) fn check_probability(op: &'static str, probability: f64) -> Result<f64> {
    if (0.0..=1.0).contains(&probability) {
        return Ok(probability);
    }
    Err(TensorError::argument(op, format!("dropout is a probability, between 0 and 1, got {probability}")))
}

/// Flattens all dimensions after the first into one. PyTorch's `nn.Flatten`.
#[derive(Clone, Copy, Debug)]
pub struct Flatten;
module!(Flatten {});

impl Layer for Flatten {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(1, -1)
    }
}
