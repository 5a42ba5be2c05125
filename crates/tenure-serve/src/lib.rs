//! A model server for more models than fit on a device.
//!
//! A [`Repository`](repository::Repository) reads a folder of models. [`serving`] takes requests and answers them; a
//! [`scheduler`] decides which model computes next, which one is loaded and which one leaves. Models compute in this
//! process or in [`worker`] processes. A [`server`] listens; [`http`] and [`grpc`] speak the Open Inference Protocol v2,
//! whose messages are in [`protocol`], for a [`Service`](service::Service).
//!
//! ```
//! use tenure_serve::repository::Repository;
//!
//! let folder = tempfile::tempdir()?;
//! tenure_serve::examples::write(folder.path(), None)?;
//! let mut repository = Repository::new(folder.path());
//! assert!(!repository.scan()?.added.is_empty());
//! for model in repository.models() {
//!     println!("{}: {} bytes of weights", model.name.as_str(), model.weight_bytes());
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![forbid(unsafe_code)]

pub mod examples;
mod executor;
pub mod grpc;
pub mod http;
pub mod metrics;
mod niceness;
pub mod protocol;
pub mod repository;
pub mod request_log;
pub mod scheduler;
pub mod server;
pub mod service;
pub mod serving;
mod shared_memory;
pub mod worker;

pub use executor::{ModelError, dtype_of};
