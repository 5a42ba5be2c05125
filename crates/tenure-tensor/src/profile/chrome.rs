//! A profile as a Chrome trace: JSON in the trace event format, which Perfetto and chrome://tracing open.
//!
//! The host is process 1, whose threads are the program's. CUDA device `N` is process `N` + 2, whose threads are its
//! streams. Names of categories and arguments are those of PyTorch's traces, so that the same tools read them.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};
use tenure_core::{Device, StreamId};

use super::{Activity, ActivityKind, CudaTimes, MemoryPoint, MemoryUse, Profile, Span, SpanKind};

/// The host's number among the trace's processes.
const HOST: usize = 1;

/// A stream of a device, and its number among the threads of the device's process.
type Streams = BTreeMap<(Device, StreamId), usize>;

/// An event of the trace that has a time.
enum TraceItem<'a> {
    Span(&'a Span),
    Activity(&'a Activity),
    Memory(Device, u64),
    Peak(&'a MemoryUse, &'a MemoryPoint),
    /// An end of an arrow: its category, its number, whether it is the begin, the process and the thread.
    Arrow(&'static str, u64, bool, (usize, usize)),
}

impl Profile {
    /// Writes the profile as a Chrome trace. Events are sorted by time.
    ///
    /// # Errors
    /// The writer's errors.
    pub fn chrome_trace(&self, to: &mut dyn Write) -> io::Result<()> {
        let streams = self.streams();
        let spans: HashMap<u64, &Span> = self.spans.iter().map(|span| (span.id, span)).collect();
        let mut items: Vec<(Duration, TraceItem<'_>)> = Vec::new();
        items.extend(self.memory_use.iter().map(|it| (Duration::ZERO, TraceItem::Memory(it.device, it.start))));
        items.extend(self.spans.iter().map(|span| (span.begin, TraceItem::Span(span))));
        items.extend(self.activities.iter().map(|activity| (activity.begin, TraceItem::Activity(activity))));
        items.extend(self.memory.iter().map(|point| (point.at, TraceItem::Memory(point.device, point.in_use))));
        items.extend(self.memory_use.iter().filter_map(|it| {
            let peak = self.memory.iter().find(|point| point.device == it.device && point.in_use == it.peak)?;
            Some((peak.at, TraceItem::Peak(it, peak)))
        }));
        self.add_arrows(&mut items, &streams, &spans);
        // Stable: an outer span stays before those within, and an arrow comes after its span.
        items.sort_by_key(|(at, _)| *at);

        write!(to, "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[", self.facts())?;
        let mut separator = "\n";
        for name in self.names(&streams) {
            write!(to, "{separator}{name}")?;
            separator = ",\n";
        }
        for (at, item) in &items {
            write!(to, "{separator}{}", self.event(*at, item, &streams, &spans))?;
            separator = ",\n";
        }
        write!(to, "\n]}}\n")
    }

    /// Numbers the streams of each device from 1.
    fn streams(&self) -> Streams {
        let mut streams: Streams =
            self.activities.iter().map(|activity| ((activity.device, activity.stream), 0)).collect();
        let mut last = (Device::CPU, 0);
        for ((device, _), number) in &mut streams {
            last = if last.0 == *device { (*device, last.1 + 1) } else { (*device, 1) };
            *number = last.1;
        }
        streams
    }

    /// Adds arrows from operations to the backward of their nodes, and from spans to the work that they launched.
    fn add_arrows<'a>(
        &'a self,
        items: &mut Vec<(Duration, TraceItem<'a>)>,
        streams: &Streams,
        spans: &HashMap<u64, &Span>,
    ) {
        let makers = self.spans.iter().filter(|span| span.kind == SpanKind::Operation);
        let makers: HashMap<u64, &Span> = makers.filter_map(|span| Some((span.node?, span))).collect();
        for backward in self.spans.iter().filter(|span| span.kind == SpanKind::Backward) {
            let Some((node, maker)) = backward.node.and_then(|node| Some((node, makers.get(&node)?))) else { continue };
            for (span, is_begin) in [(*maker, true), (backward, false)] {
                items.push((span.begin, TraceItem::Arrow("fwdbwd", node, is_begin, (HOST, span.thread + 1))));
            }
        }
        for (number, activity) in self.activities.iter().enumerate() {
            let cause = activity.cause.and_then(|cause| spans.get(&cause));
            // A simulated device has its own clock, which may be behind the host's.
            let Some(cause) = cause.filter(|cause| cause.begin <= activity.begin) else { continue };
            let number = number as u64;
            let stream = streams.get(&(activity.device, activity.stream)).copied().unwrap_or(0);
            items.push((cause.begin, TraceItem::Arrow("ac2g", number, true, (HOST, cause.thread + 1))));
            let place = (process(activity.device), stream);
            items.push((activity.begin, TraceItem::Arrow("ac2g", number, false, place)));
        }
    }

    /// Returns facts about the whole profile.
    fn facts(&self) -> Value {
        let cuda = match &self.cuda {
            CudaTimes::NoDriver => "no CUDA driver".to_owned(),
            CudaTimes::LeftOut => "left out".to_owned(),
            CudaTimes::Cupti => "CUPTI: the times of all work on devices".to_owned(),
            CudaTimes::Launches { reason } => format!("only times of launches by the host: {reason}"),
        };
        json!({ "cuda_times": cuda, "dropped_events": self.dropped, "duration_us": us(self.duration) })
    }

    /// Returns the events that name processes and threads.
    fn names(&self, streams: &Streams) -> Vec<Value> {
        let of_memory = self.memory_use.iter().map(|it| it.device);
        let mut devices: Vec<Device> = streams.keys().map(|(device, _)| *device).chain(of_memory).collect();
        devices.push(Device::CPU);
        devices.sort_unstable();
        devices.dedup();
        let mut names = Vec::new();
        for device in devices {
            let name = if device.is_cpu() { "host".to_owned() } else { device.to_string() };
            let number = process(device);
            names.push(named("process_name", number, 0, json!({ "name": name })));
            names.push(named("process_sort_index", number, 0, json!({ "sort_index": number })));
        }
        for (number, name) in self.threads.iter().enumerate() {
            names.push(named("thread_name", HOST, number + 1, json!({ "name": name })));
        }
        for ((device, stream), number) in streams {
            let name = format!("stream {}", stream.0);
            names.push(named("thread_name", process(*device), *number, json!({ "name": name })));
        }
        names
    }

    fn event(&self, at: Duration, item: &TraceItem<'_>, streams: &Streams, spans: &HashMap<u64, &Span>) -> Value {
        let ts = us(at);
        match item {
            TraceItem::Span(span) => json!({
                "ph": "X", "cat": category(span.kind), "name": span.name, "pid": HOST, "tid": span.thread + 1,
                "ts": ts, "dur": us(span.duration), "args": arguments(span),
            }),
            TraceItem::Activity(activity) => {
                let Activity { device, stream, kind, name, begin, end, bytes, cause } = activity;
                let thread = streams.get(&(*device, *stream)).copied().unwrap_or(0);
                let mut arguments = json!({ "device": device.index(), "stream": stream.0 });
                if *kind != ActivityKind::Kernel {
                    arguments["bytes"] = json!(bytes);
                }
                if let Some(cause) = cause {
                    arguments["External id"] = json!(cause);
                }
                json!({
                    "ph": "X", "cat": work_category(*kind), "name": name, "pid": process(*device), "tid": thread,
                    "ts": ts, "dur": us(end.saturating_sub(*begin)), "args": arguments,
                })
            }
            TraceItem::Memory(device, in_use) => json!({
                "ph": "C", "name": "memory in use", "pid": process(*device), "tid": 0, "ts": ts,
                "args": { "bytes": in_use },
            }),
            TraceItem::Peak(it, point) => {
                let span = point.span.and_then(|span| spans.get(&span)).map(|span| &*span.name);
                json!({
                    "ph": "i", "s": "p", "cat": "memory", "name": "peak of memory", "pid": process(it.device),
                    "tid": 0, "ts": ts, "args": { "bytes": it.peak, "operation": span },
                })
            }
            TraceItem::Arrow(category, number, true, (pid, tid)) => json!({
                "ph": "s", "cat": category, "name": category, "id": number, "pid": pid, "tid": tid, "ts": ts,
            }),
            TraceItem::Arrow(category, number, false, (pid, tid)) => json!({
                "ph": "f", "bp": "e", "cat": category, "name": category, "id": number, "pid": pid, "tid": tid,
                "ts": ts,
            }),
        }
    }
}

/// Returns an event that names a process or thread.
fn named(kind: &str, pid: usize, tid: usize, arguments: Value) -> Value {
    json!({ "ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": arguments })
}

/// Returns the number of a device's process.
fn process(device: Device) -> usize {
    if device.is_cpu() { HOST } else { HOST + 1 + usize::from(device.index()) }
}

fn category(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Operation => "cpu_op",
        SpanKind::Backward => "backward",
        SpanKind::Section => "user_annotation",
    }
}

fn work_category(kind: ActivityKind) -> &'static str {
    match kind {
        ActivityKind::Kernel => "kernel",
        ActivityKind::CopyToDevice | ActivityKind::CopyFromDevice | ActivityKind::CopyOnDevice => "gpu_memcpy",
        ActivityKind::Fill => "gpu_memset",
    }
}

fn arguments(span: &Span) -> Value {
    let mut arguments = json!({ "External id": span.id });
    if let Some(node) = span.node {
        arguments["Sequence number"] = json!(node);
    }
    if !span.inputs.is_empty() {
        arguments["Input Dims"] = span.inputs.iter().map(|input| json!(input.sizes)).collect();
        arguments["Input type"] = span.inputs.iter().map(|input| json!(input.dtype.to_string())).collect();
        arguments["Input names"] = span.inputs.iter().map(|input| json!(input.parameter)).collect();
    }
    if !span.memory.is_empty() {
        let bytes = span.memory.iter().map(|(device, bytes)| (device.to_string(), json!(bytes)));
        arguments["memory"] = Value::Object(bytes.collect());
    }
    arguments
}

/// Returns a time in µs, to the ns.
fn us(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}
