//! Scans: cumulative sums and products.

use super::lines::{WIDTH, for_each_line};
use super::shared_memory::DisjointSlice;
use crate::kernel::on_cpu;
use crate::{Access, DType, DeviceKind, Entry, Number, Result, Tensor};

/// A kernel that writes, for each element along a dimension, the sum or product of the elements up to it. Both tensors
/// are contiguous and of one dtype.
pub(crate) type Scan = fn(&Tensor, &Tensor, usize) -> Result<()>;

/// Cumulative sums of floats and `int64`.
pub(crate) const CUMSUM: [&[Entry<Scan>]; 2] =
    [on_cpu!(floats: cumsum::<T>), &[(DeviceKind::Cpu, DType::I64, cumsum::<i64>)]];
/// Cumulative products of floats and `int64`.
pub(crate) const CUMPROD: [&[Entry<Scan>]; 2] =
    [on_cpu!(floats: cumprod::<T>), &[(DeviceKind::Cpu, DType::I64, cumprod::<i64>)]];

fn cumsum<T: Number>(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    scan::<T>(out, input, dim, T::Sum::ZERO, Number::plus)
}

fn cumprod<T: Number>(out: &Tensor, input: &Tensor, dim: usize) -> Result<()> {
    scan::<T>(out, input, dim, T::Sum::ONE, Number::times)
}

fn scan<T: Number>(
    out: &Tensor,
    input: &Tensor,
    dim: usize,
    start: T::Sum,
    step: impl Fn(T::Sum, T::Sum) -> T::Sum + Sync,
) -> Result<()> {
    let mut access = Access::new("cumsum", &[out], &[input])?;
    let (x, out) = access.slices::<T, T>(0, 0)?;
    let out = DisjointSlice::new(out);
    for_each_line(
        input.sizes(),
        dim,
        |row| {
            let mut so_far = start;
            // SAFETY: each row is taken once.
            let out = unsafe { out.range(row.clone()) };
            for (out, x) in out.iter_mut().zip(&x[row]) {
                so_far = step(so_far, x.widen());
                *out = T::narrow(so_far);
            }
        },
        |columns| {
            let mut so_far = [start; WIDTH];
            for i in 0..columns.n {
                // SAFETY: each row of each tile is taken once.
                let out = unsafe { out.range(columns.row(i)) };
                for ((out, x), so_far) in out.iter_mut().zip(&x[columns.row(i)]).zip(&mut so_far) {
                    *so_far = step(*so_far, x.widen());
                    *out = T::narrow(*so_far);
                }
            }
        },
    );
    Ok(())
}
