//! Products of `bf16` matrices with the processor's dot-product instruction, which multiplies pairs and adds both
//! products to a sum in `f32`.
//!
//! Both factors are packed in panels of pairs along the inner dimension, so that the loop reads them one after the
//! other.

use half::bf16;

use super::matrix::{Matrix, matrix_of_batch};
use super::scratch;
use super::shared_memory::{DisjointSlice, SharedPointer};
use crate::{Access, Device, Element, Number, Result, Scalar, Tensor, arrays, threads};

/// The number of rows and of columns of sums that are in registers at a time.
const ROWS: usize = 12;
const COLUMNS: usize = 32;
/// The number of panels of rows, and of columns, in a part.
const PART: (usize, usize) = (8, 4);
/// The number of multiplications of the batches that are packed together.
const TOGETHER: usize = 64 << 20;
/// The number of pairs that are packed together.
const BLOCK: usize = 16;
/// The number of pairs that are worth waking a thread for.
const GRAIN: usize = 32 * 1024;

/// Two neighbours along the inner dimension; the first is in the low half.
type Bf16Pair = i32;

/// Returns whether the processor has the instruction.
pub(super) fn is_there() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Computes [`Product`](super::gemm::Product) of `bf16`. The caller checks that the instruction [`is_there`].
pub(super) fn product(out: &Tensor, a: &Tensor, b: &Tensor, alpha: Scalar, beta: Scalar) -> Result<()> {
    let rank = out.rank();
    let m = out.sizes()[rank - 2];
    let k = a.sizes()[rank - 1];
    let n = out.sizes()[rank - 1];
    let batches: usize = out.sizes()[..rank - 2].iter().product();
    let down = m.div_ceil(ROWS);
    let across = n.div_ceil(COLUMNS);
    let pairs = k.div_ceil(2);
    let alpha = alpha.to_f64() as f32;
    let beta = beta.to_f64() as f32;
    let together = (TOGETHER / (m * k * n).max(1)).clamp(1, batches.max(1));
    let rows = down * ROWS * pairs;
    let columns = across * COLUMNS * pairs;
    let packed = scratch(|| Tensor::empty(&[together * (rows + columns)], Bf16Pair::DTYPE, Device::CPU))?;
    let mut access = Access::new("matmul", &[out, &packed], &[a, b])?;
    let to = SharedPointer(access.write_ptr(0));
    let left = SharedPointer(access.read_ptr(0).cast_mut());
    let right = SharedPointer(access.read_ptr(1).cast_mut());
    let packed = access.slice_mut::<Bf16Pair>(1)?;
    let (of_rows, of_columns) = packed.split_at_mut(together * rows);
    for first in (0..batches).step_by(together) {
        let count = together.min(batches - first);
        pack::<ROWS>(of_rows, [count, k, m], |batch| {
            let matrix = matrix_of_batch(left.get(), a, first + batch);
            Matrix { row: matrix.column, column: matrix.row, ..matrix }
        });
        pack::<COLUMNS>(of_columns, [count, k, n], |batch| matrix_of_batch(right.get(), b, first + batch));
        let parts = (down.div_ceil(PART.0), across.div_ceil(PART.1));
        let small = GRAIN * 64 / (PART.0 * ROWS * PART.1 * COLUMNS * pairs).max(1);
        threads::for_each_range(count * parts.0 * parts.1, small, |range| {
            for part in range {
                let batch = part / (parts.0 * parts.1);
                let part = part % (parts.0 * parts.1);
                let top = part / parts.1 * PART.0;
                let left = part % parts.1 * PART.1;
                let to = matrix_of_batch::<bf16>(to.get(), out, first + batch);
                for column in left..across.min(left + PART.1) {
                    let columns = &of_columns[(batch * across + column) * COLUMNS * pairs..][..COLUMNS * pairs];
                    for row in top..down.min(top + PART.0) {
                        let rows = &of_rows[(batch * down + row) * ROWS * pairs..][..ROWS * pairs];
                        let row = row * ROWS;
                        let column = column * COLUMNS;
                        // SAFETY: the instruction is there.
                        let sums = unsafe { multiply(rows.as_chunks().0, columns.as_chunks().0) };
                        for (row, sums) in (row..m).zip(sums) {
                            for (column, sum) in (column..n).zip(sums) {
                                let to = to.at(row, column).data;
                                // SAFETY: this is an element of the output that only this part writes.
                                unsafe {
                                    let before = if beta == 0.0 { 0.0 } else { beta * to.read().widen() };
                                    to.write(bf16::narrow(alpha * sum + before));
                                }
                            }
                        }
                    }
                }
            }
        });
    }
    Ok(())
}

/// Packs panels of `W` columns of a batch of matrices that have `k` rows and `n` columns: pair after pair, padded with
/// zeros.
fn pack<const W: usize>(
    packed: &mut [Bf16Pair],
    [count, k, n]: [usize; 3],
    matrix: impl Fn(usize) -> Matrix<u16> + Sync,
) {
    let panels = n.div_ceil(W);
    let pairs = k.div_ceil(2);
    let out = DisjointSlice::new(packed);
    threads::for_each_range(count * panels, GRAIN / (W * pairs).max(1), |range| {
        for panel in range {
            let matrix = matrix(panel / panels).at(0, panel % panels * W);
            let width = W.min(n - panel % panels * W);
            // SAFETY: each panel is packed by one call.
            let to = unsafe { out.range(panel * W * pairs..(panel + 1) * W * pairs) };
            super::vectorized!({
                for (block, to) in to.as_chunks_mut::<W>().0.chunks_mut(BLOCK).enumerate() {
                    let from = matrix.at(2 * block * BLOCK, 0);
                    let rows = k - 2 * block * BLOCK;
                    let is_whole = width == W && rows >= 2 * BLOCK && to.len() == BLOCK;
                    // SAFETY: these are elements of the matrix.
                    unsafe {
                        match (from.row, from.column) {
                            (row, 1) if is_whole => interleave(from.data, row, to),
                            (1, column) if is_whole => transpose(from.data, column, to),
                            _ => {
                                for (pair, to) in to.iter_mut().enumerate() {
                                    *to = arrays::from_fn(|column| {
                                        let [low, high] = arrays::map([2 * pair, 2 * pair + 1], |row| match () {
                                            () if row < rows && column < width => from.at(row, column).data.read(),
                                            () => 0,
                                        });
                                        pair_of(low, high)
                                    });
                                }
                            }
                        }
                    }
                }
            });
        }
    });
}

/// Packs pairs of dense rows.
#[inline(always)]
unsafe fn interleave<const W: usize>(from: *const u16, row: usize, to: &mut [[Bf16Pair; W]]) {
    for (pair, to) in to.iter_mut().enumerate() {
        // SAFETY: these are two rows of the matrix, as the caller promises.
        let [low, high] = arrays::map([2 * pair, 2 * pair + 1], |at| unsafe {
            from.add(at * row).cast::<[u16; W]>().read_unaligned()
        });
        *to = arrays::from_fn(|column| pair_of(low[column], high[column]));
    }
}

/// Packs pairs of dense columns.
#[inline(always)]
unsafe fn transpose<const W: usize>(from: *const u16, column: usize, to: &mut [[Bf16Pair; W]]) {
    let lines: [[Bf16Pair; BLOCK]; W] =
        // SAFETY: this is a column of the matrix, as the caller promises. On this processor, two neighbours in memory
        // are a pair.
        arrays::from_fn(|at| unsafe { from.add(at * column).cast::<[Bf16Pair; BLOCK]>().read_unaligned() });
    for (pair, to) in to.iter_mut().enumerate().take(BLOCK) {
        *to = arrays::from_fn(|column| lines[column][pair]);
    }
}

#[inline(always)]
fn pair_of(low: u16, high: u16) -> Bf16Pair {
    (u32::from(low) | u32::from(high) << 16) as Bf16Pair
}

/// Multiplies a panel of rows with a panel of columns.
///
/// # Safety
/// The instruction [`is_there`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn multiply(rows: &[[Bf16Pair; ROWS]], columns: &[[Bf16Pair; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    use std::arch::x86_64::{__m512bh, __m512i, _mm512_dpbf16_ps, _mm512_set1_epi32, _mm512_setzero_ps};
    use std::mem::transmute;
    let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
    for (row, column) in rows.iter().zip(columns) {
        // SAFETY: both are vectors of the same size in bytes, for which every bit pattern is valid.
        let halves = unsafe { transmute::<[Bf16Pair; COLUMNS], [__m512bh; 2]>(*column) };
        for (sums, pair) in sums.iter_mut().zip(row) {
            // SAFETY: as above.
            let pair = unsafe { transmute::<__m512i, __m512bh>(_mm512_set1_epi32(*pair)) };
            for (sum, half) in sums.iter_mut().zip(halves) {
                *sum = _mm512_dpbf16_ps(*sum, pair, half);
            }
        }
    }
    // SAFETY: both have the same number of `f32`.
    unsafe { transmute(sums) }
}

/// Panics: other processors do not have the instruction, so it is never called.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn multiply(_: &[[Bf16Pair; ROWS]], _: &[[Bf16Pair; COLUMNS]]) -> [[f32; COLUMNS]; ROWS] {
    unreachable!("the instruction is another processor's")
}
