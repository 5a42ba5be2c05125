//! Iteration over the elements of an [`Elementwise`] in runs, as they are in memory.

use smallvec::SmallVec;

use super::elementwise::GRAIN;
use crate::elementwise::Elementwise;
use crate::{arrays, threads};

/// Walks all elements in runs along the densest dimension: `run(first elements, distances in bytes, length)`, each
/// element once.
///
/// # Panics
/// If there are not `N` operands.
pub(crate) fn for_each_run<const N: usize>(
    iter: &Elementwise<'_>,
    run: impl Fn([*mut u8; N], [usize; N], usize) + Sync,
) {
    let operands = iter.operands();
    assert_eq!(operands.len(), N, "{}: {N} operands", iter.op());
    let sizes = iter.sizes();
    let inner = sizes.first().copied().unwrap_or(1);
    let strides: [&[usize]; N] = arrays::from_fn(|operand| &operands[operand].strides[..]);
    let steps: [usize; N] = arrays::from_fn(|operand| strides[operand].first().copied().unwrap_or(0));
    threads::for_each_range(iter.numel(), GRAIN, |range| {
        crate::vectorized(
            #[inline(always)]
            || {
                let mut index: SmallVec<[usize; 5]> = SmallVec::new();
                let mut places: [*mut u8; N] = arrays::from_fn(|operand| operands[operand].data);
                let mut rest = range.start;
                for (dim, size) in sizes.iter().enumerate() {
                    index.push(rest % size);
                    rest /= size;
                    move_on(&mut places, strides, dim, index[dim]);
                }
                let index = &mut index[..];
                let mut along = index.first().copied().unwrap_or(0);
                let mut left = range.len();
                loop {
                    let n = (inner - along).min(left);
                    run(places, steps, n);
                    left -= n;
                    if left == 0 {
                        return;
                    }
                    // Go back to the beginning of the run, and on to the next one.
                    move_back(&mut places, strides, 0, along);
                    along = 0;
                    for dim in 1..sizes.len() {
                        index[dim] += 1;
                        move_on(&mut places, strides, dim, 1);
                        if index[dim] < sizes[dim] {
                            break;
                        }
                        move_back(&mut places, strides, dim, sizes[dim]);
                        index[dim] = 0;
                    }
                }
            },
        );
    });
}

#[inline(always)]
fn move_on<const N: usize>(places: &mut [*mut u8; N], strides: [&[usize]; N], dim: usize, by: usize) {
    for operand in 0..N {
        places[operand] = places[operand].wrapping_add(by * strides[operand][dim]);
    }
}

#[inline(always)]
fn move_back<const N: usize>(places: &mut [*mut u8; N], strides: [&[usize]; N], dim: usize, by: usize) {
    for operand in 0..N {
        places[operand] = places[operand].wrapping_sub(by * strides[operand][dim]);
    }
}
