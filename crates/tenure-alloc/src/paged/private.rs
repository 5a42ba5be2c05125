//! Private pools: PyTorch's policy, in segments of their own.
//!
//! # Note [Private pools]
//!
//! The memory of a captured graph stays in place as long as the graph lives. Programs set pools back to earlier states
//! and rely on the same addresses afterwards. No stream can be queried during a capture. So there is little to gain
//! from piecing memory together, and a lot to lose: private pools follow [`native`](crate::native)'s policy to the
//! byte, with expandable segments if the program wants them, in all pools or in one. They share every counter and the
//! limit with the common space.

use std::sync::Arc;

use parking_lot::MutexGuard;

use super::segments::Segments;
use super::state::{Effort, Refusal, State};
use crate::native::{Config, Engine, Locked};
use crate::{
    Address, AllocError, Backing, Block, History, MappedChunk, PoolId, PoolKind, PoolUse, Request, StreamFilter,
};

/// The private pools of an allocator.
pub(super) struct Private {
    pub(super) engine: Engine,
    segments: Arc<Segments>,
    /// The bytes of [leftovers](Segments::leftover_bytes) that are counted as reserved.
    leftover: u64,
}

impl Private {
    pub(super) fn new(backing: Arc<dyn Backing>, device: u32, history: Arc<History>) -> Result<Self, AllocError> {
        let segments = Arc::new(Segments::new(backing));
        let backing = Arc::clone(&segments) as Arc<dyn Backing>;
        let engine = Engine::new(backing, Config { device, ..Config::default() }, history)?;
        Ok(Self { engine, segments, leftover: 0 })
    }

    /// See [`CachingAllocator::chunks_under`](crate::CachingAllocator::chunks_under).
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        let (segment, _) = self.engine.extent(address)?;
        let whole = || Some(vec![self.segments.chunk(segment)?]);
        self.engine.chunks_under(address, bytes).or_else(whole)
    }

    fn count_leftovers(&mut self) {
        let now = self.segments.leftover_bytes();
        for pool in self.engine.statistics.both(PoolKind::Large) {
            pool.reserved_bytes.increase(now.saturating_sub(self.leftover));
            pool.reserved_bytes.decrease(self.leftover.saturating_sub(now));
        }
        self.leftover = now;
    }
}

impl Locked for MutexGuard<'_, State> {
    fn engine(&mut self) -> &mut Engine {
        &mut self.private.engine
    }

    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(self, call)
    }
}

impl State {
    pub(super) fn begin_pool(
        &mut self,
        pool: PoolId,
        purpose: PoolUse,
        filter: StreamFilter,
    ) -> Result<(), AllocError> {
        let begun = self.private.engine.begin_pool(pool, purpose, filter);
        self.progress.set_capturing(self.private.engine.captures.any());
        begun
    }

    pub(super) fn end_pool(&mut self, pool: PoolId) -> Result<(), AllocError> {
        let ended = self.private.engine.end_pool(pool);
        self.progress.set_capturing(self.private.engine.captures.any());
        ended
    }

    pub(super) fn set_pool_use(&mut self, pool: PoolId, purpose: PoolUse) {
        self.private.engine.set_pool_use(pool, purpose);
        self.progress.set_capturing(self.private.engine.captures.any());
    }

    /// Allocates a block in the private pool that allocations on the request's stream go to.
    pub(super) fn allocate_private(
        state: &mut MutexGuard<'_, Self>,
        request: Request,
        effort: Effort,
    ) -> Result<Block, Refusal> {
        let engine = &mut state.private.engine;
        engine.finish_completed()?;
        let found = engine.allocate_free(request)?;
        if found.is_some() || effort == Effort::Free {
            return found.ok_or(Refusal::Full);
        }
        let made = Engine::allocate_segment(state, request);
        state.private.count_leftovers();
        made?.ok_or(Refusal::Full)
    }

    /// Allocates a free block of a pool that lends its memory before an out-of-memory error.
    pub(super) fn borrow(&mut self, request: Request) -> Result<Option<Block>, AllocError> {
        self.private.engine.borrow(request)
    }

    /// Gives back the free memory of pools without uses: of `pool`, or of all. Waits for all streams first, because a
    /// graph that used the addresses may have been launched on any stream.
    pub(super) fn release_given_up(&mut self, pool: Option<PoolId>) -> Result<(), AllocError> {
        if self.private.engine.has_unused_pools() {
            self.backing.synchronize_all()?;
        }
        let engine = &mut self.private.engine;
        let released = match pool {
            Some(pool) => engine.release_cached_in(pool),
            None => engine.release_unused_pools(),
        };
        let tidied = self.private.segments.tidy();
        self.private.count_leftovers();
        released?;
        Ok(tidied?)
    }

    /// Frees a block of a private pool.
    pub(super) fn free_private(&mut self, address: Address) -> Result<(), AllocError> {
        self.private.engine.free(address)
    }

    /// Returns the memory that the block at `address`, which is in no heap, was mapped together with.
    pub(super) fn extent(&self, address: Address) -> Option<(Address, u64)> {
        let Some(block) = self.blocks.get(address).filter(|block| !block.is_freed) else {
            return self.private.engine.extent(address);
        };
        let chunks = self.chunks_under(address, block.bytes);
        Some((chunks.first()?.address, chunks.iter().map(|chunk| chunk.bytes).sum()))
    }

    /// Returns the chunks under the block at `address`, which is in no heap.
    pub(super) fn chunks_of_apart(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        match self.blocks.get(address).filter(|block| !block.is_freed) {
            Some(block) => Some(self.chunks_under(address, bytes.min(block.bytes))),
            None => self.private.chunks_under(address, bytes),
        }
    }

    /// Returns the chunks under a range of the common space that a block is in.
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Vec<MappedChunk> {
        let (space, place) = (&self.space, self.space.windows.place(address));
        let chunks = &space.windows.get(place.window).chunks;
        let pieces = chunks[place.slot..].iter().take_while(|(start, _)| *start < address + bytes);
        pieces
            .map(|&(address, index)| {
                let chunk = &space.chunks[index];
                MappedChunk { chunk: chunk.id, bytes: chunk.bytes, address }
            })
            .collect()
    }
}
