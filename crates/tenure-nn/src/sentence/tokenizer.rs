//! The tokenizer of a sentence encoder, as its folder describes it.

use std::path::Path;

use serde::Deserialize;
use tenure_core::user_files::without_mark;
use tenure_tensor::TensorError;
use tokenizers::{EncodeInput, PostProcessor, Tokenizer, TruncationParams};

use super::files::{CONFIG, TOKENIZER, inside, optional, read, required};
use super::module_list::{ListedModule, MODULES, model_path};
use super::prompt::default_prompt;
use crate::Result;
use crate::checkpoint::CheckpointError;

/// A tokenizer that turns texts into the tokens of a sentence encoder. It also serves programs that compute with the
/// tokens themselves.
pub struct SentenceTokenizer {
    tokenizer: Tokenizer,
    pub(super) max_tokens: usize,
    lowers_case: bool,
    /// The prompt before each text.
    prompt: String,
}

/// The contents of `sentence_bert_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

/// The contents of `tokenizer_config.json`, whose limit may be larger than any integer.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
}

/// The limits on tokens that a model's `config.json` states. Their names differ by the model's type.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ModelLimits {
    pub(super) max_position_embeddings: Option<usize>,
    pub(super) n_positions: Option<usize>,
    pub(super) vocab_size: Option<usize>,
}

impl SentenceTokenizer {
    /// Opens the tokenizer of a folder, without reading weights. The model may be of any type. See
    /// [`SentenceEncoder::open`](super::SentenceEncoder::open).
    ///
    /// # Errors
    /// [`CheckpointError`]: a file is missing or invalid.
    pub fn open(folder: &Path) -> Result<Self> {
        let modules: Vec<ListedModule> = optional(folder, MODULES)?.unwrap_or_default();
        let model = inside(folder, &folder.join(MODULES), model_path(&modules))?;
        Self::of(&model, &required(&model, CONFIG)?, default_prompt(folder)?)
    }

    /// Opens the tokenizer of a folder for a model with these limits, and with `prompt` before each text.
    pub(super) fn of(folder: &Path, model: &ModelLimits, prompt: String) -> Result<Self> {
        let limits: Limits = optional(folder, "sentence_bert_config.json")?.unwrap_or_default();
        let of_tokenizer: TokenizerConfig = optional(folder, "tokenizer_config.json")?.unwrap_or_default();
        // The conversion turns a value beyond all integers into the largest integer.
        let of_tokenizer = of_tokenizer.model_max_length.map(|length| length as usize);
        let max_tokens = limits.max_seq_length.or(of_tokenizer).unwrap_or(usize::MAX);
        let positions = model.max_position_embeddings.or(model.n_positions).unwrap_or(usize::MAX);
        let max_tokens = max_tokens.min(positions);
        let tokenizer = tokenizer(folder, max_tokens, model.vocab_size)?;
        Ok(Self { tokenizer, max_tokens, lowers_case: limits.do_lower_case, prompt })
    }

    /// Returns the tokens of a text, with the folder's default prompt before it, and with special tokens around both.
    ///
    /// # Errors
    /// The tokenizer cannot encode the text.
    pub fn tokens(&self, text: &str) -> Result<Vec<i64>> {
        let text = format!("{}{text}", self.prompt);
        let text = if self.lowers_case { text.to_lowercase() } else { text };
        let encoding = self.tokenizer.encode_fast(EncodeInput::from(text), true).map_err(|error| {
            let reason = format!("a text cannot be made tokens: {error}");
            TensorError::argument("SentenceEncoder::embed", reason)
        })?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }
}

fn tokenizer(folder: &Path, max_tokens: usize, vocab_size: Option<usize>) -> Result<Tokenizer> {
    let path = folder.join(TOKENIZER);
    let bad = |error: tokenizers::Error| CheckpointError::format(&path, format!("no tokenizer: {error}"));
    let mut tokenizer = Tokenizer::from_bytes(without_mark(&read(&path)?)).map_err(bad)?;
    let largest = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    if let Some(vocab_size) = vocab_size.filter(|size| largest > *size) {
        let reason = format!("{largest} tokens, but {CONFIG} says {vocab_size} (vocab_size): of another model?");
        return Err(CheckpointError::format(&path, reason).into());
    }
    let around = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
    if max_tokens < around {
        let reason = format!(
            "it adds {around} tokens to each text, which is cut to {max_tokens}: make max_seq_length or model_max_length larger"
        );
        return Err(CheckpointError::format(&path, reason).into());
    }
    // The limits in the tokenizer's own file belong to the use that it was saved for, so they are replaced.
    let truncation = TruncationParams { max_length: max_tokens, ..TruncationParams::default() };
    tokenizer.with_padding(None).with_truncation(Some(truncation)).map_err(bad)?;
    Ok(tokenizer)
}
