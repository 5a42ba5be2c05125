//! A [`Service`](crate::service::Service) over models in folders.

pub(crate) mod background;
mod core;
mod device;
mod infer;
mod models;
mod registry;
mod requests;
mod runner;
mod service;
mod texts;

pub use service::{Serving, ServingError, ServingOptions};
