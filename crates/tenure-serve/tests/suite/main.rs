//! Tests of a server in one process; the tests of its workers are separate programs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod background;
mod crowds;
mod cuda_shared_memory;
mod drawn;
mod fake;
mod grpc;
mod grpc_extensions;
mod grpc_fuzz;
mod grpc_messages;
mod grpc_probes;
mod http;
mod hugging_face;
mod loopback;
mod native;
mod openai;
mod openapi;
mod properties;
mod protocol;
mod python;
mod repository;
mod request_log;
mod residency;
mod scheduler;
#[path = "../served/mod.rs"]
mod served;
mod shared_memory;
mod simulation;
mod sites;
mod texts;
mod tls;
