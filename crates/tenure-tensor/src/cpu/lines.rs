//! Lines of a contiguous tensor along one dimension, and reductions of rows in vector lanes, for loops compiled for wide
//! vectors.

use std::ops::Range;

use super::elementwise::GRAIN;
use crate::element::Real;
use crate::{arrays, threads};

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

/// The number of lanes: several vectors, so that one need not wait for another.
const LANES: usize = 32;

/// Reduces some rows of the same length to one value: merges `value` of their elements.
#[inline(always)]
#[expect(
    clippy::needless_range_loop,
    reason = "`blocks` and `rows` hold one slice for each row: the index is within each"
)]
pub(super) fn reduce_rows<T: Copy, R: Copy, const N: usize>(
    rows: [&[T]; N],
    identity: R,
    value: impl Fn([T; N]) -> R,
    merge: impl Fn(R, R) -> R,
) -> R {
    let n = rows[0].len();
    let blocks: [_; N] = arrays::from_fn(|row| rows[row][..n].as_chunks::<LANES>().0);
    let mut lanes = [identity; LANES];
    for i in 0..n / LANES {
        let block: [_; N] = arrays::from_fn(|row| &blocks[row][i]);
        for lane in 0..LANES {
            lanes[lane] = merge(lanes[lane], value(arrays::from_fn(|row| block[row][lane])));
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = merge(lanes[lane], lanes[lane + width]);
        }
    }
    let mut all = lanes[0];
    for i in n - n % LANES..n {
        all = merge(all, value(arrays::from_fn(|row| rows[row][i])));
    }
    all
}

/// Returns the sum of `value` over the elements of some rows of the same length.
#[inline(always)]
pub(super) fn sum<T: Copy, R: Real, const N: usize>(rows: [&[T]; N], value: impl Fn([T; N]) -> R) -> R {
    reduce_rows(
        rows,
        R::ZERO,
        value,
        #[inline(always)]
        |a, b| a + b,
    )
}

/// Returns the larger number, or NaN if one is NaN.
#[inline(always)]
#[expect(clippy::eq_op, reason = "NaN does not equal itself")]
pub(super) fn larger<R: Real>(a: R, b: R) -> R {
    if a > b || a != a { a } else { b }
}
