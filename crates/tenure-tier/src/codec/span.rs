//! Runs of blocks, encoded and decoded by one thread with the widest vectors that the processor has.

use tenure_core::{DType, vectorized};

use super::bits::BlockCodec;
use super::elements::{CsrFp16, Fp16, Zeros};
use super::planes::Planes;
use super::{BLOCK, Codec};

/// The unit of block lengths, in bytes.
pub(super) const UNIT: usize = 16;

/// The lengths of blocks, in units.
pub(super) type Units<'a> = dyn Iterator<Item = usize> + 'a;

/// Decodes blocks of the given units, one after the other. An error is the number of the first invalid one.
pub(super) type Decode = fn(bytes: &[u8], units: &mut Units<'_>, raw: &mut [u8]) -> Result<(), usize>;

/// The functions of a codec for elements of one width.
#[derive(Clone, Copy)]
pub(super) struct CodecFunctions {
    pub(super) codec: Codec,
    /// The bytes of an element.
    pub(super) width: usize,
    /// Measures the units of each block.
    pub(super) measure: fn(raw: &[u8], units: &mut [u32]),
    /// Encodes blocks into the given units, one after the other.
    pub(super) encode: fn(raw: &[u8], units: &mut Units<'_>, into: &mut [u8]),
    pub(super) decode: Decode,
}

impl CodecFunctions {
    /// Returns the functions for a codec and a dtype; `None` if the tensor stays unchanged.
    pub(super) fn new(codec: Codec, dtype: DType) -> Option<Self> {
        codec.is_for(dtype).then(|| Self::of_width(codec, dtype.size())).flatten()
    }

    pub(super) fn of_width(codec: Codec, width: usize) -> Option<Self> {
        match (codec, width) {
            (Codec::Zeros, 1) => Some(Self::of::<Zeros<u8>>(codec)),
            (Codec::Zeros, 2) => Some(Self::of::<Zeros<u16>>(codec)),
            (Codec::Zeros, 4) => Some(Self::of::<Zeros<u32>>(codec)),
            (Codec::Zeros, 8) => Some(Self::of::<Zeros<u64>>(codec)),
            (Codec::Planes, 2) => Some(Self::of::<Planes<u16>>(codec)),
            (Codec::Planes, 4) => Some(Self::of::<Planes<u32>>(codec)),
            (Codec::Fp16, 4) => Some(Self::of::<Fp16>(codec)),
            (Codec::CsrFp16, 4) => Some(Self::of::<CsrFp16>(codec)),
            _ => None,
        }
    }

    fn of<C: BlockCodec>(codec: Codec) -> Self {
        let measure = measure::<C>;
        let encode = encode::<C>;
        let decode = decode::<C>;
        Self { codec, width: C::WIDTH, measure, encode, decode }
    }

    /// Returns the bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        BLOCK * self.width
    }
}

/// The bytes of the widest block.
const WIDEST: usize = 8 * BLOCK;

/// Calls `body` with a whole block. The last block of a tensor is padded with zeros.
#[inline(always)]
fn with_whole_block<R>(block: &[u8], bytes: usize, body: impl FnOnce(&[u8]) -> R) -> R {
    if block.len() == bytes {
        return body(block);
    }
    let mut whole = [0; WIDEST];
    whole[..block.len()].copy_from_slice(block);
    body(&whole[..bytes])
}

#[inline(always)]
fn is_zero(block: &[u8]) -> bool {
    block.chunks(64).all(|some| some.iter().fold(0, |all, byte| all | byte) == 0)
}

/// Prefetches the block after this one into the cache, since the processor prefetches only within a page by itself.
#[inline(always)]
fn prefetch(block: &[u8]) {
    for line in (0..block.len()).step_by(64) {
        let next = block.as_ptr().wrapping_add(block.len() + line);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: this is a hint, which reads nothing; the address need not even exist.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(next.cast());
        }
        let _ = next;
    }
}

fn measure<C: BlockCodec>(raw: &[u8], units: &mut [u32]) {
    let bytes = BLOCK * C::WIDTH;
    vectorized(
        #[inline(always)]
        || {
            for (block, units) in raw.chunks(bytes).zip(&mut *units) {
                prefetch(block);
                let length = with_whole_block(
                    block,
                    bytes,
                    #[inline(always)]
                    |block| if is_zero(block) { 0 } else { C::measure(block).min(bytes) },
                );
                *units = length.div_ceil(UNIT) as u32;
            }
        },
    );
}

fn encode<C: BlockCodec>(raw: &[u8], units: &mut Units<'_>, into: &mut [u8]) {
    let bytes = BLOCK * C::WIDTH;
    vectorized(
        #[inline(always)]
        || {
            let mut into = &mut *into;
            for (block, units) in raw.chunks(bytes).zip(&mut *units) {
                let (target, rest) = std::mem::take(&mut into).split_at_mut(UNIT * units);
                into = rest;
                prefetch(block);
                with_whole_block(
                    block,
                    bytes,
                    #[inline(always)]
                    |block| match target.len() {
                        0 => {}
                        length if length == bytes => target.copy_from_slice(block),
                        length => {
                            // The part that the block does not fill stays 0.
                            target[length - UNIT..].fill(0);
                            C::encode(block, target);
                        }
                    },
                );
            }
        },
    );
}

fn decode<C: BlockCodec>(bytes: &[u8], units: &mut Units<'_>, raw: &mut [u8]) -> Result<(), usize> {
    let block_bytes = BLOCK * C::WIDTH;
    vectorized(
        #[inline(always)]
        || {
            let mut from = bytes;
            let mut last = [0; WIDEST];
            for (number, (block, units)) in raw.chunks_mut(block_bytes).zip(&mut *units).enumerate() {
                let (source, rest) = from.split_at_checked(UNIT * units).ok_or(number)?;
                from = rest;
                prefetch(source);
                prefetch(block);
                let is_whole = block.len() == block_bytes;
                let whole = if is_whole { &mut *block } else { &mut last[..block_bytes] };
                match source.len() {
                    0 => whole.fill(0),
                    length if length == block_bytes => whole.copy_from_slice(source),
                    length if length > block_bytes => return Err(number),
                    length => {
                        let taken = C::decode(source, whole).ok_or(number)?;
                        if taken.div_ceil(UNIT) * UNIT != length {
                            return Err(number);
                        }
                    }
                }
                if !is_whole {
                    block.copy_from_slice(&last[..block.len()]);
                }
            }
            Ok(())
        },
    )
}
