//! The history of an allocator: events, and the places in the program that caused them.

mod context;
mod contexts;
mod event;

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

pub use context::{HistoryContext, HistoryContextGuard};
pub use event::{HistoryAction, HistoryEvent};

use crate::Address;
use crate::snapshot::{Segment, SnapshotAnnotation};
use contexts::Contexts;
use event::Ring;

/// A clock that returns the time in µs.
pub type HistoryClock = Box<dyn Fn() -> u64 + Send + Sync>;

/// A callback that is given each event as it happens.
pub type Tracker = Box<dyn Fn(&HistoryEvent) + Send + Sync>;

/// The level of contexts to keep. PyTorch's `RecordContext`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeepContexts {
    /// No contexts.
    Never,
    /// Contexts of live blocks and of segments. A segment has the context of the allocation for which it was made.
    State,
    /// Also contexts of events that took memory. Events that gave it back have the context of the allocation.
    Alloc,
    /// Also contexts of their own for events that gave memory back.
    #[default]
    All,
}

/// Settings of a recording. The default records everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// The number of latest events to keep, and of latest annotations.
    pub limit: usize,
    /// The contexts to keep.
    pub contexts: KeepContexts,
    /// The actions to leave out of the events kept.
    pub skip: Vec<HistoryAction>,
}

impl Recording {
    /// Keeps the last `limit` events, without contexts.
    pub fn events(limit: usize) -> Self {
        Self { limit, contexts: KeepContexts::Never, skip: Vec::new() }
    }
}

impl Default for Recording {
    fn default() -> Self {
        Self { limit: usize::MAX, contexts: KeepContexts::default(), skip: Vec::new() }
    }
}

/// The last events of an allocator, and the contexts of its live blocks. While it is off, recording costs one relaxed
/// load.
///
/// A history is off if it records no events, has no trackers, and holds no contexts of live blocks.
pub struct History {
    /// The reasons for which events matter: [`RECORDED`], [`TRACKED`] and [`HELD`].
    reasons: AtomicU8,
    /// The recording's [`KeepContexts`].
    contexts: AtomicU8,
    clock: HistoryClock,
    records: Mutex<Records>,
}

/// Events are recorded.
const RECORDED: u8 = 1;
/// Trackers are given events.
const TRACKED: u8 = 2;
/// Contexts of live blocks are held: events are needed to drop them with their blocks.
const HELD: u8 = 4;

/// The state under the history's lock.
#[derive(Default)]
struct Records {
    /// The recording underway.
    recording: Option<Recording>,
    events: Ring<HistoryEvent>,
    annotations: Ring<SnapshotAnnotation>,
    contexts: Contexts,
    trackers: Vec<Tracker>,
}

impl History {
    /// Makes a history that is off. It takes the times of events from `clock`.
    pub fn new(clock: HistoryClock) -> Self {
        Self { reasons: AtomicU8::new(0), contexts: AtomicU8::new(0), clock, records: Mutex::default() }
    }

    /// Starts recording, as `recording` says. If `clear`, forgets the events so far; else only those beyond the new
    /// limit. Contexts of live blocks are kept.
    pub fn start(&self, recording: Recording, clear: bool) {
        let mut records = self.records.lock();
        if clear {
            records.clear();
        }
        records.events.set_limit(recording.limit);
        records.annotations.set_limit(recording.limit);
        self.contexts.store(recording.contexts as u8, Ordering::Relaxed);
        records.recording = Some(recording);
        self.update(&records);
    }

    /// Stops recording, and forgets the events. Live blocks keep their contexts, as in PyTorch. Segments do not: they
    /// may stay long after the blocks for which they were made.
    pub fn stop(&self) {
        let mut records = self.records.lock();
        records.clear();
        records.contexts.forget_segments();
        records.recording = None;
        self.contexts.store(KeepContexts::Never as u8, Ordering::Relaxed);
        self.update(&records);
    }

    /// Returns whether the history needs events, for one of its reasons.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.reasons.load(Ordering::Relaxed) != 0
    }

    /// Returns whether events are recorded. PyTorch's `isHistoryEnabled`.
    pub fn is_recording(&self) -> bool {
        self.reasons.load(Ordering::Relaxed) & RECORDED != 0
    }

    /// Returns whether contexts of this level are kept, so that it is worth gathering one. Ask for
    /// [`KeepContexts::State`] before an allocation, and for [`KeepContexts::All`] before anything else.
    #[inline]
    pub fn wants(&self, level: KeepContexts) -> bool {
        self.contexts.load(Ordering::Relaxed) >= level as u8
    }

    /// Adds a tracker of every event, recorded or not. It is called on the event's thread with the allocator's locks
    /// held: it must call neither the allocator nor this history.
    pub fn add_tracker(&self, tracker: Tracker) {
        let mut records = self.records.lock();
        records.trackers.push(tracker);
        self.update(&records);
    }

    /// Records an annotation of the program, if events are recorded: names and values, such as PyTorch's
    /// `record_function` gives.
    pub fn annotate(&self, device: u32, metadata: Vec<(String, String)>) {
        if self.is_recording() {
            let mut records = self.records.lock();
            let time_us = (self.clock)();
            records.annotations.push(SnapshotAnnotation { device, time_us, metadata });
        }
    }

    /// Records the event that `event` makes, with time, context and note. Calls `event` only if the history is on.
    #[inline]
    pub fn record(&self, event: impl FnOnce() -> HistoryEvent) {
        if self.is_on() {
            self.push(event);
        }
    }

    /// Records that a segment's bytes moved to another address, as two events; both have the context that the segment
    /// had.
    pub(crate) fn record_move(&self, events: impl FnOnce() -> (HistoryEvent, HistoryEvent)) {
        if self.is_on() {
            let records = &mut *self.records.lock();
            let (from, to) = events();
            let context = records.contexts.move_segment(&from, &to, records.kept());
            for event in [from, to] {
                self.add(records, HistoryEvent { context: context.clone(), ..event });
            }
        }
    }

    /// Returns the events kept, oldest first.
    pub fn events(&self) -> Vec<HistoryEvent> {
        self.records.lock().events.to_vec()
    }

    /// Returns the annotations kept, oldest first.
    pub fn annotations(&self) -> Vec<SnapshotAnnotation> {
        self.records.lock().annotations.to_vec()
    }

    /// Returns the context of the block at `address`, which is live, or freed but not yet reusable.
    pub fn context_of(&self, address: Address) -> Option<HistoryContext> {
        self.records.lock().contexts.of_block(address)
    }

    /// Adds to segments and their blocks the contexts held for them.
    pub(crate) fn add_contexts(&self, segments: &mut [Segment]) {
        let records = self.records.lock();
        for segment in segments {
            segment.context = records.contexts.of_segment(segment.address);
            for block in &mut segment.blocks {
                block.context = records.contexts.of_block(block.address);
            }
        }
    }

    /// Records an event, if one of the reasons applies to it.
    #[cold]
    fn push(&self, event: impl FnOnce() -> HistoryEvent) {
        let event = event();
        let only_held = self.reasons.load(Ordering::Relaxed) == HELD;
        if only_held && !event.action.gives_back() {
            return;
        }
        let records = &mut *self.records.lock();
        let context = records.contexts.update(&event, records.kept());
        self.add(records, HistoryEvent { context, ..event });
        self.update(records);
    }

    /// Adds an event. Takes its time under the lock, so that events are in the order of their times.
    fn add(&self, records: &mut Records, event: HistoryEvent) {
        if records.recording.is_none() && records.trackers.is_empty() {
            return;
        }
        let event = HistoryEvent { time_us: (self.clock)(), note: HistoryContext::note(), ..event };
        records.trackers.iter().for_each(|tracker| tracker(&event));
        if records.recording.as_ref().is_some_and(|recording| !recording.skip.contains(&event.action)) {
            records.events.push(event);
        }
    }

    /// Updates the reasons for which events matter.
    fn update(&self, records: &Records) {
        let reasons = [
            (records.recording.is_some(), RECORDED),
            (!records.trackers.is_empty(), TRACKED),
            (!records.contexts.is_empty(), HELD),
        ];
        let holding = reasons.into_iter().filter(|(holds, _)| *holds);
        self.reasons.store(holding.fold(0, |all, (_, reason)| all | reason), Ordering::Relaxed);
    }
}

impl Records {
    /// Returns the contexts that the current recording keeps.
    fn kept(&self) -> KeepContexts {
        self.recording.as_ref().map_or(KeepContexts::Never, |recording| recording.contexts)
    }

    /// Forgets all events and annotations.
    fn clear(&mut self) {
        self.events.clear();
        self.annotations.clear();
    }
}

impl Default for History {
    /// Makes a history whose times are the system clock's, in µs since 1970.
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

    use tenure_core::StreamId;

    use super::*;

    fn event(address: Address) -> impl Fn() -> HistoryEvent {
        move || HistoryEvent::new(HistoryAction::Alloc, address, 1, StreamId::NULL)
    }

    fn addresses(history: &History) -> Vec<Address> {
        history.events().iter().map(|event| event.address).collect()
    }

    #[test]
    fn keeps_the_last_events_in_order() {
        let history = History::default();
        history.start(Recording::events(3), true);
        (1..=5).for_each(|address| history.record(event(address)));
        assert_eq!(addresses(&history), [3, 4, 5]);
        history.start(Recording::events(2), false);
        assert_eq!(addresses(&history), [4, 5]);
        history.stop();
        assert_eq!(addresses(&history), []);
    }

    #[test]
    fn an_event_is_not_even_made_while_off() {
        History::default().record(|| panic!("made"));
    }

    #[test]
    fn events_are_dated_by_the_given_clock() {
        let now = Arc::new(AtomicU64::new(7));
        let clock = Arc::clone(&now);
        let history = History::new(Box::new(move || clock.load(Ordering::Relaxed)));
        history.start(Recording::events(9), true);
        history.record(event(1));
        now.store(8, Ordering::Relaxed);
        history.record(event(2));
        assert_eq!(history.events().iter().map(|event| event.time_us).collect::<Vec<_>>(), [7, 8]);
    }
}
