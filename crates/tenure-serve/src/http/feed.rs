//! The feed of the live page: snapshots as server-sent events, each one a JSON object.
//!
//! The server makes a snapshot once for all open pages, about once a second and when something happens, and none while
//! no page is open. A slow client misses snapshots and holds at most the newest.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use crate::metrics::{Switch, milliseconds};
use crate::service::{ModelSnapshot, Resident, Service, Snapshot, Tier};

/// The media type of server-sent events.
pub(super) const CONTENT_TYPE: &str = "text/event-stream";

/// The shortest time between two snapshots, however much happens.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest time between two snapshots.
const PERIOD: Duration = Duration::from_secs(1);

/// The message that was sent last.
#[derive(Clone)]
enum Sent {
    Nothing,
    Event(Bytes),
    /// The server ends, and nothing follows.
    End,
}

/// The feed, which any number of pages read.
pub(crate) struct Feed {
    sent: watch::Sender<Sent>,
    /// Notified by each page that begins to read.
    opened: Notify,
}

impl Default for Feed {
    fn default() -> Self {
        Self { sent: watch::Sender::new(Sent::Nothing), opened: Notify::new() }
    }
}

impl Feed {
    /// Returns a body that has each snapshot from now on, until the server ends.
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

    /// Sends snapshots while pages are open. Ends all streams at `shutdown`.
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
                // If nothing happens, the next snapshot is due all the same.
                let _ = timeout(PERIOD - PAUSE, next).await;
            }
        }
    }
}

/// Encodes a snapshot as an event.
fn event(snapshot: &Snapshot) -> Bytes {
    let Snapshot { uptime, tiers, models, switches } = snapshot;
    let json = json!({
        "uptime_s": uptime.as_secs_f64(),
        "tiers": tiers.iter().map(tier).collect::<Vec<_>>(),
        "models": models.iter().map(model).collect::<Vec<_>>(),
        "switches": switches.iter().map(switch).collect::<Vec<_>>(),
    });
    format!("data: {json}\n\n").into()
}

fn tier(Tier { name, used_bytes, capacity_bytes }: &Tier) -> Value {
    json!({ "name": name, "used_bytes": used_bytes, "capacity_bytes": capacity_bytes })
}

fn model(model: &ModelSnapshot) -> Value {
    json!({
        "name": model.name,
        "state": model.state.name().to_lowercase(),
        "resident": model.resident.iter().map(resident).collect::<Vec<_>>(),
        "queued": model.queued,
        "answered": model.answered,
        "switches": model.switches,
        "median_ms": model.latency.map(|latency| milliseconds(latency.median)),
        "p99_ms": model.latency.map(|latency| milliseconds(latency.p99)),
        "last_ms": model.last_latencies.iter().copied().map(milliseconds).collect::<Vec<_>>(),
    })
}

fn resident(Resident { tier, bytes }: &Resident) -> Value {
    json!({ "tier": tier, "bytes": bytes })
}

fn switch(Switch { model, ended, took }: &Switch) -> Value {
    json!({ "model": model, "took_ms": milliseconds(*took), "ago_s": ended.elapsed().as_secs_f64() })
}
