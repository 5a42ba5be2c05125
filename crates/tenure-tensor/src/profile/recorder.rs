//! The observer that records spans and changes of memory.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{Clock, Device};
use tenure_device::activity::{self, CudaTimes};

use super::{InputShape, MemoryPoint, MemoryUse, Profile, ProfilerOptions, Span, SpanKind};
use crate::observe::{Observer, Section};
use crate::operation::{Argument, Operation, Output};
use crate::{Tensor, TensorError};

/// The recorder of a profile.
pub(super) struct Recorder {
    clock: Clock,
    record_shapes: bool,
    max_events: usize,
    state: Mutex<RecorderState>,
}

#[derive(Default)]
struct RecorderState {
    started: Duration,
    has_ended: bool,
    threads: Vec<ThreadSpans>,
    thread_indices: HashMap<ThreadId, usize>,
    /// The spans that have ended, in that order.
    spans: Vec<Span>,
    memory: Vec<MemoryPoint>,
    memory_use: Vec<MemoryUse>,
    /// The number of spans and changes of memory beyond the limit, which are not kept.
    dropped: u64,
}

/// The spans of a thread that have not ended, the innermost last.
struct ThreadSpans {
    name: String,
    open: Vec<OpenSpan>,
}

/// A span that has not ended. Its duration is 0, and its own time is still to be reduced by that of spans within.
struct OpenSpan {
    span: Span,
    /// The durations of the spans directly within.
    within: Duration,
}

impl Recorder {
    pub(super) fn new(options: ProfilerOptions) -> Self {
        let ProfilerOptions { record_shapes, max_events, clock, .. } = options;
        Self { clock, record_shapes, max_events, state: Mutex::default() }
    }

    /// Sets the bytes in use at the start.
    pub(super) fn begin_with(&self, in_use: Vec<(Device, u64)>) {
        self.state.lock().memory_use =
            in_use.into_iter().map(|(device, it)| MemoryUse { device, start: it, peak: it, end: it }).collect();
    }

    /// Sets the start.
    pub(super) fn begin(&self) {
        self.state.lock().started = self.clock.now();
    }

    /// Ends all spans, and returns the profile without the devices' work.
    pub(super) fn finish(&self) -> Profile {
        let mut state = self.state.lock();
        let duration = self.clock.now().saturating_sub(state.started);
        for thread in 0..state.threads.len() {
            while self.end_span(&mut state, thread, duration, None) {}
        }
        state.has_ended = true;
        let mut spans = std::mem::take(&mut state.spans);
        keep_first_makers(&mut spans);
        spans.sort_unstable_by_key(|span| span.id);
        forget_missing_parents(&mut spans);
        Profile {
            spans,
            activities: Vec::new(),
            memory: std::mem::take(&mut state.memory),
            memory_use: std::mem::take(&mut state.memory_use),
            threads: state.threads.iter().map(|thread| thread.name.clone()).collect(),
            duration,
            dropped: state.dropped,
            cuda: CudaTimes::NoDriver,
        }
    }

    /// Records a change of the bytes in use.
    pub(super) fn memory_changed(&self, device: Device, change: i64) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.has_ended {
            return;
        }
        let at = now.saturating_sub(state.started);
        let thread = state.thread();
        let mut innermost = None;
        if let Some(open) = state.threads[thread].open.last_mut() {
            innermost = Some(open.span.id);
            match open.span.memory.iter_mut().find(|(other, _)| *other == device) {
                Some((_, bytes)) => *bytes += change,
                None => open.span.memory.push((device, change)),
            }
        }
        let in_use = state.change_use(device, change);
        if state.memory.len() < self.max_events {
            state.memory.push(MemoryPoint { at, device, change, in_use, span: innermost });
        } else {
            state.dropped += 1;
        }
    }

    fn begin_span(&self, name: Cow<'static, str>, kind: SpanKind, inputs: Vec<InputShape>, node: Option<u64>) {
        /// Numbers of spans, which are also the causes of the devices' work.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        activity::begin_cause(id);
        let mut state = self.state.lock();
        let thread = state.thread();
        let open = &mut state.threads[thread].open;
        let parent = open.last().map(|open| open.span.id);
        let [begin, duration, own] = [Duration::ZERO; 3];
        let span = Span { id, parent, name, kind, thread, begin, duration, own, inputs, memory: Vec::new(), node };
        open.push(OpenSpan { span, within: Duration::ZERO });
        let started = state.started;
        // Read last, so that the recorder's own time is not the span's.
        if let Some(open) = state.threads[thread].open.last_mut() {
            open.span.begin = self.clock.now().saturating_sub(started);
        }
    }

    fn end_innermost(&self, node: Option<u64>) {
        let now = self.clock.now();
        activity::end_cause();
        let mut state = self.state.lock();
        let at = now.saturating_sub(state.started);
        let thread = state.thread();
        self.end_span(&mut state, thread, at, node);
    }

    /// Ends the innermost span of a thread. Returns whether there was one.
    fn end_span(&self, state: &mut RecorderState, thread: usize, at: Duration, node: Option<u64>) -> bool {
        let open = &mut state.threads[thread].open;
        let Some(OpenSpan { mut span, within }) = open.pop() else { return false };
        span.duration = at.saturating_sub(span.begin);
        span.own = span.duration.saturating_sub(within);
        span.node = span.node.or(node);
        span.memory.retain(|(_, bytes)| *bytes != 0);
        if let Some(outer) = open.last_mut() {
            outer.within += span.duration;
        }
        if state.spans.len() < self.max_events {
            state.spans.push(span);
        } else {
            state.dropped += 1;
        }
        true
    }
}

impl Observer for Recorder {
    fn begin(&self, operation: &'static Operation, arguments: &[Argument<'_>]) {
        let inputs = if self.record_shapes { shapes(operation, arguments) } else { Vec::new() };
        self.begin_span(operation.name.into(), SpanKind::Operation, inputs, None);
    }

    fn end(&self, _: &'static Operation, result: Option<Result<&Output, &TensorError>>) {
        let made = result.and_then(Result::ok).and_then(|output| match output {
            Output::Tensor(tensor) => Some(tensor),
            Output::Tensors(tensors) => tensors.first(),
            Output::InPlace | Output::Bool(_) => None,
        });
        self.end_innermost(made.and_then(Tensor::made_by));
    }

    fn begin_section(&self, section: Section<'_>) {
        match section {
            Section::Named(name) => self.begin_span(name.to_owned().into(), SpanKind::Section, Vec::new(), None),
            Section::Backward(node) => {
                let is_leaf = node.sequence() == u64::MAX;
                // The name of a formula in Python says already that it is one.
                let is_named = is_leaf || node.name().ends_with("Backward");
                let name = if is_named { node.name().to_owned() } else { format!("{}_backward", node.name()) };
                let number = (!is_leaf).then(|| node.sequence());
                self.begin_span(name.into(), SpanKind::Backward, Vec::new(), number);
            }
        }
    }

    fn end_section(&self) {
        self.end_innermost(None);
    }
}

impl RecorderState {
    /// Returns the index of the calling thread.
    fn thread(&mut self) -> usize {
        let next = self.threads.len();
        let index = *self.thread_indices.entry(thread::current().id()).or_insert(next);
        if index == next {
            let name = thread::current().name().map_or_else(|| format!("thread {next}"), str::to_owned);
            self.threads.push(ThreadSpans { name, open: Vec::new() });
        }
        index
    }

    /// Changes the bytes in use on a device, and returns them.
    fn change_use(&mut self, device: Device, change: i64) -> u64 {
        let found = self.memory_use.iter().position(|other| other.device == device);
        let at = found.unwrap_or_else(|| {
            self.memory_use.push(MemoryUse { device, start: 0, peak: 0, end: 0 });
            self.memory_use.len() - 1
        });
        let it = &mut self.memory_use[at];
        it.end = it.end.saturating_add_signed(change);
        it.peak = it.peak.max(it.end);
        it.end
    }
}

/// Returns the names, sizes, dtypes and devices of the tensors among an operation's arguments.
fn shapes(operation: &'static Operation, arguments: &[Argument<'_>]) -> Vec<InputShape> {
    let mut shapes = Vec::new();
    for (parameter, argument) in operation.parameters.iter().zip(arguments) {
        let tensors = match argument {
            Argument::Tensor(tensor) => std::slice::from_ref(tensor),
            Argument::Tensors(tensors) => tensors,
            _ => &[],
        };
        shapes.extend(tensors.iter().map(|tensor| InputShape {
            parameter: parameter.name,
            sizes: tensor.sizes().to_vec(),
            dtype: tensor.dtype(),
            device: tensor.device(),
        }));
    }
    shapes
}

/// Keeps a node's number only at the span that made the node: the first to end among the operations that returned the
/// node's tensor. Spans are in the order in which they ended.
fn keep_first_makers(spans: &mut [Span]) {
    let mut made = HashSet::new();
    for span in spans.iter_mut().filter(|span| span.kind == SpanKind::Operation) {
        span.node = span.node.filter(|node| made.insert(*node));
    }
}

/// Removes parents that were not kept. Spans are in the order of their ids.
fn forget_missing_parents(spans: &mut [Span]) {
    let ids: HashSet<u64> = spans.iter().map(|span| span.id).collect();
    for span in spans {
        span.parent = span.parent.filter(|parent| ids.contains(parent));
    }
}
