//! A codec that stores exponents in as few bits as they need.
//!
//! An encoded block consists of:
//! - the floor of its exponents, the bits of a code, and the number of exceptions (one byte, one byte, two bytes);
//! - for each element, a byte of its sign and its highest mantissa bits;
//! - for f32, for each element, two bytes with the rest of the mantissa;
//! - the codes as bit planes, the lowest bits of all elements first;
//! - the exceptions, a byte each.
//!
//! A code is the exponent's distance above the floor. Code 0 stands for an exception, whose exponent is at the floor or
//! below.

use std::marker::PhantomData;

use super::bits::{BlockCodec, Word, bitmap, count, each_one, from_planes, load, ones, plane, store};
use super::{BLOCK, PLANE};

/// The size in bytes of the head of an encoded block: its floor, bits and exceptions.
const HEAD: usize = 4;
/// The most bits of a code; more save nothing.
const MOST_BITS: u8 = 7;

/// The codec for elements whose highest 16 bits are a bf16.
pub(super) struct Planes<T>(PhantomData<T>);

/// An element that can be split into two parts.
pub(super) trait SplitFloat: Word {
    /// Returns the bf16 and the bits below it.
    fn split(self) -> (u16, u16);

    fn join(high: u16, low: u16) -> Self;
}

impl SplitFloat for u16 {
    #[inline(always)]
    fn split(self) -> (u16, u16) {
        (self, 0)
    }

    #[inline(always)]
    fn join(high: u16, _: u16) -> Self {
        high
    }
}

impl SplitFloat for u32 {
    #[inline(always)]
    fn split(self) -> (u16, u16) {
        ((self >> 16) as u16, self as u16)
    }

    #[inline(always)]
    fn join(high: u16, low: u16) -> Self {
        Self::from(high) << 16 | Self::from(low)
    }
}

/// The code for a block's exponents.
struct ExponentCode {
    /// The exponent that code 0 would have. Code `n` stands for exponent `floor + n`.
    floor: u8,
    /// The bits of a code.
    bits: u8,
    /// The number of exponents at the floor or below.
    exceptions: usize,
}

/// Returns the highest code of `bits` bits.
const fn highest(bits: u8) -> u8 {
    (1 << bits) - 1
}

impl ExponentCode {
    /// Chooses the shortest code; among equals, the one with the fewest bits.
    #[inline(always)]
    fn choose(exponents: &[u8; BLOCK]) -> Self {
        let max = exponents.iter().fold(0, |max, exponent| max.max(*exponent));
        let code = |bits| {
            let floor = max.saturating_sub(highest(bits));
            Self { floor, bits, exceptions: BLOCK - count(exponents, |exponent| exponent > floor) }
        };
        let mut best = code(1);
        for bits in 2..=MOST_BITS {
            let next = code(bits);
            if next.bytes() < best.bytes() {
                best = next;
            }
        }
        best
    }

    /// Returns the bytes of all codes and exceptions of a block.
    fn bytes(&self) -> usize {
        PLANE * usize::from(self.bits) + self.exceptions
    }

    fn head(&self) -> [u8; HEAD] {
        let [low, high] = (self.exceptions as u16).to_le_bytes();
        [self.floor, self.bits, low, high]
    }

    fn from_head(head: &[u8]) -> Option<Self> {
        let &[floor, bits, low, high] = head else { return None };
        let code = Self { floor, bits, exceptions: u16::from_le_bytes([low, high]).into() };
        let is_possible = (1..=MOST_BITS).contains(&bits) && floor.checked_add(highest(bits)).is_some();
        is_possible.then_some(code)
    }
}

#[inline(always)]
fn exponents<T: SplitFloat>(elements: &[T; BLOCK]) -> [u8; BLOCK] {
    let mut exponents = [0; BLOCK];
    for (exponent, element) in exponents.iter_mut().zip(elements) {
        *exponent = (element.split().0 >> 7) as u8;
    }
    exponents
}

/// Returns the bytes of an encoded block's signs and mantissas.
const fn rest_bytes<T: SplitFloat>() -> usize {
    BLOCK * (T::BYTES - 1)
}

impl<T: SplitFloat> BlockCodec for Planes<T> {
    const WIDTH: usize = T::BYTES;

    #[inline(always)]
    fn measure(block: &[u8]) -> usize {
        HEAD + rest_bytes::<T>() + ExponentCode::choose(&exponents(&load::<T>(block))).bytes()
    }

    #[inline(always)]
    fn encode(block: &[u8], into: &mut [u8]) {
        let elements = load::<T>(block);
        let mut codes = exponents(&elements);
        let code = ExponentCode::choose(&codes);
        let (head, into) = into.split_at_mut(HEAD);
        head.copy_from_slice(&code.head());
        let (rest, into) = into.split_at_mut(rest_bytes::<T>());
        let (signs, low) = rest.split_at_mut(BLOCK);
        for (sign, element) in signs.iter_mut().zip(&elements) {
            let (high, _) = element.split();
            *sign = (high & 0x7f | high >> 8 & 0x80) as u8;
        }
        for (low, element) in low.chunks_exact_mut(2).zip(&elements) {
            element.split().1.store(low);
        }
        // A block that another thread wrote to after it was measured gives useless output, but must not panic here.
        let Some((planes, found)) = into.split_at_mut_checked(PLANE * usize::from(code.bits)) else { return };
        let mut found = found.iter_mut();
        each_one(&bitmap(&codes, |exponent| exponent <= code.floor), |at| {
            if let Some(found) = found.next() {
                *found = codes[at % BLOCK];
            }
        });
        for exponent in &mut codes {
            *exponent = exponent.saturating_sub(code.floor);
        }
        for (bit, into) in planes.chunks_exact_mut(PLANE).enumerate() {
            plane(&codes, bit, into);
        }
    }

    #[inline(always)]
    fn decode(bytes: &[u8], block: &mut [u8]) -> Option<usize> {
        let (head, from) = bytes.split_at_checked(HEAD)?;
        let code = ExponentCode::from_head(head)?;
        let (rest, from) = from.split_at_checked(rest_bytes::<T>())?;
        let (planes, from) = from.split_at_checked(PLANE * usize::from(code.bits))?;
        let found = from.get(..code.exceptions)?;
        let mut exponents = from_planes(planes);
        let exceptions = bitmap(&exponents, |code| code == 0);
        if ones(&exceptions) != found.len() {
            return None;
        }
        for exponent in &mut exponents {
            *exponent = exponent.wrapping_add(code.floor);
        }
        let mut found = found.iter();
        each_one(&exceptions, |at| exponents[at % BLOCK] = found.next().copied().unwrap_or_default());
        let (signs, low) = rest.split_at(BLOCK);
        let mut elements = [T::default(); BLOCK];
        for (element, (sign, exponent)) in elements.iter_mut().zip(signs.iter().zip(&exponents)) {
            let sign = u16::from(*sign);
            *element = T::join((sign & 0x80) << 8 | u16::from(*exponent) << 7 | sign & 0x7f, 0);
        }
        for (element, low) in elements.iter_mut().zip(low.chunks_exact(2)) {
            *element = T::join(element.split().0, u16::from_bytes(low));
        }
        store(&elements, block);
        Some(HEAD + rest.len() + code.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::elements::{CsrFp16, Fp16, Zeros};

    /// Encodes a block into the bytes that another block needs.
    fn changed<C: BlockCodec>(block: &[u8], other: &[u8]) {
        let length = C::measure(other).min(other.len());
        C::encode(block, &mut vec![0; length]);
    }

    #[test]
    fn a_block_that_changes_after_it_was_measured_does_not_panic() {
        let noise: Vec<u8> = (0_u32..BLOCK as u32).flat_map(|i| i.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect();
        let one: Vec<u8> = (0..BLOCK).flat_map(|i| f32::from(i == 7).to_le_bytes()).collect();
        let ones = 1_f32.to_le_bytes().repeat(BLOCK);
        let several: Vec<u8> = (0..BLOCK as i32).flat_map(|i| 2_f32.powi(i % 8).to_le_bytes()).collect();
        for (block, other) in [(&noise, &one), (&one, &noise), (&several, &ones), (&ones, &several)] {
            changed::<Planes<u32>>(block, other);
            changed::<Planes<u16>>(&block[..2 * BLOCK], &other[..2 * BLOCK]);
            changed::<Zeros<u32>>(block, other);
            changed::<Zeros<u8>>(&block[..BLOCK], &other[..BLOCK]);
            changed::<Fp16>(block, other);
            changed::<CsrFp16>(block, other);
        }
    }
}
