//! Private pools of pinned memory, for the graphs of captures.
//!
//! A graph copies from and to the same addresses at every launch. So what is allocated for a capture comes from a pool
//! that lives as long as the graph, and a block that a captured stream uses is kept for as long, even after it is freed.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_alloc::PoolId;

use super::blocks::{BlockId, Owner};
use super::uses::Use;
use crate::DeviceBacking;

/// A function that tells whether a stream's allocations go to a pool.
pub type PoolFilter = Box<dyn Fn(&Use) -> bool + Send>;

/// A block that a graph uses, and the device that it runs on.
type Kept = (Arc<DeviceBacking>, BlockId);

/// The private pools.
#[derive(Default)]
pub(super) struct Pools {
    pools: FxHashMap<PoolId, Pool>,
    /// The pools that allocations go to, the one begun last at the end.
    underway: Vec<(PoolId, PoolFilter)>,
    /// Blocks whose graphs are gone. Their devices may still run them.
    retired: Vec<Kept>,
    owners: u32,
}

struct Pool {
    owner: Owner,
    uses: usize,
    kept: Vec<Kept>,
}

impl Pools {
    /// Returns whether a stream may be capturing: no stream must be awaited then.
    pub(super) fn is_any_underway(&self) -> bool {
        !self.underway.is_empty()
    }

    /// Returns the pool that allocations on a stream go to.
    pub(super) fn pool_for(&self, stream: &Use) -> Option<PoolId> {
        self.underway.iter().rev().find(|(_, filter)| filter(stream)).map(|(id, _)| *id)
    }

    /// Returns the owner of the blocks for requests on a stream.
    pub(super) fn owner_for(&self, stream: impl FnOnce() -> Option<Use>) -> Owner {
        let stream = if self.is_any_underway() { stream() } else { None };
        let pool = stream.and_then(|stream| self.pools.get(&self.pool_for(&stream)?));
        pool.map_or(Owner::COMMON, |pool| pool.owner)
    }

    /// Returns the pool of an owner's blocks.
    pub(super) fn id_of(&self, owner: Owner) -> PoolId {
        let found = self.pools.iter().find(|(_, pool)| pool.owner == owner);
        found.map_or(PoolId::default(), |(id, _)| *id)
    }

    /// Sends allocations on the filter's streams to a pool, which gets one more use.
    pub(super) fn begin(&mut self, id: PoolId, filter: PoolFilter) {
        let pool = self.pools.entry(id).or_insert_with(|| {
            self.owners += 1;
            Pool { owner: Owner(self.owners), uses: 0, kept: Vec::new() }
        });
        pool.uses += 1;
        self.underway.push((id, filter));
    }

    /// Stops sending allocations to a pool.
    pub(super) fn end(&mut self, id: PoolId) {
        self.underway.retain(|(underway, _)| *underway != id);
    }

    /// Takes a use from a pool. Returns the owner of its blocks if that was the last one: they are common from now on.
    pub(super) fn release(&mut self, id: PoolId) -> Option<Owner> {
        let pool = self.pools.get_mut(&id)?;
        pool.uses -= 1;
        if pool.uses > 0 {
            return None;
        }
        let pool = self.pools.remove(&id)?;
        self.end(id);
        self.retired.extend(pool.kept);
        Some(pool.owner)
    }

    /// Keeps a freed block until the pool's graphs are gone.
    pub(super) fn keep(&mut self, id: PoolId, device: Arc<DeviceBacking>, block: BlockId) {
        let kept = self.pools.get_mut(&id).map_or(&mut self.retired, |pool| &mut pool.kept);
        kept.push((device, block));
    }

    /// Takes the blocks whose graphs are gone.
    pub(super) fn take_retired(&mut self) -> Vec<Kept> {
        std::mem::take(&mut self.retired)
    }

    /// Puts back a block whose device could not be awaited.
    pub(super) fn retire(&mut self, device: Arc<DeviceBacking>, block: BlockId) {
        self.retired.push((device, block));
    }

    /// Returns the owner, or the common one if its pool is gone.
    pub(super) fn living(&self, owner: Owner) -> Owner {
        if self.pools.values().any(|pool| pool.owner == owner) { owner } else { Owner::COMMON }
    }
}
