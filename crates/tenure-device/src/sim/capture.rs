//! Stream capture on the simulated device: streams whose work is captured, and the graphs made of it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::kernel::Touches;
use super::memory::SimMemory;
use super::state::SimState;
use crate::{ErrorKind, EventId, EventKind, GraphId, Launch, Priority};

/// The function that a piece of work runs. A captured piece runs once for each launch of its graph.
pub(super) type WorkAction = Arc<dyn Fn(&mut SimMemory, &Arc<Launch>, &Touches) -> Result<(), ErrorKind> + Send + Sync>;

/// A captured call. Streams are given by their index, events by the number of their record in the capture.
enum CapturedStep {
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
    origin: usize,
    thread: ThreadId,
    steps: Vec<CapturedStep>,
    /// The streams in the capture, with the steps ordered before the end of each.
    streams: FxHashMap<usize, StepCounts>,
    /// The last record of each event in the capture.
    events: FxHashMap<EventId, usize>,
    /// The steps ordered before each record.
    records: Vec<StepCounts>,
    /// The reason why the capture can not become a graph any more, if there is one.
    broken_by: Option<&'static str>,
}

/// A captured graph.
pub(super) struct SimGraph {
    steps: Vec<CapturedStep>,
    /// The streams that its steps run on; `None` stands for the stream on which it is launched.
    streams: FxHashMap<usize, Option<StreamId>>,
    /// The events of its records.
    events: Vec<EventId>,
    /// Two events: the device passes the first when a launch begins, and the second when it ends.
    ends: [EventId; 2],
}

impl SimCapture {
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
    fn is_joined(&self) -> bool {
        let steps_before = &self.streams[&self.origin];
        self.streams.iter().all(|(stream, own)| steps_before.get(stream) >= own.get(stream))
    }
}

impl SimState {
    pub(super) fn begin_capture(&mut self, stream: StreamId) -> Result<(), ErrorKind> {
        let origin = self.timeline.stream(stream)?;
        if stream == StreamId::NULL {
            return Err(capture_error("the null stream cannot be captured: make another one current"));
        }
        if self.captures.iter().any(|capture| capture.streams.contains_key(&origin)) {
            return Err(capture_error("the stream is captured already"));
        }
        self.captures.push(SimCapture {
            origin,
            thread: thread::current().id(),
            steps: Vec::new(),
            streams: FxHashMap::from_iter([(origin, StepCounts::default())]),
            events: FxHashMap::default(),
            records: Vec::new(),
            broken_by: None,
        });
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: StreamId) -> Result<GraphId, ErrorKind> {
        let origin = self.timeline.stream(stream)?;
        let index = self.captures.iter().position(|capture| capture.origin == origin);
        let capture = self.captures.remove(index.ok_or(capture_error("no capture began on the stream"))?);
        if let Some(reason) = capture.broken_by {
            return Err(capture_error(reason));
        }
        if !capture.is_joined() {
            return Err(capture_error(
                "a stream that takes part is not waited for by the one that the capture began on",
            ));
        }
        let mut streams = FxHashMap::default();
        for &stream in capture.streams.keys() {
            let own = (stream != origin).then(|| self.timeline.create_stream(Priority::Default));
            streams.insert(stream, own);
        }
        let events = &mut self.timeline.events;
        let ends = [events.create(EventKind::Order)?, events.create(EventKind::Order)?];
        let events = capture.records.iter().map(|_| events.create(EventKind::Order)).collect::<Result<_, _>>()?;
        self.last_graph += 1;
        let id = GraphId(self.last_graph);
        self.graphs.insert(id, Arc::new(SimGraph { steps: capture.steps, streams, events, ends }));
        Ok(id)
    }

    pub(super) fn launch_graph(&mut self, graph: GraphId, stream: StreamId) -> Result<(), ErrorKind> {
        let graph = Arc::clone(self.graph(graph)?);
        let [begin, end] = graph.ends;
        // Launches of one graph run one after the other.
        self.wait_event(stream, end)?;
        self.record_event(begin, stream)?;
        for branch in graph.streams.values().flatten() {
            self.wait_event(*branch, begin)?;
        }
        let stream_of = |index: &usize| graph.streams[index].unwrap_or(stream);
        for step in &graph.steps {
            match step {
                CapturedStep::Work { stream, launch, touches, action } => {
                    let launch = Launch { stream: stream_of(stream), number: self.launches, ..*launch };
                    self.submit(launch, touches.clone(), Arc::clone(action))?;
                }
                CapturedStep::Record { stream, record } => {
                    self.record_event(graph.events[*record], stream_of(stream))?
                }
                CapturedStep::Wait { stream, record } => self.wait_event(stream_of(stream), graph.events[*record])?,
                CapturedStep::WaitOutside { stream, event } => self.wait_event(stream_of(stream), *event)?,
            }
        }
        self.record_event(end, stream)
    }

    pub(super) fn destroy_graph(&mut self, graph: GraphId) -> Result<(), ErrorKind> {
        self.graph(graph)?;
        let Some(graph) = self.graphs.remove(&graph) else { return Ok(()) };
        graph.streams.values().flatten().try_for_each(|branch| self.timeline.destroy_stream(*branch))?;
        graph.events.iter().chain(&graph.ends).try_for_each(|event| self.timeline.events.destroy(*event))
    }

    fn graph(&self, graph: GraphId) -> Result<&Arc<SimGraph>, ErrorKind> {
        self.graphs.get(&graph).ok_or(ErrorKind::UnknownHandle { what: "graph", handle: graph.0 })
    }

    /// Returns the capture that a stream belongs to.
    pub(super) fn capture_of(&mut self, stream: usize) -> Option<&mut SimCapture> {
        self.captures.iter_mut().find(|capture| capture.streams.contains_key(&stream))
    }

    /// Refuses a wait for a captured stream, or a query of one; that ends the capture.
    pub(super) fn forbid_in_capture_of(&mut self, stream: usize) -> Result<(), ErrorKind> {
        let capture = self.capture_of(stream);
        capture.map_or(Ok(()), |capture| capture.break_by("a captured stream was waited for, or asked about"))
    }

    /// Refuses a call that a thread must not make while it captures; that ends the capture.
    pub(super) fn forbid_while_capturing(&mut self) -> Result<(), ErrorKind> {
        let thread = thread::current().id();
        let capture = self.captures.iter_mut().find(|capture| capture.thread == thread);
        capture.map_or(Ok(()), |capture| capture.break_by("the device was waited for, or asked about, in a capture"))
    }
}

impl SimCapture {
    /// Ends the capture because of a call that is not allowed in it. Returns the call's error.
    pub(super) fn break_by(&mut self, reason: &'static str) -> Result<(), ErrorKind> {
        self.broken_by.get_or_insert(reason);
        Err(capture_error(reason))
    }
}

pub(super) fn capture_error(reason: &'static str) -> ErrorKind {
    ErrorKind::Capture { reason }
}
