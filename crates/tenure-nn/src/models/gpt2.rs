//! GPT-2 (Radford et al., 2019), as in Hugging Face's Transformers.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor};

use super::config::{self, ConfigFile, Refusal, split_heads};
use crate::layers::{Activation, Dropout, Embedding, Layer, LayerNorm, check_probability};
use crate::{Init, Mode, Parameter, Scope, module};

/// The configuration of a GPT-2, as read from `config.json`. A file of another model, or of one whose last layer is not
/// the token table, is refused. `reorder_and_upcast_attn` has no effect, because scores are never computed in half
/// precision.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct Gpt2Config {
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The number of tokens in the longest text.
    pub n_positions: usize,
    /// The size of a token's vector.
    pub n_embd: usize,
    /// The number of layers.
    pub n_layer: usize,
    /// The number of heads in each layer.
    pub n_head: usize,
    /// The size of the vectors between the linear layers. `None` means four times `n_embd`.
    pub n_inner: Option<usize>,
    /// The activation between the linear layers.
    pub activation_function: Activation,
    /// Whether scores are divided by the root of a head's size.
    pub scale_attn_weights: bool,
    /// Whether scores are divided by the layer's number, from 1.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// The ε of the normalisation.
    pub layer_norm_epsilon: f64,
    /// The probability of dropping an embedding's value in training.
    pub embd_pdrop: f64,
    /// The probability of dropping an attention weight in training.
    pub attn_pdrop: f64,
    /// The probability of dropping a value of each block part's output in training.
    pub resid_pdrop: f64,
    /// The standard deviation of a fresh model's weights.
    pub initializer_range: f64,
}

impl Default for Gpt2Config {
    /// The configuration of the small GPT-2, with 124 million parameters.
    fn default() -> Self {
        Self {
            vocab_size: 50_257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Activation::GeluTanh,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            layer_norm_epsilon: 1e-5,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            resid_pdrop: 0.1,
            initializer_range: 0.02,
        }
    }
}

impl TryFrom<ConfigFile> for Gpt2Config {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        file.only("model_type", "gpt2".to_owned())?;
        file.only("tie_word_embeddings", true)?;
        file.only("add_cross_attention", false)?;
        file.no_heads_are_pruned()?;
        Ok(Self {
            vocab_size: file.required("vocab_size")?,
            n_positions: file.required("n_positions")?,
            n_embd: file.required("n_embd")?,
            n_layer: file.required("n_layer")?,
            n_head: file.required("n_head")?,
            n_inner: file.optional("n_inner")?,
            activation_function: file.activation("activation_function", Activation::GeluTanh)?,
            scale_attn_weights: file.or("scale_attn_weights", true)?,
            scale_attn_by_inverse_layer_idx: file.or("scale_attn_by_inverse_layer_idx", false)?,
            layer_norm_epsilon: file.or("layer_norm_epsilon", 1e-5)?,
            embd_pdrop: file.or("embd_pdrop", 0.1)?,
            attn_pdrop: file.or("attn_pdrop", 0.1)?,
            resid_pdrop: file.or("resid_pdrop", 0.1)?,
            initializer_range: file.or("initializer_range", 0.02)?,
        })
    }
}

impl Gpt2Config {
    /// Returns the factor of the scores in layer number `layer`, from 0.
    fn scale(&self, layer: usize) -> f64 {
        let root = if self.scale_attn_weights { ((self.n_embd / self.n_head) as f64).sqrt() } else { 1.0 };
        let number = if self.scale_attn_by_inverse_layer_idx { layer + 1 } else { 1 };
        1.0 / (root * number as f64)
    }

    fn norm(&self, scope: &Scope) -> Result<LayerNorm> {
        LayerNorm::new(scope, &[self.n_embd], self.layer_norm_epsilon)
    }

    fn init(&self) -> Init {
        Init::Normal { mean: 0.0, deviation: self.initializer_range }
    }

    /// Returns the initial values of the layers whose outputs are summed over the blocks. Their deviation keeps the
    /// sum's size independent of the number of blocks.
    fn init_residual(&self) -> Init {
        Init::Normal { mean: 0.0, deviation: self.initializer_range / (2.0 * self.n_layer as f64).sqrt() }
    }
}

/// A decoder: computes scores of the next token after each token. The token table serves as the last layer too.
pub struct Gpt2 {
    wte: Embedding,
    wpe: Embedding,
    blocks: Vec<Gpt2Block>,
    ln_f: LayerNorm,
    dropout: Dropout,
}
module!(Gpt2 { wte, wpe, blocks, ln_f, dropout });

impl Gpt2 {
    /// Makes a fresh model. `scope` may be at `transformer`, as in some files.
    ///
    /// # Errors
    /// The heads do not divide the hidden size; a dropout is not a probability; no memory.
    pub fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        config::check_heads("Gpt2", config.n_head, config.n_embd)?;
        let size = config.n_embd;
        Ok(Self {
            wte: Embedding::with_init(&scope.at("wte"), config.vocab_size, size, config.init())?,
            wpe: Embedding::with_init(&scope.at("wpe"), config.n_positions, size, config.init())?,
            blocks: (0..config.n_layer)
                .map(|number| Gpt2Block::new(&scope.at("h").at(number), config, number))
                .collect::<Result<_>>()?,
            ln_f: config.norm(&scope.at("ln_f"))?,
            dropout: Dropout::new(config.embd_pdrop)?,
        })
    }
}

impl Layer for Gpt2 {
    /// Computes scores `[batch, length, vocabulary]` for tokens `[batch, length]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let length = config::text_length("Gpt2", tokens, Some((self.wpe.weight.size(0)?, "n_positions")))?;
        let positions = self.wpe.weight.narrow(0, 0, length)?;
        let x = self.dropout.forward(&self.wte.forward(tokens)?.add(&positions)?)?;
        let x = self.blocks.iter().try_fold(x, |x, block| block.forward(&x))?;
        self.ln_f.forward(&x)?.linear(&self.wte.weight, None)
    }
}

struct Gpt2Block {
    ln_1: LayerNorm,
    attn: SelfAttention,
    ln_2: LayerNorm,
    c_fc: Projection,
    activation: Activation,
    c_proj: Projection,
    dropout: Dropout,
}
module!(Gpt2Block { ln_1, attn, ln_2, c_fc, c_proj, dropout });

impl Gpt2Block {
    fn new(scope: &Scope, config: &Gpt2Config, number: usize) -> Result<Self> {
        let size = config.n_embd;
        let mlp = scope.at("mlp");
        let inner = config.n_inner.unwrap_or(4 * size);
        Ok(Self {
            ln_1: config.norm(&scope.at("ln_1"))?,
            attn: SelfAttention::new(&scope.at("attn"), config, config.scale(number))?,
            ln_2: config.norm(&scope.at("ln_2"))?,
            c_fc: Projection::new(&mlp.at("c_fc"), size, inner, config.init())?,
            activation: config.activation_function,
            c_proj: Projection::new(&mlp.at("c_proj"), inner, size, config.init_residual())?,
            dropout: Dropout::new(config.resid_pdrop)?,
        })
    }
}

impl Layer for Gpt2Block {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.add(&self.dropout.forward(&self.attn.forward(&self.ln_1.forward(x)?)?)?)?;
        let inner = self.activation.forward(&self.c_fc.forward(&self.ln_2.forward(&x)?)?)?;
        x.add(&self.dropout.forward(&self.c_proj.forward(&inner)?)?)
    }
}

struct SelfAttention {
    c_attn: Projection,
    c_proj: Projection,
    mode: Mode,
    heads: usize,
    scale: f64,
    dropout: f64,
}
module!(SelfAttention { c_attn, c_proj, mode });

impl SelfAttention {
    fn new(scope: &Scope, config: &Gpt2Config, scale: f64) -> Result<Self> {
        let size = config.n_embd;
        Ok(Self {
            c_attn: Projection::new(&scope.at("c_attn"), size, 3 * size, config.init())?,
            c_proj: Projection::new(&scope.at("c_proj"), size, size, config.init_residual())?,
            mode: Mode::default(),
            heads: config.n_head,
            scale,
            dropout: check_probability("attn_pdrop", config.attn_pdrop)?,
        })
    }
}

impl Layer for SelfAttention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let parts = self.c_attn.forward(x)?.chunk(3, -1)?;
        let query = split_heads(&parts[0], self.heads)?;
        let key = split_heads(&parts[1], self.heads)?;
        let value = split_heads(&parts[2], self.heads)?;
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { mask: None, is_causal: true, scale: Some(self.scale), dropout };
        let found = query.attention(&key, &value, &how)?;
        self.c_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}

/// A linear layer x W + b with the transposed weight: Hugging Face's `Conv1D`.
struct Projection {
    /// `[inputs, outputs]`.
    weight: Parameter,
    bias: Parameter,
}
module!(Projection { weight, bias });

impl Projection {
    fn new(scope: &Scope, inputs: usize, outputs: usize, init: Init) -> Result<Self> {
        let weight = scope.parameter("weight", &[inputs, outputs], init)?;
        Ok(Self { weight, bias: scope.parameter("bias", &[outputs], Init::ZEROS)? })
    }
}

impl Layer for Projection {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        x.linear(&self.weight.transpose(0, 1)?, Some(&self.bias))
    }
}
