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

use super::segments::Segments;
use crate::accounts::Accounts;
use crate::native::{Engine, NativeConfig};
use crate::{Address, AllocError, Backing, History, MappedChunk, PoolId, PoolKind};

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

    /// See [`LiveBlocks::chunks_under`](crate::LiveBlocks::chunks_under).
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
    pub(super) fn count_leftovers(&mut self, accounts: &mut Accounts) {
        let now = self.segments.leftover_bytes();
        for pool in accounts.statistics.both(PoolKind::Large) {
            pool.reserved_bytes.replace(self.leftover, now);
        }
        self.leftover = now;
    }
}
