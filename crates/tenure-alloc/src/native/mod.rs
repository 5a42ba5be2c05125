//! PyTorch's caching allocator (c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11), native and with expandable
//! segments.
//!
//! There are two pools, small and large. A request is rounded, and served by the best fitting free block of its stream
//! in its pool; blocks are split off segments and merged again. The same requests over the same segment addresses get
//! the same addresses as from PyTorch.

mod blocks;
mod captures;
mod checkpoint;
mod config;
mod engine;
mod expandable;
mod mapping;
mod owner;
mod pending;
mod pool;
mod private;
mod reclaim;
mod report;
mod search;
mod segments;
mod source;

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{KeyId, StreamId, Tag};

pub use config::NativeConfig;

use crate::accounts::Accounts;
use crate::hooks::Hooks;
use crate::{
    Address, AllocError, Backing, Block, CachingAllocator, Cycles, History, LiveBlocks, MappedChunk, MemoryReports,
    PoolId, Request, Resource, Snapshot, Statistics, Tuning,
};
pub(crate) use engine::{Engine, Locked};
pub(crate) use owner::EngineOwner;
pub(crate) use source::give_back;

/// PyTorch's allocator of a device. One lock guards it, as in PyTorch; callbacks, observers and the sources of pools
/// run without it.
///
/// If a call of the backing fails, the request that it was made for fails and no other. Memory reclaimed before stays
/// reclaimed, all other state is as before, and every counter is exact.
pub struct NativeAllocator {
    state: Mutex<NativeState>,
    history: Arc<History>,
    hooks: Hooks,
}

/// The state under the allocator's lock.
struct NativeState {
    engine: Engine,
    accounts: Accounts,
}

impl Locked for MutexGuard<'_, NativeState> {
    fn engine(&mut self) -> (&mut Engine, &mut Accounts) {
        let NativeState { engine, accounts } = &mut **self;
        (engine, accounts)
    }

    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(self, call)
    }
}

impl NativeAllocator {
    /// Makes an allocator over `backing`.
    ///
    /// # Errors
    /// A setting of `config` makes no sense, or the backing cannot report its memory.
    pub fn new(backing: Arc<dyn Backing>, config: NativeConfig) -> Result<Self, AllocError> {
        Self::with_history(backing, config, History::default())
    }

    /// Makes an allocator that records in `history`, which has its own clock.
    pub fn with_history(backing: Arc<dyn Backing>, config: NativeConfig, history: History) -> Result<Self, AllocError> {
        let history = Arc::new(history);
        let max_split_size = config.max_split_size;
        let engine = Engine::new(Arc::clone(&backing), config, Arc::clone(&history))?;
        let mut accounts = Accounts::new(backing.memory_info()?.total);
        accounts.statistics.max_split_size = max_split_size;
        Ok(Self { state: Mutex::new(NativeState { engine, accounts }), history, hooks: Hooks::default() })
    }

    /// Allocates a block when the pool has none: calls the callbacks, then requests new memory from the engine.
    #[cold]
    fn allocate_slow(&self, mut state: MutexGuard<'_, NativeState>, request: Request) -> Result<Block, AllocError> {
        if self.hooks.has_callbacks() && MutexGuard::unlocked(&mut state, || self.hooks.free_memory()) {
            // The pools may have changed.
            let NativeState { engine, accounts } = &mut *state;
            if let Some(block) = engine.allocate_free(accounts, request)? {
                return Ok(block);
            }
        }
        if let Some(block) = Engine::allocate_new(&mut state, request)? {
            return Ok(block);
        }
        let NativeState { engine, accounts } = &mut *state;
        let (error, seen) = engine.out_of_memory(accounts, request)?;
        drop(state);
        self.hooks.report_out_of_memory(&seen);
        Err(error)
    }

    /// Calls `release` under the lock, and then gives released segments back to the sources of pools.
    fn release(
        &self,
        release: impl FnOnce(&mut Engine, &mut Accounts) -> Result<(), AllocError>,
    ) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let NativeState { engine, accounts } = &mut *state;
        let released = release(engine, accounts);
        give_back(&mut state);
        released
    }
}

impl EngineOwner for NativeAllocator {
    fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    fn with_engine<T>(&self, call: impl FnOnce(&mut Engine, &mut Accounts) -> T) -> T {
        let NativeState { engine, accounts } = &mut *self.state.lock();
        call(engine, accounts)
    }
}

impl Resource for NativeAllocator {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let mut state = self.state.lock();
        let NativeState { engine, accounts } = &mut *state;
        engine.finish_completed(accounts)?;
        match engine.allocate_free(accounts, request)? {
            Some(block) => Ok(block),
            None => self.allocate_slow(state, request),
        }
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let NativeState { engine, accounts } = &mut *self.state.lock();
        engine.free(accounts, address)
    }
}

impl CachingAllocator for NativeAllocator {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        if address == 0 { Ok(()) } else { self.state.lock().engine.record_stream(address, stream) }
    }

    fn release_cached(&self) -> Result<(), AllocError> {
        self.release(Engine::release_cached)
    }

    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        self.release(|engine, accounts| {
            if pool == PoolId::default() {
                engine.release_cached(accounts)
            } else {
                engine.release_cached_in(accounts, pool)
            }
        })
    }

    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        let NativeState { engine, accounts } = &mut *self.state.lock();
        engine.tune(accounts, tuning)?;
        Ok(true)
    }
}

/// Segments stay where they are.
impl Cycles for NativeAllocator {}

impl LiveBlocks for NativeAllocator {
    fn block(&self, address: Address) -> Option<Block> {
        self.state.lock().engine.block(address)
    }

    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let NativeState { engine, accounts } = &mut *self.state.lock();
        engine.retag(accounts, address, tag, key)
    }

    fn annotate(&self, address: Address) -> Result<(), AllocError> {
        self.state.lock().engine.annotate(address)
    }

    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        self.state.lock().engine.extent(address)
    }

    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        self.state.lock().engine.chunks_under(address, bytes)
    }
}

impl MemoryReports for NativeAllocator {
    fn statistics(&self) -> Statistics {
        self.state.lock().accounts.statistics.clone()
    }

    fn reset_peak_statistics(&self) {
        self.state.lock().accounts.statistics.reset_peak();
    }

    fn reset_accumulated_statistics(&self) {
        self.state.lock().accounts.statistics.reset_accumulated();
    }

    fn largest_free(&self) -> u64 {
        self.state.lock().engine.largest_free()
    }

    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        self.state.lock().engine.snapshot(pool, traces)
    }

    fn history(&self) -> &History {
        &self.history
    }
}
