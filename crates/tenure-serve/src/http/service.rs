//! What a server answers for.

use std::pin::Pin;
use std::sync::Arc;

use tenure_tensor::Device;

use super::{ServeError, Snapshot};
use crate::metrics::Metrics;
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelMetadata};

/// What a [`Service`] does in its time. If it is dropped, nobody waits for it any more.
pub type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServeError>> + Send + 'a>>;

/// Makes a text the tokens that a model takes, or says why it cannot.
pub type Tokenizer = Arc<dyn Fn(&str) -> Result<Vec<u32>, String> + Send + Sync>;

/// How a model is asked for the vectors of texts.
#[derive(Clone)]
#[non_exhaustive]
pub struct Texts {
    /// Rows of a request, at most.
    pub max_rows: usize,
    /// Nothing where clients send tokens, or the model takes texts itself.
    pub tokenizer: Option<Tokenizer>,
}

impl Texts {
    /// Requests of so many rows, and no tokenizer.
    pub fn new(max_rows: usize) -> Self {
        Self { max_rows, tokenizer: None }
    }

    /// The same with a tokenizer.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self { tokenizer: Some(tokenizer), ..self }
    }
}

/// Models, and what may be asked of them. Methods that are not futures answer at once.
pub trait Service: Send + Sync + 'static {
    /// Whether it works at all; if not, it is to be started again.
    fn is_live(&self) -> bool {
        true
    }

    /// Whether requests for inference may come.
    fn is_ready(&self) -> bool;

    /// The devices that compute: the CPU, unless a service says otherwise. Clients may leave tensors in the memory of CUDA devices, which
    /// are those of [`tenure_tensor`].
    fn devices(&self) -> &[Device] {
        &[Device::CPU]
    }

    /// All models, in the order in which they are to be shown.
    fn index(&self) -> Vec<IndexEntry>;

    /// What a model takes and answers.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`], or why that is not known.
    fn metadata(&self, model: &str, version: Option<&str>) -> Result<Arc<ModelMetadata>, ServeError>;

    /// Whether a model can be asked.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`].
    fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, ServeError>;

    /// Asks a model. The request is one that [`ModelMetadata::check`] allows. The answer may have more outputs than are
    /// wanted, and has their names. The server drops the future when the request's timeout has passed.
    ///
    /// # Errors
    /// Why there is no answer.
    fn infer(&self, request: InferRequest) -> ServiceFuture<'_, InferResponse>;

    /// How a model is asked for the vectors of texts: row by row, and in tokens, unless a service says otherwise.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`], or why its tokenizer cannot be read.
    fn texts<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, Texts> {
        Box::pin(async move { self.metadata(model, None).map(|_| Texts::new(1)) })
    }

    /// Makes a model ready, whose files may have changed.
    ///
    /// # Errors
    /// Why it is not.
    fn load<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()>;

    /// Makes a model unavailable, and gives back what it held.
    ///
    /// # Errors
    /// Why it is not.
    fn unload<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()>;

    /// What the live page shows.
    fn snapshot(&self) -> Snapshot;

    /// Where the server counts requests by what became of them; whatever else is in it is counted by the service.
    fn metrics(&self) -> &Metrics;
}
