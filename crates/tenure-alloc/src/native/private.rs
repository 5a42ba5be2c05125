//! Private pools: memory kept apart, for graph captures and for whoever asks.

use std::sync::Arc;

use tenure_core::StreamId;

use super::blocks::{BlockId, PoolRef, State};
use super::config::{Config, invalid};
use super::engine::{Engine, Wanted};
use super::pool::COMMON;
use super::source;
use crate::{Address, AllocError, PoolId, PoolKind, PoolSource, PoolUse, StreamFilter};

/// Which private pools allocations go to.
#[derive(Default)]
pub(crate) struct Captures {
    /// Pools being allocated to, by index, the latest last.
    underway: Vec<Underway>,
    /// How many of them may be captures.
    capturing: usize,
    /// Pools whose free blocks anybody may use before an out-of-memory error, by index.
    overflow: Vec<usize>,
}

/// A private pool, by index, that allocations go to.
struct Underway {
    owner: usize,
    purpose: PoolUse,
    filter: StreamFilter,
}

impl Captures {
    /// Whether a stream may be capturing: then none must be asked or awaited. (PyTorch 2.11 takes every use of a
    /// private pool for a capture.)
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.capturing > 0
    }

    /// Whether `stream` is captured.
    pub(super) fn captures(&self, stream: StreamId) -> bool {
        let mut captures = self.underway.iter().filter(|underway| underway.purpose == PoolUse::Capture);
        captures.any(|underway| (underway.filter)(stream))
    }

    /// Whether allocations on `stream` go to a private pool.
    pub(crate) fn diverts(&self, stream: StreamId) -> bool {
        self.owner_for(stream) != COMMON
    }

    /// Private pools that allocations go to.
    pub(crate) fn underway(&self) -> usize {
        self.underway.len()
    }

    fn is_underway(&self, owner: usize) -> bool {
        self.underway.iter().any(|underway| underway.owner == owner)
    }

    /// The pools that an allocation on `stream` goes to.
    #[inline]
    pub(super) fn owner_for(&self, stream: StreamId) -> usize {
        let latest = self.underway.iter().rev().find(|underway| (underway.filter)(stream));
        latest.filter(|_| !source::is_calling()).map_or(COMMON, |underway| underway.owner)
    }
}

impl Engine {
    pub(crate) fn create_pool(&mut self, id: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        check_private(id)?;
        if source.is_some() && self.pools.find(id).is_some() {
            return Err(invalid(
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
            return Err(invalid(
                "pool",
                format!("({}, {})", id.0, id.1),
                "end allocating to the pool before beginning again",
            ));
        }
        let owner = self.pools.find_or_insert(id);
        self.pools.pair_mut(owner).uses += 1;
        self.captures.capturing += usize::from(purpose == PoolUse::Capture);
        self.captures.underway.push(Underway { owner, purpose, filter });
        Ok(())
    }

    pub(crate) fn end_pool(&mut self, id: PoolId) -> Result<(), AllocError> {
        let owner = self.find_pool(id)?;
        let begun = self.captures.underway.iter().position(|underway| underway.owner == owner);
        let ended = self.captures.underway.remove(begun.ok_or(AllocError::UnknownPool(id))?);
        self.captures.capturing -= usize::from(ended.purpose == PoolUse::Capture);
        Ok(())
    }

    pub(crate) fn set_pool_use(&mut self, id: PoolId, purpose: PoolUse) {
        let Some(owner) = self.pools.find(id) else { return };
        if let Some(underway) = self.captures.underway.iter_mut().find(|underway| underway.owner == owner) {
            self.captures.capturing -= usize::from(underway.purpose == PoolUse::Capture);
            self.captures.capturing += usize::from(purpose == PoolUse::Capture);
            underway.purpose = purpose;
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
        Config { expandable_segments: true, ..self.config.clone() }.validate(self.backing.granularity())?;
        self.pools.pair_mut(owner).is_expandable = true;
        Ok(())
    }

    pub(crate) fn live_blocks(&self, id: PoolId) -> Result<Vec<Address>, AllocError> {
        let owner = self.find_pool(id)?;
        let live = self.blocks.iter().filter(|block| block.pool.owner == owner && block.state == State::Allocated);
        let mut addresses: Vec<Address> = live.map(|block| block.address).collect();
        addresses.sort_unstable();
        Ok(addresses)
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

    /// Whether there are private pools that nobody uses any more.
    pub(crate) fn has_unused_pools(&self) -> bool {
        !self.pools.unused().is_empty()
    }

    /// Releases what is free in private pools that nobody uses any more, and forgets those that are empty.
    pub(crate) fn release_unused_pools(&mut self) -> Result<(), AllocError> {
        self.pools.unused().into_iter().try_for_each(|owner| self.release_unused_pool(owner))
    }

    /// The same for one pool; nothing if it is used or not there.
    pub(crate) fn release_cached_in(&mut self, id: PoolId) -> Result<(), AllocError> {
        let Some(owner) = self.pools.find(id).filter(|&owner| self.pools.pair(owner).uses == 0) else { return Ok(()) };
        if !self.captures.any() {
            self.finish_all_of(owner)?;
        }
        self.release_unused_pool(owner)
    }

    fn release_unused_pool(&mut self, owner: usize) -> Result<(), AllocError> {
        // Replays use the addresses on streams that nobody told us of. Segments are freed after all that is on the device;
        // chunks are unmapped at once. (PyTorch waits for none; its own pools are as PyTorch has them.)
        if self.pools.pair(owner).is_expandable && !self.captures.any() {
            self.backing.synchronize_all()?;
        }
        for kind in [PoolKind::Small, PoolKind::Large] {
            self.release_free(PoolRef { owner, kind })?;
        }
        if self.pools.pair(owner).is_empty() && !self.captures.is_underway(owner) {
            self.captures.overflow.retain(|&other| other != owner);
            self.pools.remove(owner);
        }
        Ok(())
    }

    pub(super) fn find_pool(&self, id: PoolId) -> Result<usize, AllocError> {
        self.pools.find(id).ok_or(AllocError::UnknownPool(id))
    }
}

fn check_private(id: PoolId) -> Result<(), AllocError> {
    if id == PoolId::default() {
        return Err(invalid("pool", "(0, 0)", "private pools have another id: that is the common pool's"));
    }
    Ok(())
}
