//! Attention of several heads.

use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor, TensorError};

use super::{Layer, Linear};
use crate::{Init, Mode, Parameter, Scope, module};

/// Attention (Vaswani et al., 2017) between sequences `[batch, length, size]`. PyTorch's `nn.MultiheadAttention` with
/// `batch_first`.
pub struct MultiheadAttention {
    /// Of queries, keys and values: `[3 size, size]`.
    pub in_proj_weight: Parameter,
    /// `[3 size]`.
    pub in_proj_bias: Parameter,
    /// Of the heads' results.
    pub out_proj: Linear,
    mode: Mode,
    heads: usize,
    dropout: f64,
}
module!(MultiheadAttention { in_proj_weight, in_proj_bias, out_proj, mode });

/// What attends to what.
#[derive(Clone, Copy, Default)]
pub struct AttentionOptions<'a> {
    /// Added to the scores, or of `bool`, true where a query attends to a key. It broadcasts to
    /// `[batch, heads, queries, keys]`.
    pub mask: Option<&'a Tensor>,
    /// A query attends to no key after it.
    pub is_causal: bool,
}

impl MultiheadAttention {
    /// `heads` heads, which divide `size`.
    ///
    /// # Errors
    /// They do not; no memory.
    pub fn new(scope: &Scope, size: usize, heads: usize, dropout: f64) -> Result<Self> {
        if heads == 0 || !size.is_multiple_of(heads) {
            let reason = format!("{heads} heads do not divide a size of {size}");
            return Err(TensorError::argument("MultiheadAttention", reason));
        }
        let out_proj = scope.at("out_proj");
        Ok(Self {
            in_proj_weight: scope.parameter("in_proj_weight", &[3 * size, size], Init::XavierUniform { gain: 1.0 })?,
            in_proj_bias: scope.parameter("in_proj_bias", &[3 * size], Init::ZEROS)?,
            out_proj: Linear::with_init(&out_proj, size, size, Init::default_weight(), Some(Init::ZEROS))?,
            mode: Mode::default(),
            heads,
            dropout,
        })
    }

    /// What `query` finds in `value` by `key`. All may be one tensor: self-attention.
    ///
    /// # Errors
    /// Sizes that do not go together; no memory.
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let [q, k, v] = if query.is_same(key) && key.is_same(value) {
            let all = query.linear(&self.in_proj_weight, Some(&self.in_proj_bias))?;
            let size = query.size(-1)?;
            [all.narrow(-1, 0, size)?, all.narrow(-1, size, size)?, all.narrow(-1, 2 * size, size)?]
        } else {
            [self.project(0, query)?, self.project(1, key)?, self.project(2, value)?]
        };
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { mask: options.mask, is_causal: options.is_causal, scale: None, dropout };
        let found = self.split(&q)?.attention(&self.split(&k)?, &self.split(&v)?, &how)?;
        self.out_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }

    /// One of the three projections.
    fn project(&self, which: usize, input: &Tensor) -> Result<Tensor> {
        let size = self.in_proj_weight.size(1)?;
        let weight = self.in_proj_weight.narrow(0, which * size, size)?;
        input.linear(&weight, Some(&self.in_proj_bias.narrow(0, which * size, size)?))
    }

    /// `[batch, length, size]` as `[batch, heads, length, size / heads]`.
    fn split(&self, input: &Tensor) -> Result<Tensor> {
        let [batch, length, size] = *input.sizes() else {
            let reason = format!("sizes [batch, length, size] are expected, got {:?}", input.sizes());
            return Err(TensorError::shape("MultiheadAttention", reason));
        };
        let heads = self.heads as isize;
        input.reshape(&[batch as isize, length as isize, heads, size as isize / heads])?.transpose(1, 2)
    }
}
