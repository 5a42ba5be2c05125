//! Numbers of a row gathered in lanes, so that whole vectors are gathered at once. For loops compiled for wide vectors.

use crate::element::Real;

/// Some vectors, so that one need not wait for the one before.
const LANES: usize = 32;

/// `value(i)` of each `i` below `n`, merged.
#[inline(always)]
pub(super) fn gather<R: Copy>(n: usize, start: R, mut value: impl FnMut(usize) -> R, merge: impl Fn(R, R) -> R) -> R {
    let mut lanes = [start; LANES];
    let whole = n - n % LANES;
    for i in (0..whole).step_by(LANES) {
        for lane in 0..LANES {
            lanes[lane] = merge(lanes[lane], value(i + lane));
        }
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        (0..width).for_each(|lane| lanes[lane] = merge(lanes[lane], lanes[lane + width]));
    }
    (whole..n).fold(lanes[0], |all, i| merge(all, value(i)))
}

/// The sum of `value(i)` of each `i` below `n`.
#[inline(always)]
pub(super) fn sum<R: Real>(n: usize, value: impl FnMut(usize) -> R) -> R {
    gather(n, R::ZERO, value, |a, b| a + b)
}

/// The larger; what is no number wins.
#[inline(always)]
#[expect(clippy::eq_op, reason = "what is no number does not equal itself")]
pub(super) fn larger<R: Real>(a: R, b: R) -> R {
    if a > b || a != a { a } else { b }
}
