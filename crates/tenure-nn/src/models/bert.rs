//! BERT (Devlin et al., 2019), the encoder, as in Hugging Face's Transformers, and models with the same layers:
//! RoBERTa, XLM-RoBERTa, CamemBERT, MPNet and DistilBERT.

use serde::Deserialize;
use tenure_tensor::ops::Attention;
use tenure_tensor::{DType, Result, Tensor};

use super::config::{self, ConfigFile, split_heads};
use super::positions::RelativePositions;
use crate::layers::{Activation, Dropout, Embedding, Layer, LayerNorm, Linear, check_probability};
use crate::{Init, Mode, Scope, module};

/// The configuration of a BERT, as read from `config.json`. A file of a decoder or of a model with other layers is
/// refused.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "ConfigFile")]
pub struct BertConfig {
    /// The number of tokens in the vocabulary.
    pub vocab_size: usize,
    /// The size of a token's vector.
    pub hidden_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of heads in each layer.
    pub num_attention_heads: usize,
    /// The size of the vectors between the two linear layers.
    pub intermediate_size: usize,
    /// The number of positions.
    pub max_position_embeddings: usize,
    /// The position of a text's first token. If it is not 0, the token with the number before it is padding and always
    /// has that number as its position, as in RoBERTa (`pad_token_id`) and MPNet (1).
    pub first_position: usize,
    /// The number of buckets for the relative positions that attention adds, as in MPNet. `None` adds nothing.
    pub relative_attention_num_buckets: Option<usize>,
    /// The number of text kinds (segments). It is 0 where no kind is added, as in MPNet and DistilBERT.
    pub type_vocab_size: usize,
    /// The activation between the two linear layers.
    pub hidden_act: Activation,
    /// The ε of the normalisation.
    pub layer_norm_eps: f64,
    /// The probability of dropping a hidden value in training.
    pub hidden_dropout_prob: f64,
    /// The probability of dropping an attention weight in training.
    pub attention_probs_dropout_prob: f64,
    /// The padding token, counted from the end if negative.
    pub pad_token_id: Option<isize>,
    /// The standard deviation of a fresh model's weights.
    pub initializer_range: f64,
}

impl Default for BertConfig {
    /// The configuration of BERT-base, uncased.
    fn default() -> Self {
        Self {
            vocab_size: 30_522,
            hidden_size: 768,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            intermediate_size: 3072,
            max_position_embeddings: 512,
            first_position: 0,
            relative_attention_num_buckets: None,
            type_vocab_size: 2,
            hidden_act: Activation::Gelu,
            layer_norm_eps: 1e-12,
            hidden_dropout_prob: 0.1,
            attention_probs_dropout_prob: 0.1,
            pad_token_id: Some(0),
            initializer_range: 0.02,
        }
    }
}

impl BertConfig {
    /// Returns the number of tokens in the longest text.
    pub fn max_tokens(&self) -> usize {
        self.max_position_embeddings.saturating_sub(self.first_position)
    }

    fn linear(&self, scope: &Scope, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with_init(scope, inputs, outputs, self.init(), Some(Init::ZEROS))
    }

    fn norm(&self, scope: &Scope) -> Result<LayerNorm> {
        LayerNorm::new(&scope.at("LayerNorm"), &[self.hidden_size], self.layer_norm_eps)
    }

    fn init(&self) -> Init {
        Init::Normal { mean: 0.0, deviation: self.initializer_range }
    }
}

/// The encoder: computes a vector for each token of a text.
pub struct Bert {
    embeddings: Embeddings,
    layers: Vec<EncoderLayer>,
    relative_positions: Option<RelativePositions>,
    pooler: Linear,
}
module!(Bert { embeddings, layers, relative_positions, pooler });

impl Bert {
    /// Makes a fresh model. `scope` may be at `bert`, as in files of models with more layers on top.
    ///
    /// # Errors
    /// The heads do not divide the hidden size; a dropout is not a probability; no memory.
    pub fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        config::check_heads("Bert", config.num_attention_heads, config.hidden_size)?;
        let encoder = scope.at("encoder");
        let layers = encoder.at("layer");
        let heads = config.num_attention_heads;
        let relative = encoder.at("relative_attention_bias");
        Ok(Self {
            embeddings: Embeddings::new(&scope.at("embeddings"), config)?,
            layers: (0..config.num_hidden_layers)
                .map(|number| EncoderLayer::new(&layers.at(number), config))
                .collect::<Result<_>>()?,
            relative_positions: config
                .relative_attention_num_buckets
                .map(|buckets| RelativePositions::new(&relative, buckets, heads, config.init()))
                .transpose()?,
            pooler: config.linear(&scope.at("pooler").at("dense"), config.hidden_size, config.hidden_size)?,
        })
    }

    /// Computes vectors `[batch, length, hidden]` for the tokens `[batch, length]`. `mask`, of the same sizes, is 1 for
    /// a token and 0 for padding.
    ///
    /// # Errors
    /// The sizes do not fit together; a text is too long; no memory.
    pub fn forward(&self, tokens: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        // The mask is true where a query may look, and the same for all heads and queries.
        let mask = mask.map(|mask| mask.to_dtype(DType::Bool)?.unsqueeze(1)?.unsqueeze(1)).transpose()?;
        let x = self.embeddings.forward(tokens)?;
        let mask = match &self.relative_positions {
            Some(positions) => Some(positions.forward(tokens.size(1)?, mask.as_ref())?),
            None => mask,
        };
        self.layers.iter().try_fold(x, |x, layer| layer.forward(&x, mask.as_ref()))
    }

    /// Computes one vector for each text, `[batch, hidden]`, from the vector of its first token.
    ///
    /// # Errors
    /// The sizes do not fit together; no memory.
    pub fn pool(&self, hidden: &Tensor) -> Result<Tensor> {
        self.pooler.forward(&hidden.select(1, 0)?)?.tanh()
    }
}

struct Embeddings {
    word_embeddings: Embedding,
    position_embeddings: Embedding,
    token_type_embeddings: Option<Embedding>,
    norm: LayerNorm,
    dropout: Dropout,
    first_position: usize,
}
module!(Embeddings { word_embeddings, position_embeddings, token_type_embeddings, norm, dropout });

impl Embeddings {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        let table = |name: &str, count, padding| {
            config::token_table(&scope.at(name), count, config.hidden_size, config.init(), padding)
        };
        Ok(Self {
            word_embeddings: table("word_embeddings", config.vocab_size, config.pad_token_id)?,
            position_embeddings: table("position_embeddings", config.max_position_embeddings, None)?,
            token_type_embeddings: match config.type_vocab_size {
                0 => None,
                kinds => Some(table("token_type_embeddings", kinds, None)?),
            },
            norm: config.norm(scope)?,
            dropout: Dropout::new(config.hidden_dropout_prob)?,
            first_position: config.first_position,
        })
    }

    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = &self.position_embeddings.weight;
        let most = positions.size(0)?.saturating_sub(self.first_position);
        let length = config::text_length("Bert", tokens, Some((most, "max_position_embeddings")))?;
        let positions = match self.first_position.checked_sub(1) {
            Some(padding) => self.position_embeddings.forward(&positions_from(padding, tokens)?)?,
            None => positions.narrow(0, 0, length)?,
        };
        let mut x = self.word_embeddings.forward(tokens)?.add(&positions)?;
        if let Some(kinds) = &self.token_type_embeddings {
            // All tokens have the first kind.
            x = x.add(&kinds.weight.narrow(0, 0, 1)?)?;
        }
        self.dropout.forward(&self.norm.forward(&x)?)
    }
}

/// Returns the positions of `tokens`. They are counted from `padding` + 1; the token `padding` itself always has the
/// position `padding`. Source: Transformers' `create_position_ids_from_input_ids`.
fn positions_from(padding: usize, tokens: &Tensor) -> Result<Tensor> {
    let padding = padding as i64;
    let is_counted = tokens.ne(padding)?.to_dtype(DType::I64)?;
    is_counted.cumsum(1)?.mul(&is_counted)?.add(padding)
}

struct EncoderLayer {
    attention: SelfAttention,
    attention_output: Residual,
    intermediate: Linear,
    activation: Activation,
    output: Residual,
}
module!(EncoderLayer { attention, attention_output, intermediate, output });

impl EncoderLayer {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        let hidden = config.hidden_size;
        let inner = config.intermediate_size;
        Ok(Self {
            attention: SelfAttention::new(&scope.at("attention").at("self"), config)?,
            attention_output: Residual::new(&scope.at("attention").at("output"), hidden, config)?,
            intermediate: config.linear(&scope.at("intermediate").at("dense"), hidden, inner)?,
            activation: config.hidden_act,
            output: Residual::new(&scope.at("output"), inner, config)?,
        })
    }

    fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let x = self.attention_output.forward(&self.attention.forward(x, mask)?, x)?;
        self.output.forward(&self.activation.forward(&self.intermediate.forward(&x)?)?, &x)
    }
}

struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    mode: Mode,
    heads: usize,
    dropout: f64,
}
module!(SelfAttention { query, key, value, mode });

impl SelfAttention {
    fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        let size = config.hidden_size;
        Ok(Self {
            query: config.linear(&scope.at("query"), size, size)?,
            key: config.linear(&scope.at("key"), size, size)?,
            value: config.linear(&scope.at("value"), size, size)?,
            mode: Mode::default(),
            heads: config.num_attention_heads,
            dropout: check_probability("attention_probs_dropout_prob", config.attention_probs_dropout_prob)?,
        })
    }

    fn forward(&self, x: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let query = split_heads(&self.query.forward(x)?, self.heads)?;
        let key = split_heads(&self.key.forward(x)?, self.heads)?;
        let value = split_heads(&self.value.forward(x)?, self.heads)?;
        let dropout = if self.mode.is_training() { self.dropout } else { 0.0 };
        let how = Attention { mask, dropout, ..Attention::default() };
        let found = query.attention(&key, &value, &how)?;
        found.transpose(1, 2)?.flatten(2, 3)
    }
}

/// A linear layer whose output is added to the residual and normalised.
struct Residual {
    dense: Linear,
    norm: LayerNorm,
    dropout: Dropout,
}
module!(Residual { dense, norm, dropout });

impl Residual {
    fn new(scope: &Scope, inputs: usize, config: &BertConfig) -> Result<Self> {
        Ok(Self {
            dense: config.linear(&scope.at("dense"), inputs, config.hidden_size)?,
            norm: config.norm(scope)?,
            dropout: Dropout::new(config.hidden_dropout_prob)?,
        })
    }

    fn forward(&self, x: &Tensor, before: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.dropout.forward(&self.dense.forward(x)?)?.add(before)?)
    }
}
