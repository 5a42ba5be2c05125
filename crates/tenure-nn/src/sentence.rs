//! Texts as vectors that are near each other if the texts mean much the same (Reimers and Gurevych, 2019).

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor, autograd};
use tokenizers::{EncodeInput, Tokenizer, TruncationParams};

use crate::checkpoint::{CheckpointError, Under, Weights};
use crate::models::{Bert, BertConfig};
use crate::module::{Module, Source};
use crate::{Result, Scope, lfs};

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const POOLING: &str = "1_Pooling/config.json";

/// A BERT whose tokens' numbers are averaged to one vector for each text, of length 1, as sentence-transformers does.
///
/// ```no_run
/// use tenure_nn::sentence::SentenceEncoder;
///
/// let encoder = SentenceEncoder::open("all-MiniLM-L6-v2".as_ref())?;
/// let vectors = encoder.embed(&["a cat on a mat", "a dog on a rug"])?;
/// let likeness: f32 = vectors.select(0, 0)?.dot(&vectors.select(0, 1)?)?.item()?;
/// # Ok::<(), tenure_nn::Error>(())
/// ```
pub struct SentenceEncoder {
    tokenizer: SentenceTokenizer,
    model: Bert,
    device: Device,
    width: usize,
}

/// Makes texts the tokens that a sentence encoder takes, for whoever computes with them elsewhere.
pub struct SentenceTokenizer {
    tokenizer: Tokenizer,
    max_tokens: usize,
    lowers_case: bool,
}

/// `sentence_bert_config.json`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Limits {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

/// `tokenizer_config.json`, whose limit may be a number beyond all integers.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfig {
    model_max_length: Option<f64>,
}

/// The limits on tokens that a model's `config.json` states. Their names differ by the model's type.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelLimits {
    max_position_embeddings: Option<usize>,
    n_positions: Option<usize>,
    vocab_size: Option<usize>,
}

/// `1_Pooling/config.json`.
#[derive(Deserialize)]
struct Pooling {
    pooling_mode_mean_tokens: bool,
    #[serde(default)]
    pooling_mode_cls_token: bool,
    #[serde(default)]
    pooling_mode_max_tokens: bool,
}

impl SentenceEncoder {
    /// Opens a folder with a model's `config.json`, `tokenizer.json` and `model.safetensors`, as Hugging Face has it.
    ///
    /// A text is cut to what `sentence_bert_config.json` says (`max_seq_length`), or else `tokenizer_config.json`
    /// (`model_max_length`), and never longer than the model takes.
    ///
    /// # Errors
    /// [`CheckpointError`]: a file is missing or not what it should be; another model than a BERT, or one whose
    /// vectors are no averages.
    pub fn open(folder: &Path) -> Result<Self> {
        let config: BertConfig = required(folder, CONFIG)?;
        if let Some(pooling) = optional::<Pooling>(folder, POOLING)? {
            pooling.check(&folder.join(POOLING))?;
        }
        let limits = ModelLimits {
            max_position_embeddings: Some(config.max_position_embeddings),
            vocab_size: Some(config.vocab_size),
            ..ModelLimits::default()
        };
        let tokenizer = SentenceTokenizer::of(folder, &limits)?;
        Ok(Self { tokenizer, model: model(folder, &config)?, device: Device::CPU, width: config.hidden_size })
    }

    /// Moves the model to a device, where it computes from now on, and leaves the vectors.
    ///
    /// # Errors
    /// There is no such device, or no memory on it.
    pub fn to_device(&mut self, device: Device) -> Result<()> {
        self.model.to_device(device)?;
        self.device = device;
        Ok(())
    }

    /// Numbers of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Tokens that a text is cut to, those around it included.
    pub fn max_tokens(&self) -> usize {
        self.tokenizer.max_tokens
    }

    /// A vector for each text, `[texts, width]`, in `float32`. They are computed at once, filled up to the longest: give
    /// texts of like length together, and no more than memory takes.
    ///
    /// # Errors
    /// No memory.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Tensor> {
        let tokens = texts.iter().map(|text| self.tokenizer.tokens(text.as_ref())).collect::<Result<Vec<_>>>()?;
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest == 0 {
            return Ok(Tensor::zeros(&[texts.len(), self.width], DType::F32, self.device)?);
        }
        // What a text is filled up with is never looked at.
        let filled = |tokens: &Vec<i64>| tokens.iter().copied().chain(std::iter::repeat(0)).take(longest).collect();
        let is_token = |tokens: &Vec<i64>| (0..longest).map(|place| place < tokens.len()).collect();
        let sizes = [texts.len(), longest];
        let ids = Tensor::from_vec(tokens.iter().flat_map::<Vec<i64>, _>(filled).collect(), &sizes)?;
        let mask = Tensor::from_vec(tokens.iter().flat_map::<Vec<bool>, _>(is_token).collect(), &sizes)?;
        let (ids, mask) = (ids.to_device(self.device)?, mask.to_device(self.device)?);
        Ok(autograd::no_grad(|| vectors(&self.model, &ids, &mask))?)
    }
}

impl SentenceTokenizer {
    /// Opens the tokenizer of a folder, of which no weights are read, and whose model may be of any type. See
    /// [`SentenceEncoder::open`].
    ///
    /// # Errors
    /// [`CheckpointError`]: a file is missing or not what it should be.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::of(folder, &required(folder, CONFIG)?)
    }

    fn of(folder: &Path, model: &ModelLimits) -> Result<Self> {
        let limits: Limits = optional(folder, "sentence_bert_config.json")?.unwrap_or_default();
        let of_tokenizer: TokenizerConfig = optional(folder, "tokenizer_config.json")?.unwrap_or_default();
        // As large as an integer gets, where it is larger.
        let of_tokenizer = of_tokenizer.model_max_length.map(|length| length as usize);
        let max_tokens = limits.max_seq_length.or(of_tokenizer).unwrap_or(usize::MAX);
        let positions = model.max_position_embeddings.or(model.n_positions).unwrap_or(usize::MAX);
        let max_tokens = max_tokens.min(positions);
        let tokenizer = tokenizer(folder, max_tokens, model.vocab_size)?;
        Ok(Self { tokenizer, max_tokens, lowers_case: limits.do_lower_case })
    }

    /// A text's tokens, with those around it.
    ///
    /// # Errors
    /// The tokenizer has none for it.
    pub fn tokens(&self, text: &str) -> Result<Vec<i64>> {
        let lowered = self.lowers_case.then(|| text.to_lowercase());
        let input = EncodeInput::from(lowered.as_deref().unwrap_or(text));
        let encoding = self.tokenizer.encode_fast(input, true).map_err(|error| {
            let reason = format!("a text cannot be made tokens: {error}");
            tenure_tensor::TensorError::argument("SentenceEncoder::embed", reason)
        })?;
        Ok(encoding.get_ids().iter().map(|id| i64::from(*id)).collect())
    }
}

/// A vector of length 1 for each text of tokens `[texts, length]`: `[texts, width]`. `mask`, of the same sizes, is 1 where
/// there is a token and 0 where a text was filled up.
///
/// # Errors
/// Sizes that do not go together; a text that is too long; no memory.
pub fn vectors(model: &Bert, tokens: &Tensor, mask: &Tensor) -> tenure_tensor::Result<Tensor> {
    normalized(&mean(&model.forward(tokens, Some(mask))?, mask)?)
}

/// The average over the tokens that there are, of `[texts, length, width]`.
fn mean(hidden: &Tensor, mask: &Tensor) -> tenure_tensor::Result<Tensor> {
    let mask = mask.to_dtype(hidden.dtype())?.unsqueeze(-1)?;
    let count = mask.sum(&[1], false)?.clamp_min(1.0)?;
    hidden.mul(&mask)?.sum(&[1], false)?.div(&count)
}

/// Vectors of length 1; zeros stay zeros.
fn normalized(vectors: &Tensor) -> tenure_tensor::Result<Tensor> {
    vectors.div(&vectors.norm(2.0, &[-1], true)?.clamp_min(1e-12)?)
}

fn tokenizer(folder: &Path, max_tokens: usize, vocab_size: Option<usize>) -> Result<Tokenizer> {
    let path = folder.join(TOKENIZER);
    let bad = |error: tokenizers::Error| CheckpointError::format(&path, format!("no tokenizer: {error}"));
    let mut tokenizer = Tokenizer::from_bytes(read(&path)?).map_err(bad)?;
    let largest = tokenizer.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
    if let Some(vocab_size) = vocab_size.filter(|size| largest > *size) {
        let reason = format!("{largest} tokens, but {CONFIG} says {vocab_size} (vocab_size): of another model?");
        return Err(CheckpointError::format(&path, reason).into());
    }
    // The file's own limits are those of whatever it was saved for.
    let truncation = TruncationParams { max_length: max_tokens, ..TruncationParams::default() };
    tokenizer.with_padding(None).with_truncation(Some(truncation)).map_err(bad)?;
    Ok(tokenizer)
}

fn model(folder: &Path, config: &BertConfig) -> Result<Bert> {
    let file = folder.join(WEIGHTS);
    if !file.exists() && !folder.join(format!("{WEIGHTS}.index.json")).exists() {
        return Err(missing(&file).into());
    }
    let weights = Weights::open(folder)?;
    // Models with more on top have the encoder at `bert`.
    let is_part = weights.names().iter().any(|name| name.starts_with("bert."));
    let weights = Under::new(&weights, if is_part { "bert." } else { "" });
    let mut model = Bert::new(&Scope::new(&Generator::new(0)).zeroed(), config)?;
    model.eval();
    let missing = model.load_known(&weights).map_err(|error| CheckpointError::format(&file, error))?;
    // The pooler has no part in an average.
    if let Some(name) = missing.iter().find(|name| !name.starts_with("pooler.")) {
        let reason = format!("{name} is missing: not the weights of the BERT that {CONFIG} describes");
        return Err(CheckpointError::format(&file, reason).into());
    }
    Ok(model)
}

impl Pooling {
    fn check(&self, path: &Path) -> Result<(), CheckpointError> {
        if self.pooling_mode_mean_tokens && !self.pooling_mode_cls_token && !self.pooling_mode_max_tokens {
            return Ok(());
        }
        let reason = "the vectors are no averages over tokens (pooling_mode_mean_tokens), the only ones there are here";
        Err(CheckpointError::format(path, reason))
    }
}

fn required<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T, CheckpointError> {
    let path = folder.join(name);
    serde_json::from_slice(&read(&path)?).map_err(|error| CheckpointError::format(&path, error))
}

fn optional<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, CheckpointError> {
    if folder.join(name).exists() { required(folder, name).map(Some) } else { Ok(None) }
}

fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(path),
        _ => CheckpointError::io(path)(error),
    })?;
    if lfs::is_pointer(&bytes) {
        return Err(CheckpointError::format(path, lfs::POINTER));
    }
    Ok(bytes)
}

fn missing(path: &Path) -> CheckpointError {
    let reason = format!("not there: a sentence encoder is a folder with {CONFIG}, {TOKENIZER} and {WEIGHTS}");
    CheckpointError::format(path, reason)
}
