use serde::{Serialize, Serializer};
use tenure_device::Counters;

use super::{AllocatorKind, OnDevice};
use crate::units::{Bytes, Percent};

/// What came of a replay. Serialises to one JSON object whose keys are the fields, in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The trace's source: usually the name of its file.
    pub trace: String,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// Events of the trace's history, of every kind.
    pub events: usize,
    /// Bytes that were live before the trace's history began. Every peak includes them.
    pub earlier_bytes: u64,
    /// Most bytes that the recorded allocator held of the device at once; 0 if the trace says nothing of segments.
    pub recorded_reserved_bytes: u64,
    /// Bytes that the recorded allocator held of the device after the last event; 0 if the trace says nothing of segments.
    pub recorded_reserved_end_bytes: u64,
    /// Allocations and frees of one pass, those after its last event included.
    pub operations: usize,
    /// Most bytes asked for and live at once, over all passes.
    pub peak_requested_bytes: u64,
    /// Most bytes in live blocks at once, as the allocator rounds them, over all passes.
    pub peak_allocated_bytes: u64,
    /// Most bytes of the device held at once, over all passes, as the driver saw it.
    pub peak_reserved_bytes: u64,
    /// Most segments at once, over all passes. PyTorch counts none that are expandable; of the paged allocator:
    /// maximal mapped runs.
    pub peak_segments: u64,
    /// Bytes of the device obtained, by allocating segments and creating chunks.
    pub created_bytes: u64,
    /// Driver calls of all passes.
    pub driver_calls: DriverCalls,
    /// Driver calls of the last pass.
    pub driver_calls_last_repeat: DriverCalls,
    /// Modelled time of all passes' driver calls, in µs; the host's waits for the device are part of it.
    #[serde(serialize_with = "to_nanoseconds")]
    pub modelled_driver_us: f64,
    /// Modelled time of the last pass's driver calls, in µs.
    #[serde(serialize_with = "to_nanoseconds")]
    pub modelled_driver_us_last_repeat: f64,
    /// From the trace's first event to its last, in µs: one pass.
    pub trace_duration_us: u64,
    /// Times that the host waited for the device, for the allocator.
    pub host_syncs: u64,
    /// Times that one stream was made to wait for another.
    pub cross_stream_waits: u64,
    /// Allocations of the first pass that are not where PyTorch put them. `None` where they need not be: on any
    /// allocator but the native one, for a recording that began late or has expandable segments, and on a real device,
    /// which chooses the addresses itself.
    pub mismatched_addresses: Option<usize>,
    /// Median wall-clock time of an allocation, in ns, the driver's included and the clock's own left out.
    pub alloc_ns_median: u32,
    /// The time that one allocation in a hundred exceeds, in ns.
    pub alloc_ns_p99: u32,
    /// Median wall-clock time of a free, in ns.
    pub free_ns_median: u32,
    /// What a real device says of it; not there after a replay on the simulated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<OnDevice>,
}

impl Outcome {
    /// What was reserved in vain at the peak, as a share of the peak requested.
    pub fn overhead(&self) -> f64 {
        if self.peak_requested_bytes == 0 {
            return 0.0;
        }
        self.peak_reserved_bytes as f64 / self.peak_requested_bytes as f64 - 1.0
    }

    /// Whether what was reserved is what was requested, but for 1 % or 64 MiB, whichever is more: what the paged
    /// allocator is meant to keep to.
    pub fn is_close(&self) -> bool {
        let allowed = (self.peak_requested_bytes / 100).max(64 << 20);
        self.peak_reserved_bytes <= self.peak_requested_bytes + allowed
    }
}

/// Compares the paged allocator with the model of PyTorch's default one, in one sentence; `None` without both replays.
pub fn verdict(outcomes: &[Outcome]) -> Option<String> {
    let reserved = |kind| outcomes.iter().find(|outcome| outcome.allocator == kind).map(|o| o.peak_reserved_bytes);
    let (native, paged) = (reserved(AllocatorKind::Native)?, reserved(AllocatorKind::Paged)?);
    let difference = native.abs_diff(paged);
    let share = Percent(if native == 0 { 0.0 } else { difference as f64 / native as f64 });
    let word = if paged <= native { "saved" } else { "more" };
    Some(format!(
        "paged would have held {} where a model of PyTorch's native allocator held {} in the same replay: {} ({share}) {word}",
        Bytes(paged),
        Bytes(native),
        Bytes(difference),
    ))
}

/// Says in one sentence what the trace itself records of PyTorch's segments; `None` if it records none.
pub fn recorded(outcome: &Outcome) -> Option<String> {
    let &Outcome { recorded_reserved_bytes: peak, recorded_reserved_end_bytes: end, .. } = outcome;
    let at_most = if peak == end { ", its peak".to_owned() } else { format!(", and {} at its peak", Bytes(peak)) };
    (peak > 0).then(|| format!("The recording itself has {} reserved by PyTorch at its end{at_most}", Bytes(end)))
}

/// Says in one sentence what was there before the trace's history began; `None` if nothing was.
pub fn before_history(earlier_bytes: u64) -> Option<String> {
    let bytes = Bytes(earlier_bytes);
    (earlier_bytes > 0).then(|| format!("{bytes} were live before the history begins, and count"))
}

/// Driver calls that change what memory is where. A call over several chunks counts once for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DriverCalls {
    /// Segments allocated.
    pub malloc: u64,
    /// Segments freed.
    pub free: u64,
    /// Chunks created.
    pub create: u64,
    /// Chunks mapped.
    pub map: u64,
    /// Chunks made accessible.
    pub set_access: u64,
    /// Chunks unmapped.
    pub unmap: u64,
    /// Chunks released.
    pub release: u64,
}

impl DriverCalls {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.malloc + self.free + self.create + self.map + self.set_access + self.unmap + self.release
    }
}

impl From<Counters> for DriverCalls {
    fn from(counters: Counters) -> Self {
        let Counters { malloc, free, create, map, set_access, unmap, release, .. } = counters;
        Self { malloc, free, create, map, set_access, unmap, release }
    }
}

/// The digits below a nanosecond are rounding errors of a sum.
pub(super) fn to_nanoseconds<S: Serializer>(us: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((us * 1e3).round() / 1e3)
}
