//! Fully connected layers.

use tenure_tensor::{Result, Tensor};

use super::Layer;
use crate::{Init, Parameter, Scope, module};

/// A fully connected layer, x Wᵀ + b. PyTorch's `nn.Linear`.
pub struct Linear {
    /// `[outputs, inputs]`.
    pub weight: Parameter,
    /// `[outputs]`.
    pub bias: Option<Parameter>,
}
module!(Linear { weight, bias });

impl Linear {
    /// Makes a layer with a bias.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Self> {
        Self::with_init(scope, inputs, outputs, Init::default_weight(), Some(Init::default_bias(inputs)))
    }

    /// Makes a layer without a bias.
    ///
    /// # Errors
    /// No memory.
    pub fn without_bias(scope: &Scope, inputs: usize, outputs: usize) -> Result<Self> {
        Self::with_init(scope, inputs, outputs, Init::default_weight(), None)
    }

    /// Makes a layer with other initial values, and a bias if `bias` is given.
    ///
    /// # Errors
    /// No memory.
    pub fn with_init(scope: &Scope, inputs: usize, outputs: usize, weight: Init, bias: Option<Init>) -> Result<Self> {
        let weight = scope.parameter("weight", &[outputs, inputs], weight)?;
        let bias = bias.map(|init| scope.parameter("bias", &[outputs], init)).transpose()?;
        Ok(Self { weight, bias })
    }
}

impl Layer for Linear {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _module = self.weight.enter_module();
        input.linear(&self.weight, self.bias.as_deref())
    }
}
