//! The Open Inference Protocol v2: requests and answers, as JSON and as bytes.
//!
//! This is KServe's protocol with Triton's extensions: tensors as bytes after the JSON or in shared memory; models'
//! configurations and statistics; and the index of a repository whose models are loaded and unloaded. Nothing here does
//! I/O: a tensor in shared memory stays a [`SharedTensor`] until the server has read it. A parsed message takes memory
//! in proportion to its body, and a tensor that came as bytes is an uncopied part of the body.

mod body;
mod config;
mod datatype;
mod elements;
mod error;
mod half_precision;
mod metadata;
mod request;
mod response;
mod statistics;
mod tensor;

pub use body::{Encoded, JSON_LENGTH};
pub use config::{Batching, ModelConfig};
pub(crate) use config::{DynamicBatching, TensorConfig};
pub use datatype::{Datatype, UnknownDatatype};
pub use error::{ProtocolError, TensorError};
pub(crate) use metadata::IndexRequest;
pub use metadata::{IndexEntry, ModelMetadata, ModelState, ServerMetadata, TensorMetadata};
pub use request::{Encoding, InferRequest, Wanted, WantedOutput};
pub use response::InferResponse;
pub(crate) use statistics::Statistics;
pub use statistics::{BatchStatistics, ModelStatistics, RequestStatistics, Times};
pub use tensor::{SharedTensor, Span, Tensor};
pub(crate) use tensor::{push_string, shape};
