//! The protocol over gRPC: the service `inference.GRPCInferenceService` of KServe and Triton, for the same
//! [`Service`](crate::service::Service) as over HTTP, with the same limits, tokens and errors.
//!
//! An [`InferenceServer`](crate::server::InferenceServer) listens for it at the address `grpc` of its
//! [`InferenceServerConfig`](crate::server::InferenceServerConfig). It uses HTTP/2, over TLS if `tls` has files.
//!
//! | call | |
//! | --- | --- |
//! | `ServerLive`, `ServerReady` | health checks for orchestrators and load balancers; need no token |
//! | `ServerMetadata` | the server's metadata |
//! | `ModelMetadata`, `ModelReady` | a model's metadata; whether it is ready, which is false for an unknown model |
//! | `ModelConfig`, `ModelStatistics` | a model's configuration; statistics of its requests, or of all models' |
//! | `ModelInfer`, `ModelStreamInfer` | asks a model, once or again and again |
//! | `RepositoryIndex` | lists models |
//! | `RepositoryModelLoad`, `RepositoryModelUnload` | loads and unloads a model |
//! | `SystemSharedMemoryRegister`, `-Unregister`, `-Status` | regions of shared memory, the same as over HTTP |
//! | `CudaSharedMemoryRegister`, `-Unregister`, `-Status` | regions of CUDA devices' memory, the same as over HTTP |
//! | `grpc.health.v1.Health/Check`, `Watch` | gRPC's health checks: of the server, or of the model that `service` names; need no token |
//! | `grpc.reflection.v1.ServerReflection`, `v1alpha` | the services and their messages, for clients such as `grpcurl` |
//!
//! Other calls are not implemented. Tensors arrive as `raw_input_contents` or as `contents`, and answers have the form
//! of the request's tensors; half precision has no `contents`. Tensors in shared memory are in neither:
//! `raw_output_contents` has an empty entry for each such output. A call is dropped when its client cancels it or its
//! time limit passes. Messages may be compressed with gzip or deflate. A stream ends if its next message does not
//! arrive within [`Limits::receive`](crate::service::Limits::receive). The metadata of every answer has `x-request-id`,
//! which the client or the server chose, and under which [the log](crate::request_log) records the call.

mod call;
mod connection;
mod contents;
mod convert;
mod described;
mod dispatch;
mod health;
mod infer;
pub mod messages;
mod reflection;
mod shared_memory;
mod status;
mod wire;

pub(crate) use connection::serve;
