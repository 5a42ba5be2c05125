//! Positions as angles.

use super::loops::{for_each_block, vectorized};
use super::math::Math;
use super::norm::block;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Result};

/// Of inputs `a`, `b`, `cos` and `sin`, writes `a * cos + sign * b * sin`.
pub(crate) type Rotate = fn(&Elementwise<'_>, f64) -> Result<()>;

pub(crate) const ROTATE: &[Entry<Rotate>] = on_cpu!(lanes of floats: rotate::<T>);

fn rotate<R: Math>(iter: &Elementwise<'_>, sign: f64) -> Result<()> {
    let sign = R::of(sign);
    for_each_block(iter, [R::DTYPE; 5], &|[out, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives as many elements of this type, and nobody else uses the output's.
        let (out, [a, b, cos, sin]) = unsafe { block::<R, 4>(out, inputs, n) };
        vectorized!(for i in 0..n {
            out[i] = a[i] * cos[i] + sign * b[i] * sin[i];
        });
    });
    Ok(())
}
