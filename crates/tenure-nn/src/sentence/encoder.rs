//! The network of a sentence encoder, which computes the tokens' vectors. `config.json` states its type.

use std::path::Path;

use serde::Deserialize;
use tenure_tensor::{Result as TensorResult, Tensor};

use super::files::{CONFIG, WEIGHTS, load, required, scope, weights};
use super::tokenizer::ModelLimits;
use crate::Result;
use crate::checkpoint::Under;
use crate::models::{Bert, BertConfig, BertNames, ModernBert, ModernBertConfig};
use crate::module::{Module, Source};

/// A model that computes vectors of tokens.
pub(super) enum Encoder {
    Bert(Box<Bert>),
    ModernBert(Box<ModernBert>),
}

/// The configuration of a model, by its type.
pub(super) enum EncoderConfig {
    Bert(BertConfig),
    ModernBert(ModernBertConfig),
}

/// The model type in `config.json`.
#[derive(Deserialize)]
struct ModelType {
    model_type: Option<String>,
}

impl EncoderConfig {
    /// Reads the `config.json` of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let ModelType { model_type } = required(folder, CONFIG)?;
        Ok(match model_type.as_deref() {
            Some("modernbert") => Self::ModernBert(required(folder, CONFIG)?),
            _ => Self::Bert(required(folder, CONFIG)?),
        })
    }

    /// Returns the size of a token's vector.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Bert(config) => config.hidden_size,
            Self::ModernBert(config) => config.hidden_size,
        }
    }

    /// Returns the model's limits on texts.
    pub(super) fn limits(&self) -> ModelLimits {
        let (max_tokens, vocab_size) = match self {
            Self::Bert(config) => (config.max_tokens(), config.vocab_size),
            Self::ModernBert(config) => (config.max_position_embeddings, config.vocab_size),
        };
        ModelLimits {
            max_position_embeddings: Some(max_tokens),
            vocab_size: Some(vocab_size),
            ..ModelLimits::default()
        }
    }
}

impl Encoder {
    /// Opens the model of a folder.
    pub(super) fn open(folder: &Path, config: &EncoderConfig) -> Result<Self> {
        let weights = weights(folder)?;
        let file = folder.join(WEIGHTS);
        Ok(match config {
            EncoderConfig::Bert(config) => {
                let mut model = Bert::new(&scope(), config)?;
                load(&mut model, &BertNames::new(&weights), &file)?;
                Self::Bert(Box::new(model))
            }
            EncoderConfig::ModernBert(config) => {
                // Models with more layers on top have the encoder at `model`.
                let is_part = weights.names().iter().any(|name| name.starts_with("model."));
                let mut model = ModernBert::new(&scope(), config)?;
                load(&mut model, &Under::new(&weights, if is_part { "model." } else { "" }), &file)?;
                Self::ModernBert(Box::new(model))
            }
        })
    }

    pub(super) fn module(&mut self) -> &mut dyn Module {
        match self {
            Self::Bert(model) => &mut **model,
            Self::ModernBert(model) => &mut **model,
        }
    }

    /// Computes the tokens' vectors `[texts, length, width]` of `[texts, length]`. `mask`, of the same sizes, is 1 for
    /// a token and 0 for padding.
    pub(super) fn forward(&self, tokens: &Tensor, mask: &Tensor) -> TensorResult<Tensor> {
        match self {
            Self::Bert(model) => model.forward(tokens, Some(mask)),
            Self::ModernBert(model) => model.forward(tokens, Some(mask)),
        }
    }
}
