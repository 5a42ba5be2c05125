//! The turns of clients.

use std::collections::HashMap;
use std::time::Duration;

use super::request::ClientId;

/// The clients with waiting requests. A request's turn is the time at which it would have arrived if its client sent
/// one request after the other: so a client that sends many at once does not keep others waiting for all of them.
#[derive(Debug, Default)]
pub(super) struct Clients(HashMap<ClientId, WaitingClient>);

/// A client with waiting requests.
#[derive(Debug, Default)]
struct WaitingClient {
    /// The number of its requests that wait.
    waiting: usize,
    /// The earliest turn of its next request.
    next_turn: Duration,
}

impl Clients {
    /// Returns how many requests of a client wait.
    pub(super) fn waiting(&self, client: ClientId) -> usize {
        self.0.get(&client).map_or(0, |client| client.waiting)
    }

    /// Returns the turn of a request that arrives now and takes about `cost`.
    pub(super) fn turn(&mut self, client: ClientId, now: Duration, cost: Duration) -> Duration {
        let client = self.0.entry(client).or_default();
        let turn = client.next_turn.max(now);
        client.next_turn = turn.saturating_add(cost);
        turn
    }

    /// Counts a request that waits from now on.
    pub(super) fn waits(&mut self, client: ClientId) {
        self.0.entry(client).or_default().waiting += 1;
    }

    /// Counts a request that waits no longer. A client without waiting requests is forgotten.
    pub(super) fn left(&mut self, client: ClientId) {
        let Some(entry) = self.0.get_mut(&client) else { return };
        entry.waiting = entry.waiting.saturating_sub(1);
        if entry.waiting == 0 {
            self.0.remove(&client);
        }
    }
}
