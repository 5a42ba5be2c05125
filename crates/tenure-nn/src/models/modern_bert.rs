//! ModernBERT (Warner et al., 2024), an encoder with rotary positions and layers that look at near tokens only, as Hugging
//! Face has it.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{DType, Result, Tensor};

use super::config::{self, ConfigFile, Refusal};
use super::rope::{LastWaves, Rope, Waves};
use crate::layers::{Activation, Dropout, Embedding, Layer, LayerNorm, Linear, NormOptions, check_probability};
use crate::{Init, Mode, Scope, module};

/// How large a ModernBERT is: what `config.json` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct ModernBertConfig {
    /// Tokens that there are.
    pub vocab_size: usize,
    /// Numbers of one token.
    pub hidden_size: usize,
    /// Heads of each layer.
    pub num_attention_heads: usize,
    /// Numbers between the two linear layers.
    pub intermediate_size: usize,
    /// Tokens of the longest text.
    pub max_position_embeddings: usize,
    /// Which tokens each layer looks at.
    pub layers: Vec<Sight>,
    /// How many tokens away a layer of [`Sight::Near`] looks, to either side.
    pub window: usize,
    /// Positions in layers that look at all tokens.
    pub rope: Rope,
    /// Positions in layers that look at near ones.
    pub near_rope: Rope,
    /// In the gates between the two linear layers.
    pub hidden_activation: Activation,
    /// The ε of the normalisations.
    pub norm_eps: f64,
    /// Whether normalisations have a bias.
    pub norm_bias: bool,
    /// Whether linear layers of attention have a bias.
    pub attention_bias: bool,
    /// Whether the other linear layers have a bias.
    pub mlp_bias: bool,
    /// How much of the embeddings is left out in training.
    pub embedding_dropout: f64,
    /// How much attention is left out in training.
    pub attention_dropout: f64,
    /// How much of what is between the linear layers is left out in training.
    pub mlp_dropout: f64,
    /// The standard deviation of what a fresh model begins with.
    pub initializer_range: f64,
}

/// Which tokens a layer looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Sight {
    /// All of a text's.
    #[serde(rename = "full_attention")]
    All,
    /// A text's near ones.
    #[serde(rename = "sliding_attention")]
    Near,
}

impl TryFrom<ConfigFile> for ModernBertConfig {
    type Error = Refusal;

    fn try_from(file: ConfigFile) -> Result<Self, Refusal> {
        file.only("model_type", "modernbert".to_owned())?;
        let count = file.required("num_hidden_layers")?;
        let every: usize = file.or("global_attn_every_n_layers", 3)?;
        let sight = |layer: usize| if layer.is_multiple_of(every.max(1)) { Sight::All } else { Sight::Near };
        let layers = file.or("layer_types", (0..count).map(sight).collect::<Vec<_>>())?;
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

/// Texts, as numbers for each of their tokens.
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

/// Rotary positions, of which the last are remembered.
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
    /// A fresh model. `scope` may be at `model`, as in files of models with more on top.
    ///
    /// # Errors
    /// Heads that do not divide the hidden size; what is left out is no probability; no memory.
    pub fn new(scope: &Scope, config: &ModernBertConfig) -> Result<Self> {
        config::check_heads("ModernBert", config.num_attention_heads, config.hidden_size)?;
        let (embeddings, layers) = (scope.at("embeddings"), scope.at("layers"));
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

    /// Numbers `[batch, length, hidden]` for the tokens `[batch, length]`. `mask`, of the same sizes, is 1 where there
    /// is a token and 0 where a text was filled up.
    ///
    /// # Errors
    /// Sizes that do not go together; a text that is too long; no memory.
    pub fn forward(&self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let length = config::text_length("ModernBert", tokens, Some((self.max_tokens, "max_position_embeddings")))?;
        let x = self.dropout.forward(&self.norm.forward(&self.tok_embeddings.forward(tokens)?)?)?;
        // True where a query may look, for all heads and queries alike.
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

/// Which of `length` keys each query sees that looks no farther than `window`: `[length, length]`.
fn near(length: usize, window: usize) -> Result<Tensor> {
    let of_query = |query: usize| (0..length).map(move |key| key.abs_diff(query) <= window);
    Tensor::from_vec((0..length).flat_map(of_query).collect(), &[length, length])
}

struct EncoderLayer {
    /// Embeddings were normalised just before the first layer.
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
        let (hidden, inner, mlp) = (config.hidden_size, config.intermediate_size, scope.at("mlp"));
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
        let (hidden, bias) = (config.hidden_size, config.attention_bias);
        Ok(Self {
            query_key_value: config.linear(&scope.at("Wqkv"), hidden, 3 * hidden, bias)?,
            output: config.linear(&scope.at("Wo"), hidden, hidden, bias)?,
            mode: Mode::default(),
            heads: config.num_attention_heads,
            dropout: check_probability("attention_dropout", config.attention_dropout)?,
        })
    }

    fn forward(&self, x: &Tensor, waves: &Waves, mask: Option<&Tensor>) -> Result<Tensor> {
        let heads = |part: &Tensor| part.unflatten(-1, &[self.heads as isize, -1])?.transpose(1, 2);
        let parts = self.query_key_value.forward(x)?.chunk(3, -1)?;
        let (queries, keys) = (waves.turn(&heads(&parts[0])?)?, waves.turn(&heads(&parts[1])?)?);
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { mask, dropout, ..Attention::default() };
        let found = queries.attention(&keys, &heads(&parts[2])?, &how)?;
        self.output.forward(&found.transpose(1, 2)?.flatten(2, 3)?)
    }
}
