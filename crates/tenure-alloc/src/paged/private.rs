//! Private pools (of CUDA graphs): they allocate by PyTorch's policy, in segments of their own.
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
use super::state::{Effort, NoBlock, PagedState};
use crate::accounts::Accounts;
use crate::native::{Engine, Locked, NativeConfig};
use crate::{Address, AllocError, Backing, Block, History, MappedChunk, PoolId, PoolKind, Request};

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
        let engine = Engine::new(backing, NativeConfig { device, ..NativeConfig::default() }, history)?;
        Ok(Self { engine, segments, leftover: 0 })
    }

    /// See [`CachingAllocator::chunks_under`](crate::CachingAllocator::chunks_under).
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        let (segment, _) = self.engine.extent(address)?;
        self.engine.chunks_under(address, bytes).or_else(|| Some(vec![self.segments.chunk(segment)?]))
    }

    /// Gives back the free memory of pools without uses: of `pool`, or of all. Waits for all streams first, because a
    /// graph that used the addresses may have been launched on any stream.
    pub(super) fn release_unused_pools(
        &mut self,
        accounts: &mut Accounts,
        pool: Option<PoolId>,
    ) -> Result<(), AllocError> {
        if self.engine.has_unused_pools() {
            self.segments.synchronize_all()?;
        }
        let released = match pool {
            Some(pool) => self.engine.release_cached_in(accounts, pool),
            None => self.engine.release_unused_pools(accounts),
        };
        let tidied = self.segments.tidy();
        self.count_leftovers(accounts);
        released?;
        Ok(tidied?)
    }

    /// Updates the reserved bytes after the bytes of leftovers changed.
    fn count_leftovers(&mut self, accounts: &mut Accounts) {
        let now = self.segments.leftover_bytes();
        for pool in accounts.statistics.both(PoolKind::Large) {
            pool.reserved_bytes.increase(now.saturating_sub(self.leftover));
            pool.reserved_bytes.decrease(self.leftover.saturating_sub(now));
        }
        self.leftover = now;
    }
}

impl Locked for MutexGuard<'_, PagedState> {
    fn engine(&mut self) -> (&mut Engine, &mut Accounts) {
        let PagedState { private, accounts, .. } = &mut **self;
        (&mut private.engine, accounts)
    }

    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T {
        MutexGuard::unlocked(self, call)
    }
}

/// Allocates a block in the private pool that allocations on the request's stream go to.
pub(super) fn allocate(
    state: &mut MutexGuard<'_, PagedState>,
    request: Request,
    effort: Effort,
) -> Result<Block, NoBlock> {
    let (engine, accounts) = state.engine();
    engine.finish_completed(accounts)?;
    let found = engine.allocate_free(accounts, request)?;
    if found.is_some() || effort == Effort::Free {
        return found.ok_or(NoBlock::Full);
    }
    let made = Engine::allocate_segment(state, request);
    let PagedState { private, accounts, .. } = &mut **state;
    private.count_leftovers(accounts);
    made?.ok_or(NoBlock::Full)
}
