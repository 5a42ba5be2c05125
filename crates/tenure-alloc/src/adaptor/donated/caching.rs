//! [`Donated`] as a caching allocator: each call goes to the donated memory, the allocator below, or both.

use std::sync::Arc;

use tenure_core::{KeyId, StreamId, Tag};

use super::Donated;
use crate::{
    Address, AllocError, Block, CachingAllocator, CycleBlock, Cycles, FreeMemoryCallback, History, LiveBlocks,
    MappedChunk, MemoryLimits, MemoryReports, OutOfMemoryObserver, PoolCheckpoint, PoolCheckpoints, PoolId, PoolSource,
    PoolUse, PrivatePools, RepeatedCycle, Restored, Snapshot, Statistics, StreamFilter, Tuning,
};

impl<A: CachingAllocator> CachingAllocator for Donated<A> {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        if let Some(mut ranges) = self.donated.lock_containing(address) {
            return ranges.record_stream(address, stream);
        }
        self.inner.record_stream(address, stream)
    }

    /// Releases what the allocator below caches. Donated memory stays until it is
    /// [cleared](super::DonatedRanges::clear).
    fn release_cached(&self) -> Result<(), AllocError> {
        self.inner.release_cached()
    }

    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.release_cached_in(pool)
    }

    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        self.inner.tune(tuning)
    }
}

impl<A: CachingAllocator> Cycles for Donated<A> {
    fn begin_cycle(&self, kind: u64) -> Result<(), AllocError> {
        self.inner.begin_cycle(kind)
    }

    fn repeated_cycle(&self) -> Option<RepeatedCycle> {
        self.inner.repeated_cycle()
    }

    fn lay_out_cycle(&self, blocks: &[CycleBlock], offsets: &[u64]) -> Result<(), AllocError> {
        self.inner.lay_out_cycle(blocks, offsets)
    }
}

impl<A: CachingAllocator> LiveBlocks for Donated<A> {
    fn block(&self, address: Address) -> Option<Block> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return ranges.live_bytes(address).map(|bytes| Block { address, bytes });
        }
        self.inner.block(address)
    }

    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        if let Some(mut ranges) = self.donated.lock_containing(address) {
            return ranges.retag(address, tag, key);
        }
        self.inner.retag(address, tag, key)
    }

    /// Checks that a donated block is live, but records nothing: the history has no events of donated memory.
    fn annotate(&self, address: Address) -> Result<(), AllocError> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return ranges.live_bytes(address).map(|_| ()).ok_or(AllocError::UnknownAddress(address));
        }
        self.inner.annotate(address)
    }

    /// Returns, for a donated block, the range that was given.
    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return ranges.extent(address);
        }
        self.inner.extent(address)
    }

    /// Asks the allocator below only: the chunks under donated memory are unknown.
    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        self.inner.chunks_under(address, bytes)
    }
}

impl<A: CachingAllocator> MemoryReports for Donated<A> {
    fn statistics(&self) -> Statistics {
        let mut statistics = self.inner.statistics();
        statistics.merge(self.donated.ranges.lock().statistics());
        statistics
    }

    fn reset_peak_statistics(&self) {
        self.inner.reset_peak_statistics();
        self.donated.ranges.lock().reset_peak_statistics();
    }

    fn reset_accumulated_statistics(&self) {
        self.inner.reset_accumulated_statistics();
        self.donated.ranges.lock().reset_accumulated_statistics();
    }

    fn largest_free(&self) -> u64 {
        self.inner.largest_free()
    }

    /// Adds each donated range as a segment of its own, of the common pool.
    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        let mut snapshot = self.inner.snapshot_of(pool, traces);
        if pool.unwrap_or_default() == PoolId::default() {
            // The allocator below has one history for each device, up to its own.
            let device = snapshot.device_traces.len().saturating_sub(1) as u32;
            snapshot.segments.extend(self.donated.ranges.lock().segments(device));
            snapshot.segments.sort_by_key(|segment| segment.address);
        }
        snapshot
    }

    /// Returns the history of the allocator below.
    fn history(&self) -> &History {
        self.inner.history()
    }
}

impl<A: CachingAllocator> MemoryLimits for Donated<A> {
    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError> {
        self.inner.set_memory_fraction(fraction)
    }

    fn memory_fraction(&self) -> f64 {
        self.inner.memory_fraction()
    }

    fn count_overhead(&self, counts: bool) {
        self.inner.count_overhead(counts);
    }

    fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.inner.add_free_memory_callback(callback);
    }

    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver) {
        self.inner.add_out_of_memory_observer(observer);
    }
}

impl<A: CachingAllocator> PrivatePools for Donated<A> {
    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        self.inner.create_pool(pool, source)
    }

    fn pool_uses(&self, pool: PoolId) -> usize {
        self.inner.pool_uses(pool)
    }

    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError> {
        let filter: Arc<dyn Fn(StreamId) -> bool + Send + Sync> = Arc::from(filter);
        let shared = Arc::clone(&filter);
        self.inner.begin_pool(pool, purpose, Box::new(move |stream| shared(stream)))?;
        self.donated.ranges.lock().begin_pool(pool, purpose, filter);
        Ok(())
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.end_pool(pool)?;
        let gates = self.donated.ranges.lock().end_pool(pool);
        gates.iter().for_each(|gate| gate.after_captures());
        Ok(())
    }

    fn set_pool_use(&self, pool: PoolId, purpose: PoolUse) {
        self.inner.set_pool_use(pool, purpose);
        let gates = self.donated.ranges.lock().set_pool_use(pool, purpose);
        gates.iter().for_each(|gate| gate.after_captures());
    }

    fn is_capturing(&self) -> bool {
        self.inner.is_capturing()
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.release_pool(pool)
    }

    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError> {
        self.inner.use_pool_on_oom(pool, on)
    }

    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.set_no_split(pool)
    }

    fn set_expandable(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.set_expandable(pool)
    }

    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError> {
        self.inner.live_blocks(pool)
    }
}

impl<A: CachingAllocator> PoolCheckpoints for Donated<A> {
    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError> {
        self.inner.checkpoint(pool)
    }

    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError> {
        self.inner.restore(checkpoint)
    }
}
