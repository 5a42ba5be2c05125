//! PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11), native and with expandable
//! segments.
//!
//! There are two pools, small and large. A request is rounded, and served by the best fitting free block of its stream
//! in its pool; blocks are split off segments and merged again. The same requests over the same segment addresses get
//! the same addresses as from PyTorch.

mod blocks;
mod checkpoint;
mod config;
mod engine;
mod expandable;
mod pending;
mod pool;
mod private;
mod reclaim;
mod report;
mod segments;
mod source;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{KeyId, StreamId, Tag};

pub use config::Config;

use crate::hooks::Hooks;
use crate::{
    Address, AllocError, Backing, Block, CachingAllocator, FreeMemoryCallback, History, MappedChunk,
    OutOfMemoryObserver, PoolCheckpoint, PoolId, PoolSource, PoolUse, Request, Resource, Restored, Snapshot,
    Statistics, StreamFilter, Tuning,
};
pub(crate) use engine::Engine;
pub(crate) use source::{Locked, give_back};

/// PyTorch's allocator of a device. One lock guards it, as in PyTorch; callbacks, observers and the sources of pools
/// run without it.
///
/// If a call of the backing fails, the request that it was made for fails and no other. Memory reclaimed before stays
/// reclaimed, all other state is as before, and every counter is exact.
pub struct NativeAllocator {
    engine: Mutex<Engine>,
    history: Arc<History>,
    hooks: Hooks,
}

impl NativeAllocator {
    /// Makes an allocator over `backing`.
    ///
    /// # Errors
    /// A setting of `config` makes no sense, or the backing cannot report its memory.
    pub fn new(backing: Arc<dyn Backing>, config: Config) -> Result<Self, AllocError> {
        Self::with_history(backing, config, History::default())
    }

    /// Makes an allocator that records in `history`, which has its own clock.
    pub fn with_history(backing: Arc<dyn Backing>, config: Config, history: History) -> Result<Self, AllocError> {
        let history = Arc::new(history);
        let engine = Engine::new(backing, config, Arc::clone(&history))?;
        Ok(Self { engine: Mutex::new(engine), history, hooks: Hooks::default() })
    }

    /// Allocates a block when the pool has none: calls the callbacks, then requests new memory from the engine.
    #[cold]
    fn allocate_slow(&self, mut engine: MutexGuard<'_, Engine>, request: Request) -> Result<Block, AllocError> {
        if self.hooks.has_callbacks() && MutexGuard::unlocked(&mut engine, || self.hooks.free_memory()) {
            // The pools may have changed.
            if let Some(block) = engine.allocate_free(request)? {
                return Ok(block);
            }
        }
        if let Some(block) = Engine::allocate_new(&mut engine, request)? {
            return Ok(block);
        }
        let (error, seen) = engine.out_of_memory(request)?;
        drop(engine);
        self.hooks.out_of_memory(&seen);
        Err(error)
    }

    fn release(&self, release: impl FnOnce(&mut Engine) -> Result<(), AllocError>) -> Result<(), AllocError> {
        let mut engine = self.engine.lock();
        let released = release(&mut engine);
        give_back(&mut engine);
        released
    }
}

impl Resource for NativeAllocator {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let mut engine = self.engine.lock();
        engine.finish_completed()?;
        match engine.allocate_free(request)? {
            Some(block) => Ok(block),
            None => self.allocate_slow(engine, request),
        }
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 { Ok(()) } else { self.engine.lock().free(address) }
    }
}

impl CachingAllocator for NativeAllocator {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        if address == 0 { Ok(()) } else { self.engine.lock().record_stream(address, stream) }
    }

    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        if address == 0 { Ok(()) } else { self.engine.lock().retag(address, tag, key) }
    }

    fn annotate(&self, address: Address) -> Result<(), AllocError> {
        self.engine.lock().annotate(address)
    }

    fn block(&self, address: Address) -> Option<Block> {
        self.engine.lock().block(address)
    }

    fn release_cached(&self) -> Result<(), AllocError> {
        self.release(Engine::release_cached)
    }

    /// Does nothing: segments stay where they are.
    fn begin_cycle(&self) -> Result<(), AllocError> {
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        self.engine.lock().statistics.clone()
    }

    fn reset_peak_statistics(&self) {
        self.engine.lock().statistics.reset_peak();
    }

    fn reset_accumulated_statistics(&self) {
        self.engine.lock().statistics.reset_accumulated();
    }

    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        self.engine.lock().snapshot(pool, traces)
    }

    fn history(&self) -> &History {
        &self.history
    }

    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        self.engine.lock().tune(tuning)?;
        Ok(true)
    }

    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError> {
        self.engine.lock().limit.set(fraction)
    }

    fn memory_fraction(&self) -> f64 {
        self.engine.lock().limit.fraction()
    }

    fn count_overhead(&self, counts: bool) {
        self.engine.lock().limit.counts_overhead = counts;
    }

    fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.hooks.add_callback(callback);
    }

    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver) {
        self.hooks.add_observer(observer);
    }

    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        self.engine.lock().create_pool(pool, source)
    }

    fn pool_uses(&self, pool: PoolId) -> usize {
        self.engine.lock().pool_uses(pool)
    }

    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError> {
        self.engine.lock().begin_pool(pool, purpose, filter)
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.engine.lock().end_pool(pool)
    }

    fn set_pool_use(&self, pool: PoolId, purpose: PoolUse) {
        self.engine.lock().set_pool_use(pool, purpose);
    }

    fn is_capturing(&self) -> bool {
        self.engine.lock().captures.any()
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.engine.lock().release_pool(pool)
    }

    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError> {
        self.engine.lock().use_pool_on_oom(pool, on)
    }

    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError> {
        self.engine.lock().set_no_split(pool)
    }

    fn set_expandable(&self, pool: PoolId) -> Result<(), AllocError> {
        self.engine.lock().set_expandable(pool)
    }

    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        self.release(
            |engine| {
                if pool == PoolId::default() { engine.release_cached() } else { engine.release_cached_in(pool) }
            },
        )
    }

    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError> {
        self.engine.lock().live_blocks(pool)
    }

    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError> {
        self.engine.lock().checkpoint(pool)
    }

    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError> {
        self.engine.lock().restore(checkpoint)
    }

    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        self.engine.lock().extent(address)
    }

    fn largest_free(&self) -> u64 {
        self.engine.lock().largest_free()
    }

    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        self.engine.lock().chunks_under(address, bytes)
    }
}
