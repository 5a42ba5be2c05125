use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

use crate::{Access, CallError, Driver, EventId, EventKind};

/// Passed events are looked for when a stream has more pending marks than this, asked for or not.
const PENDING_MARKS: usize = 64;

/// The backing of an allocator, on any driver.
///
/// A mark is an event. Events are reused: a passed mark needs none, and costs no driver call to ask about.
pub struct DeviceBacking {
    driver: Arc<dyn Driver>,
    marks: Mutex<Marks>,
}

impl DeviceBacking {
    /// A backing on `driver`, which others may use too.
    pub fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, marks: Mutex::default() }
    }

    /// The driver underneath.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        &self.driver
    }
}

impl Drop for DeviceBacking {
    fn drop(&mut self) {
        let marks = self.marks.get_mut();
        let pending = marks.streams.values_mut().flat_map(|stream| stream.pending.drain(..));
        for event in pending.chain(marks.spare.drain(..)) {
            // A lost context took its events along.
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

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        Ok(self.driver.malloc(bytes)?)
    }

    fn free(&self, address: Address) -> Result<(), BackingError> {
        Ok(self.driver.free(address)?)
    }

    fn reserve(&self, bytes: u64) -> Result<Address, BackingError> {
        Ok(self.driver.reserve(bytes)?)
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.unreserve(address, bytes)?)
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError> {
        Ok(self.driver.create(bytes)?)
    }

    fn release(&self, chunk: ChunkId) -> Result<(), BackingError> {
        Ok(self.driver.release(chunk)?)
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError> {
        Ok(self.driver.map(address, chunk)?)
    }

    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.set_access(address, bytes, Access::ReadWrite)?)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        Ok(self.driver.unmap(address, bytes)?)
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        Ok(self.marks.lock().record(&*self.driver, stream)?)
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
        // Without the lock, so that others can record meanwhile. Should another thread find the mark passed and
        // reuse its event, this waits for longer than it must, and is right.
        self.driver.synchronize_event(event)?;
        self.marks.lock().retire(mark);
        Ok(())
    }
}

#[derive(Default)]
struct Marks {
    streams: FxHashMap<StreamId, StreamMarks>,
    /// Events that mark nothing.
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

    /// The event of `mark`, or `None` if it is known to be passed.
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

    /// Notes that `mark` is passed, and with it every earlier one of its stream.
    fn retire(&mut self, mark: Mark) {
        if let Some(marks) = self.streams.get_mut(&mark.stream) {
            let count = mark.sequence.saturating_sub(marks.passed) as usize;
            self.spare.extend(marks.pending.drain(..count));
            marks.passed += count as u64;
        }
    }
}
