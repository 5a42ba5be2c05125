use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tenure_core::{KeyId, StreamId, Tag};

use crate::Address;

/// What happened. PyTorch's `TraceEntry::Action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
    Alloc,
    /// A block's owner freed it.
    FreeRequested,
    /// A freed block can be reused on its stream.
    FreeCompleted,
    /// A segment was taken from the backing.
    SegmentAlloc,
    /// A segment was given back to the backing.
    SegmentFree,
    /// Chunks were mapped.
    SegmentMap,
    /// Chunks were unmapped.
    SegmentUnmap,
    /// A snapshot was taken; `bytes` is what was active.
    Snapshot,
    /// No memory; `address` is what the device had free, in bytes.
    OutOfMemory,
}

impl Action {
    /// The name in PyTorch's snapshots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
        }
    }
}

/// An event of an allocator's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where.
    pub address: Address,
    /// Bytes: asked for, where a block is concerned.
    pub bytes: u64,
    /// The block's or segment's stream.
    pub stream: StreamId,
    /// When, by the history's clock, in µs.
    pub time_us: u64,
    /// What the block is for.
    pub tag: Tag,
    /// Which block it is.
    pub key: KeyId,
}

/// Tells the time in µs.
pub type Clock = Box<dyn Fn() -> u64 + Send + Sync>;

/// The last events of an allocator. While it is off, recording is one relaxed load.
pub struct History {
    on: AtomicBool,
    clock: Clock,
    ring: Mutex<Ring>,
}

#[derive(Default)]
struct Ring {
    limit: usize,
    events: VecDeque<Event>,
}

impl History {
    /// A history that is off, and will date events by `clock`.
    pub fn new(clock: Clock) -> Self {
        Self { on: AtomicBool::new(false), clock, ring: Mutex::default() }
    }

    /// Keeps the last `limit` events from now on; `None` stops and forgets.
    pub fn keep(&self, limit: Option<usize>) {
        let mut ring = self.ring.lock();
        ring.limit = limit.unwrap_or(0);
        let excess = ring.events.len().saturating_sub(ring.limit);
        ring.events.drain(..excess);
        self.on.store(ring.limit > 0, Ordering::Relaxed);
    }

    /// Whether events are kept.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Keeps the event that `event` makes of the time, in µs; calls it only if the history is on, with the history
    /// locked.
    #[inline]
    pub fn record(&self, event: impl FnOnce(u64) -> Event) {
        if self.is_on() {
            self.push(event);
        }
    }

    /// The events kept, oldest first.
    pub fn events(&self) -> Vec<Event> {
        self.ring.lock().events.iter().copied().collect()
    }

    #[cold]
    fn push(&self, event: impl FnOnce(u64) -> Event) {
        let mut ring = self.ring.lock();
        if ring.limit == 0 {
            return;
        }
        if ring.events.len() == ring.limit {
            ring.events.pop_front();
        }
        // Dated under the lock: the order of events is the order of their times.
        let time_us = (self.clock)();
        ring.events.push_back(event(time_us));
    }
}

impl Default for History {
    /// Dates events by the system's clock, since 1970.
    fn default() -> Self {
        Self::new(Box::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
        }))
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History").field("on", &self.is_on()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn event(address: Address) -> impl Fn(u64) -> Event {
        let (stream, tag, key) = (StreamId::NULL, Tag::Unknown, KeyId::NONE);
        move |time_us| Event { action: Action::Alloc, address, bytes: 1, stream, time_us, tag, key }
    }

    fn addresses(history: &History) -> Vec<Address> {
        history.events().iter().map(|event| event.address).collect()
    }

    #[test]
    fn keeps_the_last_events_in_order() {
        let history = History::default();
        history.keep(Some(3));
        (1..=5).for_each(|address| history.record(event(address)));
        assert_eq!(addresses(&history), [3, 4, 5]);
        history.keep(Some(2));
        assert_eq!(addresses(&history), [4, 5]);
        history.keep(None);
        assert_eq!(addresses(&history), []);
    }

    #[test]
    fn an_event_is_not_even_made_while_off() {
        History::default().record(|_| panic!("made"));
    }

    #[test]
    fn events_are_dated_by_the_given_clock() {
        let now = Arc::new(AtomicU64::new(7));
        let clock = Arc::clone(&now);
        let history = History::new(Box::new(move || clock.load(Ordering::Relaxed)));
        history.keep(Some(9));
        history.record(event(1));
        now.store(8, Ordering::Relaxed);
        history.record(event(2));
        assert_eq!(history.events().iter().map(|event| event.time_us).collect::<Vec<_>>(), [7, 8]);
    }
}
