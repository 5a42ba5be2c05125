//! Compares the segments of a history with those that its snapshot lists, which say what is reserved at the end.

use std::collections::BTreeMap;

use super::ranges::{Ranges, end};
use super::{TraceAction, TraceEvent};

/// Returns the events that bring a history to the segments that its snapshot lists, each with the number of recorded
/// events before it, ascending. `merged` is the history from an empty device on, `recorded` the part that was recorded.
///
/// Note \[Segments at the end\]: a recorder may lack events of segments (`skip_actions`, a short ring). The snapshot
/// reads its `segments` from the allocator, so they are right where the two differ. A listed segment that the history
/// lacks is made before the first block that needs it, or at the end. A segment that is not listed is freed when another
/// takes its place, or at the end; it stays if a block in it is live.
pub(super) fn reconcile(
    merged: impl Iterator<Item = TraceEvent>,
    recorded: &[TraceEvent],
    at_end: &[TraceEvent],
) -> Vec<(usize, TraceEvent)> {
    let mut held = Held::default();
    merged.for_each(|event| held.step(&event));
    let mut claimed = Ranges::default();
    let mut listed_maps = Ranges::default();
    let mut unlisted = held.segments.clone();
    let mut missing = Missing::default();
    let mut mapped = held.mapped.clone();
    for segment in at_end {
        match segment.action {
            // Of segments that overlap, which no allocator has, the first counts.
            TraceAction::SegmentAlloc | TraceAction::SegmentMap if !claimed.claim_whole(segment) => {}
            TraceAction::SegmentAlloc if unlisted.get(&segment.address).is_some_and(|is| is.bytes == segment.bytes) => {
                unlisted.remove(&segment.address);
            }
            TraceAction::SegmentAlloc => missing.add(*segment, recorded.len()),
            TraceAction::SegmentMap => {
                listed_maps.claim(segment);
                for (address, end) in mapped.claim(segment) {
                    missing.add(TraceEvent { address, bytes: end - address, ..*segment }, recorded.len());
                }
            }
            _ => {}
        }
    }
    missing.find_moments(recorded, &held.segments);
    let mut events = Vec::new();
    for segment in unlisted.into_values() {
        let replaced = missing.first_over(&segment);
        if let Some(before) = replaced.or_else(|| (!held.has_block(&segment)).then_some(recorded.len())) {
            events.push((before, TraceEvent { action: TraceAction::SegmentFree, ..segment }));
        }
    }
    for (address, end) in held.mapped.iter() {
        let part = TraceEvent { address, bytes: end - address, ..TraceEvent::unmapping() };
        for (address, end) in listed_maps.claim(&part) {
            let part = TraceEvent { address, bytes: end - address, ..part };
            if !held.has_block(&part) {
                events.push((recorded.len(), part));
            }
        }
    }
    events.extend(missing.parts.into_values());
    events.sort_by_key(|&(before, event)| {
        (before, matches!(event.action, TraceAction::SegmentAlloc | TraceAction::SegmentMap))
    });
    events
}

impl TraceEvent {
    fn unmapping() -> Self {
        let action = TraceAction::SegmentUnmap;
        Self { time_us: super::times::MISSING_US, address: 0, bytes: 0, stream: tenure_core::StreamId::NULL, action }
    }
}

/// Segments, mapped ranges and blocks at the end of a history.
#[derive(Default)]
struct Held {
    segments: BTreeMap<u64, TraceEvent>,
    mapped: Ranges,
    /// The ends of live blocks.
    blocks: BTreeMap<u64, u64>,
}

impl Held {
    fn step(&mut self, event: &TraceEvent) {
        match event.action {
            TraceAction::Alloc => drop(self.blocks.insert(event.address, end(event))),
            TraceAction::FreeCompleted => drop(self.blocks.remove(&event.address)),
            TraceAction::SegmentAlloc => drop(self.segments.insert(event.address, *event)),
            TraceAction::SegmentFree => drop(self.segments.remove(&event.address)),
            TraceAction::SegmentMap => drop(self.mapped.claim(event)),
            TraceAction::SegmentUnmap => self.mapped.remove(event),
            _ => {}
        }
    }

    fn has_block(&self, range: &TraceEvent) -> bool {
        self.blocks.range(..end(range)).next_back().is_some_and(|(_, &block_end)| block_end > range.address)
    }
}

/// Listed segments and mapped ranges that a history lacks.
#[derive(Default)]
struct Missing {
    /// By address: the number of recorded events before the part is made, and the event that makes it.
    parts: BTreeMap<u64, (usize, TraceEvent)>,
}

impl Missing {
    fn add(&mut self, part: TraceEvent, before: usize) {
        self.parts.insert(part.address, (before, part));
    }

    /// Finds the first block in each part, after the last event of a segment at its place, that no other segment holds.
    fn find_moments(&mut self, recorded: &[TraceEvent], segments: &BTreeMap<u64, TraceEvent>) {
        let mut open: BTreeMap<u64, u64> =
            self.parts.iter().map(|(&address, (_, part))| (address, end(part))).collect();
        for (position, event) in recorded.iter().enumerate().rev() {
            if open.is_empty() {
                break;
            }
            let over = |open: &BTreeMap<u64, u64>| {
                let (&address, &part_end) = open.range(..end(event)).next_back()?;
                (part_end > event.address).then_some(address)
            };
            match event.action {
                TraceAction::Alloc => {
                    let holder = segments.range(..=event.address).next_back();
                    let is_held = holder.is_some_and(|(_, segment)| end(segment) >= end(event));
                    if let Some(part) = over(&open).filter(|_| !is_held).and_then(|part| self.parts.get_mut(&part)) {
                        part.0 = position;
                    }
                }
                TraceAction::SegmentAlloc
                | TraceAction::SegmentFree
                | TraceAction::SegmentMap
                | TraceAction::SegmentUnmap => {
                    while let Some(part) = over(&open) {
                        open.remove(&part);
                    }
                }
                _ => {}
            }
        }
    }

    /// Returns the moment of the first part that shares bytes with `segment`.
    fn first_over(&self, segment: &TraceEvent) -> Option<usize> {
        let parts = self.parts.range(..end(segment)).rev().map(|(_, part)| part);
        parts.take_while(|(_, part)| end(part) > segment.address).map(|&(before, _)| before).min()
    }
}
