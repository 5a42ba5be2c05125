//! Sets of addresses.

use std::collections::BTreeMap;

use super::TraceEvent;

/// Returns the first byte after the event's range. An empty block still has an address of its own.
pub(super) fn end(event: &TraceEvent) -> u64 {
    event.address.saturating_add(event.bytes.max(1))
}

/// A set of addresses: disjoint ranges, each by its first byte and the first byte after it.
#[derive(Clone, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Returns the ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(&start, &end)| (start, end))
    }

    /// Removes the event's range.
    pub(super) fn remove(&mut self, event: &TraceEvent) {
        let removed_end = end(event);
        while let Some((&start, &other_end)) = self.0.range(..removed_end).next_back()
            && other_end > event.address
        {
            self.0.remove(&start);
            if other_end > removed_end {
                self.0.insert(removed_end, other_end);
            }
            if start < event.address {
                self.0.insert(start, event.address);
            }
        }
    }

    /// Returns whether the set has a byte of the event's range.
    pub(super) fn overlap(&self, event: &TraceEvent) -> bool {
        self.0.range(..end(event)).next_back().is_some_and(|(_, &other_end)| other_end > event.address)
    }

    /// Adds the event's range if no byte of it is in the set. Returns whether it was added.
    pub(super) fn claim_whole(&mut self, event: &TraceEvent) -> bool {
        let free = !self.overlap(event);
        if free {
            self.claim(event);
        }
        free
    }

    /// Adds the event's range. Returns the parts of it that were not in the set, from the last to the first.
    pub(super) fn claim(&mut self, event: &TraceEvent) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut merged_start = event.address;
        let mut merged_end = end(event);
        let mut gap_end = merged_end;
        while let Some((&other_start, &other_end)) = self.0.range(..=merged_end).next_back()
            && other_end >= merged_start
        {
            self.0.remove(&other_start);
            if other_end < gap_end {
                gaps.push((other_end.max(event.address), gap_end));
            }
            gap_end = gap_end.min(other_start);
            merged_start = merged_start.min(other_start);
            merged_end = merged_end.max(other_end);
        }
        if gap_end > event.address {
            gaps.push((event.address, gap_end));
        }
        self.0.insert(merged_start, merged_end);
        gaps
    }
}
