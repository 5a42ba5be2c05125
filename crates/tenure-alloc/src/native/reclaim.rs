//! Reclaiming memory: garbage collection, release before a retry, release on request.

use super::blocks::{BlockId, PoolRef};
use super::engine::{Engine, Wanted};
use super::pool::COMMON;
use crate::accounts::Accounts;
use crate::{AllocError, PoolKind};

impl Engine {
    /// Gives back every segment and chunk that no block uses, after waiting for freed blocks.
    ///
    /// While a capture may be underway, it releases only private pools without uses.
    pub(super) fn release_cached(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        if !self.captures.any() {
            self.finish_all(accounts)?;
            for kind in [PoolKind::Large, PoolKind::Small] {
                self.release_free(accounts, PoolRef { owner: COMMON, kind })?;
            }
        }
        self.release_unused_pools(accounts)
    }

    /// Returns whether block ages are kept, for [`collect_garbage`](Self::collect_garbage).
    #[inline]
    pub(super) fn collects_garbage(&self, accounts: &Accounts) -> bool {
        accounts.limit.is_set() && self.config.garbage_collection_threshold > 0.0
    }

    /// Releases large free segments in rounds: in each, those that have been free for at least the mean age. Stops when
    /// the bytes held are at most the threshold, or when no such segment is left. An age is the number of lookups since
    /// the block became free.
    pub(super) fn collect_garbage(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        let threshold = (self.config.garbage_collection_threshold * accounts.limit.bytes() as f64) as u64;
        let large = PoolRef { owner: COMMON, kind: PoolKind::Large };
        let mut aged = Vec::new();
        if accounts.reserved() > threshold {
            let pool = self.pools.get(large);
            let whole = pool.free.values().copied().filter(|&id| self.is_whole_segment(id));
            aged.extend(whole.map(|id| (pool.lookups - self.blocks[id].free_since, id)));
        }
        while accounts.reserved() > threshold && !aged.is_empty() {
            let total: u64 = aged.iter().map(|&(age, _)| age).sum();
            let mean = total as f64 / aged.len() as f64;
            // At least one age reaches the mean, so every round releases a segment.
            let (old, young): (Vec<_>, Vec<_>) = aged.into_iter().partition(|&(age, _)| age as f64 >= mean);
            for (_, id) in old {
                self.release_segment(accounts, id)?;
            }
            aged = young;
        }
        Ok(())
    }

    /// Makes room for `wanted`, if a split limit is set, by releasing one large enough oversize segment of its stream,
    /// or several from the largest down. Returns whether it released enough.
    pub(super) fn release_oversize(&mut self, accounts: &mut Accounts, wanted: &Wanted) -> Result<bool, AllocError> {
        let Some(limit) = self.config.max_split_size else { return Ok(false) };
        let stream = wanted.request.stream;
        let needed = wanted.bytes.max(limit);
        let pool = self.pools.get(wanted.pool);
        let fitting = pool.fitting(stream, needed).next();
        if let Some(id) = fitting.filter(|&id| self.is_whole_segment(id)) {
            self.release_segment(accounts, id)?;
            return Ok(true);
        }
        let pool = self.pools.get(wanted.pool);
        let smaller = pool.free.range((stream, limit, 0)..(stream, needed, 0)).rev().map(|(_, &id)| id);
        let smaller: Vec<BlockId> = smaller.filter(|&id| self.is_whole_segment(id)).collect();
        let mut released = 0;
        for id in smaller {
            if released >= needed {
                break;
            }
            released += self.blocks[id].bytes;
            self.release_segment(accounts, id)?;
        }
        Ok(released >= needed)
    }

    /// Gives back the free memory of a pool: whole segments, and whole chunks of expandable ones.
    pub(super) fn release_free(&mut self, accounts: &mut Accounts, pool: PoolRef) -> Result<(), AllocError> {
        let free: Vec<BlockId> = self.pools.get(pool).free.values().copied().collect();
        for id in free {
            if self.blocks[id].segment.is_some() {
                self.unmap_block(accounts, id)?;
            } else if self.is_whole_segment(id) {
                self.release_segment(accounts, id)?;
            }
        }
        let unmapped: Vec<BlockId> = self.pools.get(pool).unmapped.values().copied().collect();
        for id in unmapped {
            self.release_unmapped(accounts, id)?;
        }
        Ok(())
    }
}
