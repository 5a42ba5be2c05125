//! The simulated device's graphs: how a capture begins and becomes a graph, and how a graph is launched.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::capture::{CapturedStep, SimCapture, SimGraph, capture_error};
use super::state::SimState;
use crate::{ErrorKind, EventKind, GraphId, Launch, Priority};

impl SimState {
    pub(super) fn begin_capture(&mut self, stream: StreamId) -> Result<(), ErrorKind> {
        let origin = self.timeline.stream(stream)?;
        if stream == StreamId::NULL {
            return Err(capture_error("the null stream cannot be captured: make another one current"));
        }
        if self.captures.iter().any(|capture| capture.has(origin)) {
            return Err(capture_error("the stream is captured already"));
        }
        self.captures.push(SimCapture::new(origin));
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
        for step in &graph.steps {
            match step {
                CapturedStep::Work { stream: index, launch, touches, action } => {
                    let launch = Launch { stream: graph.stream(*index, stream), number: self.launches, ..*launch };
                    self.submit(launch, touches.clone(), Arc::clone(action))?;
                }
                CapturedStep::Record { stream: index, record } => {
                    self.record_event(graph.events[*record], graph.stream(*index, stream))?
                }
                CapturedStep::Wait { stream: index, record } => {
                    self.wait_event(graph.stream(*index, stream), graph.events[*record])?
                }
                CapturedStep::WaitOutside { stream: index, event } => {
                    self.wait_event(graph.stream(*index, stream), *event)?
                }
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
}
