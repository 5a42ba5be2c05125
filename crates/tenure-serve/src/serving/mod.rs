//! A [`Service`](crate::service::Service) over models in folders.

pub(crate) mod background;
mod core;
mod device;
mod registry;
mod request;
mod service;
mod texts;
mod threads;

pub use service::{Serving, ServingError, ServingOptions};
