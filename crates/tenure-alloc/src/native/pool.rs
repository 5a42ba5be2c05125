//! Pools: the free and unmapped blocks of one kind, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::StreamId;

use super::blocks::{Block, BlockId, PoolRef};
use crate::{Address, PoolId, PoolKind, PoolSource};

/// The free blocks of a pool, ordered (stream, size, address), and its unmapped ranges, ordered (stream, address).
#[derive(Debug, Default)]
pub(super) struct BlockPool {
    pub(super) free: BTreeMap<(StreamId, u64, Address), BlockId>,
    pub(super) unmapped: BTreeMap<(StreamId, Address), BlockId>,
    /// The number of lookups while garbage collection is on: the clock for block ages.
    pub(super) lookups: u64,
}

impl BlockPool {
    pub(super) fn insert_free(&mut self, id: BlockId, block: &mut Block) {
        block.free_since = self.lookups;
        self.free.insert((block.stream, block.bytes, block.address), id);
    }

    pub(super) fn remove_free(&mut self, block: &Block) {
        let removed = self.free.remove(&(block.stream, block.bytes, block.address));
        debug_assert!(removed.is_some(), "a free block is in its pool");
    }

    pub(super) fn insert_unmapped(&mut self, id: BlockId, block: &Block) {
        self.unmapped.insert((block.stream, block.address), id);
    }

    pub(super) fn remove_unmapped(&mut self, block: &Block) {
        let removed = self.unmapped.remove(&(block.stream, block.address));
        debug_assert!(removed.is_some(), "an unmapped range is in its pool");
    }

    /// Returns free blocks of `stream` of at least `bytes`, smallest first; among equals, lower addresses first.
    pub(super) fn fitting(&self, stream: StreamId, bytes: u64) -> impl Iterator<Item = BlockId> {
        self.free.range((stream, bytes, 0)..=(stream, u64::MAX, Address::MAX)).map(|(_, &id)| id)
    }

    /// Returns unmapped ranges of `stream`, by address.
    pub(super) fn unmapped_of(&self, stream: StreamId) -> impl Iterator<Item = BlockId> {
        self.unmapped.range((stream, 0)..=(stream, Address::MAX)).map(|(_, &id)| id)
    }
}

/// A pair of pools, small and large: the common pair, or a private pool's.
#[derive(Default)]
pub(super) struct PoolPair {
    pub(super) id: PoolId,
    small: BlockPool,
    large: BlockPool,
    /// The number of captures and owners that use a private pool. At 0, its free memory may be released.
    pub(super) uses: usize,
    /// The number of searches for memory underway, which may release the lock.
    pub(super) searches: usize,
    /// The source of its segments, if that is not the backing.
    pub(super) source: Option<Arc<dyn PoolSource>>,
    /// Whether each of its blocks is a segment of its own.
    pub(super) is_unsplit: bool,
    /// Whether its segments are expandable, whatever the settings are.
    pub(super) is_expandable: bool,
    /// Bytes held from the backing.
    pub(super) reserved: u64,
}

impl PoolPair {
    /// Returns whether it holds neither memory nor address space, and no search is about to add some.
    pub(super) fn is_empty(&self) -> bool {
        self.searches == 0 && self.reserved == 0 && self.small.unmapped.is_empty() && self.large.unmapped.is_empty()
    }
}

/// A segment that was released, to be given back to its source.
pub(super) struct Returned {
    pub(super) source: Arc<dyn PoolSource>,
    pub(super) address: Address,
    pub(super) bytes: u64,
    pub(super) stream: StreamId,
}

/// The common pools, at index 0, and the private ones.
pub(super) struct Pools {
    pairs: Vec<PoolPair>,
    by_id: BTreeMap<PoolId, usize>,
    /// Indices that no pair uses.
    vacant: BTreeSet<usize>,
}

/// The index of the common pools.
pub(super) const COMMON: usize = 0;

impl Pools {
    pub(super) fn get(&self, pool: PoolRef) -> &BlockPool {
        let pair = &self.pairs[pool.owner];
        match pool.kind {
            PoolKind::Small => &pair.small,
            PoolKind::Large => &pair.large,
        }
    }

    pub(super) fn get_mut(&mut self, pool: PoolRef) -> &mut BlockPool {
        let pair = &mut self.pairs[pool.owner];
        match pool.kind {
            PoolKind::Small => &mut pair.small,
            PoolKind::Large => &mut pair.large,
        }
    }

    pub(super) fn pair(&self, owner: usize) -> &PoolPair {
        &self.pairs[owner]
    }

    pub(super) fn pair_mut(&mut self, owner: usize) -> &mut PoolPair {
        &mut self.pairs[owner]
    }

    /// Returns the index of the private pool `id`.
    pub(super) fn find(&self, id: PoolId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Returns the index of the private pool `id`, made if it does not exist.
    pub(super) fn find_or_insert(&mut self, id: PoolId) -> usize {
        if let Some(owner) = self.find(id) {
            return owner;
        }
        let owner = self.vacant.pop_first().unwrap_or_else(|| {
            self.pairs.push(PoolPair::default());
            self.pairs.len() - 1
        });
        self.pairs[owner] = PoolPair { id, ..PoolPair::default() };
        self.by_id.insert(id, owner);
        owner
    }

    /// Removes a private pool that holds nothing.
    pub(super) fn remove(&mut self, owner: usize) {
        debug_assert!(owner != COMMON && self.pairs[owner].is_empty());
        self.by_id.remove(&self.pairs[owner].id);
        self.pairs[owner].source = None;
        self.vacant.insert(owner);
    }

    /// Returns the free blocks of every pool.
    pub(super) fn all_free(&self) -> impl Iterator<Item = BlockId> {
        let pools = self.pairs.iter().flat_map(|pair| [&pair.small, &pair.large]);
        pools.flat_map(|pool| pool.free.values().copied())
    }

    /// Returns the private pools that have no uses left.
    pub(super) fn unused(&self) -> Vec<usize> {
        self.by_id.values().copied().filter(|&owner| self.pairs[owner].uses == 0).collect()
    }
}

impl Default for Pools {
    fn default() -> Self {
        Self { pairs: vec![PoolPair::default()], by_id: BTreeMap::new(), vacant: BTreeSet::new() }
    }
}
