//! Softmax and log-softmax.

use super::lines::{WIDTH, for_each_line, larger, reduce_rows, sum};
use super::math::Math;
use super::shared_memory::{DisjointSlice, unbound};
use super::vectorized;
use crate::kernel::on_cpu;
use crate::{Access, Entry, Float, Number, Result, Tensor};

/// A kernel that writes the softmax of the input along a dimension, or its logarithm (`true`). Both tensors are
/// contiguous.
pub(crate) type Softmax = fn(&Tensor, &Tensor, usize, bool) -> Result<()>;
/// A kernel that writes the input's gradient, from the output's gradient and the output. All tensors are contiguous.
pub(crate) type SoftmaxBackward = fn(&Tensor, &Tensor, &Tensor, usize, bool) -> Result<()>;

pub(crate) const SOFTMAX: &[Entry<Softmax>] = on_cpu!(floats: softmax::<T>);
pub(crate) const SOFTMAX_BACKWARD: &[Entry<SoftmaxBackward>] = on_cpu!(floats: softmax_backward::<T>);

fn softmax<T: Float<Compute: Math>>(out: &Tensor, input: &Tensor, dim: usize, logarithmic: bool) -> Result<()> {
    let mut access = Access::new("softmax", &[out], &[input])?;
    let (x, y) = access.slices::<T, T>(0, 0)?;
    let y = DisjointSlice::new(y);
    for_each_line(
        input.sizes(),
        dim,
        |row| {
            let x = &x[row.clone()];
            // SAFETY: each row is taken once.
            let y = unsafe { y.range(row) };
            vectorized!(softmax_row(x, y, logarithmic));
        },
        |columns| {
            // SAFETY: each element is of one tile, and the range is used for elements of this tile only.
            let y = |i: usize| unsafe { y.range(columns.row(i)) };
            vectorized!(softmax_columns(|i| &x[columns.row(i)], y, columns.n, columns.width, logarithmic));
        },
    );
    Ok(())
}

#[inline(always)]
fn softmax_row<T: Float<Compute: Math>>(x: &[T], y: &mut [T], logarithmic: bool) {
    let n = x.len();
    let y = &mut y[..n];
    let largest = largest(x);
    if logarithmic {
        let log = sum_exp(x, largest).log();
        for i in 0..n {
            y[i] = T::narrow(x[i].widen() - largest - log);
        }
    } else if size_of::<T>() == size_of::<T::Compute>() {
        for i in 0..n {
            y[i] = T::narrow((x[i].widen() - largest).exp());
        }
        let scale = T::Compute::ONE
            / sum(
                [&*y],
                #[inline(always)]
                |[y]| y.widen(),
            );
        for y in y {
            *y = T::narrow(y.widen() * scale);
        }
    } else {
        // Exponentials are computed again: stored ones would be rounded.
        let scale = T::Compute::ONE / sum_exp(x, largest);
        for i in 0..n {
            y[i] = T::narrow((x[i].widen() - largest).exp() * scale);
        }
    }
}

/// Returns the largest element of a row.
#[inline(always)]
pub(super) fn largest<T: Float<Compute: Math>>(x: &[T]) -> T::Compute {
    reduce_rows(
        [x],
        T::Compute::of(f64::NEG_INFINITY),
        #[inline(always)]
        |[x]| x.widen(),
        larger,
    )
}

/// Returns the sum of the exponentials of a row's elements, each less the largest.
#[inline(always)]
pub(super) fn sum_exp<T: Float<Compute: Math>>(x: &[T], largest: T::Compute) -> T::Compute {
    sum(
        [x],
        #[inline(always)]
        |[x]| (x.widen() - largest).exp(),
    )
}

#[inline(always)]
fn softmax_columns<'a, T: Float<Compute: Math>>(
    x: impl Fn(usize) -> &'a [T],
    y: impl Fn(usize) -> &'a mut [T],
    n: usize,
    width: usize,
    logarithmic: bool,
) {
    let mut largest = [T::Compute::of(f64::NEG_INFINITY); WIDTH];
    let mut sums = [T::Compute::ZERO; WIDTH];
    let largest = &mut largest[..width];
    let sums = &mut sums[..width];
    for i in 0..n {
        for (largest, x) in largest.iter_mut().zip(x(i)) {
            *largest = larger(*largest, x.widen());
        }
    }
    for i in 0..n {
        for ((sum, largest), x) in sums.iter_mut().zip(&*largest).zip(x(i)) {
            *sum = *sum + (x.widen() - *largest).exp();
        }
    }
    for sum in &mut *sums {
        *sum = if logarithmic { sum.log() } else { T::Compute::ONE / *sum };
    }
    for i in 0..n {
        for (((y, x), largest), sum) in y(i).iter_mut().zip(x(i)).zip(&*largest).zip(&*sums) {
            let x = x.widen() - *largest;
            *y = T::narrow(if logarithmic { x - *sum } else { x.exp() * *sum });
        }
    }
}

fn softmax_backward<T: Float<Compute: Math>>(
    out: &Tensor,
    grad: &Tensor,
    output: &Tensor,
    dim: usize,
    logarithmic: bool,
) -> Result<()> {
    let mut access = Access::new("softmax_backward", &[out], &[grad, output])?;
    // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through it.
    let (g, y) = unsafe { (unbound(access.slice::<T>(0)?), unbound(access.slice::<T>(1)?)) };
    let out = DisjointSlice::new(access.slice_mut::<T>(0)?);
    for_each_line(
        grad.sizes(),
        dim,
        |row| {
            let g = &g[row.clone()];
            let y = &y[row.clone()];
            // SAFETY: as in `softmax`.
            let out = unsafe { out.range(row) };
            vectorized!(backward_row(g, y, out, logarithmic));
        },
        |columns| {
            // SAFETY: as in `softmax`.
            let out = |i: usize| unsafe { out.range(columns.row(i)) };
            let (g, y) = (|i: usize| &g[columns.row(i)], |i: usize| &y[columns.row(i)]);
            vectorized!(backward_columns(g, y, out, columns.n, columns.width, logarithmic));
        },
    );
    Ok(())
}

#[inline(always)]
fn backward_row<T: Float<Compute: Math>>(g: &[T], y: &[T], out: &mut [T], logarithmic: bool) {
    let n = out.len();
    let g = &g[..n];
    let y = &y[..n];
    if logarithmic {
        let sum = sum(
            [g],
            #[inline(always)]
            |[g]| g.widen(),
        );
        for i in 0..n {
            out[i] = T::narrow(g[i].widen() - y[i].widen().exp() * sum);
        }
    } else {
        let sum = sum(
            [g, y],
            #[inline(always)]
            |[g, y]| g.widen() * y.widen(),
        );
        for i in 0..n {
            out[i] = T::narrow((g[i].widen() - sum) * y[i].widen());
        }
    }
}

#[inline(always)]
fn backward_columns<'a, T: Float<Compute: Math>>(
    g: impl Fn(usize) -> &'a [T],
    y: impl Fn(usize) -> &'a [T],
    out: impl Fn(usize) -> &'a mut [T],
    n: usize,
    width: usize,
    logarithmic: bool,
) {
    let mut sums = [T::Compute::ZERO; WIDTH];
    let sums = &mut sums[..width];
    for i in 0..n {
        for ((sum, g), y) in sums.iter_mut().zip(g(i)).zip(y(i)) {
            *sum = *sum + if logarithmic { g.widen() } else { g.widen() * y.widen() };
        }
    }
    for i in 0..n {
        for (((out, g), y), sum) in out(i).iter_mut().zip(g(i)).zip(y(i)).zip(&*sums) {
            let g = g.widen();
            let y = y.widen();
            *out = T::narrow(if logarithmic { g - y.exp() * *sum } else { (g - *sum) * y });
        }
    }
}
