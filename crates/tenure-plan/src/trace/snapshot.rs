//! PyTorch's memory snapshots (`torch/csrc/cuda/Module.cpp`, `THCPModule_memorySnapshot`): a dict whose
//! `device_traces` holds a list of events for each device.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::annotations::{self, Annotation};
use super::history::{self, Additions};
use super::labels::{self, EventLabels, PoolsAtEnd};
use super::pickle::{Dict, Machine, Strings, Value, excerpt};
use super::records::{Block, Records, Segment, SnapshotRecord};
use super::segments::{SegmentTotals, SnapshotBlock, SnapshotSegment};
use super::settings::OtherSetting;
use super::times::{self, MISSING_US};
use super::unread::{DictKind, EARLIER_EVENTS, UnreadEntries};
use super::{EventError, Input, ReadOptions, Settings, Trace, TraceAction, TraceError, TraceEvent, summary};

/// The most devices that a line names.
const OTHER_DEVICES: usize = 16;
/// The most settings that are kept only for a conversion.
const OTHER_SETTINGS: usize = 256;

/// Reads the device that `options` names.
pub(super) fn read(input: &mut Input<'_>, name: &str, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut records = Records::new();
    let (machine, root) = Machine::run(input, &mut records, options.memory_bytes)?;
    if let Some(segments) = memory_snapshot(&machine, &records, root)? {
        return Err(no_history(name, segments, options.device));
    }
    let root = machine.dict(root).ok_or_else(|| not_a_snapshot("it is not a dict"))?;
    let segments = root.find("segments").map(|segments| list_segments(&machine, &records, segments)).transpose()?;
    let traces = match (root.find("device_traces"), &segments) {
        (Some(traces), _) => traces,
        (None, Some(_)) => return Err(no_history(name, segments.unwrap_or_default(), options.device)),
        (None, None) => return Err(not_a_snapshot("it has no device_traces")),
    };
    let (traces, left_out) = machine.list(traces).ok_or_else(|| not_a_snapshot("device_traces is not a list"))?;
    if left_out.is_some() {
        return Err(not_a_snapshot("device_traces holds something that is not a list"));
    }
    records.unread.add(DictKind::Snapshot, &root);
    let (settings, other_settings) = match root.find("allocator_settings") {
        Some(settings) => read_settings(&machine, settings, &mut records.unread)?,
        None => (Settings::default(), Vec::new()),
    };
    let snapshot = Snapshot { machine: &machine, records: &records, root, traces: traces.collect(), segments };
    let Some((device, History { order, additions, mut notes }, peaks)) = snapshot.choose(options.device)? else {
        return Err(no_history(name, snapshot.segments.unwrap_or_default(), options.device));
    };
    notes.extend(note_of_devices(device, &peaks));
    let annotations = snapshot.annotations(device as u64);
    let unread = snapshot.other_devices(device).chain(records.unread.lines()).collect();
    let block_tags = records.block_tags(machine.strings());
    let segments = of_device(snapshot.segments.unwrap_or_default(), Some(device as u32));
    let kept = stacks_of_kept_blocks(&segments, &order.of_all(&records.events));
    let pools = pools_at_end(&segments);
    let event_count = records.events.len();
    let labels = (records.has_labels() || pools.has_private())
        .then(|| (std::mem::take(&mut records.label_changes), records.labels(machine.strings())));
    let mut events = order.take(&mut records.events);
    notes.extend(times::notes(&events));
    let mut stacks = order.take(&mut records.stacks_of_events);
    additions.add_to(&mut stacks, |event| match event.action {
        TraceAction::Alloc => kept.get(&event.address).copied().unwrap_or(0),
        _ => 0,
    });
    let stacks = records.into_stacks(stacks, &segments, machine.strings());
    // Free this memory: the code below needs memory of its own.
    drop(machine);
    additions.add_to(&mut events, |event| event);
    times::fill(&mut events);
    let trace = Trace::completed(name.into(), device as u32, settings, events, &additions)?;
    notes.extend(summary::note_of_coverage(&trace.events));
    let labels = labels.map_or_else(EventLabels::default, |(changes, labels)| {
        let mut of_events = order.take(&mut labels::of_events(&changes, event_count));
        additions.add_to(&mut of_events, |_| labels::EMPTY);
        labels::complete(of_events, labels, pools, &trace.events)
    });
    Ok(Trace { notes, stacks, labels, annotations, segments, block_tags, other_settings, unread, ..trace })
}

/// Returns the segments of a pickle by `torch.cuda.memory.memory_snapshot()`, which is a list of them; `None` of another
/// pickle.
fn memory_snapshot(
    machine: &Machine<SnapshotRecord>,
    records: &Records,
    root: Value,
) -> Result<Option<Vec<SnapshotSegment>>, TraceError> {
    let Some((mut items, _)) = machine.list(root) else { return Ok(None) };
    let count = items.len();
    let is_of_segments = items.all(|item| matches!(machine.record(item), Some(SnapshotRecord::Segment(_))));
    if is_of_segments && count > 0 { list_segments(machine, records, root).map(Some) } else { Ok(None) }
}

/// Returns the error for a snapshot that has `segments` and no history.
fn no_history(name: &str, segments: Vec<SnapshotSegment>, device: Option<u32>) -> TraceError {
    let segments = of_device(segments, device);
    if segments.is_empty() {
        let reason = "it holds no events: call torch.cuda.memory._record_memory_history() before the program runs";
        return TraceError::NoTrace { reason: reason.into() };
    }
    TraceError::NoHistory { totals: SegmentTotals::of(&segments), source_name: name.into(), segments }
}

fn of_device(mut segments: Vec<SnapshotSegment>, device: Option<u32>) -> Vec<SnapshotSegment> {
    segments.retain(|segment| device.is_none_or(|device| segment.device == u64::from(device)));
    segments
}

/// Returns the segments in a list of a snapshot, with their blocks.
fn list_segments(
    machine: &Machine<SnapshotRecord>,
    records: &Records,
    list: Value,
) -> Result<Vec<SnapshotSegment>, TraceError> {
    let stray = || not_a_snapshot("segments holds something that is not a segment");
    let (items, left_out) = machine.list(list).ok_or_else(|| not_a_snapshot("segments is not a list"))?;
    let mut segments = Vec::with_capacity(items.len());
    for item in items {
        let Some(SnapshotRecord::Segment(segment)) = machine.record(item) else { return Err(stray()) };
        segments.push(snapshot_segment(machine, records, &records.segments[segment as usize])?);
    }
    if left_out.is_some() { Err(stray()) } else { Ok(segments) }
}

fn snapshot_segment(
    machine: &Machine<SnapshotRecord>,
    records: &Records,
    segment: &Segment,
) -> Result<SnapshotSegment, TraceError> {
    let wrong = || not_a_snapshot(&format!("the segment at {:#x} has strange blocks", segment.address));
    let (items, left_out) = machine.list(segment.blocks).ok_or_else(wrong)?;
    if left_out.is_some() || segment.address.checked_add(segment.bytes).is_none() {
        return Err(wrong());
    }
    let mut blocks = Vec::with_capacity(items.len());
    let mut next = segment.address;
    for item in items {
        let Some(SnapshotRecord::Block(block)) = machine.record(item) else { return Err(wrong()) };
        let &Block { address, bytes, requested_bytes, state, stack, tag } = &records.blocks[block as usize];
        let address = address.unwrap_or(next);
        next = address.checked_add(bytes.max(requested_bytes)).ok_or_else(wrong)?.min(address.saturating_add(bytes));
        blocks.push(SnapshotBlock { address, bytes, requested_bytes, state, stack, tag });
    }
    Ok(SnapshotSegment {
        device: segment.device,
        address: segment.address,
        bytes: segment.bytes,
        stream: segment.stream,
        is_small: segment.is_small,
        is_expandable: segment.expandable,
        pool: segment.pool,
        stack: segment.stack,
        blocks,
    })
}

/// Returns events that make `segments` and their live blocks.
fn live_at_end<'a>(segments: impl Iterator<Item = &'a SnapshotSegment>) -> Vec<TraceEvent> {
    let mut events = Vec::new();
    for segment in segments {
        let action = if segment.is_expandable { TraceAction::SegmentMap } else { TraceAction::SegmentAlloc };
        let &SnapshotSegment { address, bytes, stream, .. } = segment;
        events.push(TraceEvent { time_us: MISSING_US, address, bytes, stream, action });
        events.extend(segment.blocks.iter().filter(|block| block.state.is_live()).map(|block| TraceEvent {
            time_us: MISSING_US,
            address: block.address,
            bytes: block.requested_bytes,
            stream,
            action: TraceAction::Alloc,
        }));
    }
    events
}

/// Returns the stacks of blocks that are live at the end and that the history never freed, by their addresses.
fn stacks_of_kept_blocks(segments: &[SnapshotSegment], events: &[TraceEvent]) -> FxHashMap<u64, u32> {
    let blocks = segments.iter().flat_map(|segment| &segment.blocks);
    let mut stacks: FxHashMap<u64, u32> = blocks
        .filter(|block| block.state.is_live() && block.stack > 0)
        .map(|block| (block.address, block.stack))
        .collect();
    if !stacks.is_empty() {
        for event in events {
            if matches!(event.action, TraceAction::FreeRequested | TraceAction::FreeCompleted) {
                stacks.remove(&event.address);
            }
        }
    }
    stacks
}

fn pools_at_end(segments: &[SnapshotSegment]) -> PoolsAtEnd {
    let mut pools = PoolsAtEnd::default();
    for segment in segments {
        pools.add(segment.address, segment.bytes, segment.pool);
    }
    pools
}

/// The histories of a snapshot, one for each device.
struct Snapshot<'a> {
    machine: &'a Machine<SnapshotRecord>,
    records: &'a Records,
    root: Dict<'a, SnapshotRecord>,
    traces: Vec<Value>,
    /// The segments of all devices, if the snapshot lists any.
    segments: Option<Vec<SnapshotSegment>>,
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
    /// history; and the peaks of all devices that have events. Returns `None` if there are no events but segments, or
    /// no events of any device.
    fn choose(&self, asked: Option<u32>) -> Result<Option<(usize, History, Peaks)>, TraceError> {
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
        let chosen =
            chosen.filter(|&(device, ..)| self.has_events(device) || self.segments_of(device).next().is_none());
        Ok(chosen.map(|(device, history, _)| (device, history, peaks)))
    }

    /// Returns the history of `device`.
    fn history(&self, device: usize) -> Result<History, TraceError> {
        let (order, mut notes) = self.collect(self.traces[device])?;
        let events = order.of_all(&self.records.events);
        let additions = match self.root.find(EARLIER_EVENTS) {
            Some(earlier) => earlier
                .as_u64()
                .and_then(|earlier| Additions::recorded(events.len(), earlier))
                .ok_or_else(|| not_a_snapshot(&format!("{EARLIER_EVENTS} is not a number of its events")))?,
            None => {
                let at_end = live_at_end(self.segments_of(device));
                let mut additions = history::complete(&events, &at_end);
                // Programs that write snapshots may leave the list empty: it does not say that nothing is reserved.
                if !at_end.is_empty() {
                    notes.extend(note_of_segments(additions.reconcile(&events, &at_end)));
                }
                additions
            }
        };
        Ok(History { order, additions, notes })
    }

    fn segments_of(&self, device: usize) -> impl Iterator<Item = &SnapshotSegment> {
        self.segments.iter().flatten().filter(move |segment| segment.device == device as u64)
    }

    /// Returns a line that counts the events and segments of devices other than `device`, if they have any.
    fn other_devices(&self, device: usize) -> impl Iterator<Item = String> {
        let mut counts = BTreeMap::<u64, (usize, usize)>::new();
        for (other, &trace) in self.traces.iter().enumerate() {
            let events = self.machine.list(trace).map_or(0, |(events, _)| events.len());
            counts.entry(other as u64).or_default().0 = events;
        }
        for segment in self.segments.iter().flatten() {
            counts.entry(segment.device).or_default().1 += 1;
        }
        counts.retain(|&other, counts| other != device as u64 && *counts != (0, 0));
        let named =
            counts.iter().map(|(other, (events, segments))| format!("{other} ({events} events, {segments} segments)"));
        let named: Vec<_> =
            named.take(OTHER_DEVICES).chain((counts.len() > OTHER_DEVICES).then(|| "...".into())).collect();
        (!named.is_empty()).then(|| format!("devices: {}", named.join(", "))).into_iter()
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
            "devices with allocations: {}; device {device} is read: choose another with the option `device`",
            named.join(", ")
        )
    })
}

/// Says how many events were inferred from the segments that the snapshot lists.
fn note_of_segments(inferred: usize) -> Option<String> {
    (inferred > 0).then(|| {
        format!(
            "the history lacks events of segments: {inferred} were inferred, so that the segments at the end are those \
             that the snapshot lists"
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

/// Reads the settings that replays need, and those that only conversions keep.
fn read_settings(
    machine: &Machine<SnapshotRecord>,
    value: Value,
    unread: &mut UnreadEntries,
) -> Result<(Settings, Vec<(String, OtherSetting)>), TraceError> {
    let dict = machine.dict(value).ok_or_else(|| not_a_snapshot("allocator_settings is not a dict"))?;
    let mut settings = Settings::default();
    let mut others = Vec::new();
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
            (key, value) => match other_setting(dict.strings(), value) {
                Some(value) if others.len() < OTHER_SETTINGS => others.push((key.to_owned(), value)),
                Some(_) => unread.count(DictKind::Settings, key),
                None if dict.is_void(value) => {}
                None => unread.count(DictKind::Settings, key),
            },
        }
    }
    Ok((settings, others))
}

fn other_setting(strings: &Strings, value: Value) -> Option<OtherSetting> {
    match value {
        Value::Bool(on) => Some(OtherSetting::Flag(on)),
        Value::Int(value) => Some(OtherSetting::Integer(value)),
        Value::Float(value) => Some(OtherSetting::Float(value)),
        Value::Str(text) => Some(OtherSetting::Text(strings.share(text))),
        _ => None,
    }
}

fn not_a_snapshot(reason: &str) -> TraceError {
    TraceError::Snapshot { reason: reason.into() }
}
