//! The blocks of a tier.

use std::ops::Range;

use rustc_hash::FxHashMap;
use tenure_alloc::{Address, Arena, PoolKind, Statistics};
use tenure_core::{KeyId, Tag};

/// The free and live blocks of a tier.
pub(crate) struct TierBlocks {
    pub(crate) arena: Arena,
    pub(crate) live: FxHashMap<Address, LiveBlock>,
    pub(crate) statistics: Statistics,
    /// The most bytes in use at once. Resetting the statistics does not change it.
    pub(crate) peak_bytes: u64,
}

/// A block in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LiveBlock {
    /// The requested bytes.
    pub(crate) bytes: u64,
    /// The allocated bytes, with rounding.
    held: u64,
    pub(crate) tag: Tag,
    pub(crate) key: KeyId,
}

impl TierBlocks {
    /// Makes blocks of an arena in which nothing is allocated.
    pub(crate) fn new(arena: Arena) -> Self {
        Self { arena, live: FxHashMap::default(), statistics: Statistics::default(), peak_bytes: 0 }
    }

    /// Returns the allocated bytes of all blocks in use.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.live.values().map(|live| live.held).sum()
    }

    /// Returns the ranges of all blocks in use.
    pub(crate) fn held(&self) -> impl Iterator<Item = Range<Address>> {
        self.live.iter().map(|(start, live)| *start..start + live.held)
    }

    /// Allocates a block. Returns None if there is no room.
    pub(crate) fn allocate(&mut self, bytes: u64, tag: Tag, key: KeyId) -> Option<Address> {
        let Some(block) = self.arena.allocate_low(bytes) else {
            self.statistics.num_ooms += 1;
            return None;
        };
        self.live.insert(block.address, LiveBlock { bytes, held: block.bytes, tag, key });
        self.statistics.block_allocated(PoolKind::Large, tag, bytes, block.bytes);
        self.peak_bytes = self.peak_bytes.max(self.arena.bytes() - self.arena.free_bytes());
        Some(block.address)
    }

    pub(crate) fn free(&mut self, address: Address) {
        // The block is live, and its owner frees it once, so neither step can fail.
        if let Some(LiveBlock { bytes, held, tag, .. }) = self.live.remove(&address)
            && self.arena.free(address).is_ok()
        {
            self.statistics.block_freed(PoolKind::Large, tag, held);
            self.statistics.block_completed(PoolKind::Large, tag, bytes, held);
        }
    }
}
