//! The request log, over HTTP and gRPC: one `tracing` event for each request, at level INFO with the target [`TARGET`].
//!
//! | field | |
//! | --- | --- |
//! | `id` | the header `X-Request-Id`: the client's, or one that the server makes |
//! | `protocol`, `method`, `path` | `http` or `grpc`, and the request's method and path |
//! | `model`, `rows` | the requested model, if it exists, and the number of rows that were computed |
//! | `status`, `outcome` | the HTTP status or gRPC code, and a [`RequestOutcome`] |
//! | `queue_ms`, `copy_ms`, `wait_ms`, `compute_ms` | the [`Phases`] of a request that was computed |
//! | `total_ms` | the time from the arrival of the request's head until there was an answer |
//! | `bytes_in`, `bytes_out` | the bytes of the bodies, without their heads, as they were sent |
//!
//! A field that does not apply to a request is left out. A gRPC stream has an event for each of its messages, and one
//! at its end.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::{Phases, RequestOutcome, milliseconds};
use crate::scheduler::ClientId;

/// The target of the events.
pub const TARGET: &str = "tenure_serve::request";

/// The header that has a request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is accepted from a client, in bytes.
const ID_BYTES: usize = 128;

tokio::task_local! {
    static CURRENT: Arc<RequestRecord>;
}

/// A request, with everything that its event reports.
pub(crate) struct RequestRecord {
    id: HeaderValue,
    protocol: &'static str,
    method: String,
    path: String,
    arrived: Instant,
    client: OnceLock<ClientId>,
    found: Mutex<RequestFacts>,
}

/// Facts about a request that become known while it is answered.
#[derive(Default)]
struct RequestFacts {
    model: Option<String>,
    rows: Option<u64>,
    phases: Option<Phases>,
    bytes_in: u64,
}

impl RequestRecord {
    /// Creates the record of a request that arrives now. Its id is the client's if that is valid.
    pub(crate) fn new(headers: &HeaderMap, protocol: &'static str, method: &str, path: &str) -> Arc<Self> {
        let id = headers.get(REQUEST_ID).filter(|id| is_id(id)).cloned().unwrap_or_else(new_id);
        Self::of(id, protocol, method, path)
    }

    /// Creates the record of the next message of a stream, with the stream's id.
    pub(crate) fn next(&self) -> Arc<Self> {
        let next = Self::of(self.id.clone(), self.protocol, &self.method, &self.path);
        if let Some(client) = self.client() {
            next.comes_from(client);
        }
        next
    }

    fn of(id: HeaderValue, protocol: &'static str, method: &str, path: &str) -> Arc<Self> {
        let method = method.into();
        let path = path.into();
        Arc::new(Self {
            id,
            protocol,
            method,
            path,
            arrived: Instant::now(),
            client: OnceLock::new(),
            found: Mutex::default(),
        })
    }

    /// Returns the request's id.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Runs the future that answers the request; [`current`] returns this record meanwhile.
    pub(crate) async fn scope<F: Future>(self: &Arc<Self>, answer: F) -> F::Output {
        CURRENT.scope(Arc::clone(self), answer).await
    }

    /// Records which client sent the request.
    pub(crate) fn comes_from(&self, client: ClientId) {
        // It is the same at every call.
        let _ = self.client.set(client);
    }

    /// Returns the client that sent the request, if it is known.
    pub(crate) fn client(&self) -> Option<ClientId> {
        self.client.get().copied()
    }

    /// Records that the request asks an existing model.
    pub(crate) fn asks(&self, model: &str) {
        self.found.lock().model = Some(model.into());
    }

    /// Adds bytes of the request's body that arrived.
    pub(crate) fn received(&self, bytes: usize) {
        self.found.lock().bytes_in += bytes as u64;
    }

    /// Records computed rows of the request. If it is computed in parts, the phases are those of the longest part.
    pub(crate) fn computed(&self, rows: u32, phases: Phases) {
        let mut found = self.found.lock();
        *found.rows.get_or_insert(0) += u64::from(rows);
        found.phases = found.phases.into_iter().chain([phases]).max_by_key(Phases::total);
    }
}

/// Returns the record of the request that the current task answers.
pub(crate) fn current() -> Option<Arc<RequestRecord>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// The event of a request, which is sent when this is dropped. Without an answer, the event says that the client went
/// away.
pub(crate) struct RequestEvent {
    record: Arc<RequestRecord>,
    outcome: RequestOutcome,
    status: Option<u16>,
    bytes_out: Option<u64>,
}

impl RequestEvent {
    /// Creates the event of a request that is not answered yet.
    pub(crate) fn new(record: Arc<RequestRecord>) -> Self {
        Self { record, outcome: RequestOutcome::Cancelled, status: None, bytes_out: None }
    }

    /// Returns the request's record.
    pub(crate) fn record(&self) -> &Arc<RequestRecord> {
        &self.record
    }

    /// Records the answer, with its number of bytes if that is known.
    pub(crate) fn answered(&mut self, outcome: RequestOutcome, status: u16, bytes_out: Option<u64>) {
        (self.outcome, self.status, self.bytes_out) = (outcome, Some(status), bytes_out);
    }
}

impl Drop for RequestEvent {
    fn drop(&mut self) {
        let Self { record, outcome, status, bytes_out } = self;
        let found = record.found.lock();
        let phase = |of: fn(&Phases) -> Duration| found.phases.as_ref().map(|phases| milliseconds(of(phases)));
        tracing::info!(
            target: TARGET,
            id = record.id.to_str().unwrap_or_default(),
            protocol = record.protocol,
            method = record.method,
            path = record.path,
            model = found.model,
            status = *status,
            outcome = outcome.name(),
            rows = found.rows,
            queue_ms = phase(|phases| phases.queue),
            copy_ms = phase(|phases| phases.copy),
            wait_ms = phase(|phases| phases.wait),
            compute_ms = phase(|phases| phases.compute),
            total_ms = milliseconds(record.arrived.elapsed()),
            bytes_in = found.bytes_in,
            bytes_out = *bytes_out,
            "request"
        );
    }
}

/// Returns whether a client's id can be logged unescaped: visible ASCII, and not too long.
fn is_id(id: &HeaderValue) -> bool {
    (1..=ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// Creates an id that no other request has, on this server or another.
fn new_id() -> HeaderValue {
    static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let id = format!("{:016x}{:016x}", KEY.hash_one(("high", count)), KEY.hash_one(("low", count)));
    HeaderValue::from_str(&id).expect("hexadecimal digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_short_and_visible() {
        let longest = "x".repeat(ID_BYTES);
        for (id, expected) in
            [("a", true), ("4bf92f35-77b3/4da6:a", true), (&*longest, true), ("", false), ("a b", false), ("é", false)]
        {
            assert_eq!(is_id(&HeaderValue::from_bytes(id.as_bytes()).unwrap()), expected, "{id}");
        }
        assert!(!is_id(&HeaderValue::from_str(&format!("{longest}x")).unwrap()));
    }

    #[test]
    fn ids_that_are_made_are_ids_and_differ() {
        let ids = [new_id(), new_id()];
        assert!(ids.iter().all(is_id));
        assert_ne!(ids[0], ids[1]);
    }
}
