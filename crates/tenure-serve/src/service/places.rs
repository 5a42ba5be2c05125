//! The places of a listener's connections: how many there are, and which connection ends when there are too many.
//!
//! A new connection is always accepted. If there is no place for it, another one without a request ends, the one whose
//! last request is the longest ago: one of the same address if that address has its share of the places, or else any.
//! If all have requests in progress, the new connection gets one of a few places in reserve, where only health checks
//! are answered. So clients that stay silent, however many, do not keep health checks waiting.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The number of places in reserve.
const RESERVE: usize = 64;

/// The places of a listener's connections.
pub(crate) struct Places {
    /// The most connections, without those in reserve.
    limit: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    /// The connections by their number.
    connections: BTreeMap<u64, Connection>,
    /// Counts events, and so orders them without a clock.
    events: u64,
}

struct Connection {
    host: IpAddr,
    kind: PlaceKind,
    /// The number of requests in progress.
    requests: usize,
    /// The event at which it was accepted, or its last request ended.
    last_use: u64,
    /// Ends the connection when it is dropped.
    _end: oneshot::Sender<()>,
}

/// The requests that are answered in a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PlaceKind {
    /// All requests.
    Regular,
    /// Health checks only.
    Reserve,
}

/// A connection's place, which is free again when this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    kind: PlaceKind,
    had_request: AtomicBool,
}

/// A request in progress. Its connection does not end for lack of places.
pub(crate) struct InProgress(Arc<Place>);

impl Connection {
    fn is_regular(&self) -> bool {
        self.kind == PlaceKind::Regular
    }
}

impl Places {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default() })
    }

    /// Returns a place for a connection, and the event at which the connection is to end. May end another connection.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> (Arc<Place>, oneshot::Receiver<()>) {
        let host = host(address);
        let mut taken = self.taken.lock();
        let is_of_host = |connection: &Connection| connection.is_regular() && connection.host == host;
        // A host may have half of the places, so that it does not keep all others away.
        let has_place = if taken.count(is_of_host) >= self.limit.div_ceil(2) {
            taken.end_idle(is_of_host)
        } else {
            taken.count(Connection::is_regular) < self.limit || taken.end_idle(Connection::is_regular)
        };
        let kind = if has_place { PlaceKind::Regular } else { PlaceKind::Reserve };
        if !has_place && taken.count(|connection| !connection.is_regular()) >= RESERVE {
            taken.end_idle(|connection| !connection.is_regular());
        }
        let (end, ended) = oneshot::channel();
        taken.events += 1;
        let number = taken.events;
        taken.connections.insert(number, Connection { host, kind, requests: 0, last_use: number, _end: end });
        drop(taken);
        (Arc::new(Place { places: self.clone(), number, kind, had_request: AtomicBool::new(false) }), ended)
    }

    /// Ends a connection without a request, if there is one. Returns whether there was.
    pub(crate) fn make_room(&self) -> bool {
        self.taken.lock().end_idle(|_| true)
    }
}

impl Taken {
    fn count(&self, is_meant: impl Fn(&Connection) -> bool) -> usize {
        self.connections.values().filter(|connection| is_meant(connection)).count()
    }

    /// Ends the connection whose last use is the longest ago, among those without a request in progress. Returns whether
    /// there was one.
    fn end_idle(&mut self, is_meant: impl Fn(&Connection) -> bool) -> bool {
        let idle = self.connections.iter().filter(|(_, connection)| connection.requests == 0 && is_meant(connection));
        let oldest = idle.min_by_key(|(_, connection)| connection.last_use).map(|(number, _)| *number);
        oldest.is_some_and(|number| self.connections.remove(&number).is_some())
    }

    /// Applies a change to a connection, unless it was told to end.
    fn change(&mut self, number: u64, change: impl FnOnce(&mut Connection)) {
        self.events += 1;
        let now = self.events;
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.last_use = now;
            change(connection);
        }
    }
}

/// Returns the part of an address that stands for a host: a host has whole networks of 64 bits in IPv6.
fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address => address,
    }
}

impl Place {
    pub(crate) fn kind(&self) -> PlaceKind {
        self.kind
    }

    /// Returns whether the connection ever had a request.
    pub(crate) fn had_request(&self) -> bool {
        self.had_request.load(Ordering::Relaxed)
    }

    /// Notes that a request begins.
    pub(crate) fn begin(self: &Arc<Self>) -> InProgress {
        self.had_request.store(true, Ordering::Relaxed);
        self.places.taken.lock().change(self.number, |connection| connection.requests += 1);
        InProgress(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().connections.remove(&self.number);
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        let Self(place) = self;
        place.places.taken.lock().change(place.number, |connection| connection.requests -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn other(number: u8) -> IpAddr {
        [10, 0, 0, number].into()
    }

    fn has_ended(ended: &mut oneshot::Receiver<()>) -> bool {
        ended.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn the_idle_connection_whose_last_request_is_the_longest_ago_gives_up_its_place() {
        let places = Places::new(3);
        let [mut first, mut second, mut third] = [1, 2, 3].map(|number| places.enter(other(number)));
        drop(first.0.begin());
        let _busy = second.0.begin();
        let fourth = places.enter(other(4));
        assert_eq!([&mut first.1, &mut second.1, &mut third.1].map(has_ended), [false, false, true]);
        assert_eq!(fourth.0.kind(), PlaceKind::Regular);
    }

    #[test]
    fn a_host_has_half_of_the_places() {
        let places = Places::new(4);
        let mut others = places.enter(other(1));
        let mut own: Vec<_> = (0..3).map(|_| places.enter(HERE)).collect();
        assert!(has_ended(&mut own[0].1) && !has_ended(&mut own[1].1) && !has_ended(&mut others.1));
        let of_network = |number: u128| places.enter(IpAddr::V6((0xfd00 << 112 | number).into()));
        let mut last = of_network(1);
        drop(last.0.begin());
        let _second = of_network(2);
        assert!(!has_ended(&mut last.1), "another one has ended");
        let mut third = of_network(3);
        let _fourth = of_network(4);
        assert!(has_ended(&mut last.1) && !has_ended(&mut third.1));
    }

    #[test]
    fn health_checks_have_places_in_reserve() {
        let places = Places::new(2);
        let regular = [1, 2].map(|number| places.enter(other(number)));
        let busy = regular.each_ref().map(|(place, _)| place.begin());
        let mut reserve: Vec<_> = (0..=RESERVE).map(|_| places.enter(other(3))).collect();
        assert!(reserve.iter().all(|(place, _)| place.kind() == PlaceKind::Reserve));
        assert!(has_ended(&mut reserve[0].1) && !has_ended(&mut reserve[1].1));
        drop(busy);
        assert_eq!(places.enter(other(3)).0.kind(), PlaceKind::Regular);
    }
}
