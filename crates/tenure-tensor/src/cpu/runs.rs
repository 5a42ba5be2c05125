//! Runs of elements of an [`Elementwise`], as they lie in memory.

use std::array;

use super::loops::GRAIN;
use crate::elementwise::Elementwise;
use crate::threads;

/// Goes through all elements in runs along the densest dimension: `run(first elements, distances in bytes, length)`, each
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
    let steps: [usize; N] = array::from_fn(|operand| operands[operand].strides.first().copied().unwrap_or(0));
    threads::for_each_range(iter.numel(), GRAIN, |range| {
        crate::vectorized(
            #[inline(always)]
            || {
                let mut at = range.start;
                while at < range.end {
                    let along = at % inner;
                    let n = (inner - along).min(range.end - at);
                    let starts = array::from_fn(|operand| {
                        let operand = &operands[operand];
                        let mut rest = at / inner;
                        let mut offset = along * operand.strides.first().copied().unwrap_or(0);
                        for (size, stride) in sizes.iter().zip(&operand.strides).skip(1) {
                            offset += rest % size * stride;
                            rest /= size;
                        }
                        operand.data.wrapping_add(offset)
                    });
                    run(starts, steps, n);
                    at += n;
                }
            },
        );
    });
}
