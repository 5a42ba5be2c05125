//! The scan of a repository for models and their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io, path};

use super::config::Config;
use super::files::Folder;
use super::hugging_face::{self, HuggingFace, encoder_path};
use super::{ModelName, RepositoryError, StoredModel};

/// The files of which each configures a model.
const MODEL_FILES: [&str; 3] = ["config.toml", "config.json", "modules.json"];

/// The tokenizer file of Hugging Face, which is optional.
const TOKENIZER: &str = "tokenizer.json";

/// The optional files in the same folder that configure the tokenizer.
const BESIDE_TOKENIZER: [&str; 3] = ["config.json", "sentence_bert_config.json", "tokenizer_config.json"];

/// The optional files in a sentence encoder's main folder that configure it.
const OF_ENCODER: [&str; 3] = ["config_sentence_transformers.json", "modules.json", "1_Pooling/config.json"];

/// A folder of models, as it was at the last [scan](Self::scan).
#[derive(Debug)]
pub struct Repository {
    root: PathBuf,
    /// The only folder to read, if the user named a model instead of a folder of models.
    only: Option<String>,
    hugging_face: HuggingFace,
    models: BTreeMap<ModelName, Arc<StoredModel>>,
    broken: BTreeMap<String, Broken>,
}

/// A folder that cannot be read as a model.
#[derive(Clone, Debug)]
pub struct Broken {
    /// The folder's name, which may not be a valid model name.
    pub name: String,
    /// The reason why it cannot be read.
    pub reason: Arc<RepositoryError>,
}

/// The differences from the last scan, sorted by name.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Models that were absent or could not be read before.
    pub added: Vec<Arc<StoredModel>>,
    /// Models whose configuration or weights changed.
    pub changed: Vec<Arc<StoredModel>>,
    /// Models that are gone or cannot be read any more.
    pub removed: Vec<ModelName>,
    /// Folders that cannot be read, for a new reason.
    pub broken: Vec<Broken>,
}

/// Returns the parent and the name of a folder that is itself a model, not a folder of models: it has the file of a
/// model's configuration.
pub fn model_folder(folder: &Path) -> Option<(PathBuf, String)> {
    if !MODEL_FILES.iter().any(|file| folder.join(file).is_file()) {
        return None;
    }
    // The name of `models/..` is not in its path.
    let path = path::absolute(folder).ok().filter(|path| path.file_name().is_some());
    let path = path.or_else(|| fs::canonicalize(folder).ok())?;
    Some((path.parent()?.into(), path.file_name()?.to_string_lossy().into_owned()))
}

impl Changes {
    /// Returns whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty() && self.broken.is_empty()
    }
}

impl Repository {
    /// Creates a repository of the models in a folder, or of one model if the folder itself [is one](model_folder).
    /// It reads no model before the first scan.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        let root = root.into();
        let (root, only) = match model_folder(&root) {
            Some((root, name)) => (root, Some(name)),
            None => (root, None),
        };
        let models = BTreeMap::new();
        let broken = BTreeMap::new();
        Self { root, only, hugging_face: HuggingFace::default(), models, broken }
    }

    /// Also accepts Hugging Face folders that no network here computes, for a Python that has `transformers`.
    pub fn with_python(mut self) -> Self {
        self.hugging_face.has_python = true;
        self
    }

    /// Returns the models that can be read.
    pub fn models(&self) -> impl Iterator<Item = &Arc<StoredModel>> {
        self.models.values()
    }

    /// Returns the folders that cannot be read.
    pub fn broken(&self) -> impl Iterator<Item = &Broken> {
        self.broken.values()
    }

    /// Returns the model with this name.
    pub fn model(&self, name: &str) -> Option<&Arc<StoredModel>> {
        self.models.get(name)
    }

    /// Returns the folder of a model's tokenizer, after checking that all its files may be read; `None` if the model
    /// has no tokenizer.
    pub(crate) fn tokenizer(&self, name: &str) -> Result<Option<PathBuf>, RepositoryError> {
        let path = self.root.join(name);
        let folder = Folder::open(&self.root, path.clone())?;
        let model = folder.inside(&encoder_path(&folder)?);
        if !model.path(TOKENIZER).exists() {
            return Ok(None);
        }
        for (folder, files) in [(&model, BESIDE_TOKENIZER), (&folder, OF_ENCODER)] {
            for file in files.into_iter().filter(|file| folder.path(file).exists()) {
                folder.file(file)?;
            }
        }
        model.file(TOKENIZER)?;
        Ok(Some(path))
    }

    /// Reads a model's folder.
    fn read(&mut self, name: ModelName) -> Result<StoredModel, RepositoryError> {
        let folder = Folder::open(&self.root, self.root.join(name.as_str()))?;
        let config = match !Config::is_in(&folder) && hugging_face::is_one(&folder) {
            true => self.hugging_face.read(&folder)?,
            false => Config::read(&folder)?,
        };
        StoredModel::read(name, &folder, config)
    }

    /// Reads all folders again, except those whose names start with a dot.
    ///
    /// # Errors
    /// The repository's own folder cannot be read. The state of the last scan is then kept.
    pub fn scan(&mut self) -> Result<Changes, RepositoryError> {
        let names = self.folders().map_err(RepositoryError::io(&self.root))?;
        let mut changes = Changes::default();
        let mut models = BTreeMap::new();
        let mut broken = BTreeMap::new();
        for name in names {
            match name.parse().and_then(|name| self.read(name)) {
                Ok(read) => {
                    let before = self.models.get(&read.name).filter(|before| ***before == read);
                    let model = before.cloned().unwrap_or_else(|| Arc::new(read));
                    match self.models.get(&model.name) {
                        None => changes.added.push(model.clone()),
                        Some(before) if !Arc::ptr_eq(before, &model) => changes.changed.push(model.clone()),
                        Some(_) => {}
                    }
                    models.insert(model.name.clone(), model);
                }
                Err(reason) => {
                    let found = Broken { name: name.clone(), reason: Arc::new(reason) };
                    let words = |broken: &Broken| broken.reason.to_string();
                    if self.broken.get(&name).map(words) != Some(words(&found)) {
                        changes.broken.push(found.clone());
                    }
                    broken.insert(name, found);
                }
            }
        }
        changes.removed = self.models.keys().filter(|name| !models.contains_key(*name)).cloned().collect();
        (self.models, self.broken) = (models, broken);
        let weights = self.models.values().flat_map(|model| &model.weights).map(|file| &*file.path);
        self.hugging_face.retain(&weights.collect::<BTreeSet<&Path>>());
        Ok(changes)
    }

    fn folders(&self) -> io::Result<BTreeSet<String>> {
        if let Some(only) = &self.only {
            let path = self.root.join(only);
            return Ok(fs::exists(path)?.then(|| only.clone()).into_iter().collect());
        }
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            // A link counts as its target. A dangling link is a user's mistake, and is listed as broken.
            let is_folder = fs::metadata(entry.path()).map_or(true, |metadata| metadata.is_dir());
            if is_folder && !name.starts_with('.') {
                names.insert(name);
            }
        }
        Ok(names)
    }
}
