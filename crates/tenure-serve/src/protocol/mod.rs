//! The Open Inference Protocol v2: what requests and answers say, as JSON and as bytes.
//!
//! This is KServe's protocol with two of its extensions, as Triton has them: tensors as bytes behind the JSON, and the index
//! of a repository whose models are loaded and unloaded. Nothing here does I/O. What is parsed takes memory in proportion to
//! its body, and a tensor that came as bytes is a part of the body, uncopied.

mod body;
mod datatype;
mod elements;
mod error;
mod metadata;
mod request;
mod response;
mod tensor;

pub use body::{Encoded, JSON_LENGTH};
pub use datatype::{Datatype, UnknownDatatype};
pub use error::{ProtocolError, TensorError};
pub(crate) use metadata::IndexRequest;
pub use metadata::{IndexEntry, ModelMetadata, ModelState, ServerMetadata, TensorMetadata};
pub use request::{Encoding, InferRequest, Wanted, WantedOutput};
pub use response::InferResponse;
pub use tensor::Tensor;
