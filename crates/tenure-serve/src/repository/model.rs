use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Deserialize;

use super::config::{Config, json};
use super::files::{Folder, is_inside};
use super::hugging_face::HuggingFace;
use super::{ModelName, RepositoryError};

/// A model of a repository. Another is equal if nothing that matters has changed.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredModel {
    /// Its name.
    pub name: ModelName,
    /// What its configuration says.
    pub config: Config,
    /// Its weights, sorted by path. Those of a PyTorch module are only what its configuration names.
    pub weights: Vec<WeightFile>,
    /// The file of Python that loads it, where one does.
    pub code: Option<WeightFile>,
    /// Its folder, behind all links.
    pub folder: PathBuf,
}

/// A file of weights or code, as it was when it was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightFile {
    /// Where it is, behind all links.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was last written.
    pub modified: SystemTime,
}

/// Hugging Face's index of weights in several files. What else it says does not matter here.
#[derive(Deserialize)]
struct Index {
    /// Files by tensor.
    weight_map: BTreeMap<String, String>,
}

impl StoredModel {
    pub(super) fn read(root: &Path, name: ModelName, hugging_face: &mut HuggingFace) -> Result<Self, RepositoryError> {
        let folder = Folder::open(root, root.join(name.as_str()))?;
        let config = Config::read(&folder, hugging_face)?;
        let named = |weights: &String| WeightFile::named(&folder, weights);
        let files = config.weights.as_ref().map(named).transpose()?.unwrap_or_default();
        let weights = files.iter().map(|file| WeightFile::look(&folder, file)).collect::<Result<_, _>>()?;
        let code = config.python.as_ref().and_then(|python| python.file());
        let code = code.map(|file| WeightFile::look(&folder, file)).transpose()?;
        Ok(Self { name, config, weights, code, folder: folder.target().to_owned() })
    }

    /// Size of all weights as they are stored, their headers included.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.iter().map(|file| file.bytes).sum()
    }

    /// A file of weights or code that is gone or was written again since it was looked at.
    pub(crate) fn changed(&self) -> Option<&Path> {
        self.weights.iter().chain(&self.code).find(|file| !file.is_unchanged()).map(|file| &*file.path)
    }
}

impl WeightFile {
    /// The names of the files that a name leads to: itself, or those of an index.
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

/// The files beside an index, which names them.
fn indexed(folder: &Folder, name: &str) -> Result<BTreeSet<String>, RepositoryError> {
    let Index { weight_map } = json(folder, name)?;
    let beside = Path::new(name).parent().unwrap_or(Path::new(""));
    let value = |key, given, allowed| RepositoryError::Value { path: folder.path(name), key, given, allowed };
    if weight_map.is_empty() {
        return Err(value("weight_map".into(), "is empty".into(), "it must name the file of each tensor"));
    }
    let mut files = BTreeSet::new();
    for (tensor, file) in weight_map {
        if !is_inside(&file) {
            let (key, given) = (format!("weight_map[{tensor:?}]"), format!("is {file:?}"));
            return Err(value(key, given, "it must be a path inside the model's folder"));
        }
        files.extend(beside.join(file).to_str().map(String::from));
    }
    Ok(files)
}
