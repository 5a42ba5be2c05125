//! The protocol over gRPC: the service `inference.GRPCInferenceService` of KServe and Triton, for the same
//! [`Service`](crate::http::Service) as over HTTP, with the same limits, tokens and errors.
//!
//! A [`Server`](crate::http::Server) has it where [`Config::grpc`](crate::http::Config::grpc) says. It is HTTP/2, over TLS if
//! [`Config::tls`](crate::http::Config::tls) has files.
//!
//! | call | |
//! | --- | --- |
//! | `ServerLive`, `ServerReady` | for whoever starts servers and spreads requests; needs no token |
//! | `ServerMetadata` | the server's metadata |
//! | `ModelMetadata`, `ModelReady` | a model's metadata; whether it is ready, which a model that is not known is not |
//! | `ModelConfig`, `ModelStatistics` | a model's configuration; what became of its requests, or of all models' |
//! | `ModelInfer`, `ModelStreamInfer` | asks a model, once or again and again |
//! | `RepositoryIndex` | lists models |
//! | `RepositoryModelLoad`, `RepositoryModelUnload` | loads and unloads a model |
//! | `SystemSharedMemoryRegister`, `-Unregister`, `-Status` | regions of shared memory, the same as over HTTP |
//! | `CudaSharedMemoryRegister`, `-Unregister`, `-Status` | regions of CUDA devices' memory, the same as over HTTP |
//!
//! Others are not implemented. Tensors come as `raw_input_contents` or as `contents`, and answers as the request's tensors
//! came; half precision has no `contents`. Those in shared memory are in neither: `raw_output_contents` has an empty one for each
//! such output. A call whose client cancels it, or whose time passes, is dropped. Messages may be
//! compressed by gzip or deflate. A stream whose next message does not come within
//! [`Limits::receive`](crate::http::Limits::receive) ends. The metadata of every answer has `x-request-id`, which is the call's or one
//! that the server makes, and under which [the log](crate::request_log) has it.

mod calls;
mod connection;
mod contents;
mod convert;
mod described;
mod infer;
pub mod messages;
mod shared_memory;
mod status;
mod wire;

pub(crate) use connection::serve;
