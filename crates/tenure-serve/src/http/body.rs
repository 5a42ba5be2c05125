//! The bodies of requests: received within their limits, and decompressed.

use std::fmt::Display;
use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, header};
use bytes::Bytes;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Limits, ServeError};
use crate::request_log;

/// Work on more bytes than this takes about 100 µs or more, and runs where it does not delay other requests.
const SHORT_BYTES: usize = 64 << 10;

/// Bytes that are reserved before they arrive.
const FIRST_BYTES: usize = 1 << 20;

/// How long the server reads on after a body exceeds its limit. A client that is cut off while it sends does not see
/// the answer.
const FAREWELL: Duration = Duration::from_secs(1);

/// A share of the memory for all bodies, held until it is dropped. It is counted in KiB.
pub(crate) struct BodyShare {
    free: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl BodyShare {
    pub(crate) fn new(free: Arc<Semaphore>) -> Self {
        Self { free, taken: None }
    }

    /// Grows the share to this many bytes if they are free. It does not wait: the requests that hold the rest may wait
    /// too.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ServeError> {
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = u32::try_from(bytes.div_ceil(1024).saturating_sub(taken)).map_err(|_| ServeError::Busy)?;
        let more = self.free.clone().try_acquire_many_owned(more).map_err(|_| ServeError::Busy)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

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
    let received = timeout(limits.receive, collect(body, limit, share)).await;
    let body = received.map_err(|_| ServeError::Slow(limits.receive))??;
    if let Some(record) = request_log::current() {
        record.received(body.len());
    }
    // A few bytes may decompress to many.
    let unpack: fn(&[u8], usize) -> Result<Bytes, ServeError> =
        match headers.get(header::CONTENT_ENCODING).map(|value| value.as_bytes()) {
            None | Some(b"identity") => return Ok(body),
            Some(b"gzip") => |body, limit| unpack(MultiGzDecoder::new(body), limit),
            Some(b"deflate") => |body, limit| unpack(ZlibDecoder::new(body), limit),
            Some(other) => return Err(ServeError::ContentEncoding(String::from_utf8_lossy(other).into_owned())),
        };
    let body = aside(usize::MAX, move || unpack(&body, limit)).await?;
    share.grow(body.len())?;
    Ok(body)
}

async fn collect(
    body: impl Body<Data = Bytes, Error: Display>,
    limit: usize,
    share: &mut BodyShare,
) -> Result<Bytes, ServeError> {
    let mut body = pin!(body);
    let said = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    let mut bytes = Vec::with_capacity(said.min(limit).min(FIRST_BYTES));
    let mut refusal = (said > limit).then_some(ServeError::TooLarge(limit));
    while refusal.is_none()
        && let Some(frame) = body.frame().await
    {
        let frame = frame.map_err(|error| ServeError::Malformed(format!("the body was cut off: {error}")))?;
        let data = frame.into_data().unwrap_or_default();
        if data.len() > limit - bytes.len() {
            refusal = Some(ServeError::TooLarge(limit));
        } else {
            // Bytes that were only announced take no share.
            refusal = share.grow(bytes.len() + data.len()).err();
            bytes.extend_from_slice(&data);
        }
    }
    let Some(refusal) = refusal else { return Ok(bytes.into()) };
    let discard = async { while let Some(Ok(_)) = body.frame().await {} };
    let _ = timeout(FAREWELL, discard).await;
    Err(refusal)
}

pub(crate) fn unpack(packed: impl Read, limit: usize) -> Result<Bytes, ServeError> {
    let mut bytes = Vec::new();
    let read = packed.take((limit as u64).saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|error| ServeError::Malformed(format!("the body is not what Content-Encoding says: {error}")))?;
    if bytes.len() > limit { Err(ServeError::TooLarge(limit)) } else { Ok(bytes.into()) }
}

/// Runs work on this many bytes, on another thread if it takes long.
pub(crate) async fn aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ServeError> + Send + 'static,
) -> Result<T, ServeError> {
    if bytes <= SHORT_BYTES {
        return work();
    }
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(ServeError::Failed(format!("the server failed at a message: {error}"))))
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_unpacks_to_no_end_is_unpacked_up_to_the_limit() {
        assert!(matches!(unpack(io::repeat(0), 1000), Err(ServeError::TooLarge(1000))));
        assert_eq!(unpack(io::repeat(0).take(1000), 1000).unwrap().len(), 1000);
    }
}
