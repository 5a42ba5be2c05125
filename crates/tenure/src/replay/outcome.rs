//! The outcome of a replay, and sentences that summarize it.

use serde::Serialize;
use tenure_device::Counters;

use super::kind::AllocatorKind;
use super::measured::{OnDevice, to_nanoseconds};
use crate::units::{Bytes, Percent};

/// The outcome of a replay. Serialises to one JSON object whose keys are the fields, in this order.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ReplayOutcome {
    /// The trace's source: usually the name of its file.
    pub trace: String,
    /// The allocator.
    pub allocator: AllocatorKind,
    /// The number of events in the trace's history, of every kind.
    pub events: usize,
    /// Bytes that were live before the trace's history began. Every peak includes them.
    pub earlier_bytes: u64,
    /// The most device bytes that the recorded allocator held at once; 0 if the trace has no events of segments.
    pub recorded_reserved_bytes: u64,
    /// The device bytes that the recorded allocator held after the last event; 0 if the trace has no events of
    /// segments.
    pub recorded_reserved_end_bytes: u64,
    /// Allocations and frees of one pass, including those after its last event.
    pub operations: usize,
    /// The most bytes requested and live at once, over all passes.
    pub peak_requested_bytes: u64,
    /// The most bytes in live blocks at once, as the allocator rounds them, over all passes.
    pub peak_allocated_bytes: u64,
    /// The most device bytes held at once, over all passes, as the driver saw it.
    pub peak_reserved_bytes: u64,
    /// The most segments at once, over all passes. PyTorch does not count expandable ones; the paged allocator counts
    /// maximal mapped ranges.
    pub peak_segments: u64,
    /// Device bytes obtained, by allocating segments and creating chunks.
    pub created_bytes: u64,
    /// Driver calls of all passes.
    pub driver_calls: DriverCalls,
    /// Driver calls of the last pass.
    pub driver_calls_last_repeat: DriverCalls,
    /// The modelled time of all passes' driver calls, in µs, including the host's waits for the device.
    #[serde(serialize_with = "to_nanoseconds")]
    pub modelled_driver_us: f64,
    /// The modelled time of the last pass's driver calls, in µs.
    #[serde(serialize_with = "to_nanoseconds")]
    pub modelled_driver_us_last_repeat: f64,
    /// The time from the trace's first event to its last, in µs: one pass. `None` if the recorder had no clock.
    pub trace_duration_us: Option<u64>,
    /// The number of times that the host waited for the device on behalf of the allocator.
    pub host_syncs: u64,
    /// The number of times that one stream was made to wait for another.
    pub cross_stream_waits: u64,
    /// The number of allocations in the first pass that are at another address than PyTorch's. `None` if the addresses
    /// may differ: on any allocator but the native one, for a recording that began late or has expandable segments, and
    /// on a real device, which chooses the addresses itself.
    pub mismatched_addresses: Option<usize>,
    /// The median wall-clock time of an allocation, in ns, including the driver's time but not the clock's.
    pub alloc_ns_median: u32,
    /// The time that one allocation in a hundred exceeds, in ns.
    pub alloc_ns_p99: u32,
    /// The median wall-clock time of a free, in ns.
    pub free_ns_median: u32,
    /// The measurements on a real device; absent after a replay on the simulated one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<OnDevice>,
}

impl ReplayOutcome {
    /// Returns the reserved bytes beyond the requested bytes at the peaks, as a share of the peak requested.
    pub fn overhead(&self) -> f64 {
        if self.peak_requested_bytes == 0 {
            return 0.0;
        }
        self.peak_reserved_bytes as f64 / self.peak_requested_bytes as f64 - 1.0
    }

    /// Returns whether the reserved bytes exceed the requested bytes by at most 1 % or 64 MiB, whichever is more: the
    /// goal of the paged allocator.
    pub fn is_close(&self) -> bool {
        let allowed = (self.peak_requested_bytes / 100).max(64 << 20);
        self.peak_reserved_bytes <= self.peak_requested_bytes + allowed
    }
}

/// Returns a sentence that compares the paged allocator with the model of PyTorch's default one; `None` without both
/// replays.
pub fn verdict(outcomes: &[ReplayOutcome]) -> Option<String> {
    let reserved = |kind| outcomes.iter().find(|outcome| outcome.allocator == kind).map(|o| o.peak_reserved_bytes);
    let native = reserved(AllocatorKind::Native)?;
    let paged = reserved(AllocatorKind::Paged)?;
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

/// Returns a sentence about PyTorch's segments in the trace; `None` if it records none.
pub fn recorded(outcome: &ReplayOutcome) -> Option<String> {
    let &ReplayOutcome { recorded_reserved_bytes: peak, recorded_reserved_end_bytes: end, .. } = outcome;
    let at_most = if peak == end { ", its peak".to_owned() } else { format!(", and {} at its peak", Bytes(peak)) };
    (peak > 0).then(|| format!("The recording itself has {} reserved by PyTorch at its end{at_most}", Bytes(end)))
}

/// Returns a sentence about the memory from before the trace's history; `None` if there was none.
pub fn before_history(earlier_bytes: u64) -> Option<String> {
    let bytes = Bytes(earlier_bytes);
    (earlier_bytes > 0).then(|| format!("{bytes} were live before the history begins, and count"))
}

/// Driver calls that change mappings or allocate memory. A call over several chunks counts once for each.
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
    /// Returns the sum of all calls.
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
