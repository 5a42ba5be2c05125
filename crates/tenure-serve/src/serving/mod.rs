//! A [`Service`](crate::service::Service) over models in folders.

mod background;
mod core;
mod device;
mod infer;
mod models;
mod registry;
mod requests;
mod runner;
mod service;

pub use service::{Serving, ServingError, ServingOptions};
