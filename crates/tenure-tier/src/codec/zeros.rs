//! A codec of a bitmap and the elements that are not 0.

use std::marker::PhantomData;

use super::bits::{PLANE, Word, bitmap, compact, count, expand, load, ones, store};
use super::span::BlockCodec;

/// The codec for elements as wide as `T`.
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
