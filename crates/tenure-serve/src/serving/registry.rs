//! The registry of models: those of each name, and those that are still to be freed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::executor::OpenModel;
use crate::protocol::{IndexEntry, ModelMetadata, ModelState};
use crate::scheduler::{ModelId, Refusal};
use crate::service::ServeError;

/// The only version of each model.
pub(super) const VERSION: &str = "1";

const UNLOADED: &str = "it was unloaded: POST v2/repository/models/NAME/load loads it";

/// The entry of a model's name.
pub(super) struct Entry {
    /// The metadata; `None` if no configuration can be read.
    pub(super) metadata: Option<Arc<ModelMetadata>>,
    pub(super) condition: Condition,
}

/// Whether the model of a name is served.
pub(super) enum Condition {
    /// The model is served. The receiver resolves when all of it is freed.
    Ready(ModelId, oneshot::Receiver<()>),
    /// A client unloaded it.
    Unloaded,
    /// The model cannot be served, for this reason.
    Broken(String),
}

impl Entry {
    /// Returns the id of the model if it is served.
    pub(super) fn id(&self) -> Option<ModelId> {
        match &self.condition {
            Condition::Ready(id, _) => Some(*id),
            _ => None,
        }
    }

    /// Returns the id of the model.
    ///
    /// # Errors
    /// The model is not served.
    pub(super) fn ready(&self, name: &str) -> Result<ModelId, ServeError> {
        match &self.condition {
            Condition::Ready(id, _) => Ok(*id),
            Condition::Unloaded => Err(ServeError::not_ready(name, UNLOADED)),
            Condition::Broken(reason) => Err(ServeError::not_ready(name, reason)),
        }
    }

    pub(super) fn metadata(&self, name: &str) -> Result<Arc<ModelMetadata>, ServeError> {
        self.metadata.clone().ok_or_else(|| ServeError::not_ready(name, self.reason()))
    }

    pub(super) fn state(&self) -> ModelState {
        if self.id().is_some() { ModelState::Ready } else { ModelState::Unavailable }
    }

    pub(super) fn index(&self, name: &str) -> IndexEntry {
        IndexEntry { name: name.into(), version: VERSION.into(), state: self.state(), reason: self.reason().into() }
    }

    fn reason(&self) -> &str {
        match &self.condition {
            Condition::Ready(..) => "",
            Condition::Unloaded => UNLOADED,
            Condition::Broken(reason) => reason,
        }
    }
}

/// The models of a service. The service's lock guards it.
#[derive(Default)]
pub(super) struct Registry {
    /// The models by name.
    pub(super) entries: BTreeMap<String, Entry>,
    /// The models that are served.
    pub(super) served: HashMap<ModelId, Arc<OpenModel>>,
    /// Models that are no longer served, each with the number of devices on which it is still to be freed.
    removed: HashMap<ModelId, (Arc<OpenModel>, usize)>,
    /// The number of workers in a row that ended with each model's batches.
    pub(super) deaths: HashMap<ModelId, u32>,
}

impl Registry {
    /// Returns the entry of a model.
    pub(super) fn entry(&self, name: &str, version: Option<&str>) -> Result<&Entry, ServeError> {
        let entry = self.entries.get(name).filter(|_| version.is_none_or(|version| version == VERSION));
        entry.ok_or_else(|| ServeError::UnknownModel { model: name.into(), version: version.map(String::from) })
    }

    /// Returns a model that is served.
    ///
    /// # Errors
    /// There is no such model, or it is not served.
    pub(super) fn ready(&self, name: &str, version: Option<&str>) -> Result<(ModelId, Arc<OpenModel>), ServeError> {
        let id = self.entry(name, version)?.ready(name)?;
        let model = self.served.get(&id).ok_or_else(|| ServeError::not_ready(name, Refusal::UnknownModel))?;
        Ok((id, Arc::clone(model)))
    }

    /// Removes the entry of a name. If its model was served, it is to be freed on this many devices. Then returns its id,
    /// and a receiver that resolves when its memory is freed.
    pub(super) fn remove(&mut self, name: &str, devices: usize) -> Option<(ModelId, oneshot::Receiver<()>)> {
        let Condition::Ready(id, gone) = self.entries.remove(name)?.condition else { return None };
        self.deaths.remove(&id);
        if let Some(model) = self.served.remove(&id) {
            self.removed.insert(id, (model, devices));
        }
        Some((id, gone))
    }

    /// Returns a removed model that a device is to free. The model is gone once it has left all devices and no other
    /// thread holds it.
    pub(super) fn take_from_device(&mut self, id: ModelId) -> Option<Arc<OpenModel>> {
        let (model, devices) = self.removed.get_mut(&id)?;
        let model = Arc::clone(model);
        *devices -= 1;
        if *devices == 0 {
            self.removed.remove(&id);
        }
        Some(model)
    }
}
