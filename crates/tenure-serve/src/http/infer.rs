//! Requests for inference.

use std::fmt::Display;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::time::Instant;

use super::body::receive;
use super::route::{ModelPath, Sharing, json_response};
use crate::protocol::{Encoded, Encoding, InferRequest, InferResponse, JSON_LENGTH, ProtocolError, Tensor, Wanted};
use crate::service::shared::{Ending, ServerShared};
use crate::service::work::{NUMBER_BYTES, aside};
use crate::service::{Peer, ServeError};
use crate::shared_memory::SharedTensors;

/// Answers an inference request that came through the router.
pub(super) async fn infer(
    State(shared): Sharing,
    path: ModelPath,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ServeError> {
    answer(&shared, path, peer.map(|Extension(peer)| peer), &headers, body).await
}

/// Answers an inference request.
pub(super) async fn answer(
    shared: &ServerShared,
    path: ModelPath,
    peer: Option<Peer>,
    headers: &HeaderMap,
    body: impl hyper::body::Body<Data = Bytes, Error: Display>,
) -> Result<Response, ServeError> {
    let mut ending = Ending::new(shared.service.metrics(), Instant::now());
    let answer = ask(shared, path, peer, headers, body, &mut ending).await;
    ending.of(&answer);
    answer
}

async fn ask(
    shared: &ServerShared,
    path: ModelPath,
    peer: Option<Peer>,
    headers: &HeaderMap,
    body: impl hyper::body::Body<Data = Bytes, Error: Display>,
    ending: &mut Ending<'_>,
) -> Result<Response, ServeError> {
    let json_bytes = json_length(headers)?;
    // Inputs may be parts of the body.
    let mut share = shared.share();
    let body = receive(headers, body, &shared.limits, &mut share).await?;
    let metadata = shared.service.metadata(&path.model, path.version.as_deref())?;
    ending.model.clone_from(&path.model);
    let body_bytes = body.len();
    let request = aside(body_bytes, move || {
        InferRequest::parse(path.model, path.version, body, json_bytes).map_err(ServeError::Invalid)
    })
    .await?;
    let mut shared_tensors = SharedTensors::find(shared, peer, &request)?;
    let request = shared_tensors.read_inputs(shared, &mut share, body_bytes, request).await?;
    metadata.check(&request).map_err(ServeError::Invalid)?;
    let wanted = request.wanted.clone();
    let response = shared_tensors.write_outputs(shared.infer(request, ending.arrived).await?).await?;
    let cost = cost_bytes(&response, &wanted);
    let Encoded { body, json_bytes } = aside(cost, move || encode(&response, &wanted)).await?;
    let Some(json_bytes) = json_bytes else { return Ok(json_response(body)) };
    let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response();
    response.headers_mut().insert(JSON_LENGTH, json_bytes.into());
    Ok(response)
}

/// Returns the cost of encoding an answer, as the number of bytes on which other work takes as long.
fn cost_bytes(response: &InferResponse, wanted: &Wanted) -> usize {
    // A missing output is reported when the answer is encoded.
    let outputs = response.wanted(wanted).unwrap_or_default();
    outputs
        .iter()
        .map(|(output, encoding): &(&Tensor, Encoding)| match encoding {
            Encoding::Binary => output.bytes().len(),
            Encoding::Json => output.bytes().len().max(output.numel().saturating_mul(NUMBER_BYTES)),
        })
        .sum()
}

fn encode(response: &InferResponse, wanted: &Wanted) -> Result<Encoded, ServeError> {
    response.encode(wanted).map_err(|error| match error {
        // The client asked for JSON.
        ProtocolError::Write(_) => ServeError::Invalid(error),
        _ => ServeError::Failed(format!("the server answered something else: {error}")),
    })
}

fn json_length(headers: &HeaderMap) -> Result<Option<usize>, ServeError> {
    let Some(value) = headers.get(JSON_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|value| value.parse().ok());
    length.map(Some).ok_or_else(|| ServeError::Malformed(format!("invalid Inference-Header-Content-Length: {value:?}")))
}
