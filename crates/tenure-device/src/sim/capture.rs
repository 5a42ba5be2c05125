//! Stream capture on the simulated device: streams whose work is captured, and the graphs made of it.

use std::sync::Arc;
use std::thread::{self, ThreadId};

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::kernel::Touches;
use super::memory::SimMemory;
use super::state::SimState;
use crate::{ErrorKind, EventId, EventKind, GraphId, Launch, Priority};

/// The effect of a piece of work, each time it runs.
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

/// The number of steps of each stream that are known to come before.
type Known = FxHashMap<usize, usize>;

/// A capture in progress.
pub(super) struct SimCapture {
    origin: usize,
    thread: ThreadId,
    steps: Vec<CapturedStep>,
    /// The streams in the capture.
    streams: FxHashMap<usize, Known>,
    /// The last record of each event in the capture.
    events: FxHashMap<EventId, usize>,
    records: Vec<Known>,
    /// The reason why it can no longer become a graph.
    broken: Option<&'static str>,
}

/// A captured graph.
pub(super) struct SimGraph {
    steps: Vec<CapturedStep>,
    /// The streams that its steps run on; `None` stands for the stream on which it is launched.
    streams: FxHashMap<usize, Option<StreamId>>,
    /// The events of its records.
    events: Vec<EventId>,
    /// The events passed when a launch begins, and when it ends.
    ends: [EventId; 2],
}

impl SimCapture {
    fn step(&mut self, stream: usize, step: CapturedStep) {
        self.steps.push(step);
        *self.streams.entry(stream).or_default().entry(stream).or_default() += 1;
    }

    pub(super) fn work(&mut self, stream: usize, launch: Launch, touches: Touches, action: WorkAction) {
        self.step(stream, CapturedStep::Work { stream, launch, touches, action });
    }

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
        let known = self.streams.entry(stream).or_default();
        for (other, steps) in &self.records[record] {
            let knows = known.entry(*other).or_default();
            *knows = (*knows).max(*steps);
        }
        self.steps.push(CapturedStep::Wait { stream, record });
    }

    /// Forgets an event, which was recorded elsewhere.
    pub(super) fn forget(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    pub(super) fn wait_outside(&mut self, stream: usize, event: EventId) {
        self.step(stream, CapturedStep::WaitOutside { stream, event });
    }

    /// Returns whether the first stream waits for all others in the end.
    fn is_joined(&self) -> bool {
        let known = &self.streams[&self.origin];
        self.streams.iter().all(|(stream, own)| known.get(stream) >= own.get(stream))
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
            streams: FxHashMap::from_iter([(origin, Known::default())]),
            events: FxHashMap::default(),
            records: Vec::new(),
            broken: None,
        });
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: StreamId) -> Result<GraphId, ErrorKind> {
        let origin = self.timeline.stream(stream)?;
        let place = self.captures.iter().position(|capture| capture.origin == origin);
        let capture = self.captures.remove(place.ok_or(capture_error("no capture began on the stream"))?);
        if let Some(reason) = capture.broken {
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
        for side in graph.streams.values().flatten() {
            self.wait_event(*side, begin)?;
        }
        let at = |index: &usize| graph.streams[index].unwrap_or(stream);
        for step in &graph.steps {
            match step {
                CapturedStep::Work { stream, launch, touches, action } => {
                    let launch = Launch { stream: at(stream), number: self.launches, ..*launch };
                    self.submit(launch, touches.clone(), Arc::clone(action))?;
                }
                CapturedStep::Record { stream, record } => self.record_event(graph.events[*record], at(stream))?,
                CapturedStep::Wait { stream, record } => self.wait_event(at(stream), graph.events[*record])?,
                CapturedStep::WaitOutside { stream, event } => self.wait_event(at(stream), *event)?,
            }
        }
        self.record_event(end, stream)
    }

    pub(super) fn destroy_graph(&mut self, graph: GraphId) -> Result<(), ErrorKind> {
        self.graph(graph)?;
        let Some(graph) = self.graphs.remove(&graph) else { return Ok(()) };
        graph.streams.values().flatten().try_for_each(|side| self.timeline.destroy_stream(*side))?;
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
    pub(super) fn break_by(&mut self, reason: &'static str) -> Result<(), ErrorKind> {
        self.broken.get_or_insert(reason);
        Err(capture_error(reason))
    }
}

pub(super) fn capture_error(reason: &'static str) -> ErrorKind {
    ErrorKind::Capture { reason }
}
