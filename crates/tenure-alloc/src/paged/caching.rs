//! The paged allocator as a [`CachingAllocator`]. None of it is called often.

use tenure_core::{KeyId, StreamId, Tag};

use super::heap::Heap;
use super::state::PagedState;
use super::{PagedAllocator, report};
use crate::accounts::Accounts;
use crate::hooks::Hooks;
use crate::native::{Engine, EngineOwner};
use crate::sync::Ordering;
use crate::{
    Address, AllocError, Block, CachingAllocator, CycleBlock, Cycles, History, LiveBlocks, MappedChunk, MemoryReports,
    PoolId, RepeatedCycle, Snapshot, Statistics, Tuning,
};

impl CachingAllocator for PagedAllocator {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        let is_found = address == 0
            || match self.owner(address) {
                Some((heap, _)) => heap.lock().record_stream(address, stream),
                None => self.state.lock().record_stream(address, stream),
            };
        if is_found { Ok(()) } else { Err(AllocError::UnknownAddress(address)) }
    }

    /// Does nothing while a stream is captured: memory can be released only after querying streams, which would break
    /// the capture.
    fn release_cached(&self) -> Result<(), AllocError> {
        if self.state.lock().progress.is_capturing() {
            return Ok(());
        }
        self.reclaim_all()?;
        self.release_unused_pools(None)?;
        Ok(self.state.lock().release_whole()?)
    }

    /// Does nothing while a stream is captured, like [`release_cached`](Self::release_cached).
    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::default() {
            return self.release_cached();
        }
        if self.state.lock().progress.is_capturing() { Ok(()) } else { self.release_unused_pools(Some(pool)) }
    }

    /// Applies `ExpandableSegments` to private pools only: all other memory is mapped where it is needed anyway.
    /// Ignores `MaxSplitSize` and `GarbageCollectionThreshold`: blocks of all sizes are split, and cached memory is
    /// used before any is released.
    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        if let Tuning::MaxSplitSize(_) | Tuning::GarbageCollectionThreshold(_) = tuning {
            return Ok(false);
        }
        {
            let PagedState { private, accounts, .. } = &mut *self.state.lock();
            private.engine.tune(accounts, tuning)?;
        }
        if let Tuning::Rounding(divisions) = tuning {
            *self.divisions.write() = divisions;
            self.has_rounding.store(u64::from(divisions.iter().any(|&steps| steps > 1)), Ordering::Release);
        }
        Ok(true)
    }
}

/// Nothing happens while a stream is captured: windows can be unmapped only after querying streams, which would break
/// the capture.
impl Cycles for PagedAllocator {
    fn begin_cycle(&self, kind: u64) -> Result<(), AllocError> {
        self.return_parked();
        let mut state = self.state.lock();
        if state.progress.is_capturing() { Ok(()) } else { Ok(state.begin_cycle(kind)?) }
    }

    fn repeated_cycle(&self) -> Option<RepeatedCycle> {
        let mut state = self.state.lock();
        if state.progress.is_capturing() { None } else { state.repeated_cycle() }
    }

    fn lay_out_cycle(&self, blocks: &[CycleBlock], offsets: &[u64]) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        if state.progress.is_capturing() { Ok(()) } else { Ok(state.lay_out_cycle(blocks, offsets)?) }
    }
}

impl LiveBlocks for PagedAllocator {
    fn block(&self, address: Address) -> Option<Block> {
        match self.owner(address) {
            Some((heap, _)) => heap.lock().bytes_of(address).map(|bytes| Block { address, bytes }),
            None => self.state.lock().block(address),
        }
    }

    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        let is_found = address == 0
            || match self.owner(address) {
                Some((heap, _)) => heap.lock().retag(address, tag, key),
                None => self.state.lock().retag(address, tag, key),
            };
        if is_found { Ok(()) } else { Err(AllocError::UnknownAddress(address)) }
    }

    fn annotate(&self, address: Address) -> Result<(), AllocError> {
        match self.owner(address) {
            Some((heap, _)) => heap.lock().annotate(address, &self.history),
            None => self.state.lock().annotate(address),
        }
    }

    /// Returns the range of the chunks under the block, which are mapped side by side; for a block of a private pool
    /// its segment.
    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        let Some(bytes) = self.lent_bytes(address) else { return self.state.lock().extent(address) };
        self.state.lock().space.extent(address, bytes)
    }

    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        match self.lent_bytes(address) {
            Some(block) => Some(self.state.lock().space.chunks_under(address, bytes.min(block))),
            None => self.state.lock().chunks_under(address, bytes),
        }
    }
}

impl MemoryReports for PagedAllocator {
    fn statistics(&self) -> Statistics {
        // Takes all locks at once, heaps first, so that the statistics are of one moment.
        let mut heaps: Vec<_> = self.heaps.all().map(Heap::lock).collect();
        let mut state = self.state.lock();
        heaps.iter_mut().for_each(|heap| self.take_back(&mut state, heap.take_parked()));
        let mut statistics = state.statistics();
        heaps.iter().for_each(|heap| heap.add_statistics(&mut statistics));
        bound_peaks(&mut statistics);
        statistics
    }

    fn reset_peak_statistics(&self) {
        self.heaps.all().for_each(|heap| heap.lock().counters_mut().reset_peaks());
        self.state.lock().accounts.statistics.reset_peak();
    }

    fn reset_accumulated_statistics(&self) {
        self.heaps.all().for_each(|heap| heap.lock().counters_mut().reset_accumulated());
        self.state.lock().accounts.statistics.reset_accumulated();
    }

    fn largest_free(&self) -> u64 {
        self.return_parked();
        let state = &mut *self.state.lock();
        state.space.longest_range().max(state.private.engine.largest_free())
    }

    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        report::snapshot(self, pool, traces)
    }

    fn history(&self) -> &History {
        &self.history
    }
}

impl EngineOwner for PagedAllocator {
    fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    fn with_engine<T>(&self, call: impl FnOnce(&mut Engine, &mut Accounts) -> T) -> T {
        let PagedState { private, accounts, .. } = &mut *self.state.lock();
        call(&mut private.engine, accounts)
    }

    fn change_captures<T>(&self, change: impl FnOnce(&mut Engine) -> T) -> T {
        let PagedState { private, progress, .. } = &mut *self.state.lock();
        let changed = change(&mut private.engine);
        progress.set_capturing(private.engine.captures.any());
        self.active_pools.store(private.engine.captures.underway() as u64, Ordering::Release);
        changed
    }
}

/// Bounds the peaks of live blocks, which are sums over heaps, by the peak of reserved bytes, which is exact.
fn bound_peaks(statistics: &mut Statistics) {
    for pool in [&mut statistics.all, &mut statistics.small_pool, &mut statistics.large_pool] {
        let most = pool.reserved_bytes.peak;
        for stat in [&mut pool.requested_bytes, &mut pool.allocated_bytes, &mut pool.active_bytes] {
            stat.peak = stat.peak.min(most);
        }
    }
}
