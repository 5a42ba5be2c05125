//! Layers without parameters, applied to each element or to none.

use tenure_tensor::{Result, Tensor};

use super::Layer;
use crate::{Mode, module};

/// A function of each element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// What is above 0.
    Relu,
    /// x Φ(x), exactly.
    Gelu,
    /// The same, by the hyperbolic tangent.
    GeluTanh,
    /// x σ(x).
    Silu,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// The hyperbolic tangent.
    Tanh,
}
module!(Activation {});

impl Layer for Activation {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => input.relu(),
            Self::Gelu => input.gelu(),
            Self::GeluTanh => input.gelu_tanh(),
            Self::Silu => input.silu(),
            Self::Sigmoid => input.sigmoid(),
            Self::Tanh => input.tanh(),
        }
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
    pub fn new(probability: f64) -> Self {
        Self { probability, mode: Mode::default() }
    }
}

impl Layer for Dropout {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.dropout(self.probability, self.mode.is_training())
    }
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
