//! A layer around the operation.

use tenure_nn::{Init, Parameter, Scope, module};
use tenure_tensor::{Result, Tensor, ops};

use crate::lltm_cell;

/// A recurrent layer: a linear one makes the gates of the hidden state and the input, `lltm_cell` does the rest.
pub struct Lltm {
    /// `[3 * state, state + inputs]`.
    pub weight: Parameter,
    /// `[3 * state]`.
    pub bias: Parameter,
}
module!(Lltm { weight, bias });

impl Lltm {
    /// A fresh layer, whose values are uniform from -1/√`state` to 1/√`state`.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, inputs: usize, state: usize) -> Result<Self> {
        let bound = 1.0 / (state as f64).sqrt();
        let init = Init::Uniform { low: -bound, high: bound };
        Ok(Self {
            weight: scope.parameter("weight", &[3 * state, state + inputs], init)?,
            bias: scope.parameter("bias", &[3 * state], init)?,
        })
    }

    /// The next hidden state and cell, `[batch, state]` both, from the last ones and an input `[batch, inputs]`.
    ///
    /// # Errors
    /// Sizes or dtypes that do not go together; no memory.
    pub fn forward(&self, input: &Tensor, (hidden, cell): (&Tensor, &Tensor)) -> Result<(Tensor, Tensor)> {
        lltm_cell(&ops::cat(&[hidden, input], 1)?.linear(&self.weight, Some(&self.bias))?, cell)
    }
}
