//! The messages of a call in HTTP/2: each follows a compression flag and its length.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use bytes::{BufMut, Bytes, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::status;
use crate::metrics::RequestOutcome;
use crate::request_log::{self, REQUEST_ID, RequestEvent, RequestRecord};
use crate::service::body::{BodyShare, Pace, Packing, unpack};
use crate::service::work::TURN_BYTES;
use crate::service::{Limits, ServeError};

/// Bytes before a message.
const HEAD_BYTES: usize = 5;

/// The header that names a call's compression, and the compressions that the server accepts.
const ENCODING: &str = "grpc-encoding";
const ENCODINGS: HeaderValue = HeaderValue::from_static("identity,gzip,deflate");

/// Returns a call's time limit, if it has one: at most eight digits and a unit.
///
/// # Errors
/// The header has another form.
pub(super) fn time_limit(headers: &HeaderMap) -> Result<Option<Duration>, ServeError> {
    let Some(value) = headers.get("grpc-timeout") else { return Ok(None) };
    let limit = value.to_str().ok().and_then(duration);
    limit.map(Some).ok_or_else(|| ServeError::Malformed(format!("invalid grpc-timeout: {value:?}")))
}

/// Parses at most eight digits and a unit.
fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = digits.len() <= 8 && digits.bytes().all(|digit| digit.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// A call's incoming messages.
pub(super) struct Incoming {
    stream: RecvStream,
    limits: Limits,
    packing: Option<Packing>,
    bytes: BytesMut,
}

impl Incoming {
    pub(super) fn new(headers: &HeaderMap, stream: RecvStream, limits: Limits) -> Result<Self, ServeError> {
        let packing = match headers.get(ENCODING).map(HeaderValue::as_bytes) {
            None | Some(b"identity") => None,
            Some(b"gzip") => Some(Packing::Gzip),
            Some(b"deflate") => Some(Packing::Zlib),
            Some(other) => return Err(ServeError::ContentEncoding(String::from_utf8_lossy(other).into_owned())),
        };
        Ok(Self { stream, limits, packing, bytes: BytesMut::new() })
    }

    /// Receives the next message and decompresses it, counting it against `share`. Returns `None` at the end of the
    /// stream.
    pub(super) async fn next(&mut self, share: &mut BodyShare) -> Result<Option<Bytes>, ServeError> {
        let Limits { receive, body_bytes: limit, .. } = self.limits;
        let received = timeout(receive, self.receive(share)).await;
        let Some((is_packed, message)) = received.map_err(|_| ServeError::Slow(receive))?? else { return Ok(None) };
        if let Some(record) = request_log::current() {
            record.received(HEAD_BYTES + message.len());
        }
        match (is_packed, self.packing) {
            (0, _) => Ok(Some(message)),
            (1, Some(packing)) => unpack(packing, message, limit, share).await.map(Some),
            _ => Err(ServeError::Malformed("a message is compressed, and grpc-encoding does not say how".into())),
        }
    }

    /// Receives the call's only message.
    pub(super) async fn only(&mut self, share: &mut BodyShare) -> Result<Bytes, ServeError> {
        let message = self.next(share).await?;
        let message = message.ok_or_else(|| ServeError::Malformed("the call has no message".into()))?;
        let Limits { receive, .. } = self.limits;
        let more = timeout(receive, self.fill(1, share)).await.map_err(|_| ServeError::Slow(receive))??;
        if more { Err(ServeError::Malformed("the call has more than one message".into())) } else { Ok(message) }
    }

    async fn receive(&mut self, share: &mut BodyShare) -> Result<Option<(u8, Bytes)>, ServeError> {
        let cut = || ServeError::Malformed("the body was cut off: it ends within a message".into());
        if !self.fill(HEAD_BYTES, share).await? {
            return if self.bytes.is_empty() { Ok(None) } else { Err(cut()) };
        }
        let head = self.bytes.split_to(HEAD_BYTES);
        let is_packed = head[0];
        let bytes = head[1..].iter().fold(0, |bytes, &byte| bytes << 8 | usize::from(byte));
        if bytes > self.limits.body_bytes {
            return Err(ServeError::TooLarge(self.limits.body_bytes));
        }
        if !self.fill(bytes, share).await? {
            return Err(cut());
        }
        Ok(Some((is_packed, self.bytes.split_to(bytes).freeze())))
    }

    /// Waits until this many bytes have arrived. Returns `false` if the stream ends before.
    async fn fill(&mut self, bytes: usize, share: &mut BodyShare) -> Result<bool, ServeError> {
        let mut pace = Pace::new(self.limits.stall);
        while self.bytes.len() < bytes {
            // A client may take its time before a message, but not within it.
            let more = match self.bytes.len() {
                0 => self.stream.data().await,
                begun => pace.wait(begun, self.stream.data()).await?,
            };
            let Some(data) = more else { return Ok(false) };
            let cut = |error| ServeError::Malformed(format!("the body was cut off: {error}"));
            let data = data.map_err(cut)?;
            self.stream.flow_control().release_capacity(data.len()).map_err(cut)?;
            // Bytes that were only announced take no share.
            share.grow(self.bytes.len() + data.len())?;
            self.bytes.extend_from_slice(&data);
        }
        Ok(true)
    }
}

/// Encodes a message after its length.
pub(super) fn frame(message: &impl Message) -> Result<Bytes, ServeError> {
    let failed =
        |reason: &dyn ToString| ServeError::Failed(format!("an answer cannot be sent: {}", reason.to_string()));
    let bytes = message.encoded_len();
    let length = u32::try_from(bytes).map_err(|error| failed(&error))?;
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + bytes);
    frame.put_u8(0);
    frame.put_u32(length);
    message.encode(&mut frame).map_err(|error| failed(&error))?;
    Ok(frame.freeze())
}

/// A call's outgoing answers. Errors mean that the client no longer accepts them.
pub(super) struct Outgoing {
    event: RequestEvent,
    sent_bytes: u64,
    respond: SendResponse<Bytes>,
    stream: Option<SendStream<Bytes>>,
    /// The longest time that a client may accept no bytes.
    patience: Duration,
}

impl Outgoing {
    pub(super) fn new(record: Arc<RequestRecord>, respond: SendResponse<Bytes>, patience: Duration) -> Self {
        Self { event: RequestEvent::new(record), sent_bytes: 0, respond, stream: None, patience }
    }

    /// Returns the call's record.
    pub(super) fn record(&self) -> &RequestRecord {
        self.event.record()
    }

    /// Waits until the client cancels the call or the connection ends.
    pub(super) async fn cancelled(&mut self) {
        let Self { respond, stream, .. } = self;
        // The client is gone in both cases.
        let _ = poll_fn(|context| match stream {
            Some(stream) => stream.poll_reset(context),
            None => respond.poll_reset(context),
        })
        .await;
    }

    /// Sends a message that already follows its length.
    pub(super) async fn send(&mut self, mut frame: Bytes) -> io::Result<()> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let head = head(StatusCode::OK, self.event.record().id());
                let sent = self.respond.send_response(head, false).map_err(io::Error::other)?;
                self.stream.insert(sent)
            }
        };
        self.sent_bytes += frame.len() as u64;
        while !frame.is_empty() {
            stream.reserve_capacity(frame.len().min(TURN_BYTES));
            let capacity = timeout(self.patience, poll_fn(|context| stream.poll_capacity(context))).await?;
            let capacity = capacity.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
            let part = frame.split_to(capacity.min(frame.len()).min(TURN_BYTES));
            stream.send_data(part, false).map_err(io::Error::other)?;
            if !frame.is_empty() {
                yield_now().await;
            }
        }
        Ok(())
    }

    /// Ends the call.
    pub(super) fn end(mut self, ended: &Result<(), ServeError>) -> io::Result<()> {
        let trailers = status::trailers(ended);
        let outcome = ended.as_ref().map_or_else(ServeError::outcome, |()| RequestOutcome::Answered);
        self.event.answered(outcome, status::number(ended), Some(self.sent_bytes));
        match self.stream {
            Some(mut stream) => stream.send_trailers(trailers),
            None => {
                let mut head = head(StatusCode::OK, self.event.record().id());
                head.headers_mut().extend(trailers);
                self.respond.send_response(head, true).map(drop)
            }
        }
        .map_err(io::Error::other)
    }

    /// Rejects a request that is not a gRPC call.
    pub(super) fn refuse(mut self) -> io::Result<()> {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        self.event.answered(RequestOutcome::Refused, status.as_u16(), None);
        let refused = self.respond.send_response(head(status, self.event.record().id()), true);
        refused.map(drop).map_err(io::Error::other)
    }
}

fn head(status: StatusCode, id: &HeaderValue) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = status;
    head.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    head.headers_mut().insert("grpc-accept-encoding", ENCODINGS);
    head.headers_mut().insert(REQUEST_ID, id.clone());
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_number_and_a_unit() {
        let limit = |text: &'static str| {
            time_limit(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), HeaderValue::from_static(text))])).ok()
        };
        for (text, expected) in [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("4S", Duration::from_secs(4)),
            ("5m", Duration::from_millis(5)),
            ("6u", Duration::from_micros(6)),
            ("99999999n", Duration::from_nanos(99_999_999)),
        ] {
            assert_eq!(limit(text), Some(Some(expected)), "{text}");
        }
        for text in ["", "1", "S", "-1S", "+1S", "1 S", "1.5S", "100000000S", "1s"] {
            assert_eq!(limit(text), None, "{text}");
        }
        assert_eq!(time_limit(&HeaderMap::new()).unwrap(), None);
    }
}
