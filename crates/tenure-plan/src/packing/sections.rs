use std::ops::Range;

use super::Buffer;

/// The sets of buffers that are alive at once, in time's order: only those which are no part of another.
///
/// A buffer is in sections that follow each other, and two buffers meet if and only if they share one.
#[derive(Clone, Debug)]
pub(super) struct Sections {
    ranges: Vec<Range<usize>>,
    count: usize,
}

impl Sections {
    pub(super) fn of(buffers: &[Buffer]) -> Self {
        // What ends at a moment is gone for what begins then.
        let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * buffers.len());
        for (index, buffer) in buffers.iter().enumerate() {
            events.push((buffer.end, false, index));
            events.push((buffer.start, true, index));
        }
        events.sort_unstable();
        let mut ranges = vec![0..0; buffers.len()];
        let (mut count, mut has_grown) = (0, false);
        for (_, is_start, index) in events {
            if is_start {
                has_grown = true;
                ranges[index].start = count;
            } else {
                // The first end after a start: nothing can be added to this set.
                count += usize::from(has_grown);
                has_grown = false;
                ranges[index].end = count;
            }
        }
        Self { ranges, count }
    }

    /// The sections that the buffer is in.
    pub(super) fn range(&self, buffer: usize) -> Range<usize> {
        self.ranges[buffer].clone()
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Buffers, counted in each section again.
    pub(super) fn crowd(&self) -> u64 {
        self.ranges.iter().map(|range| range.len() as u64).sum()
    }

    /// Bytes alive in each section.
    pub(super) fn totals(&self, buffers: &[Buffer]) -> Vec<u64> {
        // Differences from one section to the next: a sum over every buffer's range would take their product.
        let mut changes = vec![(0, 0); self.count + 1];
        for (range, buffer) in self.ranges.iter().zip(buffers) {
            changes[range.start].0 += buffer.size_bytes;
            changes[range.end].1 += buffer.size_bytes;
        }
        let mut live = 0;
        let totals = changes[..self.count].iter().map(|(born, gone)| {
            live = live + born - gone;
            live
        });
        totals.collect()
    }

    /// Buffers by the parts of time that no lifetime joins.
    pub(super) fn parts(&self) -> Vec<Vec<usize>> {
        let mut buffers: Vec<usize> = (0..self.ranges.len()).collect();
        buffers.sort_by_key(|&buffer| self.ranges[buffer].start);
        let mut parts: Vec<Vec<usize>> = Vec::new();
        let mut end = 0;
        for buffer in buffers {
            let range = &self.ranges[buffer];
            match parts.last_mut() {
                Some(part) if range.start < end => part.push(buffer),
                _ => parts.push(vec![buffer]),
            }
            end = end.max(range.end);
        }
        parts
    }
}
