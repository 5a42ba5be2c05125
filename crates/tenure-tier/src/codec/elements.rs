//! Codecs that treat each element by itself: they leave out those that are 0, round f32 to f16, or do both.
//!
//! Rounding is to the nearest, ties to even. Values that are too large become infinite. A NaN stays a quiet NaN, with
//! its sign and the highest bits of its payload.

use std::marker::PhantomData;

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::bits::{BlockCodec, Word, bitmap, compact, count, expand, load, ones, store};
use super::{BLOCK, PLANE};

/// The codec of a bitmap and the elements that are not 0, each as wide as `T`.
pub(super) struct Zeros<T>(PhantomData<T>);

impl<T: Word> BlockCodec for Zeros<T> {
    const WIDTH: usize = T::BYTES;

    #[inline(always)]
    fn measure(block: &[u8]) -> usize {
        PLANE + T::BYTES * count(&load(block), |element: T| element != T::default())
    }

    #[inline(always)]
    fn encode(block: &[u8], into: &mut [u8]) {
        let elements = load::<T>(block);
        let (bits, found) = into.split_at_mut(PLANE);
        let bitmap = bitmap(&elements, |element| element != T::default());
        bits.copy_from_slice(&bitmap);
        compact(&elements, &bitmap, found);
    }

    #[inline(always)]
    fn decode(bytes: &[u8], block: &mut [u8]) -> Option<usize> {
        let (bits, found) = bytes.split_first_chunk()?;
        let found = found.get(..T::BYTES * ones(bits))?;
        store(&expand::<T>(found, bits), block);
        Some(PLANE + found.len())
    }
}

/// The codec that rounds all elements.
pub(super) struct Fp16;

/// The codec of a bitmap of the elements that are not 0, and these elements rounded.
pub(super) struct CsrFp16;

#[inline(always)]
fn round(block: &[u8]) -> [u16; BLOCK] {
    let mut singles = [0.0; BLOCK];
    let mut halves = [f16::ZERO; BLOCK];
    for (single, bytes) in singles.iter_mut().zip(block.chunks_exact(4)) {
        *single = f32::from_bits(u32::from_bytes(bytes));
    }
    halves.convert_from_f32_slice(&singles);
    halves.map(f16::to_bits)
}

#[inline(always)]
fn widen(halves: &[u16; BLOCK], block: &mut [u8]) {
    let mut singles = [0.0; BLOCK];
    halves.map(f16::from_bits).convert_to_f32_slice(&mut singles);
    store(&singles.map(f32::to_bits), block);
}

impl BlockCodec for Fp16 {
    const WIDTH: usize = 4;

    #[inline(always)]
    fn measure(_: &[u8]) -> usize {
        2 * BLOCK
    }

    #[inline(always)]
    fn encode(block: &[u8], into: &mut [u8]) {
        store(&round(block), into);
    }

    #[inline(always)]
    fn decode(bytes: &[u8], block: &mut [u8]) -> Option<usize> {
        let halves = bytes.get(..2 * BLOCK)?;
        widen(&load(halves), block);
        Some(halves.len())
    }
}

impl BlockCodec for CsrFp16 {
    const WIDTH: usize = 4;

    #[inline(always)]
    fn measure(block: &[u8]) -> usize {
        PLANE + 2 * count(&load(block), |element: u32| element != 0)
    }

    #[inline(always)]
    fn encode(block: &[u8], into: &mut [u8]) {
        let (bits, found) = into.split_at_mut(PLANE);
        let bitmap = bitmap(&load(block), |element: u32| element != 0);
        bits.copy_from_slice(&bitmap);
        compact(&round(block), &bitmap, found);
    }

    #[inline(always)]
    fn decode(bytes: &[u8], block: &mut [u8]) -> Option<usize> {
        let (bits, found) = bytes.split_first_chunk()?;
        let found = found.get(..2 * ones(bits))?;
        widen(&expand(found, bits), block);
        Some(PLANE + found.len())
    }
}
