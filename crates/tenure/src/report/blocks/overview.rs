//! The overview of a page: the whole history in few cells, which a browser draws before it reads any block.
//!
//! Deflated, in base64, as unsigned LEB128 integers: columns, rows, highest bytes, first event, event after the last,
//! 1 if colours are of stacks; then for each column, from left to right: count of runs; for each run from the bottom:
//! rows, colour. A colour is the number of a stack plus one, or of a size class plus one, or 0 for grey.

use std::collections::BTreeSet;
use std::ops::Range;

use super::columns::{deflated, put};
use super::history::{BlockHistory, Life};
use crate::report::history::size_class;

const COLUMNS: usize = 600;
const ROWS: u64 = 240;

/// The meaning of a block's colour.
pub(super) enum Colors<'a> {
    /// For each block the number of its stack plus one, or 0.
    OfStacks(&'a [u64]),
    OfSizes,
}

impl Colors<'_> {
    fn of(&self, number: usize, block: &Life) -> u64 {
        match self {
            Self::OfStacks(stacks) => stacks[number],
            Self::OfSizes => size_class(block.bytes) as u64 + 1,
        }
    }
}

/// Draws `blocks`, and all other blocks above them in grey.
pub(super) fn overview(history: &BlockHistory, blocks: &[&Life], colors: &Colors<'_>) -> String {
    let heights = heights(history);
    let peak = heights.iter().copied().max().unwrap_or(0);
    let mut out = Vec::new();
    let columns = COLUMNS.min(heights.len());
    let span = &history.span;
    let has_stacks = matches!(colors, Colors::OfStacks(_));
    for number in [columns as u64, ROWS, peak, span.start as u64, span.end as u64, has_stacks.into()] {
        put(&mut out, number);
    }
    let mut moments = Moments::of(blocks);
    for column in 0..columns {
        let event = highest(&heights, column * heights.len() / columns..(column + 1) * heights.len() / columns);
        moments.go_to(span.start + event);
        let live = moments.live.iter().map(|&number| (blocks[number].bytes, colors.of(number, blocks[number])));
        put_column(&mut out, live, heights[event], peak.max(1));
    }
    deflated(&[&out])
}

/// Returns the live bytes after each event of the span.
fn heights(history: &BlockHistory) -> Vec<u64> {
    let span = &history.span;
    if span.is_empty() {
        return Vec::new();
    }
    let mut changes = vec![0_i64; span.len()];
    for block in &history.blocks {
        changes[block.born.max(span.start) - span.start] += block.bytes as i64;
        if let Some(died) = block.died.filter(|&died| died < span.end) {
            changes[died - span.start] -= block.bytes as i64;
        }
    }
    let sums = changes.into_iter().scan(0_i64, |live, change| {
        *live += change;
        Some(*live as u64)
    });
    sums.collect()
}

/// Returns the first event at which `heights` is highest in `range`, which is not empty.
fn highest(heights: &[u64], range: Range<usize>) -> usize {
    range.rev().max_by_key(|&event| heights[event]).unwrap_or(0)
}

/// Writes the runs of a column in which `live` blocks are stacked, with grey up to `height`.
fn put_column(out: &mut Vec<u8>, live: impl Iterator<Item = (u64, u64)>, height: u64, peak: u64) {
    let mut runs: Vec<[u64; 2]> = Vec::new();
    let mut fill = |from: u64, to: u64, color: u64| {
        let row = |bytes: u64| (u128::from(bytes.min(height)) * u128::from(ROWS) / u128::from(peak)) as u64;
        let rows = row(to) - row(from);
        match runs.last_mut().filter(|run| run[1] == color) {
            Some(run) => run[0] += rows,
            None if rows > 0 => runs.push([rows, color]),
            None => {}
        }
    };
    let mut sum = 0;
    for (bytes, color) in live {
        fill(sum, sum + bytes, color);
        sum += bytes;
    }
    fill(sum, height.max(sum), 0);
    put(out, runs.len() as u64);
    runs.iter().flatten().for_each(|&number| put(out, number));
}

/// The live blocks at a moment that moves forward.
struct Moments<'a> {
    blocks: &'a [&'a Life],
    /// Blocks that are freed, in the order of their frees.
    deaths: Vec<(usize, usize)>,
    live: BTreeSet<usize>,
    born: usize,
    died: usize,
}

impl<'a> Moments<'a> {
    fn of(blocks: &'a [&'a Life]) -> Self {
        let deaths = blocks.iter().enumerate().filter_map(|(number, block)| Some((block.died?, number)));
        let mut deaths: Vec<_> = deaths.collect();
        deaths.sort_unstable();
        Self { blocks, deaths, live: BTreeSet::new(), born: 0, died: 0 }
    }

    /// Moves forward to the moment after `event`.
    fn go_to(&mut self, event: usize) {
        while self.blocks.get(self.born).is_some_and(|block| block.born <= event) {
            self.live.insert(self.born);
            self.born += 1;
        }
        while let Some(&(_, block)) = self.deaths.get(self.died).filter(|death| death.0 <= event) {
            self.live.remove(&block);
            self.died += 1;
        }
    }
}
