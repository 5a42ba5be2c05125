//! The routes of shared memory.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, post};

use super::ServeError;
use super::body::receive;
use super::routes::{Sharing, json};
use super::shared::Shared;
use crate::shared_memory::{Registration, SharedMemoryError};

/// The routes below `/v2/cudasharedmemory`. Clients such as `perf_analyzer` ask them whether or not they register a region: there is
/// none, and none can be registered.
pub(super) fn no_cuda() -> Router<Arc<Shared>> {
    let refuse = async || ServeError::from(SharedMemoryError::Cuda);
    Router::new()
        .route("/status", get(async || json(&[(); 0])))
        .route("/unregister", post(async || ()))
        .route(
            "/region/{region}/status",
            get(async |name: RegionName| ServeError::from(SharedMemoryError::Unknown(name.0))),
        )
        .route("/region/{region}/register", post(refuse))
        .route("/region/{region}/unregister", post(async || ()))
}

/// The routes below `/v2/systemsharedmemory`.
pub(super) fn router() -> Router<Arc<Shared>> {
    Router::new()
        .route("/status", get(all))
        .route("/unregister", post(unregister_all))
        .route("/region/{region}/status", get(status))
        .route("/region/{region}/register", post(register))
        .route("/region/{region}/unregister", post(unregister))
}

/// A client that [may use shared memory](Shared::neighbour).
struct Neighbour;

impl FromRequestParts<Arc<Shared>> for Neighbour {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ServeError> {
        shared.neighbour(parts.extensions.get().copied())?;
        Ok(Self)
    }
}

/// The name of a region that a route has.
struct RegionName(String);

impl FromRequestParts<Arc<Shared>> for RegionName {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ServeError> {
        let path = Path::<String>::from_request_parts(parts, shared).await;
        path.map(|Path(name)| Self(name)).map_err(|error| ServeError::Malformed(error.body_text()))
    }
}

async fn all(State(shared): Sharing, _: Neighbour) -> Response {
    json(&shared.regions.all())
}

async fn status(State(shared): Sharing, _: Neighbour, name: RegionName) -> Result<Response, ServeError> {
    Ok(json(&[shared.regions.status(&name.0)?]))
}

async fn register(
    State(shared): Sharing,
    _: Neighbour,
    name: RegionName,
    headers: HeaderMap,
    body: Body,
) -> Result<(), ServeError> {
    let body = receive(&headers, body, shared.limits(), &mut shared.share()).await?;
    let registration: Registration = serde_json::from_slice(&body)
        .map_err(|error| ServeError::Malformed(format!("the body is no region of shared memory: {error}")))?;
    Ok(shared.regions.register(name.0, registration)?)
}

/// As with Triton, nothing is wrong with a region that is not there: clients begin with this.
async fn unregister(State(shared): Sharing, _: Neighbour, name: RegionName) {
    shared.regions.unregister(&name.0);
}

async fn unregister_all(State(shared): Sharing, _: Neighbour) {
    shared.regions.clear();
}
