//! The routes of shared memory.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::routing::{MethodRouter, get, post};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::body::receive;
use super::routes::{Sharing, json};
use super::shared::ServerShared;
use super::{ServeError, base64};
use crate::shared_memory::{CudaRegistration, Region, RegionKind, SharedMemoryError, SystemRegion, SystemRegistration};

/// Returns the routes below `/v2/systemsharedmemory`.
pub(super) fn system() -> Router<Arc<ServerShared>> {
    router(Region::system, post(register_system))
}

/// Returns the routes below `/v2/cudasharedmemory`. Clients such as `perf_analyzer` call them on every server.
pub(super) fn cuda() -> Router<Arc<ServerShared>> {
    router(Region::cuda, post(register_cuda))
}

fn router<T: Clone + Serialize + 'static>(
    kind: RegionKind<T>,
    register: MethodRouter<Arc<ServerShared>>,
) -> Router<Arc<ServerShared>> {
    let all = move |State(shared): Sharing, _: Neighbour| async move { json(&shared.regions.all(kind)) };
    let status = move |State(shared): Sharing, _: Neighbour, name: RegionName| async move {
        Ok::<_, ServeError>(json(&[shared.regions.status(kind, &name.0)?]))
    };
    // As in Triton, unregistering an absent region is not an error: clients start with this call.
    let unregister = move |State(shared): Sharing, _: Neighbour, name: RegionName| async move {
        shared.regions.unregister(kind, &name.0).await
    };
    Router::new()
        .route("/status", get(all))
        .route(
            "/unregister",
            post(move |State(shared): Sharing, _: Neighbour| async move { shared.regions.clear(kind).await }),
        )
        .route("/region/{region}/status", get(status))
        .route("/region/{region}/register", register)
        .route("/region/{region}/unregister", post(unregister))
}

/// A client that [may use shared memory](ServerShared::neighbour).
struct Neighbour;

impl FromRequestParts<Arc<ServerShared>> for Neighbour {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<ServerShared>) -> Result<Self, ServeError> {
        shared.neighbour(parts.extensions.get().copied())?;
        Ok(Self)
    }
}

/// The region's name in a route.
struct RegionName(String);

impl FromRequestParts<Arc<ServerShared>> for RegionName {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<ServerShared>) -> Result<Self, ServeError> {
        let path = Path::<String>::from_request_parts(parts, shared).await;
        path.map(|Path(name)| Self(name)).map_err(|error| ServeError::Malformed(error.body_text()))
    }
}

async fn register_system(
    State(shared): Sharing,
    _: Neighbour,
    name: RegionName,
    headers: HeaderMap,
    body: Body,
) -> Result<(), ServeError> {
    let registration: SystemRegistration = registration(&shared, &headers, body).await?;
    Ok(shared.regions.register(Region::System(SystemRegion::open(name.0, registration)?))?)
}

/// The form of [`CudaRegistration`] in JSON.
#[derive(Deserialize)]
struct CudaBody {
    raw_handle: RawHandle,
    device_id: i64,
    byte_size: u64,
}

#[derive(Deserialize)]
struct RawHandle {
    b64: String,
}

async fn register_cuda(
    State(shared): Sharing,
    _: Neighbour,
    name: RegionName,
    headers: HeaderMap,
    body: Body,
) -> Result<(), ServeError> {
    let CudaBody { raw_handle, device_id, byte_size } = registration(&shared, &headers, body).await?;
    let raw_handle = base64::decode(&raw_handle.b64).ok_or(SharedMemoryError::Handle)?;
    shared.register_cuda(name.0, CudaRegistration { raw_handle, device_id, byte_size }).await
}

async fn registration<T: DeserializeOwned>(
    shared: &ServerShared,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, ServeError> {
    let body = receive(headers, body, shared.limits(), &mut shared.share()).await?;
    serde_json::from_slice(&body)
        .map_err(|error| ServeError::Malformed(format!("the body is no region of shared memory: {error}")))
}
