//! A Hugging Face folder as a model: its `config.json` says what is computed, and there is no `config.toml`.

use std::fs::File;
use std::io::Read;
use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::config::{Config, MAX_JSON_BYTES, json};
use super::files::Folder;
use super::{Batching, Dimension, RepositoryError, TensorSpec, WeightFile};
use crate::protocol::Datatype;

/// The file that makes a folder one of Hugging Face's.
pub(super) const CONFIG: &str = "config.json";

const MODULES: &str = "modules.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The rows of a batch. Requests of one length run together.
const MAX_ROWS: NonZeroU32 = NonZeroU32::new(32).expect("it is not zero");

/// The remedy for models that no architecture computes.
const USE_PYTHON: &str = "add a config.toml with python = \"model.py:load\" to serve it with PyTorch";

/// A module of a sentence-transformers folder.
#[derive(Deserialize)]
struct SentenceModule {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

/// How a sentence-transformers folder makes one vector of many.
#[derive(Deserialize)]
#[serde(default)]
struct Pooling {
    pooling_mode_mean_tokens: bool,
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Default for Pooling {
    fn default() -> Self {
        Self { pooling_mode_mean_tokens: true, others: Map::new() }
    }
}

/// A network that `tenure-nn` computes, as its configuration says.
struct Known {
    architecture: &'static str,
    has_mask: bool,
    output: &'static str,
    /// The sizes of the output after that of the rows.
    sizes: Vec<Dimension>,
}

/// Reads a folder's `config.json` as a model's configuration.
pub(super) fn read(folder: &Folder) -> Result<Config, RepositoryError> {
    let options: Map<String, Value> = json(folder, CONFIG)?;
    let known = known(folder, &options)?;
    let weights = if folder.path(WEIGHTS).exists() || !folder.path(INDEX).exists() { WEIGHTS } else { INDEX };
    let first = WeightFile::named(folder, weights)?.into_iter().next();
    let datatype = first.map_or(Ok(Datatype::Fp32), |name| stored_datatype(folder, &name))?;
    let tokens = |name: &str| TensorSpec {
        name: name.into(),
        datatype: Datatype::Int64,
        shape: vec![Dimension::Free, Dimension::Free],
    };
    let inputs = ["input_ids", "attention_mask"].into_iter().take(1 + usize::from(known.has_mask));
    let shape = [Dimension::Free].into_iter().chain(known.sizes).collect();
    Ok(Config {
        architecture: known.architecture.into(),
        python: None,
        options,
        weights: Some(weights.into()),
        dtype: None,
        inputs: inputs.map(tokens).collect(),
        outputs: vec![TensorSpec { name: known.output.into(), datatype, shape }],
        batching: Batching { max_rows: MAX_ROWS, max_delay: Duration::ZERO },
        priority: 0,
        is_pinned: false,
        timeout: None,
    })
}

fn known(folder: &Folder, options: &Map<String, Value>) -> Result<Known, RepositoryError> {
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    let size = |key: &str| {
        let size = options.get(key).and_then(Value::as_i64).and_then(|size| Dimension::try_from(size).ok());
        size.ok_or_else(|| refusal(folder, CONFIG, key, "is not a size".into()))
    };
    let Some(model_type) = text("model_type") else {
        return Err(refusal(folder, CONFIG, "model_type", "is not there".into()));
    };
    let class = options.get("architectures").and_then(|classes| classes.get(0)).and_then(Value::as_str);
    let only = |classes: &[&str]| match class {
        Some(class) if !classes.contains(&class) => {
            let given = format!("has {class:?}, and only {} of this type can be computed", classes.join(" and "));
            Err(refusal(folder, CONFIG, "architectures", given))
        }
        _ => Ok(()),
    };
    let is_sentences = folder.path(MODULES).exists();
    match model_type {
        "bert" if is_sentences => {
            check_sentence_modules(folder)?;
            let sizes = vec![size("hidden_size")?];
            Ok(Known { architecture: "sentences", has_mask: true, output: "sentence_embedding", sizes })
        }
        "bert" => {
            only(&["BertModel"])?;
            let sizes = vec![Dimension::Free, size("hidden_size")?];
            Ok(Known { architecture: "bert", has_mask: true, output: "last_hidden_state", sizes })
        }
        "gpt2" | "llama" if !is_sentences => {
            let (architecture, class) =
                if model_type == "gpt2" { ("gpt2", "GPT2LMHeadModel") } else { ("llama", "LlamaForCausalLM") };
            only(&[class])?;
            let sizes = vec![Dimension::Free, size("vocab_size")?];
            Ok(Known { architecture, has_mask: false, output: "logits", sizes })
        }
        other => {
            let given = format!("is {other:?}, and only bert, gpt2 and llama can be computed");
            Err(refusal(folder, CONFIG, "model_type", given))
        }
    }
}

/// Refuses sentence-transformers folders whose vectors are not averages of length 1.
fn check_sentence_modules(folder: &Folder) -> Result<(), RepositoryError> {
    let modules: Vec<SentenceModule> = json(folder, MODULES)?;
    // Their packages were renamed from one release to another.
    let kind = |module: &SentenceModule| module.kind.rsplit('.').next().unwrap_or_default().to_owned();
    let kinds: Vec<String> = modules.iter().map(kind).collect();
    if kinds != ["Transformer", "Pooling", "Normalize"] {
        let given = format!("are {}, and only Transformer, Pooling, Normalize can be computed", kinds.join(", "));
        return Err(refusal(folder, MODULES, "modules", given));
    }
    if !modules[0].path.is_empty() {
        let given = format!("is in {:?}, and only one in the folder itself can be computed", modules[0].path);
        return Err(refusal(folder, MODULES, "the Transformer", given));
    }
    let name = format!("{}/config.json", modules[1].path);
    let pooling: Pooling = json(folder, &name)?;
    let is_other = |(key, value): (&String, &Value)| key.starts_with("pooling_mode_") && *value == Value::Bool(true);
    if !pooling.pooling_mode_mean_tokens || pooling.others.iter().any(is_other) {
        let given = "is not the only mode, and only averages of tokens can be computed";
        return Err(refusal(folder, &name, "pooling_mode_mean_tokens", given.into()));
    }
    Ok(())
}

/// The datatype of a file's floating tensors, which is that of answers.
fn stored_datatype(folder: &Folder, name: &str) -> Result<Datatype, RepositoryError> {
    let path = folder.path(name);
    let bad = |message: String| RepositoryError::Json { path: path.clone(), message };
    let mut file = File::open(folder.file(name)?).map_err(RepositoryError::io(&path))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(RepositoryError::io(&path))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_JSON_BYTES {
        return Err(bad(format!("a header of {length} bytes is too long: it is no file of safetensors")));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(RepositoryError::io(&path))?;
    let header: Map<String, Value> =
        serde_json::from_slice(&header).map_err(|error| bad(format!("no file of safetensors: {error}")))?;
    let of = |tensor: &Value| match tensor.get("dtype")?.as_str()? {
        "F16" => Some(Datatype::Fp16),
        "BF16" => Some(Datatype::Bf16),
        "F32" => Some(Datatype::Fp32),
        "F64" => Some(Datatype::Fp64),
        _ => None,
    };
    let datatype = header.values().find_map(of);
    datatype.ok_or_else(|| {
        bad("no tensor is of float16, bfloat16, float32 or float64: other weights are not computed with".into())
    })
}

fn refusal(folder: &Folder, name: &str, key: &str, given: String) -> RepositoryError {
    RepositoryError::Value { path: folder.path(name), key: key.into(), given, allowed: USE_PYTHON }
}
