//! Rotary position embeddings.

use super::elementwise::{block_of, for_each_block, vectorized};
use super::math::Math;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Result};

/// A kernel that writes `a * cos + sign * b * sin` and `b * cos - sign * a * sin`, from inputs `a`, `b`, `cos` and
/// `sin`.
pub(crate) type Rotate = fn(&Elementwise<'_>, f64) -> Result<()>;

pub(crate) const ROTATE: &[Entry<Rotate>] = on_cpu!(lanes of floats: rotate::<T>);

fn rotate<R: Math>(iter: &Elementwise<'_>, sign: f64) -> Result<()> {
    let sign = R::of(sign);
    for_each_block(iter, [R::DTYPE; 6], &|[first, second, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives `n` elements of this type, and only this call accesses the outputs'.
        let ([first, second], [a, b, cos, sin]) = unsafe { block_of::<R, 2, _>([first, second], inputs, n) };
        vectorized!(for i in 0..n {
            first[i] = a[i] * cos[i] + sign * b[i] * sin[i];
            second[i] = b[i] * cos[i] - sign * a[i] * sin[i];
        });
    });
    Ok(())
}
