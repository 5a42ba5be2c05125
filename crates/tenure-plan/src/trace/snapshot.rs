//! PyTorch's memory snapshots (`torch/csrc/cuda/Module.cpp`, `THCPModule_memorySnapshot`): a dict whose
//! `device_traces` holds a list of events for each device.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use rustc_hash::FxHashMap;
use tenure_alloc::snapshot::pickle::PickleWriter;

use super::annotations::{self, Annotation};
use super::history::{self, Additions};
use super::labels::{self, EventLabels, PoolsAtEnd};
use super::records::{Records, Segment, SnapshotRecord};
use super::{EventError, Input, ReadOptions, Settings, Trace, TraceAction, TraceError, TraceEvent};
use crate::pickle::{Dict, Machine, Value, excerpt};

/// A key that marks the snapshots written by [`write`], which are complete.
const EARLIER_EVENTS: &str = "tenure_earlier_events";

/// Reads the device that `options` names.
pub(super) fn read(input: &mut Input<'_>, name: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut records = Records::new();
    let (machine, root) = Machine::run(input, &mut records, options.memory_bytes)?;
    let root = machine.dict(root).ok_or_else(|| not_a_snapshot("it is not a dict"))?;
    let traces = root.find("device_traces").ok_or_else(|| not_a_snapshot("it has no device_traces"))?;
    let (traces, left_out) = machine.list(traces).ok_or_else(|| not_a_snapshot("device_traces is not a list"))?;
    if left_out.is_some() {
        return Err(not_a_snapshot("device_traces holds something that is not a list"));
    }
    let settings = match root.find("allocator_settings") {
        Some(settings) => read_settings(&machine, settings)?,
        None => Settings::default(),
    };
    let snapshot = Snapshot { machine: &machine, records: &records, root, traces: traces.collect() };
    let (device, History { order, additions, mut notes }, peaks) = snapshot.choose(options.device)?;
    notes.extend(note_of_devices(device, &peaks));
    let kept = snapshot.stacks_of_kept_blocks(device as u64, &order);
    let annotations = snapshot.annotations(device as u64);
    let pools = snapshot.pools_at_end(device as u64);
    let event_count = records.events.len();
    let labels = (records.has_labels() || pools.has_private())
        .then(|| (std::mem::take(&mut records.label_changes), records.labels(machine.strings())));
    let mut events = order.take(&mut records.events);
    let mut stacks = order.take(&mut records.stacks_of_events);
    additions.add_to(&mut stacks, |event| match event.action {
        TraceAction::Alloc => kept.get(&event.address).copied().unwrap_or(0),
        _ => 0,
    });
    let stacks = records.into_stacks(stacks, machine.strings());
    // Free this memory: the code below needs memory of its own.
    drop(machine);
    additions.add_to(&mut events, |event| event);
    let trace = Trace::completed(name.into(), device as u32, settings, events, &additions)?;
    let labels = labels.map_or_else(EventLabels::default, |(changes, labels)| {
        let mut of_events = order.take(&mut labels::of_events(&changes, event_count));
        additions.add_to(&mut of_events, |_| labels::EMPTY);
        labels::complete(of_events, labels, pools, &trace.events)
    });
    Ok(Trace { notes, stacks, labels, annotations, ..trace })
}

/// The histories of a snapshot, one for each device.
struct Snapshot<'a> {
    machine: &'a Machine<SnapshotRecord>,
    records: &'a Records,
    root: Dict<'a, SnapshotRecord>,
    traces: Vec<Value>,
}

/// The history of a device.
struct History {
    order: EventOrder,
    /// The events that it lacks.
    additions: Additions,
    /// Notes about skipped events.
    notes: Vec<String>,
}

/// The events of a snapshot that make a device's history, in order.
enum EventOrder {
    /// Consecutive events, as a pickler writes them.
    Range(Range<usize>),
    /// Events by their numbers.
    Numbers(Vec<u32>),
}

impl EventOrder {
    fn of(numbers: impl Iterator<Item = u32>) -> Self {
        let mut order = Self::Range(0..0);
        for number in numbers {
            match &mut order {
                Self::Range(range) if range.start == range.end => *range = number as usize..number as usize + 1,
                Self::Range(range) if range.end == number as usize => range.end += 1,
                Self::Range(range) => {
                    let before = range.clone().map(|before| before as u32);
                    order = Self::Numbers(before.chain([number]).collect());
                }
                Self::Numbers(numbers) => numbers.push(number),
            }
        }
        order
    }

    fn of_all<'a, T: Copy>(&self, all: &'a [T]) -> Cow<'a, [T]> {
        match self {
            Self::Range(range) => Cow::Borrowed(&all[range.clone()]),
            Self::Numbers(numbers) => numbers.iter().map(|&number| all[number as usize]).collect(),
        }
    }

    /// Returns the same as [`of_all`](Self::of_all), but reuses the memory of `all` if possible.
    fn take<T: Copy>(&self, all: &mut Vec<T>) -> Vec<T> {
        let mut all = std::mem::take(all);
        match self {
            Self::Range(range) => {
                all.truncate(range.end);
                all.drain(..range.start);
                all
            }
            Self::Numbers(_) => self.of_all(&all).into_owned(),
        }
    }
}

/// The most bytes live at once on each device, with the device's number.
type Peaks = Vec<(usize, u64)>;

impl Snapshot<'_> {
    fn has_events(&self, device: usize) -> bool {
        let list = self.machine.list(self.traces[device]);
        list.is_none_or(|(events, left_out)| events.len() > 0 || left_out.is_some())
    }

    /// Returns the requested device, or else the one with the most bytes live at once (of equal ones the first); its
    /// history; and the peaks of all devices that have events.
    fn choose(&self, asked: Option<u32>) -> Result<(usize, History, Peaks), TraceError> {
        let count = self.traces.len();
        let asked = asked.map(|device| device as usize);
        if let Some(device) = asked.filter(|device| *device >= count) {
            let reason = format!("it has no device {device}: its devices are 0 to {}", count.saturating_sub(1));
            return Err(TraceError::NoTrace { reason });
        }
        let mut peaks = Peaks::new();
        let mut chosen: Option<(usize, History, u64)> = None;
        for device in (0..count).filter(|&device| asked == Some(device) || self.has_events(device)) {
            let history = self.history(device)?;
            let bytes = peak_bytes(history.additions.merged(&history.order.of_all(&self.records.events)));
            peaks.push((device, bytes));
            let is_it = match asked {
                Some(asked) => asked == device,
                None => chosen.as_ref().is_none_or(|(.., most)| bytes > *most),
            };
            if is_it {
                chosen = Some((device, history, bytes));
            }
        }
        let Some((device, history, _)) = chosen else {
            let reason = "it holds no events: call torch.cuda.memory._record_memory_history() before the program runs";
            return Err(TraceError::NoTrace { reason: reason.into() });
        };
        Ok((device, history, peaks))
    }

    /// Returns the history of `device`.
    fn history(&self, device: usize) -> Result<History, TraceError> {
        let (order, notes) = self.collect(self.traces[device])?;
        let events = order.of_all(&self.records.events);
        let additions = match self.root.find(EARLIER_EVENTS) {
            Some(earlier) => earlier
                .as_u64()
                .and_then(|earlier| Additions::recorded(events.len(), earlier))
                .ok_or_else(|| not_a_snapshot(&format!("{EARLIER_EVENTS} is no number of its events")))?,
            None => {
                let segments = self.root.find("segments");
                history::complete(&events, &self.live_at_end(segments, device as u64)?)
            }
        };
        Ok(History { order, additions, notes })
    }

    /// Returns the stacks of blocks that are live at the end and that the history never freed, by their addresses.
    fn stacks_of_kept_blocks(&self, device: u64, order: &EventOrder) -> FxHashMap<u64, u32> {
        let segments = self.root.find("segments").and_then(|segments| self.machine.list(segments));
        let mut stacks = FxHashMap::default();
        for segment in segments.into_iter().flat_map(|(segments, _)| segments) {
            let Some(SnapshotRecord::Segment(segment)) = self.machine.record(segment) else { continue };
            let segment = &self.records.segments[segment as usize];
            let Some((blocks, _)) = self.machine.list(segment.blocks).filter(|_| segment.device == device) else {
                continue;
            };
            for block in blocks {
                let Some(SnapshotRecord::Block(block)) = self.machine.record(block) else { continue };
                let block = &self.records.blocks[block as usize];
                // Before version 2.1, PyTorch gives blocks no address.
                if let Some(address) = block.address.filter(|_| block.live && block.stack > 0) {
                    stacks.insert(address, block.stack);
                }
            }
        }
        if !stacks.is_empty() {
            for event in order.of_all(&self.records.events).iter() {
                if matches!(event.action, TraceAction::FreeRequested | TraceAction::FreeCompleted) {
                    stacks.remove(&event.address);
                }
            }
        }
        stacks
    }

    /// Returns the pools of the segments of `device`.
    fn pools_at_end(&self, device: u64) -> PoolsAtEnd {
        let mut pools = PoolsAtEnd::default();
        let segments = self.root.find("segments").and_then(|segments| self.machine.list(segments));
        for segment in segments.into_iter().flat_map(|(segments, _)| segments) {
            let Some(SnapshotRecord::Segment(segment)) = self.machine.record(segment) else { continue };
            let segment = &self.records.segments[segment as usize];
            if segment.device == device {
                pools.add(segment.address, segment.bytes, segment.pool);
            }
        }
        pools
    }

    /// Returns the annotations of `device`.
    fn annotations(&self, device: u64) -> Vec<Annotation> {
        let list = self.root.find("external_annotations").and_then(|list| self.machine.list(list));
        let records = list.into_iter().flat_map(|(list, _)| list).filter_map(|item| match self.machine.record(item) {
            Some(SnapshotRecord::Annotation(record)) => {
                let record = &self.records.annotations[record as usize];
                let is_of_device = record.device.is_none_or(|other| other == device);
                is_of_device.then(|| (record.time_us, record.stage, self.machine.strings().share(record.name)))
            }
            _ => None,
        });
        annotations::pair(records.collect())
    }

    /// Returns events that make the segments of `device` and their live blocks.
    fn live_at_end(&self, segments: Option<Value>, device: u64) -> Result<Vec<TraceEvent>, TraceError> {
        let Some(segments) = segments else { return Ok(Vec::new()) };
        let (segments, left_out) =
            self.machine.list(segments).ok_or_else(|| not_a_snapshot("segments is not a list"))?;
        let mut events = Vec::new();
        for segment in segments {
            let Some(SnapshotRecord::Segment(segment)) = self.machine.record(segment) else {
                return Err(not_a_snapshot("segments holds something that is not a segment"));
            };
            let segment = &self.records.segments[segment as usize];
            if segment.device == device {
                self.add_segment(segment, &mut events)?;
            }
        }
        if left_out.is_some() {
            return Err(not_a_snapshot("segments holds something that is not a segment"));
        }
        Ok(events)
    }

    fn add_segment(&self, segment: &Segment, events: &mut Vec<TraceEvent>) -> Result<(), TraceError> {
        let wrong = || not_a_snapshot(&format!("the segment at {:#x} has strange blocks", segment.address));
        let (blocks, left_out) = self.machine.list(segment.blocks).ok_or_else(wrong)?;
        if left_out.is_some() {
            return Err(wrong());
        }
        let action = if segment.expandable { TraceAction::SegmentMap } else { TraceAction::SegmentAlloc };
        let mut add = |action, address: u64, bytes: u64| {
            let event = TraceEvent { time_us: 0, address, bytes, stream: segment.stream, action };
            events.push(event);
            event.end().ok_or_else(wrong)
        };
        add(action, segment.address, segment.bytes)?;
        let mut next = segment.address;
        for block in blocks {
            let Some(SnapshotRecord::Block(block)) = self.machine.record(block) else { return Err(wrong()) };
            let block = &self.records.blocks[block as usize];
            let address = block.address.unwrap_or(next);
            if block.live {
                add(TraceAction::Alloc, address, block.requested_bytes)?;
            }
            next = address.checked_add(block.bytes).ok_or_else(wrong)?;
        }
        Ok(())
    }

    /// Collects the events of a device, and a note of the skipped ones.
    fn collect(&self, trace: Value) -> Result<(EventOrder, Vec<String>), TraceError> {
        let (items, left_out) =
            self.machine.list(trace).ok_or_else(|| not_a_snapshot("device_traces is not a list of lists"))?;
        let stray = |index| TraceError::Event { index, reason: EventError::NotAnEvent };
        if let Some(index) = left_out {
            return Err(stray(index));
        }
        let mut skipped = BTreeMap::new();
        let mut wrong = None;
        let order = EventOrder::of(items.enumerate().filter_map(|(index, item)| match self.machine.record(item) {
            Some(SnapshotRecord::Event(number)) => Some(number),
            Some(SnapshotRecord::Skipped(name)) => {
                *skipped.entry(self.machine.strings().resolve(name)).or_insert(0) += 1;
                None
            }
            _ => {
                wrong.get_or_insert(index);
                None
            }
        }));
        match wrong {
            Some(index) => Err(stray(index)),
            None => Ok((order, note_of_skipped(&skipped).into_iter().collect())),
        }
    }
}

/// Returns the most bytes live at once. The events may not have been validated.
fn peak_bytes(events: impl Iterator<Item = TraceEvent>) -> u64 {
    let (mut live, mut peak) = (0_u64, 0);
    for event in events {
        match event.action {
            TraceAction::Alloc => live = live.saturating_add(event.bytes),
            TraceAction::FreeCompleted => live = live.saturating_sub(event.bytes),
            _ => {}
        }
        peak = peak.max(live);
    }
    peak
}

/// Names the devices with allocations, unless the device that is read is the only one.
fn note_of_devices(device: usize, peaks: &[(usize, u64)]) -> Option<String> {
    let others = peaks.iter().any(|&(other, bytes)| other != device && bytes > 0);
    let named = peaks.iter().filter(|(_, bytes)| *bytes > 0);
    let named: Vec<_> = named.map(|(device, bytes)| format!("{device} ({bytes} bytes at the peak)")).collect();
    others.then(|| {
        format!(
            "devices with allocations: {}; device {device} is read: give the number of another to read that",
            named.join(", ")
        )
    })
}

/// Says how many events of unknown actions were skipped.
fn note_of_skipped(skipped: &BTreeMap<&str, usize>) -> Option<String> {
    const NAMED: usize = 5;
    let count: usize = skipped.values().sum();
    let mut names: Vec<_> = skipped.keys().take(NAMED).map(|name| format!("\"{}\"", excerpt(name))).collect();
    if skipped.len() > NAMED {
        names.push("others".into());
    }
    let names = names.join(", ");
    (count > 0).then(|| format!("{count} events skipped, whose actions a later PyTorch recorded: {names}"))
}

fn read_settings(machine: &Machine<SnapshotRecord>, value: Value) -> Result<Settings, TraceError> {
    let dict = machine.dict(value).ok_or_else(|| not_a_snapshot("allocator_settings is not a dict"))?;
    let mut settings = Settings::default();
    for (key, value) in dict.iter() {
        let wrong = || not_a_snapshot(&format!("allocator_settings has a strange {key}"));
        match (key, value) {
            ("PYTORCH_CUDA_ALLOC_CONF" | "PYTORCH_ALLOC_CONF", Value::Str(conf)) => {
                settings.conf = dict.strings().resolve(conf).into();
            }
            // PyTorch writes -1 or the largest integer for no limit.
            ("max_split_size", Value::Large(_)) => settings.max_split_size_bytes = None,
            ("max_split_size", Value::Int(bytes)) => settings.max_split_size_bytes = bytes.try_into().ok(),
            ("garbage_collection_threshold", Value::Float(threshold)) => {
                settings.garbage_collection_threshold = threshold;
            }
            ("garbage_collection_threshold", Value::Int(threshold)) => {
                settings.garbage_collection_threshold = threshold as f64;
            }
            ("expandable_segments", Value::Bool(on)) => settings.expandable_segments = on,
            ("roundup_power2_divisions", value) => {
                for (mebibytes, divisions) in machine.dict(value).ok_or_else(wrong)?.iter() {
                    let interval = mebibytes.parse::<u64>().ok().and_then(u64::checked_ilog2).ok_or_else(wrong)?;
                    let entry = settings.roundup_power2_divisions.get_mut(interval as usize).ok_or_else(wrong)?;
                    *entry = divisions.as_u64().and_then(|divisions| divisions.try_into().ok()).ok_or_else(wrong)?;
                }
            }
            (
                "PYTORCH_CUDA_ALLOC_CONF"
                | "PYTORCH_ALLOC_CONF"
                | "max_split_size"
                | "garbage_collection_threshold"
                | "expandable_segments",
                _,
            ) => return Err(wrong()),
            _ => {}
        }
    }
    Ok(settings)
}

fn not_a_snapshot(reason: &str) -> TraceError {
    TraceError::Snapshot { reason: reason.into() }
}

/// Writes a snapshot that holds `trace` as its device's history, which begins with the earlier state. It has no
/// segments: a snapshot lists those of the end, which a trace does not know.
pub(super) fn write(trace: &Trace, out: impl Write) -> io::Result<()> {
    let mut writer = PickleWriter::new(out)?;
    writer.dict(|writer| {
        writer.text("segments")?;
        writer.list(|_| Ok(()))?;
        writer.text("device_traces")?;
        writer.list(|writer| {
            (0..trace.device).try_for_each(|_| writer.list(|_| Ok(())))?;
            writer.list(|writer| trace.events.iter().try_for_each(|event| write_event(writer, event)))
        })?;
        writer.text("allocator_settings")?;
        writer.dict(|writer| write_settings(writer, &trace.settings))?;
        writer.text("external_annotations")?;
        writer.list(|_| Ok(()))?;
        writer.entry(EARLIER_EVENTS, trace.earlier_events as u64)
    })?;
    writer.finish()?.flush()
}

fn write_event<W: Write>(writer: &mut PickleWriter<W>, event: &TraceEvent) -> io::Result<()> {
    writer.dict(|writer| {
        writer.text_entry("action", event.action.name())?;
        writer.entry(if event.action == TraceAction::Oom { "device_free" } else { "addr" }, event.address)?;
        writer.entry("size", event.bytes)?;
        writer.entry("stream", event.stream.0)?;
        writer.entry("time_us", event.time_us)?;
        // PyTorch's viewer requires both keys.
        writer.text_entry("compile_context", "N/A")?;
        writer.text_entry("user_metadata", "")
    })
}

fn write_settings<W: Write>(writer: &mut PickleWriter<W>, settings: &Settings) -> io::Result<()> {
    writer.text_entry("PYTORCH_CUDA_ALLOC_CONF", &settings.conf)?;
    match settings.max_split_size_bytes {
        Some(bytes) => writer.entry("max_split_size", bytes)?,
        None => writer.entry("max_split_size", -1)?,
    }
    writer.text("garbage_collection_threshold")?;
    writer.float(settings.garbage_collection_threshold)?;
    writer.text("expandable_segments")?;
    writer.flag(settings.expandable_segments)?;
    writer.text("roundup_power2_divisions")?;
    writer.dict(|writer| {
        let intervals = settings.roundup_power2_divisions.iter().enumerate();
        intervals
            .into_iter()
            .try_for_each(|(interval, &divisions)| writer.entry(&(1u64 << interval).to_string(), divisions))
    })
}
