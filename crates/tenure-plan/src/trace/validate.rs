//! Validation of a trace's events.

use std::collections::BTreeMap;

use super::{EventError, TraceAction, TraceError, TraceEvent};

/// Checks the events, starting from an empty device; returns an error for the first that is not valid after those
/// before it.
///
/// Errors count recorded events only: the events at the positions `inserted`, which ascend, have no number.
pub(super) fn check(events: &[TraceEvent], inserted: &[usize]) -> Result<(), TraceError> {
    let mut blocks = Live::default();
    let mut segments = Live::default();
    for (position, event) in events.iter().enumerate() {
        let before = inserted.partition_point(|&other| other < position);
        let index = position - before;
        let number = (inserted.get(before) != Some(&position)).then_some(index);
        step(&mut blocks, &mut segments, number, event).map_err(|reason| TraceError::Event { index, reason })?;
    }
    Ok(())
}

fn step(blocks: &mut Live, segments: &mut Live, index: Option<usize>, event: &TraceEvent) -> Result<(), EventError> {
    let &TraceEvent { action, address, bytes, .. } = event;
    if action.has_range() && event.end().is_none() {
        return Err(EventError::Overflow { action, address, bytes });
    }
    match action {
        TraceAction::Alloc => blocks.insert(index, event),
        TraceAction::FreeRequested => {
            let block = blocks.find(event)?;
            if block.free_requested {
                return Err(EventError::FreeOrder { action, address, state: "already requested" });
            }
            block.free_requested = true;
            Ok(())
        }
        TraceAction::FreeCompleted => {
            if !blocks.find(event)?.free_requested {
                return Err(EventError::FreeOrder { action, address, state: "not requested" });
            }
            blocks.0.remove(&address);
            Ok(())
        }
        TraceAction::SegmentAlloc => segments.insert(index, event),
        // A history that begins late may not have seen the segment, and nothing else depends on it.
        TraceAction::SegmentFree if !segments.0.contains_key(&address) => Ok(()),
        TraceAction::SegmentFree => {
            segments.find(event)?;
            segments.0.remove(&address);
            Ok(())
        }
        // Expandable segments map and unmap any of their parts, in pieces that need not match.
        TraceAction::SegmentMap | TraceAction::SegmentUnmap => Ok(()),
        TraceAction::Snapshot | TraceAction::Oom | TraceAction::UserDefined | TraceAction::Annotate => Ok(()),
    }
}

/// Disjoint ranges by address.
#[derive(Default)]
struct Live(BTreeMap<u64, LiveRange>);

struct LiveRange {
    bytes: u64,
    /// The event that made it; `None` if it existed before the history.
    since: Option<usize>,
    free_requested: bool,
}

impl Live {
    fn insert(&mut self, index: Option<usize>, event: &TraceEvent) -> Result<(), EventError> {
        // An empty block still has an address of its own.
        let last = event.address.saturating_add(event.bytes.max(1) - 1);
        if let Some((&other_address, other)) = self.0.range(..=last).next_back()
            && other_address.saturating_add(other.bytes.max(1)) > event.address
        {
            return Err(EventError::Overlap {
                action: event.action,
                address: event.address,
                bytes: event.bytes,
                other_index: other.since,
                other_address,
                other_bytes: other.bytes,
            });
        }
        self.0.insert(event.address, LiveRange { bytes: event.bytes, since: index, free_requested: false });
        Ok(())
    }

    fn find(&mut self, event: &TraceEvent) -> Result<&mut LiveRange, EventError> {
        let &TraceEvent { action, address, bytes, .. } = event;
        let range = self.0.get_mut(&address).ok_or(EventError::UnknownAddress { action, address })?;
        if range.bytes != bytes {
            let LiveRange { bytes: live_bytes, since: made_index, .. } = *range;
            return Err(EventError::SizeMismatch { action, address, bytes, live_bytes, made_index });
        }
        Ok(range)
    }
}
