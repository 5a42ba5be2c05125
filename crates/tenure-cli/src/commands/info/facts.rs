//! The facts of a trace as JSON.

use serde::Serialize;
use tenure::plan::{Holder, HolderModule, Holders, OutOfMemory, SegmentCoverage, StackFrame, Summary, Trace};

use super::Info;

/// The JSON object of a file; `kind` says whether it has a history.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(super) enum Facts<'a> {
    History(Box<HistoryFacts<'a>>),
    Moment {
        trace: &'a str,
        segments: usize,
        reserved_bytes: u64,
        live_blocks: usize,
        live_bytes: u64,
        free_bytes: u64,
        largest_free_bytes: u64,
        fragmentation: f64,
    },
}

/// The facts of a history.
#[derive(Serialize)]
pub(super) struct HistoryFacts<'a> {
    trace: &'a str,
    device: u32,
    settings: &'a str,
    events: usize,
    allocations: usize,
    streams: usize,
    duration_us: Option<u64>,
    earlier_blocks: usize,
    earlier_bytes: u64,
    peak_requested_bytes: u64,
    peak_event: Option<usize>,
    live_at_end_bytes: u64,
    segments: Option<usize>,
    peak_reserved_bytes: Option<u64>,
    reserved_at_end_bytes: Option<u64>,
    ooms: usize,
    stacks: usize,
    notes: &'a [String],
    size_classes: Vec<SizeClassFacts>,
    peak_holders: PeakHolders,
    out_of_memory: Vec<OutOfMemoryFacts>,
}

#[derive(Serialize)]
struct SizeClassFacts {
    lower_bytes: u64,
    allocations: usize,
    bytes: u64,
    live_at_peak_bytes: u64,
}

impl Info {
    /// Returns the facts.
    pub(super) fn facts(&self) -> Facts<'_> {
        match self {
            Self::History { trace, summary } => Facts::History(Box::new(HistoryFacts::of(trace, summary))),
            Self::Moment { name, totals } => Facts::Moment {
                trace: name,
                segments: totals.segments,
                reserved_bytes: totals.reserved_bytes,
                live_blocks: totals.live_blocks,
                live_bytes: totals.live_bytes,
                free_bytes: totals.free_bytes,
                largest_free_bytes: totals.largest_free_bytes,
                fragmentation: totals.fragmentation(),
            },
        }
    }
}

impl<'a> HistoryFacts<'a> {
    fn of(trace: &'a Trace, summary: &Summary) -> Self {
        let recorded = summary.segment_coverage != SegmentCoverage::Unrecorded;
        let classes = summary.size_classes.iter().map(|class| SizeClassFacts {
            lower_bytes: class.class.lower_bytes(),
            allocations: class.allocations,
            bytes: class.bytes,
            live_at_peak_bytes: class.live_at_peak_bytes,
        });
        let failed = trace.out_of_memory().into_iter().map(|failed| OutOfMemoryFacts::of(trace, failed));
        Self {
            trace: trace.source(),
            device: trace.device(),
            settings: &trace.settings().conf,
            events: summary.events,
            allocations: summary.allocations,
            streams: summary.streams.len(),
            duration_us: summary.duration_us,
            earlier_blocks: summary.earlier_blocks,
            earlier_bytes: summary.earlier_bytes,
            peak_requested_bytes: summary.peak_requested_bytes,
            peak_event: summary.peak_event.and_then(|event| event.checked_sub(trace.earlier_events())),
            live_at_end_bytes: summary.live_at_end_bytes,
            segments: recorded.then_some(summary.segments),
            peak_reserved_bytes: recorded.then_some(summary.peak_segment_bytes),
            reserved_at_end_bytes: recorded.then_some(summary.end_segment_bytes),
            ooms: summary.ooms,
            stacks: trace.stacks().len().saturating_sub(1),
            notes: trace.notes(),
            size_classes: classes.collect(),
            peak_holders: PeakHolders::of(trace, summary),
            out_of_memory: failed.collect(),
        }
    }
}

/// The blocks that were live at the peak, by stack, module and size; the largest first. The last of each list may stand
/// for all smaller ones.
#[derive(Serialize)]
struct PeakHolders {
    by_stack: Vec<HolderFacts>,
    by_module: Vec<HolderFacts>,
    by_size: Vec<HolderFacts>,
}

/// Blocks with something in common.
#[derive(Serialize)]
struct HolderFacts {
    #[serde(flatten)]
    name: HolderName,
    blocks: usize,
    bytes: u64,
    share: f64,
    /// The stack that allocated most of the bytes, the innermost frame first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum HolderName {
    /// The innermost frame of the program itself; null without a stack.
    Frame(Option<String>),
    /// A file and a function.
    Function(String),
    Tag(String),
    BlockBytes(u64),
    /// Neither a tag nor a stack is known.
    Unknown(bool),
    /// The number of smaller holders.
    Others(usize),
}

/// An allocation that failed, and the memory at that moment.
#[derive(Serialize)]
struct OutOfMemoryFacts {
    /// The number of its event in the history.
    event: Option<usize>,
    requested_bytes: u64,
    device_free_bytes: u64,
    reserved_bytes: Option<u64>,
    live_bytes: u64,
    largest_free_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stack: Vec<String>,
}

impl PeakHolders {
    fn of(trace: &Trace, summary: &Summary) -> Self {
        let Holders { by_stack, by_module, by_size } = trace.holders(&summary.live_at_peak);
        let peak_bytes = summary.peak_requested_bytes;
        Self {
            by_stack: listed(trace, &by_stack, peak_bytes, |&number| {
                HolderName::Frame(trace.stacks().user_frame(number).map(StackFrame::to_string))
            }),
            by_module: listed(trace, &by_module, peak_bytes, |module| match module {
                HolderModule::Tag(tag) => HolderName::Tag(tag.clone()),
                HolderModule::Unknown => HolderName::Unknown(true),
                function => HolderName::Function(function.to_string()),
            }),
            by_size: listed(trace, &by_size, peak_bytes, |&bytes| HolderName::BlockBytes(bytes)),
        }
    }
}

/// Returns the largest holders one by one, and the others together.
fn listed<K>(
    trace: &Trace,
    holders: &[Holder<K>],
    peak_bytes: u64,
    name: impl Fn(&K) -> HolderName,
) -> Vec<HolderFacts> {
    let share = |bytes: u64| bytes as f64 / peak_bytes.max(1) as f64;
    let (largest, others) = holders.split_at(holders.len().min(Holders::LISTED));
    let mut facts: Vec<_> = largest
        .iter()
        .map(|holder| HolderFacts {
            name: name(&holder.key),
            blocks: holder.blocks,
            bytes: holder.bytes,
            share: share(holder.bytes),
            stack: stack(trace, holder.stack),
        })
        .collect();
    if !others.is_empty() {
        let bytes = others.iter().map(|holder| holder.bytes).sum();
        facts.push(HolderFacts {
            name: HolderName::Others(others.len()),
            blocks: others.iter().map(|holder| holder.blocks).sum(),
            bytes,
            share: share(bytes),
            stack: Vec::new(),
        });
    }
    facts
}

/// Returns the frames of a stack, the innermost first.
fn stack(trace: &Trace, number: u32) -> Vec<String> {
    trace.stacks().frames(number).map(StackFrame::to_string).collect()
}

impl OutOfMemoryFacts {
    fn of(trace: &Trace, failed: OutOfMemory) -> Self {
        Self {
            event: failed.event.checked_sub(trace.earlier_events()),
            requested_bytes: failed.requested_bytes,
            device_free_bytes: failed.device_free_bytes,
            reserved_bytes: failed.reserved_bytes,
            live_bytes: failed.live_bytes,
            largest_free_bytes: failed.largest_free_bytes,
            stack: stack(trace, trace.stacks().number_of_event(failed.event)),
        }
    }
}
