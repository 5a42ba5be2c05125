//! The feed of the live page: snapshots as server-sent events, each one a JSON object.
//!
//! A snapshot is made once for all pages that are open, about once a second and when something happens, and not at all while
//! no page is open. A client that is slow to read misses snapshots and holds no more than the newest.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::{ModelSnapshot, Resident, Service, Snapshot, Tier};
use crate::metrics::Switch;

/// The media type of server-sent events.
pub(super) const CONTENT_TYPE: &str = "text/event-stream";

/// The shortest time between two snapshots, however much happens.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest time between two snapshots.
const PERIOD: Duration = Duration::from_secs(1);

/// What was sent last.
#[derive(Clone)]
enum Sent {
    Nothing,
    Event(Bytes),
    /// The server ends, and nothing follows.
    End,
}

/// The feed, to which any number of pages listen.
pub(crate) struct Feed {
    sent: watch::Sender<Sent>,
    /// Told of each page that begins to listen.
    opened: Notify,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sent: watch::Sender::new(Sent::Nothing), opened: Notify::new() }
    }
}

impl Feed {
    /// The body of an answer that has each snapshot from now on, until the server ends.
    pub(super) fn body(&self) -> Body {
        let mut events = self.sent.subscribe();
        if matches!(*events.borrow_and_update(), Sent::End) {
            return Body::empty();
        }
        self.opened.notify_one();
        Body::from_stream(stream::unfold(events, |mut events| async {
            events.changed().await.ok()?;
            let Sent::Event(event) = events.borrow_and_update().clone() else { return None };
            Some((Ok::<_, Infallible>(event), events))
        }))
    }

    /// Sends snapshots while pages listen. Ends all streams at `shutdown`.
    pub(super) async fn run(&self, service: &dyn Service, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = self.send(service) => {}
            () = shutdown => {}
        }
        self.sent.send_replace(Sent::End);
    }

    async fn send(&self, service: &dyn Service) {
        loop {
            self.opened.notified().await;
            let mut changes = service.metrics().watch();
            while self.sent.receiver_count() > 0 {
                changes.mark_unchanged();
                self.sent.send_replace(Sent::Event(event(&service.snapshot())));
                sleep(PAUSE).await;
                let next = async {
                    tokio::select! {
                        _ = changes.changed() => {}
                        () = self.opened.notified() => {}
                    }
                };
                // If nothing happens, the next is due all the same.
                let _ = timeout(PERIOD - PAUSE, next).await;
            }
        }
    }
}

/// A snapshot as an event.
fn event(snapshot: &Snapshot) -> Bytes {
    // Numbers and strings can always be written.
    let json = serde_json::to_string(&Said::from(snapshot)).unwrap_or_default();
    format!("data: {json}\n\n").into()
}

/// A [`Snapshot`] as it is sent.
#[derive(Serialize)]
struct Said<'a> {
    uptime_s: f64,
    tiers: Vec<SaidTier<'a>>,
    models: Vec<SaidModel<'a>>,
    switches: Vec<SaidSwitch<'a>>,
}

#[derive(Serialize)]
struct SaidTier<'a> {
    name: &'a str,
    used_bytes: u64,
    capacity_bytes: u64,
}

#[derive(Serialize)]
struct SaidModel<'a> {
    name: &'a str,
    state: String,
    resident: Vec<SaidResident<'a>>,
    queued: u64,
    answered: u64,
    switches: u64,
    median_ms: Option<f64>,
    p99_ms: Option<f64>,
    last_ms: Vec<f64>,
}

#[derive(Serialize)]
struct SaidResident<'a> {
    tier: &'a str,
    bytes: u64,
}

#[derive(Serialize)]
struct SaidSwitch<'a> {
    model: &'a str,
    took_ms: f64,
    ago_s: f64,
}

impl<'a> From<&'a Snapshot> for Said<'a> {
    fn from(snapshot: &'a Snapshot) -> Self {
        let Snapshot { uptime, tiers, models, switches } = snapshot;
        Self {
            uptime_s: uptime.as_secs_f64(),
            tiers: tiers.iter().map(Into::into).collect(),
            models: models.iter().map(Into::into).collect(),
            switches: switches.iter().map(Into::into).collect(),
        }
    }
}

impl<'a> From<&'a Tier> for SaidTier<'a> {
    fn from(tier: &'a Tier) -> Self {
        Self { name: &tier.name, used_bytes: tier.used_bytes, capacity_bytes: tier.capacity_bytes }
    }
}

impl<'a> From<&'a ModelSnapshot> for SaidModel<'a> {
    fn from(model: &'a ModelSnapshot) -> Self {
        Self {
            name: &model.name,
            state: model.state.name().to_lowercase(),
            resident: model.resident.iter().map(Into::into).collect(),
            queued: model.queued,
            answered: model.answered,
            switches: model.switches,
            median_ms: model.latency.map(|latency| milliseconds(latency.median)),
            p99_ms: model.latency.map(|latency| milliseconds(latency.p99)),
            last_ms: model.last_latencies.iter().copied().map(milliseconds).collect(),
        }
    }
}

impl<'a> From<&'a Resident> for SaidResident<'a> {
    fn from(resident: &'a Resident) -> Self {
        Self { tier: &resident.tier, bytes: resident.bytes }
    }
}

impl<'a> From<&'a Switch> for SaidSwitch<'a> {
    fn from(switch: &'a Switch) -> Self {
        Self { model: &switch.model, took_ms: milliseconds(switch.took), ago_s: switch.ended.elapsed().as_secs_f64() }
    }
}

/// To a microsecond, so that a number is short.
fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}
