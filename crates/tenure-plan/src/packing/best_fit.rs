//! Greedy packing: places buffers one after the other, each into a hole that holds it.

use std::ops::Range;

use super::occupied::OccupiedBytes;
use super::{Buffer, PackingProblem, align_up};

/// The hole that a buffer is put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fit {
    /// The smallest that holds it.
    Best,
    /// The lowest that holds it.
    First,
}

impl Fit {
    /// Both.
    pub(super) const ALL: [Self; 2] = [Self::Best, Self::First];
}

/// The work of placing a buffer, besides the ranges that are examined: visits of nodes.
const PLACE_WORK: usize = 16;

/// Places the buffers of one part of a problem.
pub(super) struct Placer<'a> {
    problem: &'a PackingProblem,
    /// The buffers of the part that have fixed offsets.
    fixed: Vec<usize>,
    /// The sections of the part.
    sections: Range<usize>,
    occupied: OccupiedBytes,
    /// Scratch space: the bytes that are occupied during a buffer's lifetime.
    ranges: Vec<Range<u64>>,
}

impl<'a> Placer<'a> {
    /// Makes a placer for sequences of `buffers`.
    pub(super) fn new(problem: &'a PackingProblem, buffers: &[usize]) -> Self {
        let ranges = || buffers.iter().map(|&index| problem.sections.range(index));
        let start = ranges().map(|range| range.start).min().unwrap_or(0);
        let end = ranges().map(|range| range.end).max().unwrap_or(0);
        Self {
            problem,
            fixed: buffers.iter().copied().filter(|&index| problem.buffers[index].fixed().is_some()).collect(),
            sections: start..end,
            occupied: OccupiedBytes::new(end - start),
            ranges: Vec::new(),
        }
    }

    /// Places the buffers of `sequence` in its order around those with fixed offsets, and returns their offsets. Calls
    /// `go_on` for each with the work that it takes and the end of the buffer before; returns `None` if it
    /// returns `false`.
    pub(super) fn place(
        &mut self,
        sequence: &[usize],
        fit: Fit,
        mut go_on: impl FnMut(usize, u64) -> bool,
    ) -> Option<Vec<u64>> {
        self.occupied.clear();
        for &index in &self.fixed {
            if let Some(bytes) = self.problem.buffers[index].fixed() {
                self.occupied.insert(&self.sections_of(index), &bytes);
            }
        }
        let mut offsets = Vec::with_capacity(sequence.len());
        let mut end = 0;
        for &index in sequence {
            let buffer = &self.problem.buffers[index];
            let sections = self.sections_of(index);
            self.occupied.collect(&sections, buffer.size_bytes, &mut self.ranges);
            if !go_on(self.ranges.len() + PLACE_WORK, end) {
                return None;
            }
            let offset = find_offset(&self.ranges, buffer, fit);
            end = offset + buffer.size_bytes;
            self.occupied.insert(&sections, &(offset..end));
            offsets.push(offset);
        }
        Some(offsets)
    }

    /// Returns a buffer's sections, counted from the first of the part.
    fn sections_of(&self, buffer: usize) -> Range<usize> {
        let range = self.problem.sections.range(buffer);
        range.start - self.sections.start..range.end - self.sections.start
    }
}

/// Returns the offset in the hole that `fit` chooses, or the lowest above all of `occupied`, which is sorted by the
/// lower ends.
fn find_offset(occupied: &[Range<u64>], buffer: &Buffer, fit: Fit) -> u64 {
    let mut top = 0;
    let mut best: Option<(u64, u64)> = None;
    for range in occupied {
        let offset = align_up(top, buffer.alignment);
        let hole = range.start.saturating_sub(top);
        if offset + buffer.size_bytes <= range.start && best.is_none_or(|(smallest, _)| hole < smallest) {
            best = Some((hole, offset));
            if fit == Fit::First {
                break;
            }
        }
        top = top.max(range.end);
    }
    best.map_or_else(|| align_up(top, buffer.alignment), |(_, offset)| offset)
}
