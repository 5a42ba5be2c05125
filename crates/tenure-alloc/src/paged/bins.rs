//! Free blocks of slabs by size. Finding the smallest that fits takes a few instructions.

use super::config::{GRANULE, SLAB_BYTES};

/// The number of sizes, in granules from 1 to a slab's. The bins are counted from 0.
const SIZES: usize = (SLAB_BYTES / GRANULE) as usize;
/// The number of words that hold one bit for each size.
const WORDS: usize = SIZES / 64;
// The summary has one bit for each word.
const _: () = assert!(SIZES == 64 * WORDS && WORDS <= 64);

/// The number that stands for no block.
pub(super) const NONE: u32 = u32::MAX;

/// The lists of free blocks, one for each size. A bin holds the number of the first block of its list; the blocks
/// themselves link the rest.
pub(super) struct Bins {
    first: Box<[u32; SIZES]>,
    /// Bits, one for each bin: set if its list is not empty.
    words: [u64; WORDS],
    /// Bits, one for each of `words`: set if the word is not 0.
    summary: u64,
}

impl Default for Bins {
    fn default() -> Self {
        Self { first: Box::new([NONE; SIZES]), words: [0; WORDS], summary: 0 }
    }
}

impl Bins {
    /// Returns the first block of the smallest size, in granules, that is at least `size`.
    #[inline]
    pub(super) fn best(&self, size: usize) -> Option<u32> {
        let bin = size - 1;
        let word = bin / 64;
        let here = self.words[word] & (u64::MAX << (bin % 64));
        let (word, bits) = if here != 0 {
            (word, here)
        } else {
            let above = self.summary & (u64::MAX << word << 1);
            if above == 0 {
                return None;
            }
            let word = above.trailing_zeros() as usize;
            (word, self.words[word])
        };
        Some(self.first[word * 64 + bits.trailing_zeros() as usize])
    }

    /// Returns the first block of a size, or [`NONE`].
    #[inline]
    pub(super) fn first(&self, size: usize) -> u32 {
        self.first[size - 1]
    }

    /// Makes `block`, or [`NONE`], the first of a size.
    #[inline]
    pub(super) fn set_first(&mut self, size: usize, block: u32) {
        let bin = size - 1;
        self.first[bin] = block;
        let word = &mut self.words[bin / 64];
        if block == NONE {
            *word &= !(1 << (bin % 64));
            self.summary &= !(u64::from(*word == 0) << (bin / 64));
        } else {
            *word |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_the_smallest_size_that_fits(operations in prop::collection::vec((1..=SIZES, any::<bool>()), 1..200)) {
            let mut bins = Bins::default();
            let mut model = BTreeMap::new();
            for (number, (size, fill)) in operations.into_iter().enumerate() {
                if fill {
                    bins.set_first(size, number as u32);
                    model.insert(size, number as u32);
                } else {
                    bins.set_first(size, NONE);
                    model.remove(&size);
                }
                for wanted in [1, size, (size + 1).min(SIZES), SIZES] {
                    let expected = model.range(wanted..).next().map(|(_, block)| *block);
                    prop_assert_eq!(bins.best(wanted), expected);
                }
                prop_assert_eq!(bins.first(size), model.get(&size).copied().unwrap_or(NONE));
            }
        }
    }
}
