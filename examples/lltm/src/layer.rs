//! A layer around the operation.

use tenure_nn::{Init, Parameter, Scope, module};
use tenure_tensor::{Result, Tensor, ops};

use crate::lltm_cell;

/// A recurrent layer: a linear layer computes the gates from the hidden state and the input, and `lltm_cell` does the
/// rest.
pub struct Lltm {
    /// The weight of the linear layer, `[3 * state, state + inputs]`.
    pub weight: Parameter,
    /// The bias of the linear layer, `[3 * state]`.
    pub bias: Parameter,
}
module!(Lltm { weight, bias });

impl Lltm {
    /// Makes a layer whose values are uniform from -1/√`state` to 1/√`state`.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(scope: &Scope, inputs: usize, state: usize) -> Result<Self> {
        let bound = 1.0 / (state as f64).sqrt();
        let init = Init::Uniform { low: -bound, high: bound };
        Ok(Self {
            weight: scope.parameter("weight", &[3 * state, state + inputs], init)?,
            bias: scope.parameter("bias", &[3 * state], init)?,
        })
    }

    /// Returns the next hidden state and cell, both `[batch, state]`, from the last ones and an input
    /// `[batch, inputs]`.
    ///
    /// # Errors
    /// The sizes or dtypes do not fit together, or there is no memory.
    pub fn forward(&self, input: &Tensor, (hidden, cell): (&Tensor, &Tensor)) -> Result<(Tensor, Tensor)> {
        lltm_cell(&ops::cat(&[hidden, input], 1)?.linear(&self.weight, Some(&self.bias))?, cell)
    }
}
