//! Fully connected layers, and embeddings: tables of vectors.

use tenure_tensor::{Result, Tensor, TensorError, autograd};

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

/// A table with one vector for each token or other number. PyTorch's `nn.Embedding`.
pub struct Embedding {
    /// `[count, size]`.
    pub weight: Parameter,
    /// The row of the padding token, which gets no gradient.
    padding: Option<usize>,
}
module!(Embedding { weight });

impl Embedding {
    /// Makes a table of `count` vectors with normally distributed values.
    ///
    /// # Errors
    /// No memory.
    pub fn new(scope: &Scope, count: usize, size: usize) -> Result<Self> {
        let init = Init::Normal { mean: 0.0, deviation: 1.0 };
        Self::with_init(scope, count, size, init)
    }

    /// Makes a table with other initial values.
    ///
    /// # Errors
    /// No memory.
    pub fn with_init(scope: &Scope, count: usize, size: usize, init: Init) -> Result<Self> {
        Ok(Self { weight: scope.parameter("weight", &[count, size], init)?, padding: None })
    }

    /// Makes a table in which the row `padding`, counted from the end if negative, is for padding: its vector begins as
    /// zeros and gets no gradient.
    ///
    /// # Errors
    /// There is no such row; no memory.
    pub fn padded(scope: &Scope, count: usize, size: usize, init: Init, padding: isize) -> Result<Self> {
        let row = if padding < 0 { count.checked_add_signed(padding) } else { Some(padding.unsigned_abs()) };
        let Some(row) = row.filter(|row| *row < count) else {
            let reason = format!("the token {padding} for padding is not one of {count}");
            return Err(TensorError::argument("Embedding", reason));
        };
        let weight = scope.parameter("weight", &[count, size], init)?;
        if !scope.has_shapes_alone() {
            autograd::no_grad(|| weight.narrow(0, row, 1)?.zero_())?;
        }
        Ok(Self { weight, padding: Some(row) })
    }
}

impl Layer for Embedding {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let _module = self.weight.enter_module();
        match self.padding {
            Some(padding) => self.weight.embedding_padded(input, padding),
            None => self.weight.embedding(input),
        }
    }
}
