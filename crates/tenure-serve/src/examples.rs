//! Example models: small ones with randomly drawn weights, the same in every run, and optionally a real sentence
//! encoder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use tenure_core::user_files::without_mark;
use tenure_nn::checkpoint::{self, CheckpointError};
use tenure_nn::models::{Bert, BertConfig, Llama, LlamaConfig, ResNet, ResNetConfig};
use tenure_nn::networks::Architectures;
use tenure_nn::sentence::{SETTINGS, SentenceEncoder};
use tenure_nn::switched::StoredTensors;
use tenure_nn::{Error, Module, Scope};
use tenure_tensor::random::Generator;

use crate::repository::{RepositoryError, StoredEncoder, check_encoder};

/// The beginning of the name of the temporary folder in which the models are written.
const UNFINISHED: &str = ".tenure-models-";

/// The file that describes an encoder's network.
const CONFIG: &str = "config.json";

/// The files of a sentence encoder that are served, beside its weights: its model's and its tokenizer's.
const ENCODER_FILES: [&str; 2] = [CONFIG, "tokenizer.json"];

/// Optional files beside them, which state the longest text in tokens.
const TEXT_FILES: [&str; 2] = ["sentence_bert_config.json", "tokenizer_config.json"];

const DIGITS: &str = r#"# Scores of ten classes for images of 28 x 28 pixels, from untrained weights.
architecture = "resnet18"
timeout_ms = 10000

[options]
channels = 1
classes = 10
width = 8

[[inputs]]
name = "image"
datatype = "FP32"
shape = [-1, 1, 28, 28]

[[outputs]]
name = "scores"
datatype = "FP32"
shape = [-1, 10]

[batching]
max_rows = 16
"#;

const NEXT_BYTE: &str = r#"# Scores of the byte that follows each byte of a text, from untrained weights.
architecture = "llama"
timeout_ms = 10000
max_tokens = 2048

[options]
vocab_size = 256
hidden_size = 64
intermediate_size = 176
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2

[[inputs]]
name = "tokens"
datatype = "INT64"
shape = [-1, -1]

[[outputs]]
name = "scores"
datatype = "FP32"
shape = [-1, -1, 256]

[batching]
max_rows = 16
"#;

/// The architecture of [`SENTENCES`].
const ARCHITECTURE: &str = "sentences";

/// The configuration of a sentence encoder, after the line that names its weights.
const SENTENCES: &str = r#"architecture = "sentences"
config = "config.json"
timeout_ms = 10000

[[inputs]]
name = "input_ids"
datatype = "INT64"
shape = [-1, -1]

[[inputs]]
name = "attention_mask"
datatype = "INT64"
shape = [-1, -1]

[[outputs]]
name = "sentence_embedding"
datatype = "FP32"
shape = [-1, -1]

[batching]
max_rows = 32
"#;

const TINY_CONFIG: &str = r#"{
  "model_type": "bert",
  "vocab_size": 256,
  "hidden_size": 32,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "intermediate_size": 64,
  "max_position_embeddings": 128
}
"#;

/// The reason why the examples were not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExampleError {
    /// The system refused to read or write a file.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's message.
        source: io::Error,
    },
    /// The folder exists and would be overwritten.
    #[error("{}: it exists already and is not overwritten: remove it, or name another folder", .path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The encoder has modules that the server does not compute.
    #[error(transparent)]
    Encoder(#[from] RepositoryError),
    /// The encoder's vector of a text is not of finite numbers.
    #[error(
        "{}: its vector of a text contains a NaN or an infinity, so its weights are damaged: copy or download them again",
        .path.display()
    )]
    NotFinite {
        /// The encoder's folder.
        path: PathBuf,
    },
    /// Weights could not be drawn or written, or the encoder's tokenizer or weights cannot be used.
    #[error(transparent)]
    Weights(#[from] Error),
}

/// Writes three models into a folder and returns their names: `digits`, a ResNet; `next-byte`, a Llama; and the
/// sentence encoder of the folder `encoder`, such as all-MiniLM-L6-v2, under the name `name`. Creates the folder if it
/// does not exist. Without an encoder it writes `tiny-sentences` instead, whose weights are drawn like the others'. The
/// models appear when all are written. What a killed program left of an earlier try is removed.
///
/// # Errors
/// A model with such a name exists; a file cannot be read or written; the encoder's weights are damaged; or its vectors
/// are not averages normalized to length 1, the only ones that the server computes. No model was written then.
pub fn write(folder: &Path, encoder: Option<(&str, &Path)>) -> Result<Vec<String>, ExampleError> {
    let third = encoder.map_or("tiny-sentences", |(name, _)| name);
    let names = ["digits", "next-byte", third];
    if let Some(path) = names.iter().map(|name| folder.join(name)).find(|path| path.exists()) {
        return Err(ExampleError::Exists { path });
    }
    let encoder = encoder.map(|(_, from)| {
        let model = check_encoder(from)?;
        check_weights(&model, from)?;
        Ok::<_, ExampleError>((model, from))
    });
    let encoder = encoder.transpose()?;
    let is_new = !folder.exists();
    fs::create_dir_all(folder).map_err(io_error(folder))?;
    let written = write_beside(folder, names, encoder);
    if written.is_err() && is_new {
        // It is empty, unless another program wrote to it, and then it stays.
        let _ = fs::remove_dir(folder);
    }
    written.map(|()| names.map(String::from).into())
}

/// Writes the models into a temporary folder in `folder`, and moves them when all are there.
fn write_beside(folder: &Path, names: [&str; 3], encoder: Option<(StoredEncoder, &Path)>) -> Result<(), ExampleError> {
    // Another program that writes here holds the lock until it ends, so that no folder of its own is removed.
    let lock = File::open(folder).map_err(io_error(folder))?;
    if lock.lock().is_ok() {
        remove_unfinished(folder);
    }
    let beside = tempfile::Builder::new().prefix(UNFINISHED).tempdir_in(folder).map_err(io_error(folder))?;
    let folders = names.map(|name| beside.path().join(name));
    folders.iter().try_for_each(|path| fs::create_dir(path).map_err(io_error(path)))?;
    let [digits, next_byte, sentences] = &folders;
    let scope = |seed| Scope::new(&Generator::new(seed));
    let config = ResNetConfig { channels: 1, classes: 10, width: 8, ..ResNetConfig::RESNET18 };
    model(digits, DIGITS, &ResNet::new(&scope(1), config).map_err(Error::from)?)?;
    let config = LlamaConfig {
        vocab_size: 256,
        hidden_size: 64,
        intermediate_size: 176,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    model(next_byte, NEXT_BYTE, &Llama::new(&scope(2), &config).map_err(Error::from)?)?;
    match encoder {
        Some((model, from)) => copy_encoder(&model, from, sentences)?,
        None => {
            let config: BertConfig =
                serde_json::from_str(TINY_CONFIG).map_err(|error| io_error(sentences)(error.into()))?;
            text(sentences, CONFIG, TINY_CONFIG)?;
            model(sentences, SENTENCES, &Bert::new(&scope(3), &config).map_err(Error::from)?)?;
        }
    }
    names.iter().zip(&folders).try_for_each(|(name, from)| {
        let to = folder.join(name);
        fs::rename(from, &to).map_err(io_error(&to))
    })
}

/// Removes the temporary folders of programs that were killed.
fn remove_unfinished(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().as_encoded_bytes().starts_with(UNFINISHED.as_bytes())) {
        // A folder of another user stays, and is in the way of nothing.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Checks that the weights of the encoder in the folder `from` are whole, and those of a network that the server has.
/// The tables may hold numbers that are not finite, except in the rows of a short text.
fn check_weights(model: &StoredEncoder, from: &Path) -> Result<(), ExampleError> {
    let vector = SentenceEncoder::open(from)?.embed(&["a"])?.to_vec::<f32>().map_err(Error::from)?;
    if !vector.iter().all(|number| number.is_finite()) {
        return Err(ExampleError::NotFinite { path: from.to_owned() });
    }
    // The server computes fewer types of models, and only by weights with BERT's names.
    let config = model.folder.join(CONFIG);
    let options = fs::read(&config).map_err(io_error(&config))?;
    let options = serde_json::from_slice(without_mark(&options)).map_err(|error| io_error(&config)(error.into()))?;
    let network = Architectures::default().build(ARCHITECTURE, options);
    let found = network.and_then(|network| StoredTensors::find(&[model.folder.join(model.weights)], &network.state()));
    match found {
        Ok(_) => Ok(()),
        Err(error) => {
            let reason = format!("it cannot be served: {error}");
            Err(Error::from(CheckpointError::Format { path: model.folder.clone(), reason }).into())
        }
    }
}

/// Copies the encoder of the folder `from` as a model to serve.
fn copy_encoder(model: &StoredEncoder, from: &Path, to: &Path) -> Result<(), ExampleError> {
    let needed = ENCODER_FILES.into_iter().chain(model.weight_files.iter().map(String::as_str));
    let optional = TEXT_FILES.map(|file| model.folder.join(file)).into_iter().chain([from.join(SETTINGS)]);
    let files = needed.map(|file| model.folder.join(file)).chain(optional.filter(|file| file.exists()));
    for file in files {
        let name = file.file_name().unwrap_or_default();
        fs::copy(&file, to.join(name)).map_err(io_error(&file))?;
    }
    text(to, "config.toml", &format!("weights = {:?}\n{SENTENCES}", model.weights))
}

fn model(folder: &Path, config: &str, model: &dyn Module) -> Result<(), ExampleError> {
    let state = model.state().into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    checkpoint::save(&folder.join("model.safetensors"), state, ("from", "tenure models init"))?;
    text(folder, "config.toml", config)
}

fn text(folder: &Path, name: &str, text: &str) -> Result<(), ExampleError> {
    let path = folder.join(name);
    fs::write(&path, text).map_err(io_error(&path))
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> ExampleError {
    let path = path.to_owned();
    |source| ExampleError::Io { path, source }
}
