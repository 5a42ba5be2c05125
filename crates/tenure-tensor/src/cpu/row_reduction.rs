//! Reductions of contiguous rows in vector lanes, for loops compiled for wide vectors.

use crate::arrays;
use crate::element::Real;

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
