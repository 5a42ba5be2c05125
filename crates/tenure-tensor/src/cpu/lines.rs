//! Lines of a contiguous tensor along one of its dimensions, and what is computed along them.

use std::ops::Range;

use super::loops::GRAIN;
use crate::threads;

/// Lines side by side that are gone through at once, at most.
pub(super) const WIDTH: usize = 128;

/// Some lines along a dimension next to each other: `n` rows of `width` elements.
pub(super) struct Columns {
    start: usize,
    pub(super) n: usize,
    pub(super) width: usize,
    step: usize,
}

impl Columns {
    /// The elements of row `i`.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Range<usize> {
        let start = self.start + i * self.step;
        start..start + self.width
    }
}

/// Goes through all lines along a dimension: `row` of each where they are dense, else `columns` of some at once.
pub(super) fn for_each_line(
    sizes: &[usize],
    dim: usize,
    row: impl Fn(Range<usize>) + Sync,
    columns: impl Fn(Columns) + Sync,
) {
    let n = sizes.get(dim).copied().unwrap_or(1);
    let outer: usize = sizes.iter().take(dim).product();
    let inner: usize = sizes.iter().skip(dim + 1).product();
    let per_line = GRAIN.checked_div(n).unwrap_or(1);
    if inner == 1 {
        threads::for_each_range(outer, per_line, |lines| lines.for_each(|line| row(line * n..(line + 1) * n)));
        return;
    }
    let tiles = inner.div_ceil(WIDTH);
    let per_tile = per_line / WIDTH.min(inner).max(1);
    threads::for_each_range(outer * tiles, per_tile, |range| {
        for tile in range {
            let (line, column) = (tile / tiles, tile % tiles * WIDTH);
            let width = WIDTH.min(inner - column);
            columns(Columns { start: line * n * inner + column, n, width, step: inner });
        }
    });
}
