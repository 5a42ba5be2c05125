//! Stream capture on the simulated device: streams whose work is captured, and the graphs made of it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::memory::SimMemory;
use super::race::Touches;
use crate::{ErrorKind, EventId, Launch};

/// The function that a piece of work runs. A captured piece runs once for each launch of its graph.
pub(super) type WorkAction = Arc<dyn Fn(&mut SimMemory, &Arc<Launch>, &Touches) -> Result<(), ErrorKind> + Send + Sync>;

/// A captured call. Streams are given by their index, events by the number of their record in the capture.
pub(super) enum CapturedStep {
    Work {
        stream: usize,
        launch: Launch,
        touches: Touches,
        action: WorkAction,
    },
    Record {
        stream: usize,
        record: usize,
    },
    Wait {
        stream: usize,
        record: usize,
    },
    /// A wait for the last record of an event before the graph's launch.
    WaitOutside {
        stream: usize,
        event: EventId,
    },
}

/// A number of steps of each stream, by its index: the steps that are ordered before a point of the capture.
type StepCounts = FxHashMap<usize, usize>;

/// A capture in progress.
pub(super) struct SimCapture {
    /// The stream that the capture began on.
    pub(super) origin: usize,
    pub(super) thread: ThreadId,
    pub(super) steps: Vec<CapturedStep>,
    /// The streams in the capture, with the steps ordered before the end of each.
    pub(super) streams: FxHashMap<usize, StepCounts>,
    /// The last record of each event in the capture.
    events: FxHashMap<EventId, usize>,
    /// The steps ordered before each record.
    pub(super) records: Vec<StepCounts>,
    /// The reason why the capture cannot become a graph any more, if there is one.
    pub(super) broken_by: Option<&'static str>,
}

/// A captured graph.
pub(super) struct SimGraph {
    pub(super) steps: Vec<CapturedStep>,
    /// The streams that its steps run on; `None` stands for the stream on which it is launched.
    pub(super) streams: FxHashMap<usize, Option<StreamId>>,
    /// The events of its records.
    pub(super) events: Vec<EventId>,
    /// Two events: the device passes the first when a launch begins, and the second when it ends.
    pub(super) ends: [EventId; 2],
}

impl SimGraph {
    /// Returns the stream that steps run on, given its index, when the graph is launched on `launched_on`.
    pub(super) fn stream(&self, index: usize, launched_on: StreamId) -> StreamId {
        self.streams[&index].unwrap_or(launched_on)
    }
}

impl SimCapture {
    /// Begins a capture of a stream by the calling thread.
    pub(super) fn new(origin: usize) -> Self {
        Self {
            origin,
            thread: thread::current().id(),
            steps: Vec::new(),
            streams: FxHashMap::from_iter([(origin, StepCounts::default())]),
            events: FxHashMap::default(),
            records: Vec::new(),
            broken_by: None,
        }
    }

    /// Returns whether a stream is in the capture.
    pub(super) fn has(&self, stream: usize) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Adds a step, which later steps of the stream come after.
    fn step(&mut self, stream: usize, step: CapturedStep) {
        self.steps.push(step);
        *self.streams.entry(stream).or_default().entry(stream).or_default() += 1;
    }

    /// Captures a piece of work.
    pub(super) fn work(&mut self, stream: usize, launch: Launch, touches: Touches, action: WorkAction) {
        self.step(stream, CapturedStep::Work { stream, launch, touches, action });
    }

    /// Captures a record of an event.
    pub(super) fn record(&mut self, stream: usize, event: EventId) {
        let record = self.records.len();
        self.events.insert(event, record);
        self.records.push(self.streams[&stream].clone());
        self.steps.push(CapturedStep::Record { stream, record });
    }

    /// Returns whether the last record of an event is in the capture.
    pub(super) fn has_recorded(&self, event: EventId) -> bool {
        self.events.contains_key(&event)
    }

    /// Makes a stream wait for a record of the capture, and adds it to the capture.
    pub(super) fn wait(&mut self, stream: usize, event: EventId) {
        let record = self.events[&event];
        let steps_before = self.streams.entry(stream).or_default();
        for (other, steps) in &self.records[record] {
            let count = steps_before.entry(*other).or_default();
            *count = (*count).max(*steps);
        }
        self.steps.push(CapturedStep::Wait { stream, record });
    }

    /// Forgets the capture's record of an event, which was recorded outside the capture since.
    pub(super) fn forget(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    /// Captures a wait for an event's last record outside the capture.
    pub(super) fn wait_outside(&mut self, stream: usize, event: EventId) {
        self.step(stream, CapturedStep::WaitOutside { stream, event });
    }

    /// Returns whether the stream that the capture began on has waited for all work of the others.
    pub(super) fn is_joined(&self) -> bool {
        let steps_before = &self.streams[&self.origin];
        self.streams.iter().all(|(stream, own)| steps_before.get(stream) >= own.get(stream))
    }

    /// Ends the capture because of a call that is not allowed in it. Returns the call's error.
    pub(super) fn break_by(&mut self, reason: &'static str) -> Result<(), ErrorKind> {
        self.broken_by.get_or_insert(reason);
        Err(capture_error(reason))
    }
}

pub(super) fn capture_error(reason: &'static str) -> ErrorKind {
    ErrorKind::Capture { reason }
}
