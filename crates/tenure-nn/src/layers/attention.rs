//! Multi-head attention.

use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor, TensorError};

use super::{Layer, Linear, check_probability};
use crate::{Init, Mode, Parameter, Scope, module};

/// Attention (Vaswani et al., 2017) between sequences `[batch, length, size]`. PyTorch's `nn.MultiheadAttention` with
/// `batch_first`.
pub struct MultiheadAttention {
    /// The projections of queries, keys and values: `in_proj_weight` `[3 size, size]`; or, if keys or values have other
    /// sizes, `q_proj_weight`, `k_proj_weight` and `v_proj_weight`, `[size, size of the input]`.
    pub in_proj_weights: Vec<Parameter>,
    /// The bias of the projections, `[3 size]`.
    pub in_proj_bias: Option<Parameter>,
    /// The projection of the heads' results.
    pub out_proj: Linear,
    mode: Mode,
    size: usize,
    heads: usize,
    dropout: f64,
}
module!(MultiheadAttention { in_proj_weights, in_proj_bias, out_proj, mode });

/// Settings of a [`MultiheadAttention`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiheadOptions {
    /// The probability of dropping an attention weight in training.
    pub dropout: f64,
    /// Whether the linear layers have biases.
    pub bias: bool,
    /// The size of a key, if it differs from a query's: PyTorch's `kdim`.
    pub key_size: Option<usize>,
    /// The size of a value, if it differs from a query's: PyTorch's `vdim`.
    pub value_size: Option<usize>,
}

impl Default for MultiheadOptions {
    /// PyTorch's defaults.
    fn default() -> Self {
        Self { dropout: 0.0, bias: true, key_size: None, value_size: None }
    }
}

/// Options of one attention: which queries attend to which keys.
#[derive(Clone, Copy, Default)]
pub struct AttentionOptions<'a> {
    /// A tensor that is added to the scores, or a `bool` tensor that is true where a query attends to a key. This is
    /// the convention of `scaled_dot_product_attention`; PyTorch's `nn.MultiheadAttention` takes the opposite. It
    /// broadcasts to `[batch, heads, queries, keys]`.
    pub mask: Option<&'a Tensor>,
    /// Whether each query ignores the keys after it.
    pub is_causal: bool,
}

impl MultiheadAttention {
    /// Makes a layer with `heads` heads, which must divide `size`.
    ///
    /// # Errors
    /// `heads` does not divide `size`; `dropout` is not a probability; no memory.
    pub fn new(scope: &Scope, size: usize, heads: usize, dropout: f64) -> Result<Self> {
        Self::with_options(scope, size, heads, MultiheadOptions { dropout, ..MultiheadOptions::default() })
    }

    /// Makes a layer with the given options.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_options(scope: &Scope, size: usize, heads: usize, options: MultiheadOptions) -> Result<Self> {
        let MultiheadOptions { dropout, bias, key_size, value_size } = options;
        if heads == 0 || !size.is_multiple_of(heads) {
            let reason = format!("{heads} heads do not divide a size of {size}");
            return Err(TensorError::argument("MultiheadAttention", reason));
        }
        let bias = bias.then_some(Init::ZEROS);
        let weight =
            |name, outputs, inputs| scope.parameter(name, &[outputs, inputs], Init::XavierUniform { gain: 1.0 });
        let keys = key_size.unwrap_or(size);
        let values = value_size.unwrap_or(size);
        let in_proj_weights = if [keys, values] == [size; 2] {
            vec![weight("in_proj_weight", 3 * size, size)?]
        } else {
            let queries = weight("q_proj_weight", size, size)?;
            let keys = weight("k_proj_weight", size, keys)?;
            vec![queries, keys, weight("v_proj_weight", size, values)?]
        };
        Ok(Self {
            in_proj_weights,
            in_proj_bias: bias.map(|init| scope.parameter("in_proj_bias", &[3 * size], init)).transpose()?,
            out_proj: Linear::with_init(&scope.at("out_proj"), size, size, Init::default_weight(), bias)?,
            mode: Mode::default(),
            size,
            heads,
            dropout: check_probability("MultiheadAttention", dropout)?,
        })
    }

    /// Computes attention of `query` to `key`, and returns the weighted values. All three may be one tensor:
    /// self-attention.
    ///
    /// # Errors
    /// The sizes do not fit together; no memory.
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
    ) -> Result<Tensor> {
        let _module = self.in_proj_weights.first().map(Parameter::enter_module);
        let [q, k, v] = self.heads(query, key, value)?;
        self.join(&q.attention(&k, &v, &self.how(options))?)
    }

    /// Computes attention, and returns also how much each query attended to each key: `[batch, queries, keys]`, the
    /// mean of the heads. It needs memory for all attention weights at once: use this method for inspection. PyTorch's
    /// `need_weights`.
    ///
    /// # Errors
    /// The errors of [`forward`](Self::forward).
    pub fn forward_with_weights(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: AttentionOptions<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let _module = self.in_proj_weights.first().map(Parameter::enter_module);
        let [q, k, v] = self.heads(query, key, value)?;
        let [batch, heads, keys] = [0, 1, 2].map(|dim| k.sizes()[dim] as isize);
        // Attention over unit vectors returns the weights themselves, masked and dropped as usual.
        let units = Tensor::eye(keys as usize, keys as usize, k.dtype(), k.device())?;
        let weights = q.attention(&k, &units.expand(&[batch, heads, keys, keys])?, &self.how(options))?;
        Ok((self.join(&weights.matmul(&v)?)?, weights.mean(&[1], false)?))
    }

    fn how<'a>(&self, options: AttentionOptions<'a>) -> Attention<'a> {
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        Attention { mask: options.mask, is_causal: options.is_causal, scale: None, dropout }
    }

    /// Projects and splits the inputs: queries, keys and values of all heads, `[batch, heads, length, size / heads]`.
    fn heads(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        let size = self.size;
        let [q, k, v] = match &self.in_proj_weights[..] {
            [weight] if query.is_same(key) && key.is_same(value) => {
                let all = query.linear(weight, self.in_proj_bias.as_deref())?;
                let parts = all.split(size, -1)?;
                [0, 1, 2].map(|part| parts[part].clone())
            }
            _ => [self.project(0, query)?, self.project(1, key)?, self.project(2, value)?],
        };
        Ok([self.split(&q)?, self.split(&k)?, self.split(&v)?])
    }

    /// Computes one of the three projections.
    fn project(&self, which: usize, input: &Tensor) -> Result<Tensor> {
        let part = |all: &Parameter| all.narrow(0, which * self.size, self.size);
        let bias = self.in_proj_bias.as_ref().map(part).transpose()?;
        match &self.in_proj_weights[..] {
            [all] => input.linear(&part(all)?, bias.as_ref()),
            weights => input.linear(&weights[which], bias.as_ref()),
        }
    }

    /// Reshapes `[batch, length, size]` to `[batch, heads, length, size / heads]`.
    fn split(&self, input: &Tensor) -> Result<Tensor> {
        let [batch, length, size] = *input.sizes() else {
            let reason = format!("sizes [batch, length, size] are expected, got {:?}", input.sizes());
            return Err(TensorError::shape("MultiheadAttention", reason));
        };
        let heads = self.heads as isize;
        input.reshape(&[batch as isize, length as isize, heads, size as isize / heads])?.transpose(1, 2)
    }

    /// Joins the heads' results and projects them.
    fn join(&self, found: &Tensor) -> Result<Tensor> {
        self.out_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}
