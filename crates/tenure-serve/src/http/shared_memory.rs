//! The routes of shared memory.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::routing::{MethodRouter, get, post};
use base64::prelude::{BASE64_STANDARD, Engine};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::body::receive;
use super::route::{Operator, Route, Sharing, json, object};
use crate::service::ServeError;
use crate::service::shared::ServerShared;
use crate::shared_memory::{CudaRegistration, Region, RegionKind, SharedMemoryError, SystemRegion, SystemRegistration};

/// Returns the routes. Clients such as `perf_analyzer` call those of CUDA devices' memory on every server.
pub(super) fn routes() -> impl Iterator<Item = Route> {
    let system = routes_of("/v2/systemsharedmemory", Region::system, post(register_system));
    system.into_iter().chain(routes_of("/v2/cudasharedmemory", Region::cuda, post(register_cuda)))
}

fn routes_of<T: Clone + Serialize + 'static>(
    path: &str,
    kind: RegionKind<T>,
    register: MethodRouter<Arc<ServerShared>>,
) -> [Route; 5] {
    let status = async move |State(shared): Sharing, _: Operator, name: RegionName| {
        Ok::<_, ServeError>(json(&[shared.regions.status(kind, &name.0)?]))
    };
    // As in Triton, unregistering an absent region is not an error: clients start with this call.
    let unregister = async move |State(shared): Sharing, _: Operator, name: RegionName| {
        shared.regions.unregister(kind, &name.0).await
    };
    [
        (
            format!("{path}/status"),
            get(async move |State(shared): Sharing, _: Operator| json(&shared.regions.all(kind))),
        ),
        (
            format!("{path}/unregister"),
            post(async move |State(shared): Sharing, _: Operator| shared.regions.clear(kind).await),
        ),
        (format!("{path}/region/{{region}}/status"), get(status)),
        (format!("{path}/region/{{region}}/register"), register),
        (format!("{path}/region/{{region}}/unregister"), post(unregister)),
    ]
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
    _: Operator,
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
    _: Operator,
    name: RegionName,
    headers: HeaderMap,
    body: Body,
) -> Result<(), ServeError> {
    let CudaBody { raw_handle, device_id, byte_size } = registration(&shared, &headers, body).await?;
    // C++ clients insert line breaks.
    let digits: String = raw_handle.b64.split_ascii_whitespace().collect();
    let raw_handle = BASE64_STANDARD.decode(digits).map_err(|_| SharedMemoryError::Handle)?;
    shared.register_cuda(name.0, CudaRegistration { raw_handle, device_id, byte_size }).await
}

async fn registration<T: DeserializeOwned>(
    shared: &ServerShared,
    headers: &HeaderMap,
    body: Body,
) -> Result<T, ServeError> {
    let body = receive(headers, body, &shared.limits, &mut shared.share()).await?;
    object(&body, "region of shared memory")
}
