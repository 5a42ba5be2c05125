//! Failed allocations of a trace, and the memory at their moments.

use std::collections::VecDeque;

use super::segments::SegmentState;
use super::{SegmentTotals, TraceAction, TraceEvent};

/// An allocation that failed, and the memory at that moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Its event.
    pub event: usize,
    /// The bytes that the program asked for.
    pub requested_bytes: u64,
    /// The bytes that were free on the device, outside of all segments.
    pub device_free_bytes: u64,
    /// The bytes in live blocks.
    pub live_bytes: u64,
    /// The bytes in segments, at least the live ones; `None` if the trace has no events of segments.
    pub reserved_bytes: Option<u64>,
    /// The bytes of the largest free part of a segment; `None` if the trace has no events of segments.
    pub largest_free_bytes: Option<u64>,
}

impl OutOfMemory {
    /// The most failed allocations that reports list.
    pub const LISTED: usize = 20;
}

/// Returns the last [`OutOfMemory::LISTED`] failed allocations, in their order.
pub(super) fn last(events: &[TraceEvent]) -> Vec<OutOfMemory> {
    let mut last = VecDeque::new();
    for (event, _) in events.iter().enumerate().filter(|(_, event)| event.action == TraceAction::Oom) {
        last.push_back(event);
        if last.len() > OutOfMemory::LISTED {
            last.pop_front();
        }
    }
    let are_recorded = events.iter().any(|event| event.action.is_of_segment());
    let mut state = SegmentState::default();
    let mut next = 0;
    let failed = last.into_iter().map(|index| {
        events[next..index].iter().for_each(|event| state.apply(event));
        next = index;
        let event = &events[index];
        let live_bytes = state.live_bytes();
        let segments = are_recorded.then(|| SegmentTotals::of(&state.segments(0)));
        OutOfMemory {
            event: index,
            requested_bytes: event.bytes,
            device_free_bytes: event.address,
            live_bytes,
            reserved_bytes: segments.map(|segments| segments.reserved_bytes.max(live_bytes)),
            largest_free_bytes: segments.map(|segments| segments.largest_free_bytes),
        }
    });
    failed.collect()
}
