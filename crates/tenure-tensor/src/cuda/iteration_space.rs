//! The iteration space of a kernel with operands of several layouts: each thread has one element, or several
//! neighbours.

use std::fmt::Write;
use std::ops::Range;

use smallvec::SmallVec;
use tenure_device::cuda::LaunchConfig;

use crate::elementwise::{Dims, coalesce};
use crate::tuning;

const SPACE: &str = include_str!("source/space.cu");
const THREADS: usize = 256;

/// The numbers of dimensions that kernels are compiled for.
pub(super) const RANKS: [usize; 4] = [1, 3, 8, 24];

/// The largest number of bytes that a thread moves at once.
const WIDEST: usize = 16;

/// The iteration space of a kernel's threads, fastest dimension first.
pub(super) struct IterationSpace {
    sizes: Dims,
    /// Each operand's strides in bytes.
    operands: SmallVec<[Dims; 4]>,
}

impl IterationSpace {
    /// Creates the space of these sizes, with the strides of each operand. The first operand whose strides differ
    /// decides the order of dimensions.
    pub(super) fn new(sizes: &[usize], operands: &[&[usize]]) -> Self {
        let mut operands: SmallVec<[Dims; 4]> = operands.iter().map(|strides| Dims::from_slice(strides)).collect();
        let sizes = coalesce(sizes, &mut operands);
        Self { sizes, operands }
    }

    /// Returns the number of threads.
    pub(super) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// Merges elements of `width` bytes into larger units that a thread moves at once, if neighbours are contiguous in
    /// the operands `moved` and have stride 0 in the others. Units must divide all of `places`, which are addresses and
    /// distances in bytes. Returns the size of a unit in bytes.
    pub(super) fn widen(
        &mut self,
        width: usize,
        moved: Range<usize>,
        places: impl IntoIterator<Item = usize>,
    ) -> usize {
        let allows_merging =
            |(operand, strides): (usize, &Dims)| strides[0] == if moved.contains(&operand) { width } else { 0 };
        if self.sizes.is_empty() || !self.operands.iter().enumerate().all(allows_merging) {
            return width;
        }
        let apart = self.operands[moved.clone()].iter().flat_map(|strides| strides[1..].iter().copied());
        let unit = unit(apart.chain(places).chain([self.sizes[0] * width]));
        self.sizes[0] = self.sizes[0] * width / unit;
        self.operands[moved].iter_mut().for_each(|strides| strides[0] = unit);
        unit
    }

    /// Returns whether indices need 64 bits, if an operand reaches `beyond` more bytes.
    pub(super) fn is_large(&self, beyond: usize) -> bool {
        let largest = self
            .operands
            .iter()
            .map(|strides| self.sizes.iter().zip(strides).map(|(size, stride)| size * stride).sum::<usize>())
            .max()
            .unwrap_or(0);
        is_large((largest + beyond).max(self.count()))
    }

    /// Returns the number of dimensions that the kernel is compiled for.
    fn dims(&self) -> usize {
        RANKS.into_iter().find(|rank| *rank >= self.sizes.len()).unwrap_or(self.sizes.len())
    }

    /// Returns the definition of `Space` for kernels: see `source/space.cu`.
    pub(super) fn source(&self, is_large: bool) -> String {
        let index = if is_large { "u64" } else { "u32" };
        let mut source = String::new();
        let _ = writeln!(source, "#define DIMS {}\n#define OPERANDS {}", self.dims(), self.operands.len());
        let _ = writeln!(source, "typedef {index} Index;\n{SPACE}");
        source
    }

    /// Returns a number of 6 bits that differs where the definition of `Space` differs, except by the number of
    /// operands.
    pub(super) fn variant(&self, is_large: bool) -> u64 {
        (self.dims() as u64) << 1 | u64::from(is_large)
    }

    /// Returns the words of a `Space`.
    pub(super) fn words(&self) -> impl Iterator<Item = u64> {
        let dims = self.dims();
        let operands = self.operands.iter().flat_map(move |strides| padded(strides, dims, 0));
        std::iter::once(self.count() as u64).chain(padded(&self.sizes, dims, 1)).chain(operands)
    }

    pub(super) fn config(&self) -> LaunchConfig {
        linear(self.count())
    }
}

/// Returns the words of `count` numbers: the given ones, and `rest` for the others.
pub(super) fn padded(numbers: &Dims, count: usize, rest: usize) -> impl Iterator<Item = u64> {
    (0..count).map(move |dim| numbers.get(dim).copied().unwrap_or(rest) as u64)
}

/// Returns whether indices up to `largest` need 64 bits.
pub(super) fn is_large(largest: usize) -> bool {
    largest >= i32::MAX as usize || tuning::counts_in_64_bits()
}

/// Returns the launch configuration of a one-dimensional grid of this many threads.
pub(super) fn linear(threads: usize) -> LaunchConfig {
    LaunchConfig { grid: [threads.div_ceil(THREADS) as u32, 1, 1], block: [THREADS as u32, 1, 1], shared_bytes: 0 }
}

/// Returns the largest unit in bytes that divides all of these addresses and distances, and that a thread can move at
/// once.
pub(super) fn unit(places: impl IntoIterator<Item = usize>) -> usize {
    1 << places.into_iter().fold(WIDEST, |bits, place| bits | place).trailing_zeros()
}

/// Returns the CUDA C++ type of a unit of this size in bytes.
pub(super) fn unit_type(bytes: usize) -> &'static str {
    match bytes {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        8 => "u64",
        _ => "Pack<u64, 2>",
    }
}
