//! The traits that are the same for every allocator with an [`Engine`]: the limit, private pools and their checkpoints.

use std::sync::Arc;

use super::engine::Engine;
use crate::accounts::Accounts;
use crate::hooks::Hooks;
use crate::{
    Address, AllocError, FreeMemoryCallback, MemoryLimits, OutOfMemoryObserver, PoolCheckpoint, PoolCheckpoints,
    PoolId, PoolSource, PoolUse, PrivatePools, Restored, StreamFilter,
};

/// An allocator that has an engine, for all of its memory or for private pools only.
pub(crate) trait EngineOwner {
    fn hooks(&self) -> &Hooks;

    /// Calls `call` with the engine and the accounts, under the allocator's lock.
    fn with_engine<T>(&self, call: impl FnOnce(&mut Engine, &mut Accounts) -> T) -> T;

    /// Changes which private pools allocations go to, and for what.
    fn change_captures<T>(&self, change: impl FnOnce(&mut Engine) -> T) -> T {
        self.with_engine(|engine, _| change(engine))
    }
}

impl<A: EngineOwner> MemoryLimits for A {
    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError> {
        self.with_engine(|_, accounts| accounts.limit.set(fraction))
    }

    fn memory_fraction(&self) -> f64 {
        self.with_engine(|_, accounts| accounts.limit.fraction())
    }

    fn count_overhead(&self, counts: bool) {
        self.with_engine(|_, accounts| accounts.limit.counts_overhead = counts);
    }

    fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.hooks().add_callback(callback);
    }

    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver) {
        self.hooks().add_observer(observer);
    }
}

impl<A: EngineOwner> PrivatePools for A {
    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        self.with_engine(|engine, _| engine.create_pool(pool, source))
    }

    fn pool_uses(&self, pool: PoolId) -> usize {
        self.with_engine(|engine, _| engine.pool_uses(pool))
    }

    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError> {
        self.change_captures(|engine| engine.begin_pool(pool, purpose, filter))
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.change_captures(|engine| engine.end_pool(pool))
    }

    fn set_pool_use(&self, pool: PoolId, purpose: PoolUse) {
        self.change_captures(|engine| engine.set_pool_use(pool, purpose));
    }

    fn is_capturing(&self) -> bool {
        self.with_engine(|engine, _| engine.captures.any())
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.with_engine(|engine, _| engine.release_pool(pool))
    }

    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError> {
        self.with_engine(|engine, _| engine.use_pool_on_oom(pool, on))
    }

    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError> {
        self.with_engine(|engine, _| engine.set_no_split(pool))
    }

    fn set_expandable(&self, pool: PoolId) -> Result<(), AllocError> {
        self.with_engine(|engine, _| engine.set_expandable(pool))
    }

    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError> {
        self.with_engine(|engine, _| engine.live_blocks(pool))
    }
}

impl<A: EngineOwner> PoolCheckpoints for A {
    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError> {
        self.with_engine(|engine, accounts| engine.checkpoint(accounts, pool))
    }

    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError> {
        self.with_engine(|engine, accounts| engine.restore(accounts, checkpoint))
    }
}
