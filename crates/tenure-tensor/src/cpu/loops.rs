//! Loops over the elements of an [`Elementwise`], for the widest vectors that the processor has.
//!
//! A function of elements is compiled once, over dense slices of the type it computes in, its *lane*. Operands that are
//! not dense in memory, are of another dtype, or are the output too, pass through buffers in the first cache, a block at
//! a time. So one loop serves all strides and dtypes: `f16` and `bf16` are computed in `f32`, and tensors of different
//! dtypes together need no converted copy.

use std::array;
use std::mem::MaybeUninit;

use smallvec::SmallVec;

use super::cast::{self, Cast};
use super::strided::strided;
use crate::elementwise::{Elementwise, Operand};
use crate::{DType, Element, threads};

/// Elements that one thread goes through at a time: enough that waking another pays.
pub(super) const GRAIN: usize = 32 * 1024;

/// Elements of a block that passes through buffers.
const BLOCK: usize = 512;

/// Runs a loop compiled for the widest vectors that the processor has.
macro_rules! vectorized {
    ($body:expr) => {
        $crate::vectorized(
            #[inline(always)]
            || $body,
        )
    };
}
pub(super) use vectorized;

/// Writes one value everywhere.
pub(crate) fn nullary<O: Element>(iter: &Elementwise<'_>, value: O) {
    for_each_block(iter, [O::DTYPE], &|[out], n| {
        // SAFETY: `for_each_block` gives as many elements of this type, which nobody else uses.
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

/// Calls `function(inputs, outputs)` on dense slices that together are all elements, compiled for wide vectors.
pub(crate) fn slices<A: Element, O: Element>(iter: &Elementwise<'_>, function: impl Fn(&[A], &mut [O]) + Sync) {
    for_each_block(iter, [O::DTYPE, A::DTYPE], &|[out, a], n| {
        // SAFETY: `for_each_block` gives as many elements of these types, and nobody else uses the output's.
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

/// Writes `function(a, b, c)` for each three elements.
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

/// The slices of a block of `n` elements: of those that are written, and of the others.
///
/// # Safety
/// All are of type `T`, and nobody else uses those that are written.
#[inline(always)]
pub(super) unsafe fn block_of<'a, T: Element, const O: usize, const N: usize>(
    outputs: [*mut u8; O],
    inputs: [*mut u8; N],
    n: usize,
) -> ([&'a mut [T]; O], [&'a [T]; N]) {
    // SAFETY: as the caller says.
    unsafe {
        (
            outputs.map(|output| std::slice::from_raw_parts_mut(output.cast(), n)),
            inputs.map(|input| std::slice::from_raw_parts(input.cast_const().cast(), n)),
        )
    }
}

/// Goes through all elements in dense blocks: `block(first elements, length)`, each element once. An operand's elements
/// are given as its lane's type; those of the outputs, the first operands, overlap no other's.
///
/// # Panics
/// If there are not `N` operands.
pub(crate) fn for_each_block<const N: usize>(
    iter: &Elementwise<'_>,
    lanes: [DType; N],
    block: &(dyn Fn([*mut u8; N], usize) + Sync),
) {
    let (sizes, operands) = (iter.sizes(), iter.operands());
    assert!(operands.len() == N, "{}: {N} operands", iter.op());
    let outputs = iter.outputs();
    let is_output = |operand: usize| {
        let data = operands[operand].data;
        operand >= outputs.len() && outputs.iter().any(|output| output.data == data)
    };
    let dense = |operand: usize| {
        let port = &operands[operand];
        port.dtype == lanes[operand] && !is_output(operand) && is_dense(sizes, port)
    };
    if (0..N).all(dense) {
        return threads::for_each_range(iter.numel(), GRAIN, |range| {
            let first = |operand: usize| operands[operand].data.wrapping_add(range.start * lanes[operand].size());
            block(array::from_fn(first), range.len());
        });
    }
    let ports: [Port<'_>; N] = array::from_fn(|operand| {
        Port::new(sizes, &operands[operand], lanes[operand], operand < outputs.len(), is_output(operand))
    });
    threads::for_each_range(iter.numel(), GRAIN, |range| through_buffers(&ports, outputs.len(), range, block));
}

/// Whether elements lie one after the other in the order of `sizes`.
fn is_dense(sizes: &[usize], operand: &Operand) -> bool {
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
    let mut buffers: [Buffers; N] = array::from_fn(|_| Buffers::new());
    let inner = ports[0].inner();
    // Within a run along the densest dimension, more operands can be used in place. If all can, it is one block.
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

/// An operand's memory for a block: its elements, and as the lane's type.
struct Buffers {
    elements: MaybeUninit<Buffer>,
    lane: MaybeUninit<Buffer>,
    /// The place of the one value that they are filled with, if they are, and how often.
    repeated: (*mut u8, usize),
}

#[repr(align(64))]
struct Buffer {
    _bytes: [u8; BLOCK * size_of::<u64>()],
}

impl Buffers {
    #[inline(always)]
    fn new() -> Self {
        Self { elements: MaybeUninit::uninit(), lane: MaybeUninit::uninit(), repeated: (std::ptr::null_mut(), 0) }
    }

    fn elements(&mut self) -> *mut u8 {
        self.elements.as_mut_ptr().cast()
    }

    fn lane(&mut self) -> *mut u8 {
        self.lane.as_mut_ptr().cast()
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// One after the other.
    Dense,
    /// All at one place.
    Constant,
    Strided,
}

/// How an operand's elements come to a block, or go from it.
struct Port<'a> {
    sizes: &'a [usize],
    operand: &'a Operand,
    place: Place,
    width: usize,
    /// To the lane, or from it for an output.
    cast: Option<Cast>,
    /// It is the output too: what is read must lie elsewhere than what is written.
    is_output: bool,
}

impl<'a> Port<'a> {
    fn new(sizes: &'a [usize], operand: &'a Operand, lane: DType, is_written: bool, is_output: bool) -> Self {
        let place = match () {
            () if is_dense(sizes, operand) => Place::Dense,
            () if operand.strides.iter().all(|stride| *stride == 0) => Place::Constant,
            () => Place::Strided,
        };
        let (from, to) = if is_written { (lane, operand.dtype) } else { (operand.dtype, lane) };
        let cast = (from != to).then(|| cast::between(from, to));
        Self { sizes, operand, place, width: operand.dtype.size(), cast, is_output }
    }

    /// Elements along the densest dimension.
    fn inner(&self) -> usize {
        self.sizes.first().copied().unwrap_or(1)
    }

    /// Whether elements of a run along the densest dimension can be used in place.
    fn is_run(&self) -> bool {
        self.cast.is_none() && !self.is_output && self.stride() == self.width
    }

    /// Distance of neighbours along the densest dimension, in bytes.
    fn stride(&self) -> usize {
        self.operand.strides.first().copied().unwrap_or(0)
    }

    /// The place of an element.
    fn element(&self, at: usize) -> *mut u8 {
        let (mut rest, mut offset) = (at, 0);
        for (size, stride) in self.sizes.iter().zip(&self.operand.strides) {
            offset += rest % size * stride;
            rest /= size;
        }
        self.operand.data.wrapping_add(offset)
    }

    /// Elements `at..at + n` in memory, if they lie there one after the other.
    fn in_place(&self, at: usize, n: usize) -> Option<*mut u8> {
        if self.place == Place::Dense {
            return Some(self.operand.data.wrapping_add(at * self.width));
        }
        let is_run = self.stride() == self.width && at % self.inner() + n <= self.inner();
        is_run.then(|| self.element(at))
    }

    /// The place of the one value of elements `at..at + n`, if they are at one place.
    fn repeated(&self, at: usize, n: usize) -> Option<*mut u8> {
        match self.place {
            Place::Dense => None,
            Place::Constant => Some(self.operand.data),
            Place::Strided => (self.stride() == 0 && at % self.inner() + n <= self.inner()).then(|| self.element(at)),
        }
    }

    /// Elements `at..at + n` of an input as the lane's type.
    fn load(&self, at: usize, n: usize, buffers: &mut Buffers) -> *mut u8 {
        let buffer = buffers.elements();
        if let Some(place) = self.repeated(at, n) {
            let (before, length) = buffers.repeated;
            if before != place || length < n {
                // SAFETY: an element of the operand, and buffers that hold `n`.
                unsafe {
                    strided(self.width).gather(place, 0, buffer, n);
                    if let Some(cast) = self.cast {
                        cast(buffer, buffers.lane(), n);
                    }
                }
                buffers.repeated = (place, n);
            }
            return if self.cast.is_some() { buffers.lane() } else { buffer };
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
        // SAFETY: `n` elements of the operand's dtype, and a buffer for as many of the lane's.
        unsafe { cast(elements, buffers.lane(), n) };
        buffers.lane()
    }

    /// Where elements `at..at + n` of the output are to be written as the lane's type.
    fn target(&self, at: usize, n: usize, buffers: &mut Buffers) -> *mut u8 {
        if self.cast.is_some() { buffers.lane() } else { self.in_place(at, n).unwrap_or(buffers.elements()) }
    }

    /// Brings what was written to [`target`](Self::target) to memory.
    fn store(&self, at: usize, n: usize, buffers: &mut Buffers) {
        let run = self.in_place(at, n);
        let elements = run.unwrap_or(buffers.elements());
        if let Some(cast) = self.cast {
            // SAFETY: `n` elements of the lane's type were written, and `elements` has place for as many.
            unsafe { cast(buffers.lane(), elements, n) };
        }
        if run.is_none() {
            let copy = strided(self.width);
            // SAFETY: as in `load`, the other way.
            self.for_each_run(at, n, |place, done, length| unsafe {
                copy.scatter(elements.add(done * self.width), place, self.stride(), length);
            });
        }
    }

    /// Goes through elements `at..at + n` in runs along the densest dimension: `run(first, how many went before, length)`.
    fn for_each_run(&self, at: usize, n: usize, mut run: impl FnMut(*mut u8, usize, usize)) {
        let strides = &self.operand.strides[..];
        let mut index: SmallVec<[usize; 5]> = SmallVec::new();
        let (mut rest, mut offset) = (at, 0);
        for (size, stride) in self.sizes.iter().zip(strides) {
            index.push(rest % size);
            offset += rest % size * stride;
            rest /= size;
        }
        let index = &mut index[..];
        let (inner, mut along) = (self.inner(), index.first().copied().unwrap_or(0));
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
