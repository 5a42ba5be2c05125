//! The backing of an allocator: it makes chunks, segments and marks of streams through a driver.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

use crate::share::Exports;
use crate::{AccessMode, CallError, Clock, Driver, ErrorKind, EventId, EventKind};

/// The age up to which a measured overhead is used again. Asking the system takes about a millisecond, and contexts and
/// libraries change slowly.
const OVERHEAD_AGE: Duration = Duration::from_millis(100);
/// A stream with more pending marks than this has its events queried when a mark is recorded.
const PENDING_MARKS: usize = 64;

/// The backing of an allocator, on any driver.
///
/// A *mark* is a point in a stream's work, which is *passed* once the device has done all work before it. The backing
/// records an event for each mark. Events are reused: a passed mark needs no event, and no driver call to ask about it.
///
/// The backing counts the memory that it holds, so that the process's other memory on the device, its *overhead*, can
/// be computed.
pub struct DeviceBacking {
    driver: Arc<dyn Driver>,
    marks: Mutex<Marks>,
    held: Mutex<HeldMemory>,
    /// The time of the last measurement, and its result.
    overhead: Mutex<Option<(Duration, Option<u64>)>>,
    clock: Clock,
    exports: Exports,
    headroom_bytes: u64,
}

impl DeviceBacking {
    /// Creates a backing on `driver`, which others may use too.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        let exports = Exports::new(Arc::clone(&driver));
        let clock = Clock::default();
        let (marks, held, overhead) = Default::default();
        Self { driver, marks, held, overhead, clock, exports, headroom_bytes: 0 }
    }

    /// Measures the age of the known [overhead](Self::known_overhead_bytes) by `clock` instead of the system's.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Leaves `bytes` bytes of the device free for others.
    #[must_use]
    pub fn with_headroom(mut self, bytes: u64) -> Self {
        self.headroom_bytes = bytes;
        self
    }

    /// Returns the bytes of the device that are left free for others.
    pub fn headroom_bytes(&self) -> u64 {
        self.headroom_bytes
    }

    /// Returns the driver underneath.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }

    /// Returns the chunks that other processes may map.
    pub(crate) fn exports(&self) -> &Exports {
        &self.exports
    }

    /// Returns the size of the physical memory that this backing has allocated, in bytes.
    pub fn held_bytes(&self) -> u64 {
        self.held.lock().bytes
    }

    /// Returns the bytes of the device that this process holds beside those of this backing: its context, kernels and
    /// libraries, and memory that other code allocated. Returns `None` where the system does not tell what a process
    /// holds: the device's free memory does not tell it either, as other processes change that too. The figure is at
    /// most a tenth of a second old, or the last one that could be measured if other threads allocated or freed during
    /// every measurement since.
    pub fn known_overhead_bytes(&self) -> Option<u64> {
        self.overhead_bytes_since(OVERHEAD_AGE)
    }

    /// Returns the [overhead](Self::known_overhead_bytes) as it is now.
    pub(crate) fn overhead_now(&self) -> Option<u64> {
        self.overhead_bytes_since(Duration::ZERO)
    }

    /// Returns the overhead as it was at most `age` ago, or the last one that could be measured.
    fn overhead_bytes_since(&self, age: Duration) -> Option<u64> {
        let mut overhead = self.overhead.lock();
        if let Some((asked, bytes)) = *overhead
            && self.clock.now().saturating_sub(asked) < age
        {
            return bytes;
        }
        let last = overhead.and_then(|(_, bytes)| bytes);
        let bytes = self.measure_overhead().or_else(|| self.measure_overhead()).unwrap_or(last);
        *overhead = Some((self.clock.now(), bytes));
        bytes
    }

    /// Measures the overhead; the inner `None` means that the system does not tell. Returns `None` if memory was
    /// allocated or freed meanwhile: the system's figure and this backing's are then of different times.
    fn measure_overhead(&self) -> Option<Option<u64>> {
        let before = self.held.lock().snapshot()?;
        let own = own_bytes(&*self.driver);
        (self.held.lock().snapshot()? == before).then(|| own.map(|own| own.saturating_sub(before.bytes)))
    }

    /// Allocates memory with `call` and counts it, if the headroom stays free. `name` converts the call's result to an id.
    #[track_caller]
    fn allocate<T: Copy>(
        &self,
        bytes: u64,
        call: impl FnOnce() -> Result<T, CallError>,
        name: fn(T) -> MemoryId,
    ) -> Result<T, BackingError> {
        self.check_headroom(bytes)?;
        self.held.lock().call_begins();
        let taken = call();
        let mut held = self.held.lock();
        held.call_ended();
        if let Ok(memory) = taken {
            held.insert(name(memory), bytes);
        }
        Ok(taken?)
    }

    /// Returns an error if an allocation would take from the headroom.
    fn check_headroom(&self, bytes: u64) -> Result<(), BackingError> {
        if self.headroom_bytes == 0 {
            return Ok(());
        }
        let free = self.memory_info()?.free;
        if free < self.headroom_bytes.saturating_add(bytes) {
            return Err(BackingError::OutOfMemory { call: "headroom", requested: bytes, free });
        }
        Ok(())
    }

    /// Forgets `memory` before `call` frees it: after the call, another thread may get memory with the same id.
    #[track_caller]
    fn give_back(&self, memory: MemoryId, call: impl FnOnce() -> Result<(), CallError>) -> Result<(), BackingError> {
        let forgotten = {
            let mut held = self.held.lock();
            held.call_begins();
            held.remove(memory)
        };
        let given_back = call();
        let mut held = self.held.lock();
        held.call_ended();
        if given_back.is_err()
            && let Some(bytes) = forgotten
        {
            held.insert(memory, bytes);
        }
        Ok(given_back?)
    }
}

impl Drop for DeviceBacking {
    fn drop(&mut self) {
        let marks = self.marks.get_mut();
        let pending = marks.streams.values_mut().flat_map(|stream| stream.pending.drain(..));
        for event in pending.chain(marks.spare.drain(..)) {
            // If the context is lost, its events are gone too.
            let _ = self.driver.destroy_event(event);
        }
    }
}

impl Backing for DeviceBacking {
    fn granularity(&self) -> u64 {
        self.driver.granularity()
    }

    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        Ok(self.driver.memory_info()?)
    }

    /// Returns 0 where the system does not tell.
    fn overhead_bytes(&self) -> u64 {
        self.known_overhead_bytes().unwrap_or(0)
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        self.allocate(bytes, || self.driver.malloc(bytes), MemoryId::Segment)
    }

    fn free(&self, address: Address) -> Result<(), BackingError> {
        self.give_back(MemoryId::Segment(address), || self.driver.free(address))
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        Ok(self.driver.reserve(bytes)?)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.unreserve(address, bytes)?)
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        self.allocate(bytes, || self.driver.create(bytes), MemoryId::Chunk)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        self.exports.forget(chunk);
        self.give_back(MemoryId::Chunk(chunk), || self.driver.release(chunk))
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        Ok(self.driver.map(address, chunk)?)
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.set_access(address, bytes, AccessMode::ReadWrite)?)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.unmap(address, bytes)?)
    }

    /// Records a mark. A destroyed stream cannot take one, although its work may still run: this then waits for
    /// everything on the device, and returns a mark that is passed.
    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        let mut marks = self.marks.lock();
        match marks.record(&*self.driver, stream) {
            Err(CallError { kind: ErrorKind::UnknownHandle { what: "stream", .. }, .. }) => {
                // Under the lock, so that no mark is recorded after the wait and counted as passed by it.
                self.driver.synchronize()?;
                Ok(marks.pass_all(stream))
            }
            recorded => Ok(recorded?),
        }
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        let mut marks = self.marks.lock();
        let Some(event) = marks.event(mark)? else { return Ok(true) };
        let passed = self.driver.query_event(event)?;
        if passed {
            marks.retire(mark);
        }
        Ok(passed)
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        let mut marks = self.marks.lock();
        if let Some(event) = marks.event(mark)? {
            self.driver.wait_event(stream, event)?;
        }
        Ok(())
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        let Some(event) = self.marks.lock().event(mark)? else { return Ok(()) };
        // Without the lock, so that other threads can record meanwhile. If another thread finds the mark passed and
        // reuses its event, this waits longer than needed, which is correct.
        self.driver.synchronize_event(event)?;
        self.marks.lock().retire(mark);
        Ok(())
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        Ok(self.driver.synchronize()?)
    }
}

/// The physical memory that a backing holds.
#[derive(Default)]
struct HeldMemory {
    sizes: FxHashMap<MemoryId, u64>,
    bytes: u64,
    /// Driver calls that allocate or free memory and have not returned.
    calls_underway: usize,
    /// Driver calls that allocated or freed memory and have returned.
    calls_ended: u64,
}

/// The held bytes at a moment when no call is underway. Two equal values mean that no call was made in between.
#[derive(PartialEq, Eq)]
struct HeldSnapshot {
    bytes: u64,
    calls_ended: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum MemoryId {
    Segment(Address),
    Chunk(ChunkId),
}

impl HeldMemory {
    fn call_begins(&mut self) {
        self.calls_underway += 1;
    }

    fn call_ended(&mut self) {
        self.calls_underway -= 1;
        self.calls_ended += 1;
    }

    /// Returns the held bytes, unless a call is underway.
    fn snapshot(&self) -> Option<HeldSnapshot> {
        (self.calls_underway == 0).then_some(HeldSnapshot { bytes: self.bytes, calls_ended: self.calls_ended })
    }

    fn insert(&mut self, memory: MemoryId, bytes: u64) {
        self.sizes.insert(memory, bytes);
        self.bytes += bytes;
    }

    fn remove(&mut self, memory: MemoryId) -> Option<u64> {
        let bytes = self.sizes.remove(&memory)?;
        self.bytes -= bytes;
        Some(bytes)
    }
}

/// Returns all that this process holds of the device, in bytes, as the system counts it.
fn own_bytes(driver: &dyn Driver) -> Option<u64> {
    driver.processes()?.into_iter().find(|process| process.pid == std::process::id())?.bytes
}

/// The marks of all streams.
#[derive(Default)]
struct Marks {
    streams: FxHashMap<StreamId, StreamMarks>,
    /// Unused events.
    spare: Vec<EventId>,
}

/// The marks of one stream, whose sequence numbers are 1, 2, 3 and so on.
#[derive(Default)]
struct StreamMarks {
    /// Every mark up to this one is known to be passed.
    passed: u64,
    /// The events of the marks that follow, in order.
    pending: VecDeque<EventId>,
}

impl Marks {
    fn record(&mut self, driver: &dyn Driver, stream: StreamId) -> Result<Mark, CallError> {
        let marks = self.streams.entry(stream).or_default();
        while marks.pending.len() > PENDING_MARKS && driver.query_event(marks.pending[0])? {
            self.spare.extend(marks.pending.pop_front());
            marks.passed += 1;
        }
        let event = match self.spare.pop() {
            Some(event) => event,
            None => driver.create_event(EventKind::Order)?,
        };
        if let Err(error) = driver.record_event(event, stream) {
            self.spare.push(event);
            return Err(error);
        }
        marks.pending.push_back(event);
        Ok(Mark { stream, sequence: marks.passed + marks.pending.len() as u64 })
    }

    /// Counts every mark of `stream` as passed, and returns one more mark, also passed.
    fn pass_all(&mut self, stream: StreamId) -> Mark {
        let marks = self.streams.entry(stream).or_default();
        marks.passed += marks.pending.len() as u64 + 1;
        self.spare.extend(marks.pending.drain(..));
        Mark { stream, sequence: marks.passed }
    }

    /// Returns the event of `mark`, or `None` if the mark is known to be passed.
    fn event(&mut self, mark: Mark) -> Result<Option<EventId>, BackingError> {
        let marks = self.streams.get(&mark.stream);
        if marks.is_some_and(|marks| mark.sequence <= marks.passed) {
            return Ok(None);
        }
        let event = marks.and_then(|marks| marks.pending.get((mark.sequence - marks.passed - 1) as usize));
        event.copied().map(Some).ok_or_else(|| BackingError::Failed {
            call: "mark",
            reason: format!("mark {} of stream {} was not recorded by this backing", mark.sequence, mark.stream),
        })
    }

    /// Counts `mark` as passed, and with it every earlier mark of its stream.
    fn retire(&mut self, mark: Mark) {
        if let Some(marks) = self.streams.get_mut(&mark.stream) {
            let count = mark.sequence.saturating_sub(marks.passed) as usize;
            self.spare.extend(marks.pending.drain(..count));
            marks.passed += count as u64;
        }
    }
}
