//! ModernBERT (Warner et al., 2024), as in Hugging Face's Transformers: an encoder with rotary positions, in which some
//! layers attend to near tokens only.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{DType, Result, Tensor};

use super::config::{self, ConfigFile, Refusal, split_heads};
use super::positions::{LastWaves, Rope, Waves};
use crate::layers::{Activation, Dropout, Embedding, Layer, LayerNorm, Linear, NormOptions, check_probability};
use crate::{Init, Mode, Scope, module};

/// The configuration of a ModernBERT, as read from `config.json`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct ModernBertConfig {
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// The number of heads in each layer.
    pub num_attention_heads: usize,
    /// The size of the vectors between the two linear layers.
    pub intermediate_size: usize,
    /// The number of tokens in the longest text.
    pub max_position_embeddings: usize,
    /// The range of attention of each layer.
    pub layers: Vec<Sight>,
    /// The distance in tokens, to either side, up to which a layer of [`Sight::Near`] attends.
    pub window: usize,
    /// The rotary positions of layers that attend to all tokens.
    pub rope: Rope,
    /// The rotary positions of layers that attend to near tokens.
    pub near_rope: Rope,
    /// The activation of the gates between the two linear layers.
    pub hidden_activation: Activation,
    /// The ε of the normalisations.
    pub norm_eps: f64,
    /// Whether normalisations have a bias.
    pub norm_bias: bool,
    /// Whether the linear layers of attention have a bias.
    pub attention_bias: bool,
    /// Whether the other linear layers have a bias.
    pub mlp_bias: bool,
    /// The probability of dropping an embedding's value in training.
    pub embedding_dropout: f64,
    /// The probability of dropping an attention weight in training.
    pub attention_dropout: f64,
    /// The probability of dropping a value between the linear layers in training.
    pub mlp_dropout: f64,
    /// The standard deviation of a fresh model's weights.
    pub initializer_range: f64,
}

/// The range of a layer's attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Sight {
    /// All tokens of a text.
    #[serde(rename = "full_attention")]
    All,
    /// The near tokens of a text.
    #[serde(rename = "sliding_attention")]
    Near,
}

impl TryFrom<ConfigFile> for ModernBertConfig {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        file.only("model_type", "modernbert".to_owned())?;
        let count = file.required("num_hidden_layers")?;
        let every: usize = file.or("global_attn_every_n_layers", 3)?;
        let alternating = (0_usize..count)
            .map(|layer| if layer.is_multiple_of(every.max(1)) { Sight::All } else { Sight::Near })
            .collect::<Vec<_>>();
        let layers = file.or("layer_types", alternating)?;
        if layers.len() != count {
            return Err(format!("layer_types has {}, and num_hidden_layers is {count}", layers.len()));
        }
        let parameters: ConfigFile = file.or("rope_parameters", ConfigFile::default())?;
        let theta = file.or("global_rope_theta", 160_000.0)?;
        let rope = |kind, theta| parameters.or(kind, Rope { theta, ..Rope::default() });
        let window: usize = file.or("local_attention", 128)?;
        Ok(Self {
            vocab_size: file.required("vocab_size")?,
            hidden_size: file.required("hidden_size")?,
            num_attention_heads: file.required("num_attention_heads")?,
            intermediate_size: file.required("intermediate_size")?,
            max_position_embeddings: file.or("max_position_embeddings", 8192)?,
            layers,
            window: window / 2,
            rope: rope("full_attention", theta)?,
            near_rope: rope("sliding_attention", file.or("local_rope_theta", theta)?)?,
            hidden_activation: file.activation("hidden_activation", Activation::Gelu)?,
            norm_eps: file.or("norm_eps", 1e-5)?,
            norm_bias: file.or("norm_bias", false)?,
            attention_bias: file.or("attention_bias", false)?,
            mlp_bias: file.or("mlp_bias", false)?,
            embedding_dropout: file.or("embedding_dropout", 0.0)?,
            attention_dropout: file.or("attention_dropout", 0.0)?,
            mlp_dropout: file.or("mlp_dropout", 0.0)?,
            initializer_range: file.or("initializer_range", 0.02)?,
        })
    }
}

impl ModernBertConfig {
    fn linear(&self, scope: &Scope, inputs: usize, outputs: usize, bias: bool) -> Result<Linear> {
        Linear::with_init(scope, inputs, outputs, self.init(), bias.then_some(Init::ZEROS))
    }

    fn norm(&self, scope: &Scope) -> Result<LayerNorm> {
        let options = NormOptions { eps: self.norm_eps, bias: self.norm_bias, ..NormOptions::default() };
        LayerNorm::with_options(scope, &[self.hidden_size], options)
    }

    fn init(&self) -> Init {
        Init::Normal { mean: 0.0, deviation: self.initializer_range }
    }
}

/// The encoder: computes a vector for each token of a text.
pub struct ModernBert {
    tok_embeddings: Embedding,
    norm: LayerNorm,
    dropout: Dropout,
    layers: Vec<EncoderLayer>,
    final_norm: LayerNorm,
    rope: Positions,
    near_rope: Positions,
    window: usize,
    max_tokens: usize,
    head_size: usize,
}
module!(ModernBert { tok_embeddings, norm, dropout, layers, final_norm });

/// Rotary positions with a cache of the last computed waves.
struct Positions {
    rope: Rope,
    waves: LastWaves,
}

impl Positions {
    fn new(rope: Rope) -> Result<Self> {
        rope.check()?;
        Ok(Self { rope, waves: LastWaves::default() })
    }

    fn get(&self, length: usize, head_size: usize, like: &Tensor) -> Result<Waves> {
        self.waves.get(&self.rope, length, head_size, like)
    }
}

impl ModernBert {
    /// Makes a fresh model. `scope` may be at `model`, as in files of models with more layers on top.
    ///
    /// # Errors
    /// The heads do not divide the hidden size; a dropout is not a probability; no memory.
    pub fn new(scope: &Scope, config: &ModernBertConfig) -> Result<Self> {
        config::check_heads("ModernBert", config.num_attention_heads, config.hidden_size)?;
        let embeddings = scope.at("embeddings");
        let layers = scope.at("layers");
        let layer =
            |(number, sight): (usize, &Sight)| EncoderLayer::new(&layers.at(number), config, *sight, number == 0);
        let tokens = embeddings.at("tok_embeddings");
        Ok(Self {
            tok_embeddings: Embedding::with_init(&tokens, config.vocab_size, config.hidden_size, config.init())?,
            norm: config.norm(&embeddings.at("norm"))?,
            dropout: Dropout::new(config.embedding_dropout)?,
            layers: config.layers.iter().enumerate().map(layer).collect::<Result<_>>()?,
            final_norm: config.norm(&scope.at("final_norm"))?,
            rope: Positions::new(config.rope)?,
            near_rope: Positions::new(config.near_rope)?,
            window: config.window,
            max_tokens: config.max_position_embeddings,
            head_size: config.hidden_size / config.num_attention_heads,
        })
    }

    /// Computes vectors `[batch, length, hidden]` for the tokens `[batch, length]`. `mask`, of the same sizes, is 1 for
    /// a token and 0 for padding.
    ///
    /// # Errors
    /// The sizes do not fit together; a text is too long; no memory.
    pub fn forward(&self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let length = config::text_length("ModernBert", tokens, Some((self.max_tokens, "max_position_embeddings")))?;
        let x = self.dropout.forward(&self.norm.forward(&self.tok_embeddings.forward(tokens)?)?)?;
        // The mask is true where a query may look, and the same for all heads and queries.
        let all = mask.map(|mask| mask.to_dtype(DType::Bool)?.unsqueeze(1)?.unsqueeze(1)).transpose()?;
        let near = near(length, self.window)?.to_device(x.device())?;
        let near = match &all {
            Some(all) => all.logical_and(&near)?,
            None => near,
        };
        let waves = self.rope.get(length, self.head_size, &x)?;
        let near_waves = self.near_rope.get(length, self.head_size, &x)?;
        let x = self.layers.iter().try_fold(x, |x, layer| match layer.sight {
            Sight::All => layer.forward(&x, &waves, all.as_ref()),
            Sight::Near => layer.forward(&x, &near_waves, Some(&near)),
        })?;
        self.final_norm.forward(&x)
    }
}

/// Makes the mask `[length, length]` that is true where a key is at most `window` tokens from the query.
fn near(length: usize, window: usize) -> Result<Tensor> {
    Tensor::from_vec(
        (0..length).flat_map(|query: usize| (0..length).map(move |key| key.abs_diff(query) <= window)).collect(),
        &[length, length],
    )
}

struct EncoderLayer {
    /// The normalisation before attention. The first layer has none, since the embeddings were just normalised.
    attn_norm: Option<LayerNorm>,
    attention: SelfAttention,
    mlp_norm: LayerNorm,
    inner: Linear,
    outer: Linear,
    activation: Activation,
    dropout: Dropout,
    sight: Sight,
}
module!(EncoderLayer { attn_norm, attention, mlp_norm, inner, outer, dropout });

impl EncoderLayer {
    fn new(scope: &Scope, config: &ModernBertConfig, sight: Sight, is_first: bool) -> Result<Self> {
        let hidden = config.hidden_size;
        let inner = config.intermediate_size;
        let mlp = scope.at("mlp");
        Ok(Self {
            attn_norm: (!is_first).then(|| config.norm(&scope.at("attn_norm"))).transpose()?,
            attention: SelfAttention::new(&scope.at("attn"), config)?,
            mlp_norm: config.norm(&scope.at("mlp_norm"))?,
            inner: config.linear(&mlp.at("Wi"), hidden, 2 * inner, config.mlp_bias)?,
            outer: config.linear(&mlp.at("Wo"), inner, hidden, config.mlp_bias)?,
            activation: config.hidden_activation,
            dropout: Dropout::new(config.mlp_dropout)?,
            sight,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves, mask: Option<&Tensor>) -> Result<Tensor> {
        let found = match &self.attn_norm {
            Some(norm) => self.attention.forward(&norm.forward(x)?, waves, mask)?,
            None => self.attention.forward(x, waves, mask)?,
        };
        let x = x.add(&found)?;
        let inner = self.inner.forward(&self.mlp_norm.forward(&x)?)?.chunk(2, -1)?;
        let gated = self.activation.forward(&inner[0])?.mul(&inner[1])?;
        x.add(&self.outer.forward(&self.dropout.forward(&gated)?)?)
    }
}

struct SelfAttention {
    query_key_value: Linear,
    output: Linear,
    mode: Mode,
    heads: usize,
    dropout: f64,
}
module!(SelfAttention { query_key_value, output, mode });

impl SelfAttention {
    fn new(scope: &Scope, config: &ModernBertConfig) -> Result<Self> {
        let hidden = config.hidden_size;
        let bias = config.attention_bias;
        Ok(Self {
            query_key_value: config.linear(&scope.at("Wqkv"), hidden, 3 * hidden, bias)?,
            output: config.linear(&scope.at("Wo"), hidden, hidden, bias)?,
            mode: Mode::default(),
            heads: config.num_attention_heads,
            dropout: check_probability("attention_dropout", config.attention_dropout)?,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves, mask: Option<&Tensor>) -> Result<Tensor> {
        let parts = self.query_key_value.forward(x)?.chunk(3, -1)?;
        let queries = waves.turn(&split_heads(&parts[0], self.heads)?)?;
        let keys = waves.turn(&split_heads(&parts[1], self.heads)?)?;
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { mask, dropout, ..Attention::default() };
        let found = queries.attention(&keys, &split_heads(&parts[2], self.heads)?, &how)?;
        self.output.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}
