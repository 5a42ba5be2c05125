//! Kernels for random numbers, as defined in [`crate::random`].

use std::f64::consts::TAU;

use super::math::Math;
use super::vectorized;
use crate::kernel::on_cpu;
use crate::random::{GeneratorState, low_and_high};
use crate::{
    Access, DType, DeviceKind, Element, Entry, Float, Number, Result, Scalar, Tensor, TensorError, arrays, threads,
};

/// A kernel that writes numbers between the first and the second number, or normal numbers of this mean and deviation.
/// The output is contiguous, here and below.
pub(crate) type Reals = fn(&Tensor, GeneratorState, f64, f64) -> Result<()>;
/// A kernel that writes integers from the first number on; the second is the count of different ones.
pub(crate) type Integers = fn(&Tensor, GeneratorState, i64, u64) -> Result<()>;
/// A kernel that writes 1 with this probability, and 0 otherwise.
pub(crate) type Bernoulli = fn(&Tensor, GeneratorState, f64) -> Result<()>;
/// A kernel that writes 1 with a probability for each element, of the output's dtype, and 0 otherwise.
pub(crate) type BernoulliEach = fn(&Tensor, &Tensor, GeneratorState) -> Result<()>;
/// A kernel that writes 0 with probability p, and otherwise the input divided by 1 - p.
pub(crate) type Dropout = fn(&Tensor, &Tensor, GeneratorState, f64) -> Result<()>;
/// A kernel that writes the numbers below the count of elements, in a random order.
pub(crate) type Permutation = fn(&Tensor, GeneratorState) -> Result<()>;

pub(crate) const UNIFORM: &[Entry<Reals>] = on_cpu!(floats: uniform::<T>);
pub(crate) const NORMAL: &[Entry<Reals>] = on_cpu!(floats: normal::<T>);
pub(crate) const INTEGERS: &[Entry<Integers>] = on_cpu!(all: integers::<T>);
pub(crate) const BERNOULLI: &[Entry<Bernoulli>] = on_cpu!(all: bernoulli::<T>);
pub(crate) const BERNOULLI_EACH: &[Entry<BernoulliEach>] = on_cpu!(floats: bernoulli_each::<T>);
pub(crate) const DROPOUT: &[Entry<Dropout>] = on_cpu!(floats: dropout::<T>);
pub(crate) const PERMUTATION: &[Entry<Permutation>] = &[(DeviceKind::Cpu, DType::I64, permutation)];

/// The number of blocks that are computed side by side.
const LANES: usize = 16;
/// The number of elements that a thread takes at a time: a multiple of the elements of all lanes.
const GRAIN: usize = 16 * 1024;

fn uniform<T: Float<Compute: Words>>(out: &Tensor, state: GeneratorState, low: f64, high: f64) -> Result<()> {
    let [low, range] = [low, high - low].map(|number| T::Compute::from_scalar(Scalar::Float(number)));
    let high = T::narrow(low.plus(range));
    let digits = match T::DTYPE {
        DType::BF16 => 8,
        DType::F16 => 11,
        DType::F32 => 24,
        _ => 53,
    };
    fill::<T>(
        "uniform",
        out,
        state,
        T::Compute::PER_BLOCK,
        #[inline(always)]
        |numbers, block| {
            for (to, fraction) in numbers.iter_mut().zip(T::Compute::fractions(block, digits)) {
                let value = T::narrow(low + range * fraction);
                // Rounding may have reached the upper end, which is excluded.
                *to = if value < high { value } else { T::narrow(low) };
            }
        },
    )
}

fn normal<T: Float<Compute: Words>>(out: &Tensor, state: GeneratorState, mean: f64, deviation: f64) -> Result<()> {
    let [mean, deviation] = [mean, deviation].map(|number| T::Compute::from_scalar(Scalar::Float(number)));
    let mut access = Access::new("normal", &[out], &[])?;
    for_each_group(
        access.slice_mut::<T>(0)?,
        state,
        T::Compute::PER_BLOCK,
        #[inline(always)]
        |_, numbers, blocks| {
            let mut normals = [T::Compute::ZERO; 4 * LANES];
            T::Compute::normals(&blocks, &mut normals);
            for (to, normal) in numbers.iter_mut().zip(normals) {
                *to = T::narrow(mean + deviation * normal);
            }
        },
    );
    Ok(())
}

fn integers<T: Element>(out: &Tensor, state: GeneratorState, first: i64, count: u64) -> Result<()> {
    fill::<T>(
        "randint",
        out,
        state,
        2,
        #[inline(always)]
        |numbers, block| {
            for (to, bits) in numbers.iter_mut().zip(low_and_high(block)) {
                *to = T::from_scalar(Scalar::Int(first.wrapping_add(below(bits, count) as i64)));
            }
        },
    )
}

fn bernoulli<T: Element>(out: &Tensor, state: GeneratorState, probability: f64) -> Result<()> {
    let limit = limit(probability);
    fill::<T>(
        "bernoulli",
        out,
        state,
        4,
        #[inline(always)]
        |numbers, block| {
            for (to, word) in numbers.iter_mut().zip(block) {
                *to = T::from_scalar(Scalar::Bool(u64::from(word) < limit));
            }
        },
    )
}

fn bernoulli_each<T: Float>(out: &Tensor, probabilities: &Tensor, state: GeneratorState) -> Result<()> {
    let mut access = Access::new("bernoulli", &[out], &[probabilities])?;
    let (from, to) = access.slices::<T, T>(0, 0)?;
    if let Some(wrong) = from.iter().find(|probability| !(0.0..=1.0).contains(&probability.to_scalar().to_f64())) {
        let reason = format!("probabilities are between 0 and 1, got {wrong:?}");
        return Err(TensorError::argument("bernoulli", reason));
    }
    for_each_block(
        to,
        state,
        4,
        #[inline(always)]
        |at, numbers, block| {
            for ((to, probability), word) in numbers.iter_mut().zip(&from[at..]).zip(block) {
                *to = if u64::from(word) < limit(probability.to_scalar().to_f64()) { T::ONE } else { T::ZERO };
            }
        },
    );
    Ok(())
}

fn dropout<T: Float>(out: &Tensor, input: &Tensor, state: GeneratorState, probability: f64) -> Result<()> {
    let limit = limit(1.0 - probability);
    let scale = T::Compute::from_scalar(Scalar::Float(1.0 / (1.0 - probability)));
    let mut access = Access::new("dropout", &[out], &[input])?;
    let (from, to) = access.slices::<T, T>(0, 0)?;
    for_each_block(
        to,
        state,
        4,
        #[inline(always)]
        |at, numbers, block| {
            for ((to, value), word) in numbers.iter_mut().zip(&from[at..]).zip(block) {
                let kept = T::narrow(value.widen() * scale);
                *to = if u64::from(word) < limit { kept } else { T::ZERO };
            }
        },
    );
    Ok(())
}

/// Returns which of the 32 elements from `first` on dropout keeps: one bit each, the lowest for the first.
#[inline(always)]
pub(super) fn kept(state: GeneratorState, first: usize, limit: u64) -> u32 {
    let block = (first / 4) as u64;
    let skipped = first % 4;
    let blocks = state.blocks::<8>(block);
    let last = if skipped == 0 { [0; 4] } else { state.block(block + 8) };
    let mut bits = 0_u64;
    for (index, block) in blocks.iter().chain([&last]).enumerate() {
        for (word, value) in block.iter().enumerate() {
            bits |= u64::from(u64::from(*value) < limit) << (4 * index + word);
        }
    }
    (bits >> skipped) as u32
}

/// Shuffles with Durstenfeld's algorithm: from the last position to the first, exchanges the element with a random one
/// at or before its position.
fn permutation(out: &Tensor, state: GeneratorState) -> Result<()> {
    let mut access = Access::new("randperm", &[out], &[])?;
    let numbers = access.slice_mut::<i64>(0)?;
    numbers.iter_mut().enumerate().for_each(|(place, number)| *number = place as i64);
    let mut blocks = [[0; 4]; LANES];
    let mut group = usize::MAX;
    for place in (1..numbers.len()).rev() {
        if place / (2 * LANES) != group {
            group = place / (2 * LANES);
            blocks = vectorized!(state.blocks::<LANES>((group * LANES) as u64));
        }
        let bits = low_and_high(blocks[place / 2 % LANES])[place % 2];
        numbers.swap(place, below(bits, place as u64 + 1) as usize);
    }
    Ok(())
}

/// Floats made from a block's words.
trait Words: Math {
    /// The number of floats that a block gives.
    const PER_BLOCK: usize;

    /// Returns numbers in [0, 1) of `digits` binary digits.
    fn fractions(block: [u32; 4], digits: u32) -> impl Iterator<Item = Self>;

    /// Writes numbers of mean 0 and deviation 1 (Box and Muller), block after block.
    fn normals(blocks: &[[u32; 4]; LANES], normals: &mut [Self]);
}

impl Words for f32 {
    const PER_BLOCK: usize = 4;

    #[inline(always)]
    fn fractions(block: [u32; 4], digits: u32) -> impl Iterator<Item = Self> {
        let unit = 1.0 / (1_u64 << digits) as Self;
        block.into_iter().map(move |word| (word >> (32 - digits)) as Self * unit)
    }

    #[inline(always)]
    fn normals(blocks: &[[u32; 4]; LANES], normals: &mut [Self]) {
        for half in 0..2 {
            let unit = 1.0 / (1_u64 << 32) as Self;
            let [u, v] =
                arrays::from_fn(|word| arrays::map(*blocks, |block| (block[2 * half + word] as Self + 0.5) * unit));
            for (lane, [cos, sin]) in box_muller(u, v).into_iter().enumerate() {
                (normals[4 * lane + 2 * half], normals[4 * lane + 2 * half + 1]) = (cos, sin);
            }
        }
    }
}

impl Words for f64 {
    const PER_BLOCK: usize = 2;

    #[inline(always)]
    fn fractions(block: [u32; 4], digits: u32) -> impl Iterator<Item = Self> {
        let unit = 1.0 / (1_u64 << digits) as Self;
        low_and_high(block).into_iter().map(move |word| (word >> (64 - digits)) as Self * unit)
    }

    #[inline(always)]
    fn normals(blocks: &[[u32; 4]; LANES], normals: &mut [Self]) {
        let unit = 1.0 / (1_u128 << 64) as Self;
        let [u, v] =
            arrays::from_fn(|word| arrays::map(*blocks, |block| (low_and_high(block)[word] as Self + 0.5) * unit));
        for (lane, [cos, sin]) in box_muller(u, v).into_iter().enumerate() {
            (normals[2 * lane], normals[2 * lane + 1]) = (cos, sin);
        }
    }
}

/// Returns two normal numbers for each pair of uniform ones.
#[inline(always)]
fn box_muller<T: Math>(u: [T; LANES], v: [T; LANES]) -> [[T; 2]; LANES] {
    let mut cos = [T::ZERO; LANES];
    let mut sin = [T::ZERO; LANES];
    for lane in 0..LANES {
        let radius = (T::of(-2.0) * u[lane].log()).sqrt();
        let angle = T::of(TAU) * v[lane];
        (cos[lane], sin[lane]) = (radius * angle.cos(), radius * angle.sin());
    }
    arrays::from_fn(|lane| [cos[lane], sin[lane]])
}

/// Returns a number below `count`, from 64 random bits.
#[inline(always)]
fn below(bits: u64, count: u64) -> u64 {
    ((u128::from(bits) * u128::from(count)) >> 64) as u64
}

/// Returns how many of the 2³² words count as below a probability.
#[inline(always)]
pub(crate) fn limit(probability: f64) -> u64 {
    (probability * (1_u64 << 32) as f64).round() as u64
}

/// Writes all elements: `write(elements, block)` writes those of one block.
fn fill<T: Element>(
    op: &'static str,
    out: &Tensor,
    state: GeneratorState,
    per_block: usize,
    write: impl Fn(&mut [T], [u32; 4]) + Sync,
) -> Result<()> {
    let mut access = Access::new(op, &[out], &[])?;
    for_each_block(
        access.slice_mut::<T>(0)?,
        state,
        per_block,
        #[inline(always)]
        |_, numbers, block| write(numbers, block),
    );
    Ok(())
}

/// Calls `write(index of the first element, elements, block)` for each block.
fn for_each_block<T: Element>(
    out: &mut [T],
    state: GeneratorState,
    per_block: usize,
    write: impl Fn(usize, &mut [T], [u32; 4]) + Sync,
) {
    for_each_group(
        out,
        state,
        per_block,
        #[inline(always)]
        |at, numbers, blocks| {
            for (lane, (numbers, block)) in numbers.chunks_mut(per_block).zip(blocks).enumerate() {
                write(at + lane * per_block, numbers, block);
            }
        },
    );
}

/// Calls `write(index of the first element, elements, blocks)` for each group of blocks that are computed side by side.
fn for_each_group<T: Element>(
    out: &mut [T],
    state: GeneratorState,
    per_block: usize,
    write: impl Fn(usize, &mut [T], [[u32; 4]; LANES]) + Sync,
) {
    let group = per_block * LANES;
    threads::for_each_chunk(out, GRAIN, |start, chunk| {
        vectorized!(for (index, numbers) in chunk.chunks_mut(group).enumerate() {
            let at = start + index * group;
            write(at, numbers, state.blocks::<LANES>((at / per_block) as u64));
        });
    });
}
