//! Pools: the free and unmapped blocks of one kind, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tenure_core::StreamId;

use super::blocks::{Block, BlockId, PoolRef};
use crate::{Address, PoolId, PoolKind, PoolSource};

/// The free blocks of a pool, ordered (stream, size, address), and its unmapped ranges, ordered (stream, address).
#[derive(Debug, Default)]
pub(super) struct Pool {
    pub(super) free: BTreeMap<(StreamId, u64, Address), BlockId>,
    pub(super) unmapped: BTreeMap<(StreamId, Address), BlockId>,
    /// Lookups while garbage collection is on: the clock of block ages.
    pub(super) lookups: u64,
}

impl Pool {
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

    /// Free blocks of `stream` of at least `bytes`, smallest first, lower addresses first among equals.
    pub(super) fn fitting(&self, stream: StreamId, bytes: u64) -> impl Iterator<Item = BlockId> {
        self.free.range((stream, bytes, 0)..=(stream, u64::MAX, Address::MAX)).map(|(_, &id)| id)
    }

    /// Unmapped ranges of `stream`, by address.
    pub(super) fn unmapped_of(&self, stream: StreamId) -> impl Iterator<Item = BlockId> {
        self.unmapped.range((stream, 0)..=(stream, Address::MAX)).map(|(_, &id)| id)
    }
}

/// A pair of pools: the common one, or a private one's.
#[derive(Default)]
pub(super) struct PoolPair {
    pub(super) id: PoolId,
    small: Pool,
    large: Pool,
    /// Captures and owners that use a private pool; with none, its free memory may be released.
    pub(super) uses: usize,
    /// Searches for memory underway, which may let go of the lock.
    pub(super) searches: usize,
    /// Where its segments come from, if not from the backing.
    pub(super) source: Option<Arc<dyn PoolSource>>,
    /// Whether each of its blocks is a segment of its own.
    pub(super) is_unsplit: bool,
    /// Whether its segments are expandable in any case.
    pub(super) is_expandable: bool,
    /// Bytes held from the backing.
    pub(super) reserved: u64,
}

impl PoolPair {
    /// Whether it holds neither memory nor address space, and is not to.
    pub(super) fn is_empty(&self) -> bool {
        self.searches == 0 && self.reserved == 0 && self.small.unmapped.is_empty() && self.large.unmapped.is_empty()
    }
}

/// The common pools, at index 0, and the private ones.
pub(super) struct Pools {
    pairs: Vec<PoolPair>,
    by_id: BTreeMap<PoolId, usize>,
    vacant: BTreeSet<usize>,
}

/// The common pools' index.
pub(super) const COMMON: usize = 0;

impl Pools {
    pub(super) fn get(&self, pool: PoolRef) -> &Pool {
        let pair = &self.pairs[pool.owner];
        match pool.kind {
            PoolKind::Small => &pair.small,
            PoolKind::Large => &pair.large,
        }
    }

    pub(super) fn get_mut(&mut self, pool: PoolRef) -> &mut Pool {
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

    /// The private pool of `id`.
    pub(super) fn find(&self, id: PoolId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// The private pool of `id`, made if it is not there.
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

    /// Forgets a private pool that holds nothing.
    pub(super) fn remove(&mut self, owner: usize) {
        debug_assert!(owner != COMMON && self.pairs[owner].is_empty());
        self.by_id.remove(&self.pairs[owner].id);
        self.pairs[owner].source = None;
        self.vacant.insert(owner);
    }

    /// The free blocks of every pool.
    pub(super) fn all_free(&self) -> impl Iterator<Item = BlockId> {
        let pools = self.pairs.iter().flat_map(|pair| [&pair.small, &pair.large]);
        pools.flat_map(|pool| pool.free.values().copied())
    }

    /// The private pools that nobody uses any more.
    pub(super) fn unused(&self) -> Vec<usize> {
        self.by_id.values().copied().filter(|&owner| self.pairs[owner].uses == 0).collect()
    }
}

impl Default for Pools {
    fn default() -> Self {
        Self { pairs: vec![PoolPair::default()], by_id: BTreeMap::new(), vacant: BTreeSet::new() }
    }
}
