//! Loops over the elements of an [`Elementwise`], for the widest vectors that the processor has.

use std::array;

use crate::elementwise::Elementwise;
use crate::{Element, threads};

/// Elements that one thread goes through at a time: enough that waking another pays.
const GRAIN: usize = 32 * 1024;

/// Writes `value(i)` to the output, where `i` counts the elements in the order of memory.
pub(crate) fn nullary<O: Element>(iter: &Elementwise<'_>, value: impl Fn() -> O + Sync) {
    for_each_run(iter, |[out], [step], n| {
        // SAFETY: `for_each_run` gives runs of the output, each once, and the kernel's dtype is the operand's.
        unsafe {
            if step == size_of::<O>() {
                (0..n).for_each(|i| out.cast::<O>().add(i).write(value()));
            } else {
                (0..n).for_each(|i| out.add(i * step).cast::<O>().write(value()));
            }
        }
    });
}

/// Writes `function(a)` for each element.
pub(crate) fn unary<A: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(A) -> O + Sync) {
    for_each_run(iter, |[out, a], [to, from], n| {
        // SAFETY: as in `nullary`; an input at the same place as the output is read before it is written.
        unsafe {
            if (to, from) == (size_of::<O>(), size_of::<A>()) {
                let (out, a) = (out.cast::<O>(), a.cast::<A>());
                (0..n).for_each(|i| out.add(i).write(function(a.add(i).read())));
            } else {
                (0..n).for_each(|i| out.add(i * to).cast::<O>().write(function(a.add(i * from).cast::<A>().read())));
            }
        }
    });
}

/// Writes `function(a, b)` for each pair of elements.
pub(crate) fn binary<A: Element, B: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(A, B) -> O + Sync) {
    let dense = (size_of::<O>(), size_of::<A>(), size_of::<B>());
    for_each_run(iter, |[out, a, b], [to, left, right], n| {
        // SAFETY: as in `unary`.
        unsafe {
            if (to, left, right) == dense {
                let (out, a, b) = (out.cast::<O>(), a.cast::<A>(), b.cast::<B>());
                (0..n).for_each(|i| out.add(i).write(function(a.add(i).read(), b.add(i).read())));
            } else if (to, left, right) == (dense.0, dense.1, 0) {
                let (out, a, b) = (out.cast::<O>(), a.cast::<A>(), b.cast::<B>().read());
                (0..n).for_each(|i| out.add(i).write(function(a.add(i).read(), b)));
            } else if (to, left, right) == (dense.0, 0, dense.2) {
                let (out, a, b) = (out.cast::<O>(), a.cast::<A>().read(), b.cast::<B>());
                (0..n).for_each(|i| out.add(i).write(function(a, b.add(i).read())));
            } else {
                (0..n).for_each(|i| {
                    let (a, b) = (a.add(i * left).cast::<A>().read(), b.add(i * right).cast::<B>().read());
                    out.add(i * to).cast::<O>().write(function(a, b));
                });
            }
        }
    });
}

/// Writes `function(a, b, c)` for each three elements.
pub(crate) fn ternary<A: Element, B: Element, C: Element, O: Element>(
    iter: &Elementwise<'_>,
    function: impl Fn(A, B, C) -> O + Sync,
) {
    let dense = [size_of::<O>(), size_of::<A>(), size_of::<B>(), size_of::<C>()];
    for_each_run(iter, |[out, a, b, c], steps, n| {
        // SAFETY: as in `unary`.
        unsafe {
            if steps == dense {
                let (out, a, b, c) = (out.cast::<O>(), a.cast::<A>(), b.cast::<B>(), c.cast::<C>());
                (0..n).for_each(|i| out.add(i).write(function(a.add(i).read(), b.add(i).read(), c.add(i).read())));
            } else {
                let [to, first, second, third] = steps;
                (0..n).for_each(|i| {
                    let (a, b) = (a.add(i * first).cast::<A>().read(), b.add(i * second).cast::<B>().read());
                    let c = c.add(i * third).cast::<C>().read();
                    out.add(i * to).cast::<O>().write(function(a, b, c));
                });
            }
        }
    });
}

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
    let arch = pulp::Arch::new();
    threads::for_each_range(iter.numel(), GRAIN, |range| {
        arch.dispatch(
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
