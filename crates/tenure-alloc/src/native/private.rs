//! Private pools: memory kept apart, for graph captures and for users who ask for it.

use std::sync::Arc;

use super::blocks::{BlockId, BlockState, PoolRef};
use super::config::NativeConfig;
use super::engine::{Engine, Wanted};
use super::pool::COMMON;
use crate::accounts::Accounts;
use crate::{Address, AllocError, PoolId, PoolKind, PoolSource, PoolUse, StreamFilter};

impl Engine {
    pub(crate) fn create_pool(&mut self, id: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        check_private(id)?;
        if source.is_some() && self.pools.find(id).is_some() {
            return Err(AllocError::invalid(
                "pool source",
                format!("({}, {})", id.0, id.1),
                "a pool's source is given when the pool is made",
            ));
        }
        let owner = self.pools.find_or_insert(id);
        let pair = self.pools.pair_mut(owner);
        pair.source = source.or(pair.source.take());
        pair.uses += 1;
        Ok(())
    }

    pub(crate) fn pool_uses(&self, id: PoolId) -> usize {
        self.pools.find(id).map_or(0, |owner| self.pools.pair(owner).uses)
    }

    pub(crate) fn begin_pool(&mut self, id: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError> {
        check_private(id)?;
        if self.pools.find(id).is_some_and(|owner| self.captures.is_underway(owner)) {
            return Err(AllocError::invalid(
                "pool",
                format!("({}, {})", id.0, id.1),
                "end allocating to the pool before beginning again",
            ));
        }
        let owner = self.pools.find_or_insert(id);
        self.pools.pair_mut(owner).uses += 1;
        self.captures.begin(owner, purpose, filter);
        Ok(())
    }

    pub(crate) fn end_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        if self.captures.end(owner) { Ok(()) } else { Err(AllocError::UnknownPool(id)) }
    }

    pub(crate) fn set_pool_use(&mut self, id: PoolId, purpose: PoolUse) {
        if let Some(owner) = self.pools.find(id) {
            self.captures.set_use(owner, purpose);
        }
    }

    pub(crate) fn release_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        let uses = &mut self.pools.pair_mut(owner).uses;
        *uses = uses.checked_sub(1).ok_or(AllocError::UnknownPool(id))?;
        Ok(())
    }

    pub(crate) fn use_pool_on_oom(&mut self, id: PoolId, on: bool) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        self.captures.overflow.retain(|&other| other != owner);
        if on {
            self.captures.overflow.push(owner);
        }
        Ok(())
    }

    pub(crate) fn set_no_split(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        self.pools.pair_mut(owner).is_unsplit = true;
        Ok(())
    }

    pub(crate) fn set_expandable(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        NativeConfig { expandable_segments: true, ..self.config.clone() }.validate(self.backing.granularity())?;
        self.pools.pair_mut(owner).is_expandable = true;
        Ok(())
    }

    pub(crate) fn live_blocks(&self, id: PoolId) -> Result<Vec<Address>, AllocError> {
        let owner = self.find_pool(id)?;
        let live = self.blocks.iter().filter(|block| block.pool.owner == owner && block.state == BlockState::Allocated);
        let mut addresses: Vec<Address> = live.map(|block| block.address).collect();
        addresses.sort_unstable();
        Ok(addresses)
    }

    /// Takes a free block out of a private pool that lends its free blocks; the block is then in no set.
    pub(super) fn take_from_private_pools(
        &mut self,
        accounts: &Accounts,
        wanted: &Wanted,
    ) -> Option<(Wanted, BlockId)> {
        if wanted.pool.owner != COMMON {
            return None;
        }
        (0..self.captures.overflow.len()).find_map(|index| {
            let pool = PoolRef { owner: self.captures.overflow[index], ..wanted.pool };
            let wanted = Wanted { pool, ..*wanted };
            self.take_free(accounts, &wanted).map(|id| (wanted, id))
        })
    }

    /// Returns whether there are private pools without uses.
    pub(crate) fn has_unused_pools(&self) -> bool {
        !self.pools.unused().is_empty()
    }

    /// Releases the free memory of private pools without uses, and removes the pools that are then empty.
    pub(crate) fn release_unused_pools(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        self.pools.unused().into_iter().try_for_each(|owner| self.release_unused_pool(accounts, owner))
    }

    /// Does the same for one pool, after waiting for its freed blocks. Does nothing if the pool has uses or does not
    /// exist.
    pub(crate) fn release_cached_in(&mut self, accounts: &mut Accounts, id: PoolId) -> Result<(), AllocError> {
        let Some(owner) = self.pools.find(id).filter(|&owner| self.pools.pair(owner).uses == 0) else { return Ok(()) };
        if !self.captures.any() {
            self.finish_all_of(accounts, owner)?;
        }
        self.release_unused_pool(accounts, owner)
    }

    fn release_unused_pool(&mut self, accounts: &mut Accounts, owner: usize) -> Result<(), AllocError> {
        // Replays use the addresses on streams that the allocator does not know. Freeing a segment waits for all work
        // on the device, but unmapping chunks does not, so the wait is here. (PyTorch does not wait; pools that are
        // expandable only by the setting behave as in PyTorch.)
        if self.pools.pair(owner).is_expandable && !self.captures.any() {
            self.backing.synchronize_all()?;
        }
        for kind in [PoolKind::Small, PoolKind::Large] {
            self.release_free(accounts, PoolRef { owner, kind })?;
        }
        if self.pools.pair(owner).is_empty() && !self.captures.is_underway(owner) {
            self.captures.overflow.retain(|&other| other != owner);
            self.pools.remove(owner);
        }
        Ok(())
    }

    /// Returns the index of the private pool `id`, or an error if it does not exist.
    pub(super) fn find_pool(&self, id: PoolId) -> Result<usize, AllocError> {
        self.pools.find(id).ok_or(AllocError::UnknownPool(id))
    }
}

fn check_private(id: PoolId) -> Result<(), AllocError> {
    if id == PoolId::default() {
        return Err(AllocError::invalid("pool", "(0, 0)", "private pools have another id: that is the common pool's"));
    }
    Ok(())
}
