//! The files of a sentence encoder's folder, and models that are loaded from them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::de::DeserializeOwned;
use tenure_core::user_files::{expect_fetched, without_mark};
use tenure_tensor::random::Generator;

use crate::checkpoint::{CheckpointError, Weights};
use crate::{Module, Scope, Source};

pub(super) const CONFIG: &str = "config.json";
pub(super) const TOKENIZER: &str = "tokenizer.json";
pub(super) const WEIGHTS: &str = "model.safetensors";

/// Reads a JSON file that must exist.
pub(super) fn required<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<T, CheckpointError> {
    let path = folder.join(name);
    serde_json::from_slice(without_mark(&read(&path)?)).map_err(|error| CheckpointError::format(&path, error))
}

/// Reads a JSON file, if it exists.
pub(super) fn optional<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, CheckpointError> {
    if folder.join(name).exists() { required(folder, name).map(Some) } else { Ok(None) }
}

/// Reads a file that must exist.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CheckpointError> {
    let bytes = fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(path),
        _ => CheckpointError::io(path)(error),
    })?;
    expect_fetched(&bytes).map_err(CheckpointError::io(path))?;
    Ok(bytes)
}

/// Returns the error for a file that is missing.
fn missing(path: &Path) -> CheckpointError {
    let reason = format!("not there: a sentence encoder is a folder with {CONFIG}, {TOKENIZER} and {WEIGHTS}");
    CheckpointError::format(path, reason)
}

/// Returns the folder of a module, which must be the encoder's folder or inside of it.
pub(super) fn inside(folder: &Path, file: &Path, path: &str) -> Result<PathBuf, CheckpointError> {
    if Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Ok(folder.join(path));
    }
    Err(CheckpointError::format(file, format!("{path:?} is not in the folder of the encoder")))
}

/// The scope of a model whose parameters come from a file.
pub(super) fn scope() -> Scope {
    Scope::new(&Generator::new(0)).zeroed()
}

/// Opens the weights of a folder.
pub(super) fn weights(folder: &Path) -> crate::Result<Weights> {
    let file = folder.join(WEIGHTS);
    if !file.exists() && !folder.join(format!("{WEIGHTS}.index.json")).exists() {
        return Err(missing(&file).into());
    }
    Weights::open(folder)
}

/// Loads a model for inference. Errors name `file`.
pub(super) fn load(model: &mut dyn Module, weights: &dyn Source, file: &Path) -> crate::Result<()> {
    model.eval();
    let missing = model.load_known(weights).map_err(|error| CheckpointError::format(file, error))?;
    // Vectors of texts do not use BERT's pooler.
    if let Some(name) = missing.iter().find(|name| !name.starts_with("pooler.")) {
        let reason = format!("{name} is missing: not the weights of the model that {CONFIG} describes");
        return Err(CheckpointError::format(file, reason).into());
    }
    Ok(())
}
