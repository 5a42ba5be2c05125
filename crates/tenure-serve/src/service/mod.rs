//! The interface between a server and its models, and what requests share over HTTP and gRPC.
//!
//! [`http`](crate::http) and [`grpc`](crate::grpc) accept connections, read requests and ask a [`Service`] for answers.
//! Both keep to the same [`Limits`], tokens and [`Operators`], and say the same [`ServeError`]s.

pub(crate) mod body;
pub(crate) mod connections;
mod error;
mod limits;
pub(crate) mod places;
pub(crate) mod shared;
mod snapshot;
mod tls;
pub(crate) mod work;

use std::pin::Pin;
use std::sync::Arc;

use tenure_tensor::Device;

pub(crate) use connections::Peer;
pub use error::ServeError;
pub(crate) use error::outcome;
pub use limits::{Limits, Operators};
pub use snapshot::{ModelSnapshot, Resident, Snapshot, Tier};
pub use tls::{TlsError, TlsFiles};

use crate::metrics::Metrics;
use crate::protocol::{IndexEntry, InferRequest, InferResponse, ModelMetadata};
pub use crate::shared_memory::SharedMemoryError;

/// The future of a [`Service`]'s method. When it is dropped, no request waits for it any more.
pub type ServiceFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, ServeError>> + Send + 'a>>;

/// A function that tokenizes a text for a model, or returns why it cannot.
pub type Tokenizer = Arc<dyn Fn(&str) -> Result<Vec<u32>, String> + Send + Sync>;

/// The settings for embedding texts with a model.
#[derive(Clone)]
#[non_exhaustive]
pub struct Texts {
    /// The largest number of rows in a request.
    pub max_rows: usize,
    /// The tokenizer; `None` if clients send tokens, or the model takes texts itself.
    pub tokenizer: Option<Tokenizer>,
}

impl Texts {
    /// Creates settings with this row limit and no tokenizer.
    pub fn new(max_rows: usize) -> Self {
        Self { max_rows, tokenizer: None }
    }

    /// Returns the same settings with a tokenizer.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: Tokenizer) -> Self {
        Self { tokenizer: Some(tokenizer), ..self }
    }
}

/// A set of models that a server serves. Methods that do not return futures must not block.
pub trait Service: Send + Sync + 'static {
    /// Returns whether the service works; if not, the server must be restarted.
    fn is_live(&self) -> bool {
        true
    }

    /// Returns whether requests for inference may come.
    fn is_ready(&self) -> bool;

    /// Returns the devices that compute; the CPU by default. Clients may keep tensors in the memory of CUDA devices,
    /// which are those of [`tenure_tensor`].
    fn devices(&self) -> &[Device] {
        &[Device::CPU]
    }

    /// Returns all models in display order.
    fn index(&self) -> Vec<IndexEntry>;

    /// Returns the inputs and outputs of a model.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`], or the reason why the metadata is not known.
    fn metadata(&self, model: &str, version: Option<&str>) -> Result<Arc<ModelMetadata>, ServeError>;

    /// Returns whether a model can be asked.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`].
    fn is_model_ready(&self, model: &str, version: Option<&str>) -> Result<bool, ServeError>;

    /// Asks a model. [`ModelMetadata::check`] has accepted the request. The answer has the wanted outputs by their
    /// names and may have more. The server drops the future once the request's timeout has passed.
    ///
    /// # Errors
    /// The reason why there is no answer.
    fn infer(&self, request: InferRequest) -> ServiceFuture<'_, InferResponse>;

    /// Returns the settings for embedding texts with a model. By default, requests have one row and there is no
    /// tokenizer.
    ///
    /// # Errors
    /// [`ServeError::UnknownModel`], or the reason why its tokenizer cannot be read.
    fn texts<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, Texts> {
        Box::pin(async move { self.metadata(model, None).map(|_| Texts::new(1)) })
    }

    /// Loads a model from its files, which may have changed, and makes it ready.
    ///
    /// # Errors
    /// The reason why the model cannot be loaded.
    fn load<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()>;

    /// Makes a model unavailable and frees everything that it held.
    ///
    /// # Errors
    /// The reason why the model cannot be unloaded.
    fn unload<'a>(&'a self, model: &'a str) -> ServiceFuture<'a, ()>;

    /// Returns the state that the live page shows.
    fn snapshot(&self) -> Snapshot;

    /// Returns the metrics. The server counts requests by outcome in them; the service counts everything else.
    fn metrics(&self) -> &Metrics;
}
