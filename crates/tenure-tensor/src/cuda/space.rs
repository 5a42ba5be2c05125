//! Several layouts gone through together, a thread for each element or for several side by side.

use std::fmt::Write;
use std::ops::Range;

use smallvec::SmallVec;
use tenure_device::cuda::LaunchConfig;

use super::elementwise::RANKS;
use crate::elementwise::{Dims, coalesce};
use crate::tuning;

const SPACE: &str = include_str!("source/space.cu");
const THREADS: usize = 256;

/// The most bytes that a thread moves at once.
const WIDEST: usize = 16;

/// What a kernel's threads go through, in the order of memory.
pub(super) struct Space {
    sizes: Dims,
    /// Of each operand, how far neighbours are apart along each dimension.
    operands: SmallVec<[Dims; 4]>,
}

impl Space {
    /// Of these sizes, with the strides of each operand. The first that tells decides which threads are neighbours.
    pub(super) fn new(sizes: &[usize], operands: &[&[usize]]) -> Self {
        let mut operands: SmallVec<[Dims; 4]> = operands.iter().map(|strides| Dims::from_slice(strides)).collect();
        let sizes = coalesce(sizes, &mut operands);
        Self { sizes, operands }
    }

    /// Threads that there are.
    pub(super) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Makes elements of `width` bytes one unit, where they are side by side in the operands `moved`, and one place in the
    /// others. `places` are addresses and distances that units begin at. Returns a unit's bytes.
    pub(super) fn widen(
        &mut self,
        width: usize,
        moved: Range<usize>,
        places: impl IntoIterator<Item = usize>,
    ) -> usize {
        let is_one =
            |(operand, strides): (usize, &Dims)| strides[0] == if moved.contains(&operand) { width } else { 0 };
        if self.sizes.is_empty() || !self.operands.iter().enumerate().all(is_one) {
            return width;
        }
        let apart = self.operands[moved.clone()].iter().flat_map(|strides| strides[1..].iter().copied());
        let unit = unit(apart.chain(places).chain([self.sizes[0] * width]));
        self.sizes[0] = self.sizes[0] * width / unit;
        self.operands[moved].iter_mut().for_each(|strides| strides[0] = unit);
        unit
    }

    /// Whether numbers of 64 bits are needed, where an operand reaches `beyond` more bytes.
    pub(super) fn is_large(&self, beyond: usize) -> bool {
        let extent = |strides: &Dims| self.sizes.iter().zip(strides).map(|(size, stride)| size * stride).sum::<usize>();
        let largest = self.operands.iter().map(extent).max().unwrap_or(0);
        is_large((largest + beyond).max(self.count()))
    }

    fn dims(&self) -> usize {
        RANKS.into_iter().find(|rank| *rank >= self.sizes.len()).unwrap_or(self.sizes.len())
    }

    /// What `Space` is in a kernel: `source/space.cu`.
    pub(super) fn source(&self, is_large: bool) -> String {
        let index = if is_large { "u64" } else { "u32" };
        let mut source = String::new();
        let _ = writeln!(source, "#define DIMS {}\n#define OPERANDS {}", self.dims(), self.operands.len());
        let _ = writeln!(source, "typedef {index} Index;\n{SPACE}");
        source
    }

    /// All that it depends on, in 6 bits.
    pub(super) fn variant(&self, is_large: bool) -> u64 {
        (self.dims() as u64) << 1 | u64::from(is_large)
    }

    /// The words of a `Space`.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let dims = self.dims();
        let padded = move |numbers: &Dims, rest: usize| {
            let numbers = numbers.clone();
            (0..dims).map(move |dim| numbers.get(dim).copied().unwrap_or(rest) as u64)
        };
        let operands = self.operands.iter().flat_map(move |strides| padded(strides, 0));
        std::iter::once(self.count() as u64).chain(padded(&self.sizes, 1)).chain(operands)
    }

    pub(super) fn config(&self) -> LaunchConfig {
        linear(self.count())
    }
}

/// Whether numbers of 64 bits are needed, where the largest is this.
pub(super) fn is_large(largest: usize) -> bool {
    largest >= i32::MAX as usize || tuning::counts_in_64_bits()
}

/// A thread each.
pub(super) fn linear(threads: usize) -> LaunchConfig {
    LaunchConfig { grid: [threads.div_ceil(THREADS) as u32, 1, 1], block: [THREADS as u32, 1, 1], shared_bytes: 0 }
}

/// The most bytes that all of these addresses and distances are multiples of, up to what a thread moves at once.
pub(super) fn unit(places: impl IntoIterator<Item = usize>) -> usize {
    1 << places.into_iter().fold(WIDEST, |bits, place| bits | place).trailing_zeros()
}

/// What so many bytes are in a kernel.
pub(super) fn unit_type(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "Pack<u64, 2>",
    }
}
