//! A Hugging Face folder as a model: its `config.json` describes the network, and it needs no `config.toml`.
//!
//! Networks of `tenure-nn` compute the folders that they can ([`native`]). A Python with `transformers` computes the
//! others ([`transformers`]), if the server has one.

mod datatype;
mod native;
mod sentences;
mod transformers;

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};
use tenure_nn::sentence::{ListedModule, MODULES, model_path};

use self::datatype::StoredDatatypes;
use super::config::{Config, PYTORCH, json};
use super::files::{Folder, is_inside};
use super::positions::max_tokens;
use super::{Batching, Dimension, PythonFunction, RepositoryError, TensorSpec, WeightFile};
use crate::protocol::Datatype;

/// The file that describes a model.
const CONFIG: &str = "config.json";

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// The files of pickled weights. Loading a pickle would run its code.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// The Python module whose functions load folders.
const LOADERS: &str = "tenure.serving.hugging_face";

/// The most rows of a batch. Requests of one length run together.
const MAX_ROWS: NonZeroU32 = NonZeroU32::new(32).expect("it is not zero");

/// The remedy for folders that `transformers` can compute but no network here can.
const START_PYTHON: &str = "start the server with --python PROGRAM, a Python that has PyTorch and transformers, which \
                            serves it, or add a config.toml with python = \"model.py:load\"";

/// The remedy for folders whose inputs and outputs are not known.
const WRITE_CONFIG: &str = "add a config.toml with python = \"model.py:load\" to serve it with PyTorch";

/// A reader of Hugging Face folders, which caches facts about unchanged files.
#[derive(Debug, Default)]
pub(super) struct HuggingFace {
    /// Whether the server has a Python that computes the models that networks here do not.
    pub(super) has_python: bool,
    datatypes: StoredDatatypes,
}

/// A model as its folder describes it.
struct Described {
    computed_by: ComputedBy,
    inputs: Vec<TensorSpec>,
    /// The names and shapes of the outputs.
    outputs: Vec<(&'static str, Vec<Dimension>)>,
}

enum ComputedBy {
    /// The network of an architecture.
    Network(&'static str),
    /// The module that a function of [`LOADERS`] loads.
    Loader(&'static str),
}

impl HuggingFace {
    /// Reads the `config.json` of a folder's model as its configuration.
    pub(super) fn read(&mut self, folder: &Folder) -> Result<Config, RepositoryError> {
        let path = encoder_path(folder)?;
        let model = folder.inside(&path);
        let options: Map<String, Value> = json(&model, CONFIG)?;
        let described = match native::describe(folder, &model, &options) {
            Ok(described) => described,
            Err(refused) => {
                let described = transformers::describe(folder, &model, &options)?;
                if !self.has_python {
                    return Err(refused);
                }
                described
            }
        };
        let weights = in_folder(&path, weights(&model)?);
        let first = WeightFile::named(folder, &weights)?.into_iter().next();
        let datatype = first.map_or(Ok(Datatype::Fp32), |name| self.datatypes.of(folder, &name))?;
        let (architecture, python) = match described.computed_by {
            ComputedBy::Network(architecture) => (architecture, None),
            ComputedBy::Loader(function) => {
                (PYTORCH, Some(PythonFunction { source: LOADERS.into(), function: function.into() }))
            }
        };
        Ok(Config {
            architecture: architecture.into(),
            python,
            max_tokens: max_tokens(&options),
            options,
            weights: Some(weights),
            dtype: None,
            inputs: described.inputs,
            outputs: described
                .outputs
                .into_iter()
                .map(|(name, shape)| TensorSpec { name: name.into(), datatype, shape })
                .collect(),
            batching: Batching { max_rows: MAX_ROWS, max_delay: Duration::ZERO },
            priority: 0,
            is_pinned: false,
            timeout: None,
        })
    }

    /// Forgets files that no model has.
    pub(super) fn retain(&mut self, weights: &BTreeSet<&Path>) {
        self.datatypes.retain(weights);
    }
}

/// Returns whether a folder is a Hugging Face folder.
pub(super) fn is_one(folder: &Folder) -> bool {
    [CONFIG, MODULES].into_iter().any(|name| folder.path(name).exists())
}

/// Returns the path of the model relative to its folder: empty, unless an encoder's list of modules names a subfolder.
pub(super) fn encoder_path(folder: &Folder) -> Result<String, RepositoryError> {
    if !folder.path(MODULES).exists() {
        return Ok(String::new());
    }
    let modules: Vec<ListedModule> = json(folder, MODULES)?;
    let path = model_path(&modules);
    if path.is_empty() || is_inside(path) {
        return Ok(path.to_owned());
    }
    let given = format!("is in {path:?}");
    Err(refusal(folder, MODULES, "the Transformer", given, "it must be in a folder inside of the model's"))
}

/// Returns the path of a file in a subfolder, or just its name if `path` is empty.
fn in_folder(path: &str, file: &str) -> String {
    if path.is_empty() { file.into() } else { format!("{path}/{file}") }
}

/// The model of a sentence encoder.
pub(crate) struct StoredEncoder {
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The file or index of the weights.
    pub(crate) weights: &'static str,
    /// The names of the files of the weights, with the index if there is one.
    pub(crate) weight_files: BTreeSet<String>,
}

/// Finds the model of a sentence encoder. Rejects a folder that lists modules which the network here does not compute.
pub(crate) fn check_encoder(path: &Path) -> Result<StoredEncoder, RepositoryError> {
    let folder = Folder::open(path, path.to_owned())?;
    if folder.path(MODULES).exists() {
        sentences::check_native(&folder)?;
    }
    let model = folder.inside(&encoder_path(&folder)?);
    let weights = weights(&model)?;
    let mut weight_files = WeightFile::named(&model, weights)?;
    weight_files.insert(weights.to_owned());
    Ok(StoredEncoder { folder: model.path(""), weights, weight_files })
}

/// Returns the file or index of a folder's weights.
fn weights(folder: &Folder) -> Result<&'static str, RepositoryError> {
    if let Some(name) = [WEIGHTS, INDEX].into_iter().find(|name| folder.path(name).exists()) {
        return Ok(name);
    }
    match PICKLES.into_iter().find(|name| folder.path(name).exists()) {
        Some(pickle) => {
            let allowed = "save them as model.safetensors, as save_pretrained of transformers does";
            let path = folder.path(pickle);
            let given = "are pickled, and no pickle is loaded".into();
            Err(RepositoryError::Value { path, key: "weights".into(), given, allowed })
        }
        None => Ok(WEIGHTS),
    }
}

/// Returns inputs of tokens, of shape `[rows, length]`.
fn tokens(names: &[&str]) -> Vec<TensorSpec> {
    let shape = vec![Dimension::Free, Dimension::Free];
    names
        .iter()
        .map(|name| TensorSpec { name: (*name).into(), datatype: Datatype::Int64, shape: shape.clone() })
        .collect()
}

/// Returns the class name of the stored model, if there is one.
fn class(options: &Map<String, Value>) -> Option<&str> {
    options.get("architectures")?.get(0)?.as_str()
}

fn model_type<'a>(folder: &Folder, options: &'a Map<String, Value>) -> Result<&'a str, RepositoryError> {
    let model_type = options.get("model_type").and_then(Value::as_str);
    model_type.ok_or_else(|| refusal(folder, CONFIG, "model_type", "is not there".into(), WRITE_CONFIG))
}

/// Reads a size from a file's value.
fn size(folder: &Folder, name: &str, key: &str, value: &Value) -> Result<Dimension, RepositoryError> {
    let size = value.as_i64().filter(|size| *size > 0).and_then(|size| Dimension::try_from(size).ok());
    size.ok_or_else(|| refusal(folder, name, key, "is not a size".into(), WRITE_CONFIG))
}

fn refusal(folder: &Folder, name: &str, key: &str, given: String, allowed: &'static str) -> RepositoryError {
    RepositoryError::Value { path: folder.path(name), key: key.into(), given, allowed }
}
