//! Iteration over the lines of a contiguous tensor along one dimension.

use std::ops::Range;

use super::elementwise::GRAIN;
use crate::threads;

/// The largest number of neighbouring lines that are processed at once.
pub(super) const WIDTH: usize = 128;

/// Some neighbouring lines along a dimension: `n` rows of `width` elements.
pub(super) struct Columns {
    start: usize,
    pub(super) n: usize,
    pub(super) width: usize,
    step: usize,
}

impl Columns {
    /// Returns the range of the elements of row `i`.
    #[inline(always)]
    pub(super) fn row(&self, i: usize) -> Range<usize> {
        let start = self.start + i * self.step;
        start..start + self.width
    }
}

/// Processes all lines along a dimension: calls `row` for each line if lines are contiguous, else `columns` for several
/// neighbouring lines at once.
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
            let line = tile / tiles;
            let column = tile % tiles * WIDTH;
            let width = WIDTH.min(inner - column);
            columns(Columns { start: line * n * inner + column, n, width, step: inner });
        }
    });
}
