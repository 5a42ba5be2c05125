//! The log of requests, over HTTP and over gRPC: one event of `tracing` a request, at level INFO and of the target [`TARGET`].
//!
//! | field | |
//! | --- | --- |
//! | `id` | the header `X-Request-Id`: the client's, or one that the server makes |
//! | `protocol`, `method`, `path` | `http` or `grpc`, and what was asked for |
//! | `model`, `rows` | the model that was asked, if there is one of the name, and the rows that were computed |
//! | `status`, `outcome` | the status of HTTP or the code of gRPC, and an [`Outcome`] |
//! | `queue_ms`, `copy_ms`, `wait_ms`, `compute_ms` | the [`Phases`] of a request that was computed |
//! | `total_ms` | from when the request's head came until there was an answer |
//! | `bytes_in`, `bytes_out` | the bodies, without their heads, as they were sent |
//!
//! A field that says nothing of a request is left out. A stream of gRPC has an event for each of its messages, and one at its end.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::metrics::{Outcome, Phases, milliseconds};

/// The target of the events.
pub const TARGET: &str = "tenure_serve::request";

/// The header that has a request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken from a client, in bytes.
const ID_BYTES: usize = 128;

tokio::task_local! {
    static CURRENT: Arc<RequestRecord>;
}

/// A request, with all that its event says.
pub(crate) struct RequestRecord {
    id: HeaderValue,
    protocol: &'static str,
    method: String,
    path: String,
    arrived: Instant,
    found: Mutex<Found>,
}

/// Facts about a request that come to light while it is answered.
#[derive(Default)]
struct Found {
    model: Option<String>,
    rows: Option<u64>,
    phases: Option<Phases>,
    bytes_in: u64,
}

impl RequestRecord {
    /// A request that comes now. Its id is the client's, if that is one.
    pub(crate) fn new(headers: &HeaderMap, protocol: &'static str, method: &str, path: &str) -> Arc<Self> {
        let id = headers.get(REQUEST_ID).filter(|id| is_id(id)).cloned().unwrap_or_else(new_id);
        Self::of(id, protocol, method, path)
    }

    /// The next message of a stream, which has the stream's id.
    pub(crate) fn next(&self) -> Arc<Self> {
        Self::of(self.id.clone(), self.protocol, &self.method, &self.path)
    }

    fn of(id: HeaderValue, protocol: &'static str, method: &str, path: &str) -> Arc<Self> {
        let (method, path) = (method.into(), path.into());
        Arc::new(Self { id, protocol, method, path, arrived: Instant::now(), found: Mutex::default() })
    }

    /// The request's id.
    pub(crate) fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Answers the request: [`current`] is this record meanwhile.
    pub(crate) async fn scope<F: Future>(self: &Arc<Self>, answer: F) -> F::Output {
        CURRENT.scope(Arc::clone(self), answer).await
    }

    /// The request asks a model that there is.
    pub(crate) fn asks(&self, model: &str) {
        self.found.lock().model = Some(model.into());
    }

    /// So many bytes of the request's body came.
    pub(crate) fn received(&self, bytes: usize) {
        self.found.lock().bytes_in += bytes as u64;
    }

    /// Rows of the request were computed. Of a request that is computed in parts, the phases are those of the longest.
    pub(crate) fn computed(&self, rows: u32, phases: Phases) {
        let mut found = self.found.lock();
        *found.rows.get_or_insert(0) += u64::from(rows);
        found.phases = found.phases.into_iter().chain([phases]).max_by_key(Phases::total);
    }
}

/// The record of the request that the current task answers.
pub(crate) fn current() -> Option<Arc<RequestRecord>> {
    CURRENT.try_with(Arc::clone).ok()
}

/// The event of a request, which is sent once it is dropped. Unless it was answered, its client went away.
pub(crate) struct RequestEvent {
    record: Arc<RequestRecord>,
    outcome: Outcome,
    status: Option<u16>,
    bytes_out: Option<u64>,
}

impl RequestEvent {
    /// The event of a request that is not answered yet.
    pub(crate) fn new(record: Arc<RequestRecord>) -> Self {
        Self { record, outcome: Outcome::Cancelled, status: None, bytes_out: None }
    }

    /// The request's record.
    pub(crate) fn record(&self) -> &Arc<RequestRecord> {
        &self.record
    }

    /// There is an answer, of so many bytes if that is known.
    pub(crate) fn answered(&mut self, outcome: Outcome, status: u16, bytes_out: Option<u64>) {
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

/// Whether a client's id is one that can be logged as it is: visible ASCII, and not too long.
fn is_id(id: &HeaderValue) -> bool {
    (1..=ID_BYTES).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
}

/// An id that no other request has, here or in another server.
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
