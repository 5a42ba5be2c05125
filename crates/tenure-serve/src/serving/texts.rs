//! Tokenizers of models whose folders have one.

use std::sync::Arc;

use tenure_nn::sentence::SentenceTokenizer;

use super::core::Core;
use crate::scheduler::ModelId;
use crate::service::{ServeError, Texts, Tokenizer};

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
