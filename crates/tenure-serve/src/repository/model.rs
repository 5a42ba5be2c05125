//! A stored model, its name and its files.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use serde::Deserialize;

use super::RepositoryError;
use super::config::{Config, json};
use super::files::{Folder, is_inside};

/// A model of a repository. Two are equal if nothing that matters differs.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredModel {
    /// The model's name.
    pub name: ModelName,
    /// The configuration.
    pub config: Config,
    /// The weight files, sorted by path. For a PyTorch module these are only the files that its configuration names.
    pub weights: Vec<WeightFile>,
    /// The Python file that loads the model, if there is one.
    pub code: Option<WeightFile>,
    /// The real path of its folder, with all links resolved.
    pub folder: PathBuf,
}

/// A file of weights or code, as it was when it was inspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// The real path, with all links resolved.
    pub path: PathBuf,
    /// The size in bytes.
    pub bytes: u64,
    /// The time of the last write.
    pub modified: SystemTime,
}

/// Hugging Face's index of weights in several files. Other fields are ignored.
#[derive(Deserialize)]
struct Index {
    /// The file of each tensor.
    weight_map: BTreeMap<String, String>,
}

impl StoredModel {
    /// Inspects the files that a folder's configuration names.
    pub(super) fn read(name: ModelName, folder: &Folder, config: Config) -> Result<Self, RepositoryError> {
        let files =
            config.weights.as_ref().map(|weights| WeightFile::named(folder, weights)).transpose()?.unwrap_or_default();
        let weights = files.iter().map(|file| WeightFile::look(folder, file)).collect::<Result<_, _>>()?;
        let code = config.python.as_ref().and_then(|python| python.file());
        let code = code.map(|file| WeightFile::look(folder, file)).transpose()?;
        Ok(Self { name, config, weights, code, folder: folder.target().to_owned() })
    }

    /// Returns the bytes of all weight files as stored, including their headers.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|file| file.bytes).sum()
    }

    /// Returns a file of weights or code that was removed or rewritten since it was inspected.
    pub(crate) fn changed(&self) -> Option<&Path> {
        self.weights.iter().chain(&self.code).find(|file| !file.is_unchanged()).map(|file| &*file.path)
    }
}

impl WeightFile {
    /// Returns the names of the files that a name stands for: itself, or those of an index.
    pub(super) fn named(folder: &Folder, name: &str) -> Result<BTreeSet<String>, RepositoryError> {
        match Path::new(name).extension() {
            Some(extension) if extension == "json" => indexed(folder, name),
            _ => Ok(BTreeSet::from([name.to_owned()])),
        }
    }

    pub(super) fn look(folder: &Folder, name: &str) -> Result<Self, RepositoryError> {
        let path = folder.file(name)?;
        let metadata = fs::metadata(&path).map_err(RepositoryError::io(&path))?;
        let modified = metadata.modified().map_err(RepositoryError::io(&path))?;
        Ok(Self { path, bytes: metadata.len(), modified })
    }

    fn is_unchanged(&self) -> bool {
        let now = fs::metadata(&self.path).and_then(|there| Ok((there.len(), there.modified()?)));
        now.ok() == Some((self.bytes, self.modified))
    }
}

/// Returns the files that an index names, which are in its folder.
fn indexed(folder: &Folder, name: &str) -> Result<BTreeSet<String>, RepositoryError> {
    let Index { weight_map } = json(folder, name)?;
    let beside = Path::new(name).parent().unwrap_or(Path::new(""));
    let value = |key, given, allowed| RepositoryError::Value { path: folder.path(name), key, given, allowed };
    if weight_map.is_empty() {
        return Err(value("weight_map".into(), "is empty".into(), "it must name the file of each tensor"));
    }
    let mut files = BTreeSet::new();
    for (tensor, file) in weight_map {
        let key = format!("weight_map[{tensor:?}]");
        if !is_inside(&file) {
            let given = format!("is {file:?}");
            return Err(value(key, given, "it must be a path inside the model's folder"));
        }
        let Some(name) = beside.join(&file).to_str().map(String::from) else { continue };
        if !files.contains(&name) && !folder.path(&name).exists() {
            return Err(value(key, format!("is {file:?}, which is not there"), "copy or download that file"));
        }
        files.insert(name);
    }
    Ok(files)
}

/// A model's name, which is also its folder's: 1 to 128 ASCII letters, digits, `.`, `_` and `-`, without a leading `.`.
/// So it can stand unescaped as one segment of a path or URL.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelName(String);

impl ModelName {
    const MAX_BYTES: usize = 128;

    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModelName {
    type Err = RepositoryError;

    fn from_str(name: &str) -> Result<Self, RepositoryError> {
        let is_name = (1..=Self::MAX_BYTES).contains(&name.len())
            && !name.starts_with('.')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if is_name { Ok(Self(name.into())) } else { Err(RepositoryError::Name { name: name.into() }) }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for ModelName {
    fn borrow(&self) -> &str {
        &self.0
    }
}
