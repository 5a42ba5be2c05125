//! Llama (Touvron et al., 2023), as in Hugging Face's Transformers.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{Result, Tensor, TensorError};

use super::config::{self, ConfigFile, Refusal, split_heads};
use super::positions::{LastWaves, Rope, Waves};
use crate::layers::{Activation, Embedding, Layer, Linear, RmsNorm, check_probability};
use crate::{Init, Mode, Scope, module};

/// The configuration of a Llama, as read from `config.json`. A file of another model is refused.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct LlamaConfig {
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// The size of the vectors between the linear layers.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of query heads.
    pub num_attention_heads: usize,
    /// The number of key and value heads, each shared by several query heads.
    pub num_key_value_heads: usize,
    /// The size of one head. `None` divides `hidden_size` among the heads.
    pub head_dim: Option<usize>,
    /// The activation of the gate between the linear layers.
    pub hidden_act: Activation,
    /// The ε of the normalisation.
    pub rms_norm_eps: f64,
    /// The rotary positions.
    pub rope: Rope,
    /// Whether the linear layers of attention have biases.
    pub attention_bias: bool,
    /// Whether the other linear layers, except the last, have biases.
    pub mlp_bias: bool,
    /// The probability of dropping an attention weight in training.
    pub attention_dropout: f64,
    /// Whether the token table serves as the last layer too.
    pub tie_word_embeddings: bool,
    /// The padding token, counted from the end if negative.
    pub pad_token_id: Option<isize>,
    /// The standard deviation of a fresh model's weights.
    pub initializer_range: f64,
}

impl Default for LlamaConfig {
    /// The configuration of TinyLlama, with 1.1 billion parameters.
    fn default() -> Self {
        Self {
            vocab_size: 32_000,
            hidden_size: 2048,
            intermediate_size: 5632,
            num_hidden_layers: 22,
            num_attention_heads: 32,
            num_key_value_heads: 4,
            head_dim: None,
            hidden_act: Activation::Silu,
            rms_norm_eps: 1e-5,
            rope: Rope::default(),
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            tie_word_embeddings: false,
            pad_token_id: None,
            initializer_range: 0.02,
        }
    }
}

impl TryFrom<ConfigFile> for LlamaConfig {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        file.only("model_type", "llama".to_owned())?;
        file.no_heads_are_pruned()?;
        let num_attention_heads = file.required("num_attention_heads")?;
        Ok(Self {
            vocab_size: file.required("vocab_size")?,
            hidden_size: file.required("hidden_size")?,
            intermediate_size: file.required("intermediate_size")?,
            num_hidden_layers: file.required("num_hidden_layers")?,
            num_attention_heads,
            num_key_value_heads: file.or("num_key_value_heads", num_attention_heads)?,
            head_dim: file.optional("head_dim")?,
            hidden_act: file.activation("hidden_act", Activation::Silu)?,
            rms_norm_eps: file.or("rms_norm_eps", 1e-6)?,
            rope: file.all()?,
            attention_bias: file.or("attention_bias", false)?,
            mlp_bias: file.or("mlp_bias", false)?,
            attention_dropout: file.or("attention_dropout", 0.0)?,
            tie_word_embeddings: file.or("tie_word_embeddings", false)?,
            pad_token_id: file.optional("pad_token_id")?,
            initializer_range: file.or("initializer_range", 0.02)?,
        })
    }
}

impl LlamaConfig {
    /// Returns the size of one head.
    fn head_size(&self) -> Result<usize> {
        let Self { hidden_size, num_attention_heads: heads, num_key_value_heads: key_heads, .. } = *self;
        if self.head_dim.is_none() {
            config::check_heads("Llama", heads, hidden_size)?;
        }
        if key_heads == 0 || heads == 0 || !heads.is_multiple_of(key_heads) {
            let reason = format!("{key_heads} heads of keys and values cannot be shared by {heads} of queries");
            return Err(TensorError::argument("Llama", reason));
        }
        let size = self.head_dim.unwrap_or(hidden_size / heads);
        if size == 0 || !size.is_multiple_of(2) {
            let reason = format!("positions turn pairs of a head's numbers, of which there are {size}");
            return Err(TensorError::argument("Llama", reason));
        }
        Ok(size)
    }

    fn linear(&self, scope: &Scope, inputs: usize, outputs: usize, bias: bool) -> Result<Linear> {
        Linear::with_init(scope, inputs, outputs, self.init(), bias.then_some(Init::ZEROS))
    }

    fn norm(&self, scope: &Scope) -> Result<RmsNorm> {
        RmsNorm::new(scope, &[self.hidden_size], self.rms_norm_eps)
    }

    fn init(&self) -> Init {
        Init::Normal { mean: 0.0, deviation: self.initializer_range }
    }
}

/// A decoder: computes scores of the next token after each token.
pub struct Llama {
    embed_tokens: Embedding,
    layers: Vec<LlamaBlock>,
    norm: RmsNorm,
    lm_head: Option<Linear>,
    rope: Rope,
    waves: LastWaves,
    head_size: usize,
}
module!(Llama { embed_tokens, layers, norm, lm_head });

impl Llama {
    /// Makes a fresh model.
    ///
    /// # Errors
    /// The heads do not fit together; the positions or other numbers are invalid; no memory.
    pub fn new(scope: &Scope, config: &LlamaConfig) -> Result<Self> {
        let model = scope.at("model");
        let hidden = config.hidden_size;
        let count = config.vocab_size;
        let head_size = config.head_size()?;
        config.rope.check()?;
        let tokens = model.at("embed_tokens");
        let padding = config.pad_token_id;
        Ok(Self {
            embed_tokens: config::token_table(&tokens, count, hidden, config.init(), padding)?,
            layers: (0..config.num_hidden_layers)
                .map(|number| LlamaBlock::new(&model.at("layers").at(number), config, head_size))
                .collect::<Result<_>>()?,
            norm: config.norm(&model.at("norm"))?,
            lm_head: (!config.tie_word_embeddings)
                .then(|| config.linear(&scope.at("lm_head"), hidden, count, false))
                .transpose()?,
            rope: config.rope,
            waves: LastWaves::default(),
            head_size,
        })
    }
}

impl Layer for Llama {
    /// Computes scores `[batch, length, vocabulary]` for tokens `[batch, length]`.
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let length = config::text_length("Llama", tokens, None)?;
        let x = self.embed_tokens.forward(tokens)?;
        let waves = self.waves.get(&self.rope, length, self.head_size, &x)?;
        let x = self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, &waves))?;
        let x = self.norm.forward(&x)?;
        match &self.lm_head {
            Some(head) => head.forward(&x),
            None => x.linear(&self.embed_tokens.weight, None),
        }
    }
}

struct LlamaBlock {
    input_layernorm: RmsNorm,
    attention: SelfAttention,
    post_attention_layernorm: RmsNorm,
    gate_proj: Linear,
    up_proj: Linear,
    down_proj: Linear,
    activation: Activation,
}
module!(LlamaBlock { attention, gate_proj, up_proj, down_proj, input_layernorm, post_attention_layernorm });

impl LlamaBlock {
    fn new(scope: &Scope, config: &LlamaConfig, head_size: usize) -> Result<Self> {
        let hidden = config.hidden_size;
        let inner = config.intermediate_size;
        let mlp = scope.at("mlp");
        let bias = config.mlp_bias;
        Ok(Self {
            input_layernorm: config.norm(&scope.at("input_layernorm"))?,
            attention: SelfAttention::new(&scope.at("self_attn"), config, head_size)?,
            post_attention_layernorm: config.norm(&scope.at("post_attention_layernorm"))?,
            gate_proj: config.linear(&mlp.at("gate_proj"), hidden, inner, bias)?,
            up_proj: config.linear(&mlp.at("up_proj"), hidden, inner, bias)?,
            down_proj: config.linear(&mlp.at("down_proj"), inner, hidden, bias)?,
            activation: config.hidden_act,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves) -> Result<Tensor> {
        let x = x.add(&self.attention.forward(&self.input_layernorm.forward(x)?, waves)?)?;
        let normal = self.post_attention_layernorm.forward(&x)?;
        let gate = self.gate_proj.forward(&normal)?;
        let inner = self.up_proj.forward(&normal)?;
        let inner = match self.activation {
            Activation::Silu => gate.swiglu(&inner)?,
            activation => activation.forward(&gate)?.mul(&inner)?,
        };
        x.add(&self.down_proj.forward(&inner)?)
    }
}

struct SelfAttention {
    q_proj: Linear,
    k_proj: Linear,
    v_proj: Linear,
    o_proj: Linear,
    mode: Mode,
    heads: usize,
    key_heads: usize,
    dropout: f64,
}
module!(SelfAttention { q_proj, k_proj, v_proj, o_proj, mode });

impl SelfAttention {
    fn new(scope: &Scope, config: &LlamaConfig, head_size: usize) -> Result<Self> {
        let hidden = config.hidden_size;
        let heads = config.num_attention_heads;
        let key_heads = config.num_key_value_heads;
        let bias = config.attention_bias;
        Ok(Self {
            q_proj: config.linear(&scope.at("q_proj"), hidden, heads * head_size, bias)?,
            k_proj: config.linear(&scope.at("k_proj"), hidden, key_heads * head_size, bias)?,
            v_proj: config.linear(&scope.at("v_proj"), hidden, key_heads * head_size, bias)?,
            o_proj: config.linear(&scope.at("o_proj"), heads * head_size, hidden, bias)?,
            mode: Mode::default(),
            heads,
            key_heads,
            dropout: check_probability("attention_dropout", config.attention_dropout)?,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves) -> Result<Tensor> {
        let queries = waves.turn(&split_heads(&self.q_proj.forward(x)?, self.heads)?)?;
        let keys = waves.turn(&split_heads(&self.k_proj.forward(x)?, self.key_heads)?)?;
        let values = split_heads(&self.v_proj.forward(x)?, self.key_heads)?;
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { is_causal: true, dropout, ..Attention::default() };
        let found = queries.attention(&keys, &values, &how)?;
        self.o_proj.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}
