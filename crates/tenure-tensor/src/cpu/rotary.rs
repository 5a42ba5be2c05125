//! Pairs of numbers turned by angles.

use super::loops::{for_each_block, vectorized};
use super::math::Math;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Result};

/// Writes `a * cos + sign * b * sin`.
pub(crate) type Rotate = fn(&Elementwise<'_>, f64) -> Result<()>;

pub(crate) const ROTATE: &[Entry<Rotate>] = on_cpu!(lanes of floats: rotate::<T>);

fn rotate<R: Math>(iter: &Elementwise<'_>, sign: f64) -> Result<()> {
    let sign = R::of(sign);
    for_each_block(iter, [R::DTYPE; 5], &|[out, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives as many elements of this type, and nobody else uses the output's.
        let (out, [a, cos, b, sin]) = unsafe {
            (
                std::slice::from_raw_parts_mut(out.cast::<R>(), n),
                inputs.map(|input| std::slice::from_raw_parts(input.cast_const().cast::<R>(), n)),
            )
        };
        vectorized!(for i in 0..n {
            out[i] = a[i] * cos[i] + sign * b[i] * sin[i];
        });
    });
    Ok(())
}
