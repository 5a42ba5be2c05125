//! Private pools: memory kept apart, for graph captures and for whoever asks.

use tenure_core::StreamId;

use super::blocks::{BlockId, PoolRef};
use super::config::invalid;
use super::engine::{Engine, Wanted};
use super::pool::COMMON;
use crate::{AllocError, PoolId, PoolKind, StreamFilter};

/// Which private pools allocations go to.
#[derive(Default)]
pub(super) struct Captures {
    /// Pools being allocated to, by index, the latest last.
    underway: Vec<(usize, StreamFilter)>,
    /// Pools whose free blocks anybody may use before an out-of-memory error, by index.
    overflow: Vec<usize>,
}

impl Captures {
    /// Whether any private pool is being allocated to: then a stream may be capturing, and must not be asked or awaited.
    #[inline]
    pub(super) fn any(&self) -> bool {
        !self.underway.is_empty()
    }

    /// The pools that an allocation on `stream` goes to.
    #[inline]
    pub(super) fn owner_for(&self, stream: StreamId) -> usize {
        let latest = self.underway.iter().rev().find(|(_, filter)| filter(stream));
        latest.map_or(COMMON, |&(owner, _)| owner)
    }
}

impl Engine {
    pub(super) fn begin_pool(&mut self, id: PoolId, filter: StreamFilter) -> Result<(), AllocError> {
        if id == PoolId::default() {
            return Err(invalid("pool", "(0, 0)", "private pools have another id: that is the common pool's"));
        }
        let owner = self.pools.find_or_insert(id);
        if self.captures.underway.iter().any(|&(other, _)| other == owner) {
            return Err(invalid("pool", format!("{id:?}"), "end allocating to the pool before beginning again"));
        }
        self.pools.pair_mut(owner).uses += 1;
        self.captures.underway.push((owner, filter));
        Ok(())
    }

    pub(super) fn end_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        let begun = self.captures.underway.iter().position(|&(other, _)| other == owner);
        drop(self.captures.underway.remove(begun.ok_or(AllocError::UnknownPool(id))?));
        Ok(())
    }

    pub(super) fn release_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        let uses = &mut self.pools.pair_mut(owner).uses;
        *uses = uses.checked_sub(1).ok_or(AllocError::UnknownPool(id))?;
        Ok(())
    }

    pub(super) fn use_pool_on_oom(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        if !self.captures.overflow.contains(&owner) {
            self.captures.overflow.push(owner);
        }
        Ok(())
    }

    /// A free block of a private pool that is open to others; the block is in no set any more.
    pub(super) fn take_from_private_pools(&mut self, wanted: &Wanted) -> Option<(Wanted, BlockId)> {
        if wanted.pool.owner != COMMON {
            return None;
        }
        (0..self.captures.overflow.len()).find_map(|index| {
            let pool = PoolRef { owner: self.captures.overflow[index], ..wanted.pool };
            let wanted = Wanted { pool, ..*wanted };
            self.take_free(&wanted).map(|id| (wanted, id))
        })
    }

    /// Releases what is free in private pools that nobody uses any more, and forgets those that are empty.
    pub(super) fn release_unused_pools(&mut self) -> Result<(), AllocError> {
        for owner in self.pools.unused() {
            for kind in [PoolKind::Small, PoolKind::Large] {
                self.release_free(PoolRef { owner, kind })?;
            }
            let underway = self.captures.underway.iter().any(|&(other, _)| other == owner);
            if self.pools.pair(owner).is_empty() && !underway {
                self.captures.overflow.retain(|&other| other != owner);
                self.pools.remove(owner);
            }
        }
        Ok(())
    }

    fn find_pool(&self, id: PoolId) -> Result<usize, AllocError> {
        self.pools.find(id).ok_or(AllocError::UnknownPool(id))
    }
}
