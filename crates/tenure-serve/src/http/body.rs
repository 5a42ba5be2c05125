//! The bodies of requests over HTTP, received within their limits.

use std::fmt::Display;
use std::pin::pin;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::time::timeout;

use crate::request_log;
use crate::service::body::{BodyShare, Pace, Packing, append, unpack};
use crate::service::{Limits, ServeError};

/// How long the server reads on after a body exceeds its limit. A client that is cut off while it sends does not see
/// the answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// Receives a body and decompresses it, counting it against `share`.
pub(super) async fn receive(
    headers: &HeaderMap,
    body: impl Body<Data = Bytes, Error: Display>,
    limits: &Limits,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let limit = limits.body_bytes;
    // A client that sends `Expect` for a body that is too large gets the error before it sends the body.
    if headers.contains_key(header::EXPECT) && body.size_hint().lower() > limit as u64 {
        return Err(ServeError::TooLarge(limit));
    }
    let received = timeout(limits.receive, collect(body, limits, share)).await;
    let body = received.map_err(|_| ServeError::Slow(limits.receive))??;
    if let Some(record) = request_log::current() {
        record.received(body.len());
    }
    let packing = match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
        None | Some(b"identity") => return Ok(body),
        Some(b"gzip") => Packing::Gzip,
        Some(b"deflate") => Packing::Zlib,
        Some(other) => return Err(ServeError::ContentEncoding(String::from_utf8_lossy(other).into_owned())),
    };
    unpack(packing, body, limit, share).await
}

async fn collect(
    body: impl Body<Data = Bytes, Error: Display>,
    limits: &Limits,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let limit = limits.body_bytes;
    let mut body = pin!(body);
    let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    let mut refusal = (said > limit).then_some(ServeError::TooLarge(limit));
    let mut pace = Pace::new(limits.stall);
    while refusal.is_none()
        && let Some(frame) = pace.wait(bytes.len(), body.frame()).await?
    {
        let frame = frame.map_err(|error| ServeError::Malformed(format!("the body was cut off: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - bytes.len() {
            refusal = Some(ServeError::TooLarge(limit));
        } else {
            // A body that said its size has just that in the end.
            let most = if bytes.len() + data.len() <= said { said } else { limit };
            refusal = append(&mut bytes, &data, most, share).err();
        }
    }
    let Some(refusal) = refusal else { return Ok(bytes.into()) };
    let discard = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(FAREWELL, discard).await;
    Err(refusal)
}
