//! Models and their tokenizers: kept up to date with their folders, loaded and unloaded.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_nn::sentence::SentenceTokenizer;
use tokio::sync::oneshot;

use super::core::{Core, CoreState};
use super::registry::{Condition, Entry, VERSION};
use crate::executor::{ModelError, OpenModel};
use crate::protocol::{Batching, ModelMetadata, TensorMetadata};
use crate::repository::{self, Config, Dimension, RepositoryError, StoredModel, TensorSpec};
use crate::scheduler::{self, ModelId};
use crate::service::{ServeError, Texts, Tokenizer};

impl Core {
    /// Reads all folders again, and serves the models that are there.
    pub(super) fn rescan(&self) -> Result<(), RepositoryError> {
        let mut repository = self.repository.lock();
        let changes = repository.scan()?;
        for stored in changes.added.iter().chain(&changes.changed) {
            let is_unloaded = matches!(
                self.state.lock().registry.entries.get(stored.name.as_str()),
                Some(Entry { condition: Condition::Unloaded, .. })
            );
            if is_unloaded {
                self.replace_entry(
                    stored.name.as_str(),
                    Entry { metadata: Some(metadata(stored)), condition: Condition::Unloaded },
                );
            } else {
                self.serve(stored);
            }
        }
        for broken in changes.broken {
            tracing::warn!("{} cannot be served: {}", broken.name, broken.reason);
            self.replace_entry(
                &broken.name,
                Entry { metadata: None, condition: Condition::Broken(broken.reason.to_string()) },
            );
        }
        let models = repository.models().map(|model| model.name.as_str());
        let broken = repository.broken().map(|broken| &*broken.name);
        let names: BTreeSet<&str> = models.chain(broken).collect();
        let mut state = self.state.lock();
        let served: Vec<String> = state.registry.entries.keys().cloned().collect();
        for name in served.iter().filter(|name| !names.contains(name.as_str())) {
            tracing::info!("{name} is gone and no longer served");
            self.remove(&mut state, name);
        }
        Ok(())
    }

    /// Loads a model on a client's request.
    pub(super) fn load(&self, name: &str) -> Result<(), ServeError> {
        if let Some(entry) = self.state.lock().registry.entries.get_mut(name)
            && let Condition::Unloaded = entry.condition
        {
            entry.condition = Condition::Broken("it is being loaded".into());
        }
        self.rescan().map_err(|error| ServeError::Failed(error.to_string()))?;
        let stored = self.repository.lock().model(name).cloned();
        let is_ready = self.state.lock().registry.entry(name, None)?.id().is_some();
        if let Some(stored) = stored.filter(|_| !is_ready) {
            // This also retries models that could not be served before: there may be room now.
            self.serve(&stored);
        }
        self.state.lock().registry.entry(name, None)?.ready(name).map(drop)
    }

    /// Stops serving a model, and returns a receiver that resolves when its memory is freed.
    pub(super) fn unload(&self, name: &str) -> Result<Option<oneshot::Receiver<()>>, ServeError> {
        let mut state = self.state.lock();
        let metadata = state.registry.entry(name, None)?.metadata.clone();
        let gone = self.remove(&mut state, name);
        state.registry.entries.insert(name.into(), Entry { metadata, condition: Condition::Unloaded });
        Ok(gone)
    }

    /// Serves a model, replacing any model of its name.
    fn serve(&self, stored: &Arc<StoredModel>) {
        let name = stored.name.as_str();
        let opened = OpenModel::open(stored, &self.architectures, self.devices.iter().map(|device| &*device.backend));
        let mut state = self.state.lock();
        self.remove(&mut state, name);
        let condition = match opened.map(|(model, gone)| (self.add(&mut state, model), gone)) {
            Ok((Ok(id), gone)) => Condition::Ready(id, gone),
            Ok((Err(error), _)) => Condition::Broken(registration_failure(&error)),
            Err(error) => Condition::Broken(error.to_string()),
        };
        match &condition {
            Condition::Broken(reason) => tracing::warn!("{name} cannot be served: {reason}"),
            _ => tracing::info!("{name} is served"),
        }
        state.registry.entries.insert(name.into(), Entry { metadata: Some(metadata(stored)), condition });
    }

    /// Registers a model with the scheduler.
    fn add(&self, state: &mut CoreState, model: OpenModel) -> Result<ModelId, scheduler::RegisterError> {
        let config = &model.stored().config;
        let id = state.requests.scheduler.add_model(scheduler::ModelSpec {
            bytes: model.bytes(),
            max_rows: config.batching.max_rows.get(),
            max_delay: config.batching.max_delay,
            max_queued: self.max_queued,
            priority: config.priority,
            is_pinned: config.is_pinned,
        })?;
        state.registry.served.insert(id, Arc::new(model));
        Ok(id)
    }

    /// Replaces the entry of a name.
    fn replace_entry(&self, name: &str, entry: Entry) {
        let mut state = self.state.lock();
        self.remove(&mut state, name);
        state.registry.entries.insert(name.into(), entry);
    }

    /// Removes the entry of a name. Running requests finish, waiting ones are answered with an error. Returns a
    /// receiver that resolves when the model's memory is freed, if it was served.
    fn remove(&self, state: &mut CoreState, name: &str) -> Option<oneshot::Receiver<()>> {
        let (id, gone) = state.registry.remove(name, self.devices.len())?;
        state.requests.scheduler.remove_model(id);
        self.advance(state);
        Some(gone)
    }
}

impl Core {
    /// Returns the settings for embedding texts with a model. It may read files.
    pub(super) fn texts(&self, name: &str) -> Result<Texts, ServeError> {
        let state = self.state.lock();
        let (id, model) = state.registry.ready(name, None)?;
        drop(state);
        let texts = Texts::new(model.stored().config.batching.max_rows.get() as usize);
        Ok(match self.tokenizer(name, id)? {
            Some(tokenizer) => texts.with_tokenizer(tokenizer),
            None => texts,
        })
    }

    fn tokenizer(&self, name: &str, id: ModelId) -> Result<Option<Tokenizer>, ServeError> {
        if let Some(known) = self.tokenizers.lock().get(&id) {
            return Ok(Some(Arc::clone(known)));
        }
        let failed = |error: String| ServeError::Failed(format!("the tokenizer of {name:?} cannot be read: {error}"));
        let folder = self.repository.lock().tokenizer(name).map_err(|error| failed(error.to_string()))?;
        let Some(folder) = folder else { return Ok(None) };
        let opened = SentenceTokenizer::open(&folder).map_err(|error| failed(error.to_string()))?;
        let tokenizer: Tokenizer = Arc::new(move |text| {
            let tokens = opened.tokens(text).map_err(|error| error.to_string())?;
            Ok(tokens.into_iter().filter_map(|token| u32::try_from(token).ok()).collect())
        });
        let there: Vec<ModelId> = self.state.lock().registry.served.keys().copied().collect();
        let mut tokenizers = self.tokenizers.lock();
        tokenizers.retain(|id, _| there.contains(id));
        tokenizers.insert(id, Arc::clone(&tokenizer));
        Ok(Some(tokenizer))
    }
}

/// Returns the reason why a model is not registered, with the option of `tenure serve` that would help.
fn registration_failure(error: &scheduler::RegisterError) -> String {
    match error {
        scheduler::RegisterError::TooLarge { needed, .. } => {
            format!("{error} (tenure serve: --device-bytes {needed})")
        }
        error => error.to_string(),
    }
}

/// Returns the metadata of a model.
fn metadata(stored: &StoredModel) -> Arc<ModelMetadata> {
    let tensors = |specs: &[TensorSpec]| specs.iter().map(tensor).collect();
    Arc::new(ModelMetadata {
        name: stored.name.to_string(),
        versions: vec![VERSION.into()],
        platform: format!("tenure_{}", stored.config.architecture),
        inputs: tensors(&stored.config.inputs),
        outputs: tensors(&stored.config.outputs),
        batching: batching(&stored.config),
    })
}

/// Returns how requests are batched, if the first dimension of every tensor is the number of rows.
fn batching(config: &Config) -> Option<Batching> {
    let repository::Batching { max_rows, max_delay } = config.batching;
    let batching = Batching { max_rows: max_rows.get(), max_delay };
    config
        .inputs
        .iter()
        .chain(&config.outputs)
        .all(|spec| spec.shape.first() == Some(&Dimension::Free))
        .then_some(batching)
}

fn tensor(spec: &TensorSpec) -> TensorMetadata {
    TensorMetadata {
        name: spec.name.clone(),
        datatype: spec.datatype,
        shape: spec
            .shape
            .iter()
            .map(|dimension| match dimension {
                Dimension::Free => -1,
                Dimension::Fixed(size) => i64::try_from(*size).unwrap_or(i64::MAX),
            })
            .collect(),
    }
}

impl From<ModelError> for ServeError {
    fn from(error: ModelError) -> Self {
        match error {
            error if error.is_request_error() => Self::Malformed(error.to_string()),
            error if error.is_out_of_memory() => Self::TooMuchMemory(error.to_string()),
            error if error.is_transient() => Self::TryAgain(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tenure_switch::SwitchError;

    use super::*;

    #[test]
    fn room_that_does_not_come_is_a_reason_to_ask_again() {
        let no_room = SwitchError::NoHostRoom { model: "m".into(), needed: 2, budget: 3, held: 2 };
        let error = ServeError::from(ModelError::from(no_room));
        assert_eq!((error.status().as_u16(), error.retry_after().is_some()), (503, true));
    }
}
