//! The protocol over HTTP.
//!
//! An [`InferenceServer`](crate::server::InferenceServer) answers for a [`Service`](crate::service::Service), which knows
//! the models. A request is dropped when its client goes away or its time limit passes: a `Service` must end its work for
//! a request when the future is dropped. Errors are JSON, `{"error": "..."}`. Every answer has the header `X-Request-Id`,
//! which the client or the server chose, and under which [the log](crate::request_log) records the request.
//!
//! | route | |
//! | --- | --- |
//! | `GET /` | a live page that shows models, where they are, and how long they take; it asks for a token itself |
//! | `GET /events` | snapshots for the page as server-sent events, about one a second and at each change |
//! | `GET /metrics` | [`Metrics`](crate::metrics::Metrics) for Prometheus |
//! | `GET /openapi.json` | a description of all routes (OpenAPI 3.1) |
//! | `GET /v2/health/live`, `GET /v2/health/ready` | health checks for orchestrators and load balancers; need no token
//! |
//! | `GET /health`, `GET /healthz` | the same as `/v2/health/ready` |
//! | `GET /v2` | the server's metadata |
//! | `GET /v2/models/M`, `GET /v2/models/M/ready` | a model's metadata; whether it is ready |
//! | `GET /v2/models/M/config` | a model's configuration |
//! | `GET /v2/models/M/stats`, `GET /v2/models/stats` | request outcomes and times, by model |
//! | `POST /v2/models/M/infer` | asks a model |
//! | `POST /v2/repository/index` | lists models |
//! | `POST /v2/repository/models/M/load`, `POST /v2/repository/models/M/unload` | loads and unloads a model |
//! | `POST /v2/systemsharedmemory/region/R/register` | names a part of an object in `/dev/shm`, in which tensors may
//! lie |
//! | `POST /v2/systemsharedmemory[/region/R]/unregister` | forgets a region, or all |
//! | `GET /v2/systemsharedmemory[/region/R]/status` | a region, or all |
//! | `POST /v2/cudasharedmemory/region/R/register` | names memory of a client's CUDA device, if the server computes on
//! that device |
//! | `POST /v2/cudasharedmemory[/region/R]/unregister`, `GET /v2/cudasharedmemory[/region/R]/status` | likewise |
//! | `POST /v1/embeddings`, `GET /v1/models`, `GET /v1/models/M` | OpenAI's API: embeddings of texts, and the list of
//! models |
//!
//! `/versions/V` may follow `M` in routes that ask for a model. [`Operators`](crate::service::Operators) load and unload
//! models and use shared memory. Without tokens, requests of other sites' pages are refused: see
//! [`hosts`](crate::server::InferenceServerConfig::hosts) and
//! [`origins`](crate::server::InferenceServerConfig::origins).

mod answer_body;
mod body;
mod compression;
mod connection;
mod cors;
mod feed;
mod infer;
mod openai;
mod openapi;
mod page;
mod route;
mod routes;
mod shared_memory;
mod sites;

pub(crate) use connection::serve;
pub(crate) use sites::Sites;
pub use sites::{HostName, Origin, SiteError};
