//! Sentence encoders: vectors of texts that are near each other if the texts have similar meanings (Reimers and
//! Gurevych, 2019).

mod encoder;
mod files;
mod module_list;
mod modules;
mod prompt;
mod tokenizer;

use std::path::Path;

use tenure_tensor::{DType, Device, Tensor, autograd};

use self::encoder::{Encoder, EncoderConfig};
pub use self::module_list::{ListedModule, MODULES, PoolingMode, model_path, token_width};
use self::modules::{Modules, SentenceModule, mean, normalized};
pub use self::prompt::{SETTINGS, default_prompt};
pub use self::tokenizer::SentenceTokenizer;
use crate::Result;
use crate::models::Bert;

/// An encoder that computes a vector of each text, as sentence-transformers does, by the modules that a folder's
/// `modules.json` lists.
///
/// The model may be a BERT, RoBERTa, XLM-RoBERTa, CamemBERT, MPNet, DistilBERT or ModernBERT.
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
    encoder: Encoder,
    modules: Vec<SentenceModule>,
    device: Device,
    width: usize,
}

impl SentenceEncoder {
    /// Opens a folder in Hugging Face's format, with a model's `config.json`, `tokenizer.json` and `model.safetensors`.
    ///
    /// `modules.json` lists the modules after the model: `Pooling`, which makes a text's vector of its tokens' vectors,
    /// and `Dense`, `LayerNorm` and `Normalize`. Without this file, vectors are averages, scaled to length 1. The
    /// prompt that `config_sentence_transformers.json` names (`default_prompt_name`) comes before each text.
    ///
    /// Texts are cut to `max_seq_length` of `sentence_bert_config.json`, or else to `model_max_length` of
    /// `tokenizer_config.json`, and always to the model's own limit.
    ///
    /// # Errors
    /// [`CheckpointError`](crate::checkpoint::CheckpointError): a file is missing or invalid; the model is none of
    /// those above; a module or a setting (`truncate_dim`) is not supported.
    pub fn open(folder: &Path) -> Result<Self> {
        let modules = Modules::read(folder)?;
        let at = folder.join(&modules.model);
        let config = EncoderConfig::read(&at)?;
        let tokenizer = SentenceTokenizer::of(&at, &config.limits(), default_prompt(folder)?)?;
        let encoder = Encoder::open(&at, &config)?;
        let (modules, width) = modules.open(folder, config.width())?;
        Ok(Self { tokenizer, encoder, modules, device: Device::CPU, width })
    }

    /// Moves the model to a device, where it computes from now on and leaves the vectors.
    ///
    /// # Errors
    /// There is no such device, or no memory on it.
    pub fn to_device(&mut self, device: Device) -> Result<()> {
        self.encoder.module().to_device(device)?;
        self.modules.iter_mut().filter_map(SentenceModule::module).try_for_each(|module| module.to_device(device))?;
        self.device = device;
        Ok(())
    }

    /// Returns the size of a vector.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the number of tokens that a text is cut to, special tokens included.
    pub fn max_tokens(&self) -> usize {
        self.tokenizer.max_tokens
    }

    /// Computes a vector for each text, `[texts, width]`, in `float32`. All texts are computed at once and padded to
    /// the longest: pass texts of similar length together, and no more than memory can hold.
    ///
    /// # Errors
    /// No memory.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Tensor> {
        let tokens = texts.iter().map(|text| self.tokenizer.tokens(text.as_ref())).collect::<Result<Vec<_>>>()?;
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest == 0 {
            return Ok(Tensor::zeros(&[texts.len(), self.width], DType::F32, self.device)?);
        }
        let mut ids: Vec<i64> = Vec::new();
        let mut mask = Vec::new();
        for tokens in &tokens {
            ids.extend(tokens);
            mask.extend((0..longest).map(|place| place < tokens.len()));
            // The model ignores the padding.
            ids.resize(mask.len(), 0);
        }
        let sizes = [texts.len(), longest];
        let ids = Tensor::from_vec(ids, &sizes)?.to_device(self.device)?;
        let mask = Tensor::from_vec(mask, &sizes)?.to_device(self.device)?;
        Ok(autograd::no_grad(|| {
            let hidden = self.encoder.forward(&ids, &mask)?;
            self.modules.iter().try_fold(hidden, |x, module| module.forward(&x, &mask))
        })?)
    }
}

/// Computes a vector of length 1 for each text of tokens `[texts, length]`: `[texts, width]`. `mask`, of the same
/// sizes, is 1 for a token and 0 for padding.
///
/// # Errors
/// The sizes do not fit together; a text is too long; no memory.
pub fn vectors(model: &Bert, tokens: &Tensor, mask: &Tensor) -> tenure_tensor::Result<Tensor> {
    normalized(&mean(&model.forward(tokens, Some(mask))?, mask)?)
}
