//! Rounding of f32 to f16: to the nearest, ties to even. Values that are too large become infinite. A NaN stays a quiet
//! NaN, with its sign and the highest bits of its payload.

use half::f16;
use half::slice::HalfFloatSliceExt;

use super::BLOCK;
use super::bits::{PLANE, Word, bitmap, compact, count, expand, load, ones, store};
use super::span::BlockCodec;

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
