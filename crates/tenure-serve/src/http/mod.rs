//! The protocol over HTTP.
//!
//! A [`Server`] answers for a [`Service`], which knows the models. A request whose client goes away, or whose time passes, is
//! dropped: what a `Service` does for it must end with its future. Errors are JSON, `{"error": "..."}`.
//!
//! | route | |
//! | --- | --- |
//! | `GET /` | a page that shows models, where they are, and how long they take |
//! | `GET /metrics` | [`Metrics`](crate::metrics::Metrics) for Prometheus |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | for whoever starts servers and spreads requests; needs no token |
//! | `GET /v2` | the server's metadata |
//! | `GET /v2/models/M`, `GET /v2/models/M/ready` | a model's metadata; whether it is ready |
//! | `POST /v2/models/M/infer` | asks a model |
//! | `POST /v2/repository/index` | lists models |
//! | `POST /v2/repository/models/M/load`, `POST /v2/repository/models/M/unload` | loads and unloads a model |
//!
//! After `M` there may be `/versions/V` in what asks for a model.

mod body;
mod error;
mod page;
mod routes;
mod server;
mod service;

pub use error::ServeError;
pub use page::{ModelSnapshot, Resident, Snapshot, Tier};
pub use server::{BindError, Config, Limits, Server};
pub use service::{Service, ServiceFuture};
