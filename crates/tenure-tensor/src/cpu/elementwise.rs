//! Loops over the elements of an [`Elementwise`], for the widest vectors that the processor has.
//!
//! A function of elements is compiled once, over dense slices of the type it computes in, its *lane*. Operands that are
//! not dense in memory, have another dtype, or are also the output, pass through buffers in the first-level cache, a
//! block at a time. So one loop serves all strides and dtypes: `f16` and `bf16` are computed in `f32`, and mixed dtypes
//! need no converted copy.

use std::array;
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::cast::{self, Cast};
use super::strided::strided;
use super::vectorized;
use crate::elementwise::{Elementwise, ElementwiseOperand};
use crate::{DType, Element, threads};

/// The number of elements that a thread takes at a time: enough to be worth waking it.
pub(super) const GRAIN: usize = 32 * 1024;

/// The number of elements of a block that passes through buffers.
const BLOCK: usize = 512;

/// Writes one value to all elements.
pub(crate) fn nullary<O: Element>(iter: &Elementwise<'_>, value: O) {
    for_each_block(iter, [O::DTYPE], &|[out], n| {
        // SAFETY: `for_each_block` gives `n` elements of this type, which only this call accesses.
        let out = unsafe { std::slice::from_raw_parts_mut(out.cast::<O>(), n) };
        out.fill(value);
    });
}

/// Writes `function(a)` for each element.
pub(crate) fn unary<A: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(A) -> O + Sync) {
    slices(
        iter,
        #[inline(always)]
        |a: &[A], out: &mut [O]| {
            for (out, a) in out.iter_mut().zip(a) {
                *out = function(*a);
            }
        },
    );
}

/// Calls `function(inputs, outputs)` on dense slices that together cover all elements, compiled for wide vectors.
pub(crate) fn slices<A: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(&[A], &mut [O]) + Sync) {
    for_each_block(iter, [O::DTYPE, A::DTYPE], &|[out, a], n| {
        // SAFETY: `for_each_block` gives `n` elements of these types, and only this call accesses the output's.
        let (out, a) = unsafe {
            (std::slice::from_raw_parts_mut(out.cast::<O>(), n), std::slice::from_raw_parts(a.cast::<A>(), n))
        };
        vectorized!(function(a, out));
    });
}

/// Writes `function(a, b)` for each pair of elements.
pub(crate) fn binary<A: Element, B: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(A, B) -> O + Sync) {
    for_each_block(iter, [O::DTYPE, A::DTYPE, B::DTYPE], &|[out, a, b], n| {
        // SAFETY: as in `slices`.
        let (out, a, b) = unsafe {
            (
                std::slice::from_raw_parts_mut(out.cast::<O>(), n),
                std::slice::from_raw_parts(a.cast::<A>(), n),
                std::slice::from_raw_parts(b.cast::<B>(), n),
            )
        };
        vectorized!(for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
            *out = function(*a, *b);
        });
    });
}

/// Writes `function(a, b, c)` for each triple of elements.
pub(crate) fn ternary<A: Element, B: Element, C: Element, O: Element>(
    iter: &Elementwise<'_>,
    function: impl Fn(A, B, C) -> O + Sync,
) {
    for_each_block(iter, [O::DTYPE, A::DTYPE, B::DTYPE, C::DTYPE], &|[out, a, b, c], n| {
        // SAFETY: as in `slices`.
        let (out, a, b, c) = unsafe {
            (
                std::slice::from_raw_parts_mut(out.cast::<O>(), n),
                std::slice::from_raw_parts(a.cast::<A>(), n),
                std::slice::from_raw_parts(b.cast::<B>(), n),
                std::slice::from_raw_parts(c.cast::<C>(), n),
            )
        };
        vectorized!(for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
            *out = function(*a, *b, *c);
        });
    });
}

/// Returns the slices of a block of `n` elements: those of the outputs, and those of the inputs.
///
/// # Safety
/// All elements must be of type `T`, and only the caller may access the outputs'.
#[inline(always)]
pub(super) unsafe fn block_of<'a, T: Element, const O: usize, const N: usize>(
    outputs: [*mut u8; O],
    inputs: [*mut u8; N],
    n: usize,
) -> ([&'a mut [T]; O], [&'a [T]; N]) {
    // SAFETY: as the caller promises.
    unsafe {
        (
            outputs.map(|output| std::slice::from_raw_parts_mut(output.cast(), n)),
            inputs.map(|input| std::slice::from_raw_parts(input.cast_const().cast(), n)),
        )
    }
}

/// Iterates over all elements in contiguous blocks: `block(first elements, length)`, each element once. An operand's
/// elements are given as its lane's type. The elements of the outputs, which are the first operands, overlap no other
/// operand's.
///
/// # Panics
/// If there are not `N` operands.
pub(crate) fn for_each_block<const N: usize>(
    iter: &Elementwise<'_>,
    lanes: [DType; N],
    block: &(dyn Fn([*mut u8; N], usize) + Sync),
) {
    let sizes = iter.sizes();
    let operands = iter.operands();
    assert!(operands.len() == N, "{}: {N} operands", iter.op());
    let outputs = iter.outputs();
    let is_output = |operand: usize| {
        let data = operands[operand].data;
        operand >= outputs.len() && outputs.iter().any(|output| output.data == data)
    };
    let is_one_run = (0..N).all(|operand| {
        let port = &operands[operand];
        cast::is_same(port.dtype, lanes[operand]) && !is_output(operand) && is_dense(sizes, port)
    });
    if is_one_run {
        return threads::for_each_range(iter.numel(), GRAIN, |range| {
            block(
                array::from_fn(|operand| operands[operand].data.wrapping_add(range.start * lanes[operand].size())),
                range.len(),
            );
        });
    }
    let ports: [Port<'_>; N] = array::from_fn(|operand| {
        Port::new(sizes, &operands[operand], lanes[operand], operand < outputs.len(), is_output(operand))
    });
    threads::for_each_range(iter.numel(), GRAIN, |range| through_buffers(&ports, outputs.len(), range, block));
}

/// Returns whether elements are contiguous in the order of `sizes`.
fn is_dense(sizes: &[usize], operand: &ElementwiseOperand) -> bool {
    let mut expected = operand.dtype.size();
    sizes.iter().zip(&operand.strides).all(|(size, stride)| {
        let is_next = *stride == expected;
        expected *= size;
        is_next
    })
}

fn through_buffers<const N: usize>(
    ports: &[Port<'_>; N],
    outputs: usize,
    range: std::ops::Range<usize>,
    block: &(dyn Fn([*mut u8; N], usize) + Sync),
) {
    // The memory is neither set nor moved: for small tensors that would take longer than the rest.
    let mut elements = [const { MaybeUninit::<BlockBuffer>::uninit() }; N];
    let mut lanes = [const { MaybeUninit::<BlockBuffer>::uninit() }; N];
    let mut buffers: [BlockBuffers; N] = array::from_fn(|port| BlockBuffers {
        elements: elements[port].as_mut_ptr().cast(),
        lane: lanes[port].as_mut_ptr().cast(),
        repeated: (std::ptr::null_mut(), 0),
    });
    let inner = ports[0].inner();
    // Within a run along the densest dimension, more operands can be used in place. If all can, the run is one block.
    let longest = if inner >= BLOCK && ports.iter().all(Port::is_run) { inner } else { BLOCK };
    let mut at = range.start;
    while at < range.end {
        let mut n = longest.min(range.end - at);
        if inner >= BLOCK {
            n = n.min(inner - at % inner);
        }
        let mut first = [std::ptr::null_mut(); N];
        for port in (0..N).rev() {
            first[port] = match port < outputs {
                true => ports[port].target(at, n, &mut buffers[port]),
                false => ports[port].load(at, n, &mut buffers[port]),
            };
        }
        block(first, n);
        ports[..outputs].iter().zip(&mut buffers).for_each(|(port, buffers)| port.store(at, n, buffers));
        at += n;
    }
}

/// An operand's memory for a block: its elements, and the same converted to the lane's type. Each is a [`BlockBuffer`].
struct BlockBuffers {
    elements: *mut u8,
    lane: *mut u8,
    /// The address of the one value that the buffers are filled with, if they are, and how often.
    repeated: (*mut u8, usize),
}

#[repr(align(64))]
struct BlockBuffer {
    _bytes: [u8; BLOCK * size_of::<u64>()],
}

#[derive(Clone, Copy, PartialEq)]
enum OperandLayout {
    /// Elements are contiguous.
    Dense,
    /// All elements are at one address.
    Constant,
    Strided,
}

/// The way of an operand's elements into a block or out of it.
struct Port<'a> {
    sizes: &'a [usize],
    operand: &'a ElementwiseOperand,
    place: OperandLayout,
    width: usize,
    /// The conversion to the lane's type, or from it for an output.
    cast: Option<Cast>,
    /// Whether this input is also an output: its elements must be copied before the output is written.
    is_output: bool,
}

impl<'a> Port<'a> {
    fn new(
        sizes: &'a [usize],
        operand: &'a ElementwiseOperand,
        lane: DType,
        is_written: bool,
        is_output: bool,
    ) -> Self {
        let place = match () {
            () if is_dense(sizes, operand) => OperandLayout::Dense,
            () if operand.strides.iter().all(|stride| *stride == 0) => OperandLayout::Constant,
            () => OperandLayout::Strided,
        };
        let (from, to) = if is_written { (lane, operand.dtype) } else { (operand.dtype, lane) };
        let cast = (!cast::is_same(from, to)).then(|| cast::between(from, to));
        Self { sizes, operand, place, width: operand.dtype.size(), cast, is_output }
    }

    /// Returns the number of elements along the densest dimension.
    fn inner(&self) -> usize {
        self.sizes.first().copied().unwrap_or(1)
    }

    /// Returns whether elements of a run along the densest dimension can be used in place.
    fn is_run(&self) -> bool {
        self.cast.is_none() && !self.is_output && self.stride() == self.width
    }

    /// Returns the distance of neighbours along the densest dimension, in bytes.
    fn stride(&self) -> usize {
        self.operand.strides.first().copied().unwrap_or(0)
    }

    /// Returns the address of an element.
    fn element(&self, at: usize) -> *mut u8 {
        let mut rest = at;
        let mut offset = 0;
        for (size, stride) in self.sizes.iter().zip(&self.operand.strides) {
            offset += rest % size * stride;
            rest /= size;
        }
        self.operand.data.wrapping_add(offset)
    }

    /// Returns the address of elements `at..at + n` if they are contiguous.
    fn in_place(&self, at: usize, n: usize) -> Option<*mut u8> {
        if self.place == OperandLayout::Dense {
            return Some(self.operand.data.wrapping_add(at * self.width));
        }
        let is_run = self.stride() == self.width && at % self.inner() + n <= self.inner();
        is_run.then(|| self.element(at))
    }

    /// Returns the address of elements `at..at + n` if all are at one.
    fn repeated(&self, at: usize, n: usize) -> Option<*mut u8> {
        match self.place {
            OperandLayout::Dense => None,
            OperandLayout::Constant => Some(self.operand.data),
            OperandLayout::Strided => {
                (self.stride() == 0 && at % self.inner() + n <= self.inner()).then(|| self.element(at))
            }
        }
    }

    /// Returns elements `at..at + n` of an input as the lane's type.
    fn load(&self, at: usize, n: usize, buffers: &mut BlockBuffers) -> *mut u8 {
        let buffer = buffers.elements;
        if let Some(place) = self.repeated(at, n) {
            let (before, length) = buffers.repeated;
            if before != place || length < n {
                // SAFETY: this is an element of the operand, and the buffers hold `n`.
                unsafe {
                    strided(self.width).gather(place, 0, buffer, n);
                    if let Some(cast) = self.cast {
                        cast(buffer, buffers.lane, n);
                    }
                }
                buffers.repeated = (place, n);
            }
            return if self.cast.is_some() { buffers.lane } else { buffer };
        }
        buffers.repeated = (std::ptr::null_mut(), 0);
        let in_place = self.in_place(at, n).filter(|_| !self.is_output || self.cast.is_some());
        let elements = in_place.unwrap_or(buffer);
        if in_place.is_none() {
            let copy = strided(self.width);
            // SAFETY: `for_each_run` gives places of the operand's elements, and the buffer holds `n`.
            self.for_each_run(at, n, |place, done, length| unsafe {
                copy.gather(place, self.stride(), buffer.add(done * self.width), length);
            });
        }
        let Some(cast) = self.cast else { return elements };
        // SAFETY: there are `n` elements of the operand's dtype, and the buffer holds as many of the lane's.
        unsafe { cast(elements, buffers.lane, n) };
        buffers.lane
    }

    /// Returns where to write elements `at..at + n` of the output, as the lane's type.
    fn target(&self, at: usize, n: usize, buffers: &mut BlockBuffers) -> *mut u8 {
        if self.cast.is_some() { buffers.lane } else { self.in_place(at, n).unwrap_or(buffers.elements) }
    }

    /// Moves elements that were written to [`target`](Self::target) to the output's memory.
    fn store(&self, at: usize, n: usize, buffers: &mut BlockBuffers) {
        let run = self.in_place(at, n);
        let elements = run.unwrap_or(buffers.elements);
        if let Some(cast) = self.cast {
            // SAFETY: `n` elements of the lane's type were written, and `elements` has room for as many.
            unsafe { cast(buffers.lane, elements, n) };
        }
        if run.is_none() {
            let copy = strided(self.width);
            // SAFETY: as in `load`, in the other direction.
            self.for_each_run(at, n, |place, done, length| unsafe {
                copy.scatter(elements.add(done * self.width), place, self.stride(), length);
            });
        }
    }

    /// Walks elements `at..at + n` in runs along the densest dimension: `run(address of the first, elements before it,
    /// length)`.
    fn for_each_run(&self, at: usize, n: usize, mut run: impl FnMut(*mut u8, usize, usize)) {
        let strides = &self.operand.strides[..];
        let mut index: SmallVec<[usize; 5]> = SmallVec::new();
        let mut rest = at;
        let mut offset = 0;
        for (size, stride) in self.sizes.iter().zip(strides) {
            index.push(rest % size);
            offset += rest % size * stride;
            rest /= size;
        }
        let index = &mut index[..];
        let inner = self.inner();
        let mut along = index.first().copied().unwrap_or(0);
        let mut done = 0;
        loop {
            let length = (inner - along).min(n - done);
            run(self.operand.data.wrapping_add(offset), done, length);
            done += length;
            if done == n {
                return;
            }
            offset -= along * strides[0];
            along = 0;
            for dim in 1..index.len() {
                index[dim] += 1;
                offset += strides[dim];
                if index[dim] < self.sizes[dim] {
                    break;
                }
                offset -= index[dim] * strides[dim];
                index[dim] = 0;
            }
        }
    }
}
