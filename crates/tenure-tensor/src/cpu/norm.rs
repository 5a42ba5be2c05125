//! Layer, group and batch normalisation.

use std::marker::PhantomData;

use super::elementwise::{GRAIN, block_of, for_each_block};
use super::lines::sum;
use super::math::Math;
use super::reduction::{ElementReduction, reduce};
use super::shared_memory::{DisjointSlice, unbound};
use super::vectorized;
use crate::element::Real;
use crate::kernel::on_cpu;
use crate::{Access, Elementwise, Entry, Float, Number, Result, Tensor, arrays, threads};

/// The operands of a normalisation of rows.
#[derive(Clone, Copy)]
pub(crate) struct NormRows<'a> {
    /// The rows, contiguous.
    pub(crate) input: &'a Tensor,
    /// A factor for each element of a row.
    pub(crate) weight: Option<&'a Tensor>,
    /// A summand for each element of a row.
    pub(crate) bias: Option<&'a Tensor>,
    /// The mean of each row, in the dtype to compute in; `None` if means are not subtracted.
    pub(crate) mean: Option<&'a Tensor>,
    /// One over the standard deviation of each row, in the dtype to compute in.
    pub(crate) rstd: &'a Tensor,
}

/// A kernel that writes the mean and `rstd` of each row, and the normalised row: less its mean, times `rstd`, times the
/// weight, plus the bias. The last argument is added to variances.
pub(crate) type NormalizeRows = fn(&Tensor, NormRows<'_>, f64) -> Result<()>;
/// A kernel that writes the gradient of [`NormalizeRows`]'s input, plus the last tensor if it is given, from the
/// output's gradient. It also writes partial sums of the gradients of weight and bias: sizes `[parts, 2, elements of a
/// row]`, in the dtype to compute in.
pub(crate) type NormalizeRowsBackward = fn(&Tensor, &Tensor, &Tensor, NormRows<'_>, Option<&Tensor>) -> Result<()>;
/// A kernel that writes `(x - mean) * scale + shift`.
pub(crate) type NormalizeKernel = fn(&Elementwise<'_>) -> Result<()>;
/// A kernel that writes `grad * scale + (x - mean) * slope + shift`. If an output is given as the last input, the
/// gradient counts as 0 where the output is not above 0.
pub(crate) type NormalizeBackward = fn(&Elementwise<'_>) -> Result<()>;
/// A kernel that writes sums of a gradient, and of its products with an input's deviations from given means, both in
/// the dtype to compute in. If an output is given, the gradient counts as 0 where the output is not above 0.
pub(crate) type NormalizeSums = fn([&Tensor; 2], &Tensor, &Tensor, &Tensor, Option<&Tensor>) -> Result<()>;

pub(crate) const NORMALIZE_ROWS: &[Entry<NormalizeRows>] = on_cpu!(floats: normalize_rows::<T>);
pub(crate) const NORMALIZE_ROWS_BACKWARD: &[Entry<NormalizeRowsBackward>] =
    on_cpu!(floats: normalize_rows_backward::<T>);
pub(crate) const NORMALIZE: &[Entry<NormalizeKernel>] = on_cpu!(lanes of floats: normalize::<T>);
pub(crate) const NORMALIZE_BACKWARD: &[Entry<NormalizeBackward>] = on_cpu!(lanes of floats: normalize_backward::<T>);
pub(crate) const NORMALIZE_RELU_BACKWARD: &[Entry<NormalizeBackward>] =
    on_cpu!(lanes of floats: normalize_relu_backward::<T>);
pub(crate) const NORMALIZE_SUMS: &[Entry<NormalizeSums>] = on_cpu!(lanes of floats: normalize_sums::<T>);

fn normalize_rows<T: Float<Compute: Math>>(out: &Tensor, rows: NormRows<'_>, eps: f64) -> Result<()> {
    let writes: Vec<&Tensor> = [out, rows.rstd].into_iter().chain(rows.mean).collect();
    let reads: Vec<&Tensor> = [rows.input].into_iter().chain(rows.weight).chain(rows.bias).collect();
    let mut access = Access::new("layer_norm", &writes, &reads)?;
    let optional = |index: usize, is_there: bool| match is_there {
        // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through
        // it.
        true => access.slice::<T>(index).map(|slice| Some(unsafe { unbound(slice) })),
        false => Ok(None),
    };
    let weight = optional(1, rows.weight.is_some())?;
    let bias = optional(1 + usize::from(rows.weight.is_some()), rows.bias.is_some())?;
    // SAFETY: as above.
    let x = unsafe { unbound(access.slice::<T>(0)?) };
    let out = DisjointSlice::new(access.slice_mut::<T>(0)?);
    let rstds = DisjointSlice::new(access.slice_mut::<T::Compute>(1)?);
    let means = if rows.mean.is_some() { Some(DisjointSlice::new(access.slice_mut::<T::Compute>(2)?)) } else { None };
    let count = rows.rstd.numel();
    let n = x.len().checked_div(count).unwrap_or(0);
    threads::for_each_range(count, GRAIN.checked_div(n).unwrap_or(count), |range| {
        // SAFETY: each row is taken once.
        let (out, rstds) = unsafe { (out.range(range.start * n..range.end * n), rstds.range(range.clone())) };
        // SAFETY: as above.
        let mut means = means.as_ref().map(|means| unsafe { means.range(range.clone()) });
        vectorized!(for row in 0..range.len() {
            let x = &x[(range.start + row) * n..][..n];
            let out = &mut out[row * n..][..n];
            let (mean, rstd) = moments(x, means.is_some(), T::Compute::of(eps));
            rstds[row] = rstd;
            if let Some(means) = &mut means {
                means[row] = mean;
            }
            match (weight, bias) {
                (Some(weight), Some(bias)) => {
                    for (((out, x), weight), bias) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                        *out = T::narrow((x.widen() - mean) * rstd * weight.widen() + bias.widen());
                    }
                }
                (Some(weight), None) => {
                    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
                        *out = T::narrow((x.widen() - mean) * rstd * weight.widen());
                    }
                }
                (None, bias) => {
                    for (i, (out, x)) in out.iter_mut().zip(x).enumerate() {
                        let bias = bias.map_or(T::Compute::ZERO, |bias| bias[i].widen());
                        *out = T::narrow((x.widen() - mean) * rstd + bias);
                    }
                }
            }
        });
    });
    Ok(())
}

/// Returns the mean of a row (0 if `has_mean` is false), and one over its standard deviation from that mean.
#[inline(always)]
fn moments<T: Float<Compute: Math>>(x: &[T], has_mean: bool, eps: T::Compute) -> (T::Compute, T::Compute) {
    let n = T::Compute::of(x.len() as f64);
    let mean = if has_mean {
        sum(
            [x],
            #[inline(always)]
            |[x]| x.widen(),
        ) / n
    } else {
        T::Compute::ZERO
    };
    let squares = sum(
        [x],
        #[inline(always)]
        |[x]| (x.widen() - mean) * (x.widen() - mean),
    );
    (mean, T::Compute::ONE / (squares / n + eps).sqrt())
}

fn normalize_rows_backward<T: Float<Compute: Math>>(
    out: &Tensor,
    parts: &Tensor,
    grad: &Tensor,
    rows: NormRows<'_>,
    base: Option<&Tensor>,
) -> Result<()> {
    let optional = [rows.mean, rows.weight, base];
    let reads: Vec<&Tensor> = [grad, rows.input, rows.rstd].into_iter().chain(optional.into_iter().flatten()).collect();
    let mut access = Access::new("layer_norm_backward", &[out, parts], &reads)?;
    // SAFETY: `access` has locked the tensors that are read, and `slice` checks that they are not written through it.
    let (g, x, rstds) = unsafe {
        (unbound(access.slice::<T>(0)?), unbound(access.slice::<T>(1)?), unbound(access.slice::<T::Compute>(2)?))
    };
    let means = match rows.mean {
        // SAFETY: as above.
        Some(_) => Some(unsafe { unbound(access.slice::<T::Compute>(3)?) }),
        None => None,
    };
    let weight = match rows.weight {
        // SAFETY: as above.
        Some(_) => Some(unsafe { unbound(access.slice::<T>(3 + usize::from(means.is_some()))?) }),
        None => None,
    };
    let base = match base {
        // SAFETY: as above.
        Some(_) => Some(unsafe { unbound(access.slice::<T>(reads.len() - 1)?) }),
        None => None,
    };
    let count = rstds.len();
    let out = DisjointSlice::new(access.slice_mut::<T>(0)?);
    let sums = DisjointSlice::new(access.slice_mut::<T::Compute>(1)?);
    let (parts, n) = (parts.sizes()[0], parts.sizes()[2]);
    let per_part = count.div_ceil(parts.max(1));
    threads::for_each_part(parts, |part| {
        let range = (part * per_part).min(count)..((part + 1) * per_part).min(count);
        // SAFETY: each part is taken once, and each row is in one part.
        let (out, sums) =
            unsafe { (out.range(range.start * n..range.end * n), sums.range(2 * part * n..2 * (part + 1) * n)) };
        let (to_weight, to_bias) = sums.split_at_mut(n);
        to_weight.fill(T::Compute::ZERO);
        to_bias.fill(T::Compute::ZERO);
        vectorized!(for row in range.clone() {
            let x = &x[row * n..][..n];
            let g = &g[row * n..][..n];
            let out = &mut out[(row - range.start) * n..][..n];
            let mean = means.map_or(T::Compute::ZERO, |means| means[row]);
            let by = [mean, rstds[row]];
            match weight {
                Some(weight) => {
                    let rows = [x, g, weight];
                    row_backward(
                        rows,
                        #[inline(always)]
                        |[_, g, weight]| g.widen() * weight.widen(),
                        x,
                        by,
                        means.is_some(),
                        out,
                    );
                }
                None => row_backward(
                    [x, g],
                    #[inline(always)]
                    |[_, g]| g.widen(),
                    x,
                    by,
                    means.is_some(),
                    out,
                ),
            }
            if let Some(base) = base {
                for (out, base) in out.iter_mut().zip(&base[row * n..][..n]) {
                    *out = T::narrow(out.widen() + base.widen());
                }
            }
            for (((to_weight, to_bias), g), x) in to_weight.iter_mut().zip(&mut *to_bias).zip(g).zip(x) {
                *to_weight = *to_weight + g.widen() * (x.widen() - mean) * rstds[row];
                *to_bias = *to_bias + g.widen();
            }
        });
    });
    Ok(())
}

/// Writes the gradient of a row, from `g`, the gradient of the normalised row.
#[inline(always)]
fn row_backward<T: Float<Compute: Math>, const N: usize>(
    rows: [&[T]; N],
    g: impl Fn([T; N]) -> T::Compute + Copy,
    x: &[T],
    [mean, rstd]: [T::Compute; 2],
    has_mean: bool,
    out: &mut [T],
) {
    let n = out.len();
    let rows = arrays::map(rows, |row| &row[..n]);
    let x = &x[..n];
    let count = T::Compute::of(n as f64);
    let along = sum(
        rows,
        #[inline(always)]
        |row| g(row) * (row[0].widen() - mean),
    );
    let slope = rstd * rstd * along / count;
    let shift = if has_mean { sum(rows, g) / count } else { T::Compute::ZERO };
    for i in 0..n {
        out[i] = T::narrow((g(arrays::map(rows, |row| row[i])) - shift - (x[i].widen() - mean) * slope) * rstd);
    }
}

pub(super) fn normalize<R: Real>(iter: &Elementwise<'_>) -> Result<()> {
    for_each_block(iter, [R::DTYPE; 5], &|[out, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives `n` elements of this type, and only this call accesses the output's.
        let ([out], [x, mean, scale, shift]) = unsafe { block_of::<R, 1, _>([out], inputs, n) };
        vectorized!(for i in 0..n {
            out[i] = (x[i] - mean[i]) * scale[i] + shift[i];
        });
    });
    Ok(())
}

fn normalize_backward<R: Real>(iter: &Elementwise<'_>) -> Result<()> {
    for_each_block(iter, [R::DTYPE; 7], &|[out, inputs @ ..], n| {
        // SAFETY: as in `normalize`.
        let ([out], [grad, x, mean, scale, slope, shift]) = unsafe { block_of::<R, 1, _>([out], inputs, n) };
        vectorized!(for i in 0..n {
            out[i] = grad[i] * scale[i] + (x[i] - mean[i]) * slope[i] + shift[i];
        });
    });
    Ok(())
}

fn normalize_relu_backward<R: Real>(iter: &Elementwise<'_>) -> Result<()> {
    for_each_block(iter, [R::DTYPE; 8], &|[out, inputs @ ..], n| {
        // SAFETY: as in `normalize`.
        let ([out], [grad, x, mean, scale, slope, shift, y]) = unsafe { block_of::<R, 1, _>([out], inputs, n) };
        vectorized!(for i in 0..n {
            let grad = if y[i] <= R::ZERO { R::ZERO } else { grad[i] };
            out[i] = grad * scale[i] + (x[i] - mean[i]) * slope[i] + shift[i];
        });
    });
    Ok(())
}

fn normalize_sums<T: Real>(
    out: [&Tensor; 2],
    grad: &Tensor,
    input: &Tensor,
    mean: &Tensor,
    output: Option<&Tensor>,
) -> Result<()> {
    let op = "norm_backward";
    let products = Products::<T>(PhantomData);
    match output {
        None => reduce(op, &products, out, [grad, input], Some(mean)),
        Some(output) => reduce(op, &products, out, [grad, input, output], Some(mean)),
    }
}

/// The reduction of a gradient and an input, and of an output if there are three inputs.
struct Products<T>(PhantomData<fn(T)>);

impl<T: Real, const N: usize> ElementReduction<N, 2> for Products<T> {
    type Input = T;
    type Accumulator = T;
    type Output = T;
    type Parameter = T;

    #[inline(always)]
    fn identity(&self) -> [T; 2] {
        [T::ZERO; 2]
    }

    #[inline(always)]
    fn accumulate(&self, sums: [T; 2], values: [T; N], mean: T, _: usize) -> [T; 2] {
        let is_out = N > 2 && values[N - 1] <= T::ZERO;
        let grad = if is_out { T::ZERO } else { values[0] };
        [sums[0] + grad, sums[1] + grad * (values[1] - mean)]
    }

    #[inline(always)]
    fn merge(&self, left: [T; 2], right: [T; 2]) -> [T; 2] {
        [left[0] + right[0], left[1] + right[1]]
    }

    #[inline(always)]
    fn finish(&self, sums: [T; 2], _: T) -> [T; 2] {
        sums
    }
}
