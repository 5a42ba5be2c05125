//! The protocol over HTTP.
//!
//! A [`Server`] answers for a [`Service`], which knows the models. A request whose client goes away, or whose time passes, is
//! dropped: what a `Service` does for it must end with its future. Errors are JSON, `{"error": "..."}`. Every answer has the header
//! `X-Request-Id`, which is the request's or one that the server makes, and under which [the log](crate::request_log) has it.
//!
//! | route | |
//! | --- | --- |
//! | `GET /` | a live page that shows models, where they are, and how long they take; it asks for a token itself |
//! | `GET /events` | snapshots for the page, as server-sent events: about one a second, and sooner when something happens |
//! | `GET /metrics` | [`Metrics`](crate::metrics::Metrics) for Prometheus |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | for whoever starts servers and spreads requests; needs no token |
//! | `GET /v2` | the server's metadata |
//! | `GET /v2/models/M`, `GET /v2/models/M/ready` | a model's metadata; whether it is ready |
//! | `GET /v2/models/M/config` | a model's configuration |
//! | `GET /v2/models/M/stats`, `GET /v2/models/stats` | what became of requests, and where their time went, by model |
//! | `POST /v2/models/M/infer` | asks a model |
//! | `POST /v2/repository/index` | lists models |
//! | `POST /v2/repository/models/M/load`, `POST /v2/repository/models/M/unload` | loads and unloads a model |
//! | `POST /v2/systemsharedmemory/region/R/register` | gives a part of an object in `/dev/shm` a name, by which tensors may be in it |
//! | `POST /v2/systemsharedmemory[/region/R]/unregister` | forgets a region, or all |
//! | `GET /v2/systemsharedmemory[/region/R]/status` | a region, or all |
//! | `POST /v2/cudasharedmemory/region/R/register` | gives memory of a client's CUDA device a name, where the server computes on that device |
//! | `POST /v2/cudasharedmemory[/region/R]/unregister`, `GET /v2/cudasharedmemory[/region/R]/status` | the same for these regions |
//! | `POST /v1/embeddings`, `GET /v1/models`, `GET /v1/models/M` | OpenAI's: vectors of texts, and which models there are |
//!
//! After `M` there may be `/versions/V` in what asks for a model. Shared memory is for clients on the server's host, or with a token;
//! whoever may use it reads and writes those objects that the server's user may.

mod base64;
pub(crate) mod body;
pub(crate) mod connections;
mod error;
mod feed;
mod infer;
mod openai;
mod page;
mod routes;
pub(crate) mod server;
mod service;
pub(crate) mod shared;
mod shared_memory;
mod tls;

pub use error::ServeError;
pub use page::{ModelSnapshot, Resident, Snapshot, Tier};
pub use server::{BindError, Config, Limits, Server};
pub use service::{Service, ServiceFuture, Texts, Tokenizer};
pub use tls::{TlsError, TlsFiles};

pub use crate::shared_memory::SharedMemoryError;
