//! The simulated device's streams and virtual clock: work that has run, work that may run next, and waits.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_core::{Device, StreamId};

use super::events::{Events, Point, unknown};
use super::memory::SimMemory;
use super::pages::mix;
use super::race::Stamp;
use super::signal::Signal;
use crate::{ErrorKind, EventId, EventKind, Priority};

/// Work that reads and writes real bytes. It is told the time at which it runs, in µs.
pub(super) type Work = Box<dyn FnOnce(&mut SimMemory, u64) -> Result<(), ErrorKind> + Send>;

/// A condition outside the device. Returns whether it holds.
pub(crate) type Condition = Box<dyn Fn() -> bool + Send>;

/// The first handle for a new stream; CUDA keeps the lowest numbers for its own streams.
const FIRST_STREAM: u64 = 0x10;

/// An item in a stream's queue.
enum QueueItem {
    Work(Work),
    /// A wait for a point of another stream.
    Wait(Point),
    /// A wait until the clock has reached a time, in µs.
    Busy(u64),
    /// Stores the time in an event, if the record with this number is still its last.
    SetTime(EventId, u64),
    /// Tells other processes that a record was passed.
    Signal(Arc<Signal>, u64),
    /// A wait until another process has passed a record.
    WaitElsewhere(Arc<Signal>, u64),
    /// A wait until a condition outside the device holds.
    WaitOutside(Condition),
}

/// One stream. Programs that only measure time never queue anything: `ready_us` is then the whole state.
#[derive(Default)]
struct SimStream {
    /// The priority, which can be queried but has no effect: streams run in any order that events allow.
    priority: Priority,
    queue: VecDeque<QueueItem>,
    /// The number of items that have left the queue.
    executed: u64,
    /// The earliest time at which queued items start, in µs.
    ready_us: u64,
}

/// The streams of a device, their queues, and the clock.
pub(super) struct Timeline {
    now_us: u64,
    streams: Vec<SimStream>,
    by_id: FxHashMap<StreamId, usize>,
    next_stream: u64,
    pub(super) events: Events,
    /// The number of items on all streams.
    queued: usize,
    random: Random,
}

impl SimStream {
    /// Returns whether the first item waits for another process or device.
    fn waits_outside(&self) -> bool {
        matches!(self.queue.front(), Some(QueueItem::WaitElsewhere(..) | QueueItem::WaitOutside(_)))
    }
}

impl Timeline {
    pub(super) fn new(device: Device, seed: u64) -> Self {
        Self {
            now_us: 0,
            streams: vec![SimStream::default()],
            by_id: FxHashMap::from_iter([(StreamId::NULL, 0)]),
            next_stream: FIRST_STREAM,
            events: Events::new(device),
            queued: 0,
            random: Random(seed),
        }
    }

    pub(super) fn now_us(&self) -> u64 {
        self.now_us
    }

    pub(super) fn set_time(&mut self, us: u64) {
        self.now_us = self.now_us.max(us);
    }

    pub(super) fn create_stream(&mut self, priority: Priority) -> StreamId {
        while self.by_id.contains_key(&StreamId(self.next_stream)) {
            self.next_stream += 1;
        }
        let stream = StreamId(self.next_stream);
        self.next_stream += 1;
        self.adopt_stream(stream, priority);
        stream
    }

    pub(super) fn adopt_stream(&mut self, stream: StreamId, priority: Priority) {
        self.by_id.entry(stream).or_insert_with(|| {
            self.streams.push(SimStream { priority, ..SimStream::default() });
            self.streams.len() - 1
        });
    }

    pub(super) fn priority(&self, stream: StreamId) -> Option<Priority> {
        self.by_id.get(&stream).map(|&index| self.streams[index].priority)
    }

    pub(super) fn destroy_stream(&mut self, stream: StreamId) -> Result<(), ErrorKind> {
        if stream == StreamId::NULL || self.by_id.remove(&stream).is_none() {
            return Err(unknown("stream", stream.0));
        }
        Ok(())
    }

    /// Returns the index of a stream, which is never used for another.
    pub(super) fn stream(&self, stream: StreamId) -> Result<usize, ErrorKind> {
        self.by_id.get(&stream).copied().ok_or_else(|| unknown("stream", stream.0))
    }

    /// Returns the current end of a stream.
    pub(super) fn tail(&self, stream: usize) -> Point {
        let SimStream { queue, executed, ready_us, .. } = &self.streams[stream];
        Point { stream, position: executed + queue.len() as u64, at_us: *ready_us }
    }

    /// Returns the ends of all streams, destroyed ones included.
    pub(super) fn tails(&self) -> Vec<Point> {
        (0..self.streams.len()).map(|stream| self.tail(stream)).collect()
    }

    /// Returns whether `point` is passed.
    pub(super) fn has_passed(&self, point: Point) -> bool {
        self.streams[point.stream].executed >= point.position && point.at_us <= self.now_us
    }

    pub(super) fn push_work(&mut self, stream: usize, work: Work) {
        self.push(stream, QueueItem::Work(work));
    }

    /// Returns the time from which a stream without queued work is idle, in µs.
    pub(super) fn idle_from_us(&self, stream: usize) -> u64 {
        self.streams[stream].ready_us.max(self.now_us)
    }

    /// Keeps `stream` busy until the clock reaches `until_us`.
    pub(super) fn push_busy(&mut self, stream: usize, until_us: u64) {
        let idle = self.streams[stream].queue.is_empty();
        if idle {
            let ready_us = &mut self.streams[stream].ready_us;
            *ready_us = until_us.max(*ready_us);
        } else if until_us > self.now_us {
            self.push(stream, QueueItem::Busy(until_us));
        }
    }

    /// Makes `stream` wait for `point`.
    pub(super) fn push_wait(&mut self, stream: usize, point: Point) {
        if self.has_passed(point) {
            return;
        }
        if self.streams[point.stream].executed >= point.position {
            self.push_busy(stream, point.at_us);
        } else {
            self.push(stream, QueueItem::Wait(point));
        }
    }

    /// Makes `stream` wait until another process has passed a record.
    pub(super) fn push_wait_elsewhere(&mut self, stream: usize, signal: Arc<Signal>, record: u64) {
        if !signal.has_passed(record) {
            self.push(stream, QueueItem::WaitElsewhere(signal, record));
        }
    }

    /// Makes `stream` wait for a condition outside the device.
    pub(super) fn push_wait_outside(&mut self, stream: usize, condition: Condition) {
        self.push(stream, QueueItem::WaitOutside(condition));
    }

    fn push(&mut self, stream: usize, item: QueueItem) {
        self.streams[stream].queue.push_back(item);
        self.queued += 1;
    }

    /// Records `event` at the end of `stream`; `stamp` is the work before it. Returns the point if other processes may
    /// wait for it.
    pub(super) fn record_event(
        &mut self,
        event: EventId,
        stream: usize,
        stamp: Stamp,
    ) -> Result<Option<Point>, ErrorKind> {
        let found = self.events.get_mut(event)?;
        let published = found.publish()?;
        found.records += 1;
        let records = found.records;
        let is_shared = published.is_some();
        if let Some((signal, record)) = published {
            self.push(stream, QueueItem::Signal(signal, record));
        }
        let mut passed_us = None;
        if self.streams[stream].queue.is_empty() {
            passed_us = Some(self.streams[stream].ready_us.max(self.now_us));
        } else {
            self.push(stream, QueueItem::SetTime(event, records));
        }
        let point = self.tail(stream);
        let found = self.events.get_mut(event)?;
        (found.point, found.stamp, found.passed_us) = (Some(point), stamp, passed_us);
        Ok(is_shared.then_some(point))
    }

    /// Returns the time at which `event` was passed, in µs.
    pub(super) fn passed_us(&self, event: EventId) -> Result<u64, ErrorKind> {
        let found = self.events.get(event)?;
        found.check_kind(event, EventKind::Timing)?;
        found.passed_us.filter(|&us| us <= self.now_us).ok_or(ErrorKind::NotPassed(event.0))
    }

    /// Returns whether no stream has queued items.
    pub(super) fn is_idle(&self) -> bool {
        self.queued == 0
    }

    /// Drops all queued items. Events after them never pass.
    pub(super) fn abandon(&mut self) {
        self.queued = 0;
        self.streams.iter_mut().for_each(|stream| stream.queue.clear());
    }

    /// Returns a random boolean.
    pub(super) fn draw_bool(&mut self) -> bool {
        self.random.below(2) == 0
    }

    /// Takes the first item of a random stream whose first item may run now. Returns `None` if there is none, and
    /// `Some(None)` if the item was no work.
    pub(super) fn step(&mut self) -> Option<Option<Work>> {
        let runnable: Vec<usize> = (0..self.streams.len())
            .filter(|&stream| self.start_us(stream).is_some_and(|us| us <= self.now_us))
            .collect();
        if runnable.is_empty() {
            return None;
        }
        let stream = &mut self.streams[runnable[self.random.below(runnable.len())]];
        let item = stream.queue.pop_front()?;
        stream.executed += 1;
        self.queued -= 1;
        match item {
            QueueItem::Work(work) => return Some(Some(work)),
            QueueItem::SetTime(event, record) => {
                if let Ok(event) = self.events.get_mut(event)
                    && event.records == record
                {
                    event.passed_us = Some(self.now_us);
                }
            }
            QueueItem::Signal(signal, record) => signal.pass(record),
            QueueItem::Wait(_) | QueueItem::Busy(_) | QueueItem::WaitElsewhere(..) | QueueItem::WaitOutside(_) => {}
        }
        Some(None)
    }

    /// Moves the clock to the next time at which an item can run or `point` passes, when nothing can run before.
    /// Returns false if another process or device must act first.
    pub(super) fn skip_ahead(&mut self, point: Point) -> bool {
        let starts = (0..self.streams.len()).filter_map(|stream| self.start_us(stream));
        let passes = (self.streams[point.stream].executed >= point.position).then_some(point.at_us);
        let Some(next) = starts.chain(passes).min() else {
            // A wait for another stream is for a point before the wait. So without waits outside the device, the oldest
            // queued item could run.
            assert!(self.streams.iter().any(SimStream::waits_outside), "waits form no circle");
            return false;
        };
        self.now_us = next.max(self.now_us);
        true
    }

    /// Returns the time at which the first item of a stream can run, if it waits only for the clock.
    fn start_us(&self, stream: usize) -> Option<u64> {
        let stream = &self.streams[stream];
        let own_us = match stream.queue.front()? {
            QueueItem::Work(_) | QueueItem::SetTime(..) | QueueItem::Signal(..) => 0,
            QueueItem::WaitElsewhere(signal, record) => signal.has_passed(*record).then_some(0)?,
            QueueItem::WaitOutside(condition) => condition().then_some(0)?,
            QueueItem::Busy(until_us) => *until_us,
            QueueItem::Wait(point) => {
                let ran = self.streams[point.stream].executed >= point.position;
                ran.then_some(point.at_us)?
            }
        };
        Some(own_us.max(stream.ready_us))
    }
}

/// A small random number generator that gives the same numbers on every machine and in every version (splitmix64).
struct Random(u64);

impl Random {
    /// Returns a number below `bound`, which must be small, and not 0.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % bound as u64) as usize
    }
}
