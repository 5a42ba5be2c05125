//! A model server for more models than fit on a device.

#![forbid(unsafe_code)]

pub mod examples;
mod executor;
pub mod grpc;
pub mod http;
pub mod metrics;
pub mod protocol;
pub mod repository;
pub mod request_log;
pub mod scheduler;
pub mod serving;
mod shared_memory;
pub mod worker;

pub use executor::ModelError;
