//! Blocks: the interface of their codecs, and bit planes, bitmaps and compaction of their elements.

use super::vectors::Vectors;
use super::{BLOCK, PLANE};

const LOW: u64 = 0x0101_0101_0101_0101;

/// The operations of a codec on one whole block. All functions they call must be inlined, or they are compiled without
/// vectors.
pub(super) trait BlockCodec {
    /// The bytes of an element.
    const WIDTH: usize;

    /// Returns the bytes that the encoded block takes.
    fn measure(block: &[u8]) -> usize;

    /// Encodes a block into at least as many bytes as `measure` returned.
    fn encode(block: &[u8], into: &mut [u8]);

    /// Decodes a block from at least its encoded bytes, and returns how many it took; `None` if they are invalid.
    fn decode(bytes: &[u8], block: &mut [u8]) -> Option<usize>;
}

/// Unsigned integers that hold an element's bits.
pub(super) trait Word: Copy + Default + PartialEq + Vectors {
    const BYTES: usize;

    fn from_bytes(bytes: &[u8]) -> Self;

    fn store(self, into: &mut [u8]);
}

macro_rules! words {
    ($($type:ty)*) => { $(
        impl Word for $type {
            const BYTES: usize = size_of::<Self>();

            #[inline(always)]
            fn from_bytes(bytes: &[u8]) -> Self {
                let mut all = [0; size_of::<Self>()];
                all.copy_from_slice(bytes);
                Self::from_le_bytes(all)
            }

            #[inline(always)]
            fn store(self, into: &mut [u8]) {
                into.copy_from_slice(&self.to_le_bytes());
            }
        }
    )* };
}
words!(u8 u16 u32 u64);

/// Loads the elements of a block.
#[inline(always)]
pub(super) fn load<T: Word>(block: &[u8]) -> [T; BLOCK] {
    let mut elements = [T::default(); BLOCK];
    for (element, bytes) in elements.iter_mut().zip(block.chunks_exact(T::BYTES)) {
        *element = T::from_bytes(bytes);
    }
    elements
}

#[inline(always)]
pub(super) fn store<T: Word>(elements: &[T], block: &mut [u8]) {
    for (element, bytes) in elements.iter().zip(block.chunks_exact_mut(T::BYTES)) {
        element.store(bytes);
    }
}

/// Counts the elements for which `is_so` holds.
#[inline(always)]
pub(super) fn count<T: Copy>(elements: &[T; BLOCK], is_so: impl Fn(T) -> bool) -> usize {
    // Counts in bytes, so that the widest vectors add most elements at once.
    let some = |some: &[T]| some.iter().fold(0_u8, |count, element| count + u8::from(is_so(*element)));
    elements.chunks_exact(128).map(|chunk| usize::from(some(chunk))).sum()
}

/// Gathers the low bit of each of 8 bytes into a byte.
#[inline(always)]
fn gather_low_bits(bytes: u64) -> u8 {
    ((bytes & LOW).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8
}

/// For each byte: its 8 bits as 8 bytes that are 0 or 1.
const SPREAD: [u64; 256] = {
    let mut spread = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let mut bit = 0;
        while bit < 8 {
            spread[bits] |= ((bits >> bit & 1) as u64) << (8 * bit);
            bit += 1;
        }
        bits += 1;
    }
    spread
};

/// Writes a bit plane: bit number `bit` of each byte.
#[inline(always)]
pub(super) fn plane(bytes: &[u8; BLOCK], bit: usize, into: &mut [u8]) {
    for (eight, gathered) in bytes.chunks_exact(8).zip(into) {
        *gathered = gather_low_bits(u64::from_bytes(eight) >> bit);
    }
}

/// Returns the bytes whose bit planes are given, the lowest bit first.
#[inline(always)]
pub(super) fn from_planes(planes: &[u8]) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for (at, eight) in bytes.chunks_exact_mut(8).enumerate() {
        let bits = planes.chunks_exact(PLANE).enumerate().map(|(bit, plane)| SPREAD[usize::from(plane[at])] << bit);
        bits.fold(0, |all, bits| all | bits).store(eight);
    }
    bytes
}

/// Returns the bitmap of the elements for which `is_so` holds.
#[inline(always)]
pub(super) fn bitmap<T: Copy>(elements: &[T; BLOCK], is_so: impl Fn(T) -> bool) -> [u8; PLANE] {
    let mut flags = [0; BLOCK];
    for (flag, element) in flags.iter_mut().zip(elements) {
        *flag = u8::from(is_so(*element));
    }
    let mut bitmap = [0; PLANE];
    plane(&flags, 0, &mut bitmap);
    bitmap
}

/// Counts the bits that are set.
#[inline(always)]
pub(super) fn ones(bitmap: &[u8]) -> usize {
    bitmap.chunks_exact(8).map(|word| u64::from_bytes(word).count_ones() as usize).sum()
}

/// Calls `each` with the numbers of the bits that are set, from first to last.
#[inline(always)]
pub(super) fn each_one(bitmap: &[u8], mut each: impl FnMut(usize)) {
    for (number, word) in bitmap.chunks_exact(8).enumerate() {
        let mut bits = u64::from_bytes(word);
        while bits != 0 {
            each(64 * number + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

/// Stores the elements whose bits in `bitmap` are set, one after the other. `into` must have room for them.
#[inline(always)]
pub(super) fn compact<T: Word>(elements: &[T; BLOCK], bitmap: &[u8; PLANE], into: &mut [u8]) {
    let mut found = [T::default(); _];
    if T::compact(elements, bitmap, &mut found) {
        store(&found[..ones(bitmap)], into);
    } else {
        compact_each(elements, bitmap, into);
    }
}

/// Does the work of [`compact`] without vectors.
#[inline(always)]
fn compact_each<T: Word>(elements: &[T; BLOCK], bitmap: &[u8], into: &mut [u8]) {
    let mut into = into.chunks_exact_mut(T::BYTES);
    each_one(bitmap, |at| {
        if let Some(into) = into.next() {
            elements[at % BLOCK].store(into);
        }
    });
}

/// Reverses [`compact`]: puts the elements of `found`, in order, where bits are set, and 0 elsewhere.
#[inline(always)]
pub(super) fn expand<T: Word>(found: &[u8], bitmap: &[u8; PLANE]) -> [T; BLOCK] {
    let mut elements = [T::default(); BLOCK];
    let mut padded = [T::default(); _];
    for (element, bytes) in padded.iter_mut().zip(found.chunks_exact(T::BYTES)) {
        *element = T::from_bytes(bytes);
    }
    if T::expand(&padded, bitmap, &mut elements) { elements } else { expand_each(found, bitmap) }
}

/// Does the work of [`expand`] without vectors.
#[inline(always)]
fn expand_each<T: Word>(found: &[u8], bitmap: &[u8]) -> [T; BLOCK] {
    let mut elements = [T::default(); BLOCK];
    let mut found = found.chunks_exact(T::BYTES);
    each_one(bitmap, |at| {
        if let Some(found) = found.next() {
            elements[at % BLOCK] = T::from_bytes(found);
        }
    });
    elements
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check<T: Word + From<u8> + std::fmt::Debug>(bitmap: &[u8; PLANE]) {
        let mut elements = [T::default(); BLOCK];
        for (number, element) in elements.iter_mut().enumerate() {
            *element = T::from((number % 255) as u8 + 1);
        }
        let mut found = vec![0; ones(bitmap) * T::BYTES];
        let mut each = vec![0; ones(bitmap) * T::BYTES];
        compact(&elements, bitmap, &mut found);
        compact_each(&elements, bitmap, &mut each);
        assert_eq!(found, each);
        assert_eq!(expand::<T>(&found, bitmap), expand_each(&found, bitmap));
    }

    proptest! {
        #[test]
        fn vectors_do_what_is_done_one_by_one(bits in prop::array::uniform32(any::<u32>()), full in 0..3_usize) {
            let mut bitmap = [0; PLANE];
            for (bytes, bits) in bitmap.as_chunks_mut().0.iter_mut().zip(bits) {
                *bytes = [bits, 0, u32::MAX][full * (bits % 3) as usize % 3].to_le_bytes();
            }
            check::<u8>(&bitmap);
            check::<u16>(&bitmap);
            check::<u32>(&bitmap);
            check::<u64>(&bitmap);
        }
    }
}
