//! Exponentials that add up to 1.

use std::ops::Range;

use super::lanes::{gather, larger, sum};
use super::loops::{GRAIN, vectorized};
use super::math::Math;
use super::slots::{Slots, unbound};
use crate::kernel::on_cpu;
use crate::{Access, Entry, Float, Number, Result, Tensor, threads};

/// Writes the softmax of the input along a dimension, or its logarithm. Both are contiguous.
pub(crate) type Softmax = fn(&Tensor, &Tensor, usize, bool) -> Result<()>;
/// Writes the gradient of the input, from that of the output and the output. All are contiguous.
pub(crate) type SoftmaxBackward = fn(&Tensor, &Tensor, &Tensor, usize, bool) -> Result<()>;

pub(crate) const SOFTMAX: &[Entry<Softmax>] = on_cpu!(floats: softmax::<T>);
pub(crate) const SOFTMAX_BACKWARD: &[Entry<SoftmaxBackward>] = on_cpu!(floats: softmax_backward::<T>);

/// Neighbours along the dimensions behind that are computed at once.
const WIDTH: usize = 128;

fn softmax<T: Float<Compute: Math>>(out: &Tensor, input: &Tensor, dim: usize, logarithmic: bool) -> Result<()> {
    let mut access = Access::new("softmax", &[out], &[input])?;
    let (x, y) = access.slices::<T, T>(0, 0)?;
    let y = Slots::new(y);
    for_each_line(
        input.sizes(),
        dim,
        |row| {
            // SAFETY: each row once.
            let (x, y) = (&x[row.clone()], unsafe { y.range(row) });
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
    let n = x.len().min(y.len());
    let (x, y) = (&x[..n], &mut y[..n]);
    let largest = gather(n, T::Compute::of(f64::NEG_INFINITY), |i| at(x, i).widen(), larger);
    if logarithmic {
        let log = sum(n, |i| (at(x, i).widen() - largest).exp()).log();
        y.iter_mut().zip(x).for_each(|(y, x)| *y = T::narrow(x.widen() - largest - log));
    } else if size_of::<T>() == size_of::<T::Compute>() {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = T::narrow((x.widen() - largest).exp()));
        let scale = T::Compute::ONE / sum(n, |i| at(y, i).widen());
        y.iter_mut().for_each(|y| *y = T::narrow(y.widen() * scale));
    } else {
        // Exponentials would be rounded on the way.
        let scale = T::Compute::ONE / sum(n, |i| (at(x, i).widen() - largest).exp());
        y.iter_mut().zip(x).for_each(|(y, x)| *y = T::narrow((x.widen() - largest).exp() * scale));
    }
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
    let (largest, sums) = (&mut largest[..width], &mut sums[..width]);
    for i in 0..n {
        largest.iter_mut().zip(x(i)).for_each(|(largest, x)| *largest = larger(*largest, x.widen()));
    }
    for i in 0..n {
        let largest = largest.iter();
        sums.iter_mut().zip(largest).zip(x(i)).for_each(|((sum, l), x)| *sum = *sum + (x.widen() - *l).exp());
    }
    let finish = |sum: T::Compute| if logarithmic { sum.log() } else { T::Compute::ONE / sum };
    sums.iter_mut().for_each(|sum| *sum = finish(*sum));
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
    // SAFETY: what is read is locked by `access`, and `slice` makes sure that it is not written through it.
    let (g, y) = unsafe { (unbound(access.slice::<T>(0)?), unbound(access.slice::<T>(1)?)) };
    let out = Slots::new(access.slice_mut::<T>(0)?);
    for_each_line(
        grad.sizes(),
        dim,
        |row| {
            // SAFETY: as in `softmax`.
            let (g, y, out) = (&g[row.clone()], &y[row.clone()], unsafe { out.range(row) });
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
    let n = g.len().min(y.len());
    let (g, y) = (&g[..n], &y[..n]);
    let each = out.iter_mut().zip(g).zip(y);
    if logarithmic {
        let sum = sum(n, |i| at(g, i).widen());
        each.for_each(|((out, g), y)| *out = T::narrow(g.widen() - y.widen().exp() * sum));
    } else {
        let sum = sum(n, |i| at(g, i).widen() * at(y, i).widen());
        each.for_each(|((out, g), y)| *out = T::narrow((g.widen() - sum) * y.widen()));
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
            let (g, y) = (g.widen(), y.widen());
            *out = T::narrow(if logarithmic { g - y.exp() * *sum } else { (g - *sum) * y });
        }
    }
}

#[inline(always)]
fn at<T: Copy>(slice: &[T], i: usize) -> T {
    slice[i]
}

/// Some lines along a dimension next to each other: `n` rows of `width` elements.
struct Columns {
    start: usize,
    n: usize,
    width: usize,
    step: usize,
}

impl Columns {
    #[inline(always)]
    fn row(&self, i: usize) -> Range<usize> {
        let start = self.start + i * self.step;
        start..start + self.width
    }
}

/// Goes through all lines along a dimension: `row` of each where they are dense, else `columns` of some at once.
fn for_each_line(sizes: &[usize], dim: usize, row: impl Fn(Range<usize>) + Sync, columns: impl Fn(Columns) + Sync) {
    let n = sizes.get(dim).copied().unwrap_or(1);
    let outer: usize = sizes.iter().take(dim).product();
    let inner: usize = sizes.iter().skip(dim + 1).product();
    let per_line = GRAIN.checked_div(n).unwrap_or(1);
    if inner == 1 {
        threads::for_each_range(outer, per_line, |lines| lines.for_each(|line| row(line * n..(line + 1) * n)));
        return;
    }
    let tiles = inner.div_ceil(WIDTH);
    let per_tile = per_line / WIDTH.min(inner.max(1));
    threads::for_each_range(outer * tiles, per_tile, |range| {
        for tile in range {
            let (line, column) = (tile / tiles, tile % tiles * WIDTH);
            let width = WIDTH.min(inner - column);
            columns(Columns { start: line * n * inner + column, n, width, step: inner });
        }
    });
}
