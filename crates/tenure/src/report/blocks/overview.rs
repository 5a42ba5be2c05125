//! The overview of a page: the whole history in few cells, which a browser draws before it reads any block.
//!
//! A colour is the number of a stack plus one, or of a size class plus one, or 0 for grey.

use std::collections::BTreeSet;
use std::ops::Range;

use serde::Serialize;

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

/// The overview, in the order in which `overview.js` reads it.
#[derive(Serialize)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub(super) struct Overview {
    pub(super) rows: u64,
    /// The highest bytes.
    pub(super) peak: u64,
    from: u64,
    to: u64,
    has_stacks: bool,
    /// The columns from left to right, each as runs from the bottom: rows and colour.
    pub(super) columns: Vec<Vec<[u64; 2]>>,
}

/// Draws `blocks`, and all other blocks above them in grey.
pub(super) fn overview(history: &BlockHistory, blocks: &[&Life], colors: &Colors<'_>) -> Overview {
    let heights = heights(history);
    let peak = heights.iter().copied().max().unwrap_or(0);
    let count = COLUMNS.min(heights.len());
    let span = &history.span;
    let mut moments = Moments::of(blocks);
    let mut columns = Vec::with_capacity(count);
    for column in 0..count {
        let event = highest(&heights, column * heights.len() / count..(column + 1) * heights.len() / count);
        moments.go_to(span.start + event);
        let live = moments.live.iter().map(|&number| (blocks[number].bytes, colors.of(number, blocks[number])));
        columns.push(runs(live, heights[event], peak.max(1)));
    }
    let has_stacks = matches!(colors, Colors::OfStacks(_));
    Overview { rows: ROWS, peak, from: span.start as u64, to: span.end as u64, has_stacks, columns }
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

/// Returns the runs of a column in which `live` blocks are stacked, with grey up to `height`.
fn runs(live: impl Iterator<Item = (u64, u64)>, height: u64, peak: u64) -> Vec<[u64; 2]> {
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
    runs
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
