//! Summaries of traces: counts, peaks, and the blocks live at the peak.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::{TraceAction, TraceEvent, times};

/// Counts and peaks of a trace, and the blocks live at the peak. Bytes are as requested, not rounded; a block is live
/// until its free completes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The number of events in the history, of every kind.
    pub events: usize,
    /// The number of blocks that existed before the history began.
    pub earlier_blocks: usize,
    /// Bytes of those blocks.
    pub earlier_bytes: u64,
    /// Blocks allocated, before the history began or in it.
    pub allocations: usize,
    /// The streams that blocks belong to, ascending.
    pub streams: Vec<StreamId>,
    /// The time from the first event to the last, in microseconds; `None` if the recorder had no clock.
    pub duration_us: Option<u64>,
    /// Segments allocated from the driver, before the history began or in it.
    pub segments: usize,
    /// How much of the memory the trace's events of segments cover.
    pub segment_coverage: SegmentCoverage,
    /// The most bytes in segments at once, including mapped ranges of expandable segments: the device memory that the
    /// recorded allocator held. At any moment at least the live bytes. 0 if the trace has no events of segments.
    pub peak_segment_bytes: u64,
    /// Bytes in segments after the last event: the segments that a snapshot lists. At least the live bytes. 0 if the
    /// trace has no events of segments.
    pub end_segment_bytes: u64,
    /// Allocations that failed.
    pub ooms: usize,
    /// The most bytes that were live at once.
    pub peak_requested_bytes: u64,
    /// The allocation that first reached the peak; `None` if there was none.
    pub peak_event: Option<usize>,
    /// The blocks that were live at the peak, in the order they were allocated.
    pub live_at_peak: Vec<LiveBlock>,
    /// Bytes still live after the last event.
    pub live_at_end_bytes: u64,
    /// Allocations by size class, ascending; only classes that occur.
    pub size_classes: Vec<SizeClassSummary>,
}

/// The share of a trace's memory that its events of segments cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentCoverage {
    /// The trace has no events of segments, so reserved bytes are unknown.
    #[default]
    Unrecorded,
    /// Segments always held at least the live bytes.
    Complete,
    /// Events of segments are missing: live bytes count as reserved where they exceed the segments.
    Partial,
}

/// A block that was live at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LiveBlock {
    /// The event that allocated it.
    pub event: usize,
    /// Its first byte.
    pub address: u64,
    /// Its size.
    pub bytes: u64,
    /// The stream it belongs to.
    pub stream: StreamId,
}

/// A size class: the sizes from one power of two up to the next. Class `k` holds 2^k to 2^(k+1) - 1 bytes, class 0 also
/// 0 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Returns the class of `bytes`.
    pub fn of(bytes: u64) -> Self {
        // A base-two logarithm of a u64 is at most 63.
        Self(bytes.checked_ilog2().unwrap_or(0) as u8)
    }

    /// Returns the fewest bytes in the class.
    pub fn lower_bytes(self) -> u64 {
        1 << self.0
    }
}

impl fmt::Display for SizeClass {
    /// Writes the lower bound in binary units, such as `512 B` or `2 MiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        write!(f, "{} {}", 1u64 << (self.0 % 10), UNITS[usize::from(self.0 / 10)])
    }
}

/// The allocations of one size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClassSummary {
    /// The class.
    pub class: SizeClass,
    /// The number of blocks allocated.
    pub allocations: usize,
    /// The bytes allocated, over the whole trace.
    pub bytes: u64,
    /// Bytes of the class that were live at the trace's peak.
    pub live_at_peak_bytes: u64,
}

/// Summarizes a valid trace's events.
pub(super) fn summarize(events: &[TraceEvent], earlier: usize) -> Summary {
    let mut summary = Summary { events: events.len() - earlier, ..Summary::default() };
    let earlier_blocks = live_after(&events[..earlier]);
    summary.earlier_blocks = earlier_blocks.len();
    summary.earlier_bytes = earlier_blocks.iter().map(|block| block.bytes).sum();
    let reserved = reserved_bytes(events);
    summary.segment_coverage = reserved.coverage;
    summary.peak_segment_bytes = reserved.peak;
    summary.end_segment_bytes = reserved.end;
    let mut classes = BTreeMap::<SizeClass, SizeClassSummary>::new();
    let mut streams = BTreeSet::new();
    let mut live = 0u64;
    for (index, event) in events.iter().enumerate() {
        match event.action {
            TraceAction::Alloc => {
                summary.allocations += 1;
                streams.insert(event.stream);
                live += event.bytes;
                if live > summary.peak_requested_bytes {
                    summary.peak_requested_bytes = live;
                    summary.peak_event = Some(index);
                }
                let class = SizeClass::of(event.bytes);
                let entry = classes.entry(class).or_insert(SizeClassSummary {
                    class,
                    allocations: 0,
                    bytes: 0,
                    live_at_peak_bytes: 0,
                });
                entry.allocations += 1;
                entry.bytes = entry.bytes.saturating_add(event.bytes);
            }
            TraceAction::FreeCompleted => live -= event.bytes,
            TraceAction::SegmentAlloc => summary.segments += 1,
            TraceAction::Oom => summary.ooms += 1,
            _ => {}
        }
    }
    summary.streams = streams.into_iter().collect();
    summary.live_at_end_bytes = live;
    if let (Some(first), Some(last), true) = (events.first(), events.last(), times::are_recorded(events)) {
        summary.duration_us = Some(last.time_us - first.time_us);
    }
    if let Some(peak) = summary.peak_event {
        summary.live_at_peak = live_after(&events[..=peak]);
    }
    for block in &summary.live_at_peak {
        if let Some(entry) = classes.get_mut(&SizeClass::of(block.bytes)) {
            entry.live_at_peak_bytes += block.bytes;
        }
    }
    summary.size_classes = classes.into_values().collect();
    summary
}

/// The bytes in segments over a trace, at least those live.
struct ReservedBytes {
    coverage: SegmentCoverage,
    peak: u64,
    end: u64,
}

fn reserved_bytes(events: &[TraceEvent]) -> ReservedBytes {
    let mut segments = FxHashMap::default();
    let mut reserved = ReservedBytes { coverage: SegmentCoverage::Unrecorded, peak: 0, end: 0 };
    let mut in_segments = 0_u64;
    let mut live = 0_u64;
    let mut exceeds = false;
    for event in events {
        match event.action {
            TraceAction::Alloc => live = live.saturating_add(event.bytes),
            TraceAction::FreeCompleted => live = live.saturating_sub(event.bytes),
            TraceAction::SegmentAlloc => {
                segments.insert(event.address, event.bytes);
                in_segments = in_segments.saturating_add(event.bytes);
            }
            TraceAction::SegmentFree => in_segments -= segments.remove(&event.address).unwrap_or(0),
            TraceAction::SegmentMap => in_segments = in_segments.saturating_add(event.bytes),
            TraceAction::SegmentUnmap => in_segments = in_segments.saturating_sub(event.bytes),
            _ => continue,
        }
        if !matches!(event.action, TraceAction::Alloc | TraceAction::FreeCompleted) {
            reserved.coverage = SegmentCoverage::Complete;
        }
        exceeds |= live > in_segments;
        reserved.end = in_segments.max(live);
        reserved.peak = reserved.peak.max(reserved.end);
    }
    match reserved.coverage {
        SegmentCoverage::Unrecorded => ReservedBytes { peak: 0, end: 0, ..reserved },
        _ if exceeds => ReservedBytes { coverage: SegmentCoverage::Partial, ..reserved },
        _ => reserved,
    }
}

/// Says that reserved bytes are only a lower bound, if they are.
pub(super) fn note_of_coverage(events: &[TraceEvent]) -> Option<String> {
    (reserved_bytes(events).coverage == SegmentCoverage::Partial).then(|| {
        "the history has live blocks outside of its segments: reserved bytes are inferred, never below the live bytes"
            .into()
    })
}

fn live_after(events: &[TraceEvent]) -> Vec<LiveBlock> {
    let mut live = FxHashMap::default();
    for (event, &TraceEvent { action, address, bytes, stream, .. }) in events.iter().enumerate() {
        match action {
            TraceAction::Alloc => {
                live.insert(address, LiveBlock { event, address, bytes, stream });
            }
            TraceAction::FreeCompleted => {
                live.remove(&address);
            }
            _ => {}
        }
    }
    let mut blocks: Vec<_> = live.into_values().collect();
    blocks.sort_unstable_by_key(|block| block.event);
    blocks
}
