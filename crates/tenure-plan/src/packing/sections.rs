//! Sections: the maximal sets of buffers that are alive at once.

use std::ops::Range;

use super::Buffer;

/// The sets of buffers that are alive at once, in the order of time. A set that is part of another is left out.
///
/// The sections of a buffer are consecutive, and two buffers overlap in time if and only if they share a section.
#[derive(Clone, Debug)]
pub(super) struct Sections {
    /// The sections of each buffer.
    ranges: Vec<Range<usize>>,
    /// The number of sections.
    count: usize,
}

impl Sections {
    /// Finds the sections of `buffers`.
    pub(super) fn of(buffers: &[Buffer]) -> Self {
        // A buffer that ends at a moment is gone before another begins at it.
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

    /// Returns the sections of a buffer.
    pub(super) fn range(&self, buffer: usize) -> Range<usize> {
        self.ranges[buffer].clone()
    }

    /// Returns the number of sections.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Returns the bytes alive in each section.
    pub(super) fn totals(&self, buffers: &[Buffer]) -> Vec<u64> {
        // Add up differences between neighbouring sections: a sum over every buffer's range would take buffers times
        // sections.
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

    /// Returns, for each buffer, the bytes alive in its fullest section.
    pub(super) fn fullness(&self, buffers: &[Buffer]) -> Vec<u64> {
        // Row `i` has the maximum of every `2^i` neighbouring sections: any range is two of these.
        let mut rows = vec![self.totals(buffers)];
        while let Some(row) = rows.last().filter(|row| row.len() > 1 << (rows.len() - 1)) {
            let step = 1 << (rows.len() - 1);
            let next = row.iter().zip(&row[step..]).map(|(left, right)| *left.max(right)).collect();
            rows.push(next);
        }
        let fullest = self.ranges.iter().map(|range| {
            let level = range.len().ilog2() as usize;
            rows[level][range.start].max(rows[level][range.end - (1 << level)])
        });
        fullest.collect()
    }

    /// Returns the buffers in groups. No lifetime of one group overlaps with one of another.
    pub(super) fn connected_buffers(&self) -> Vec<Vec<usize>> {
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
