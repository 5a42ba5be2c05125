//! The routes of shared memory, and tensors in it.

use std::mem;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::response::Response;
use axum::routing::{get, post};

use super::ServeError;
use super::body::{Share, aside, receive};
use super::regions::{Part, Registration, SharedMemoryError};
use super::routes::{Sharing, json};
use super::shared::Shared;
use crate::protocol::{InferRequest, InferResponse, Wanted};

/// To read a part takes the system as long as to copy some KiB, however few bytes it has.
const CALL_BYTES: usize = 4 << 10;

/// The host that a request came from.
#[derive(Clone, Copy)]
pub(crate) struct Peer(pub(super) IpAddr);

/// The routes below `/v2/cudasharedmemory` that are asked, such as by `perf_analyzer`, whether or not a region is to be registered.
/// There is none.
pub(super) fn no_cuda() -> Router<Arc<Shared>> {
    Router::new().route("/status", get(async || json(&[(); 0]))).route("/unregister", post(async || ()))
}

impl Peer {
    /// Whether it is this host. Who asks over its address from outside is not told apart from other hosts.
    fn is_here(&self) -> bool {
        self.0.to_canonical().is_loopback()
    }
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

/// Somebody who may use shared memory: whoever is on this host, or has shown a token. Nobody else needs it.
pub(super) struct Neighbour;

impl Neighbour {
    fn new(shared: &Shared, peer: Option<&Peer>) -> Result<Self, ServeError> {
        let is_here = peer.is_some_and(Peer::is_here);
        if is_here || shared.has_tokens() { Ok(Self) } else { Err(SharedMemoryError::Elsewhere.into()) }
    }
}

impl FromRequestParts<Arc<Shared>> for Neighbour {
    type Rejection = ServeError;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, ServeError> {
        Self::new(shared, parts.extensions.get())
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

/// The parts of shared memory that a request's tensors are in, which were looked for before it is computed.
pub(super) struct InPlace {
    /// Of its inputs, in their order.
    inputs: Vec<Part>,
    /// Of outputs, by name.
    outputs: Vec<(String, Part)>,
}

impl InPlace {
    /// Finds the parts, if the request's peer may use them.
    pub(super) fn find(shared: &Shared, peer: Option<Peer>, request: &InferRequest) -> Result<Self, ServeError> {
        let Wanted { outputs, .. } = &request.wanted;
        let inputs = request.shared_inputs.iter().map(|input| &input.span);
        let outputs = outputs.iter().filter_map(|output| Some((&output.name, output.span.as_ref()?)));
        if inputs.len() > 0 || outputs.clone().next().is_some() {
            Neighbour::new(shared, peer.as_ref())?;
        }
        let of = |(name, span): (&String, _)| Ok((name.clone(), shared.regions.part(span)?));
        Ok(Self {
            inputs: inputs.map(|span| shared.regions.part(span)).collect::<Result<_, _>>()?,
            outputs: outputs.map(of).collect::<Result<_, SharedMemoryError>>()?,
        })
    }

    /// Bytes of the inputs.
    fn input_bytes(&self, limit: usize) -> Result<usize, ServeError> {
        let sum = self.inputs.iter().try_fold(0u64, |sum, part| sum.checked_add(part.byte_size()));
        let sum = sum.and_then(|sum| usize::try_from(sum).ok()).filter(|sum| *sum <= limit);
        Ok(sum.ok_or(SharedMemoryError::TooLarge(limit))?)
    }

    /// The request with the inputs as they are now. They take a share of the memory for bodies, of which `taken` bytes are the
    /// request's body.
    pub(super) async fn read(
        &mut self,
        shared: &Shared,
        share: &mut Share,
        taken: usize,
        mut request: InferRequest,
    ) -> Result<InferRequest, ServeError> {
        if self.inputs.is_empty() {
            return Ok(request);
        }
        let bytes = self.input_bytes(shared.limits().body_bytes)?;
        share.grow(taken.saturating_add(bytes))?;
        let parts = mem::take(&mut self.inputs);
        let work_bytes = bytes.saturating_add(parts.len().saturating_mul(CALL_BYTES));
        let read = move || {
            for (input, part) in mem::take(&mut request.shared_inputs).into_iter().zip(parts) {
                request.inputs.push(input.with_bytes(part.read()?).map_err(ServeError::Invalid)?);
            }
            Ok(request)
        };
        aside(work_bytes, read).await
    }

    /// Writes those outputs that are wanted in shared memory.
    pub(super) async fn write(self, response: InferResponse) -> Result<InferResponse, ServeError> {
        if self.outputs.is_empty() {
            return Ok(response);
        }
        let bytes = response.outputs.iter().map(|output| output.bytes().len()).sum();
        let write = move || {
            for (name, part) in &self.outputs {
                // One that is not there is found when the answer is written.
                if let Some(output) = response.outputs.iter().find(|output| output.name() == name) {
                    part.write(name, output.bytes())?;
                }
            }
            Ok(response)
        };
        aside(bytes, write).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_here_if_it_comes_over_loopback() {
        for (address, is_here) in [
            ("127.0.0.1", true),
            ("127.9.9.9", true),
            ("::1", true),
            ("::ffff:127.0.0.1", true),
            ("10.0.0.1", false),
            ("::ffff:10.0.0.1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(Peer(address.parse().unwrap()).is_here(), is_here, "{address}");
        }
    }
}
