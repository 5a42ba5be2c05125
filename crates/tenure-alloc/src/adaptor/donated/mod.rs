//! Memory donated to an allocator from outside, such as a shared pool's: PipeSwitch's `insertSharedCache` and
//! `clearSharedCache` (its patch of PyTorch 1.3).

mod gate;
mod placement;
mod ranges;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};
use tenure_core::{KeyId, StreamId, Tag};

use crate::{
    Address, AllocError, Backing, Block, CachingAllocator, FreeMemoryCallback, History, MappedChunk,
    OutOfMemoryObserver, PoolCheckpoint, PoolId, PoolSource, PoolUse, Request, Resource, Restored, Snapshot,
    Statistics, StreamFilter, Tuning,
};
use gate::EnteredGate;
pub use gate::RangeGate;
pub use placement::{PlacedBlock, RangePlacement};
use ranges::Ranges;

/// An allocator that is given further memory for a while. Requests on the memory's stream are served from that memory
/// first, as its [`RangePlacement`] says, and then by the allocator below. While no memory is donated, the wrapper
/// costs an allocation one load and branch.
///
/// Streams that are captured into a private pool get no donated memory. Donated memory counts as reserved; its bytes
/// are in the statistics and the snapshot of the whole. A peak of the whole is the sum of the peaks of both parts, an
/// upper bound.
pub struct Donated<A> {
    inner: A,
    donated: DonatedRanges,
}

/// The memory donated to a [`Donated`]: adds and removes ranges.
pub struct DonatedRanges {
    backing: Arc<dyn Backing>,
    /// It is boxed, so that its lock shares no cache line with data that every allocation reads.
    ranges: Box<Mutex<Ranges>>,
    /// The smallest request in bytes that any range serves.
    least: AtomicU64,
    /// The bounds of the donated addresses, `lowest..highest`: a free of any other address takes no lock.
    lowest: AtomicU64,
    highest: AtomicU64,
}

impl<A> Donated<A> {
    /// Wraps `inner`, with no donated memory yet. `backing` tells whether streams that were recorded for a donated
    /// block have passed it.
    pub fn new(inner: A, backing: Arc<dyn Backing>) -> Self {
        let least = AtomicU64::new(u64::MAX);
        let lowest = AtomicU64::new(u64::MAX);
        let highest = AtomicU64::new(0);
        Self { inner, donated: DonatedRanges { backing, ranges: Box::default(), least, lowest, highest } }
    }

    /// Returns the allocator below.
    pub fn inner(&self) -> &A {
        &self.inner
    }

    /// Returns the memory donated to this allocator.
    pub fn donated(&self) -> &DonatedRanges {
        &self.donated
    }
}

impl DonatedRanges {
    /// Gives `address..address + bytes` to requests on `stream`, until [`clear`](Self::clear). The memory must be
    /// accessible, and nothing else may use it. Work of other streams on it must have finished, or `stream` must wait
    /// for it.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if the range is empty, is not made of whole multiples of 512 bytes, or overlaps a
    /// range given before; if a recorded block does not lie in it; or if the stream has a range that takes every
    /// request.
    pub fn insert(
        &self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        placement: RangePlacement,
    ) -> Result<(), AllocError> {
        self.insert_range(address, bytes, stream, placement, None)
    }

    /// Gives memory that may be used only while `gate` is entered; otherwise the same as [`insert`](Self::insert) with
    /// [`RangePlacement::BestFit`].
    ///
    /// # Errors
    /// The same as for [`insert`](Self::insert).
    pub fn insert_behind(
        &self,
        gate: Arc<dyn RangeGate>,
        address: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), AllocError> {
        self.insert_range(address, bytes, stream, RangePlacement::BestFit, Some(gate))
    }

    fn insert_range(
        &self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        placement: RangePlacement,
        gate: Option<Arc<dyn RangeGate>>,
    ) -> Result<(), AllocError> {
        let mut ranges = self.ranges.lock();
        ranges.insert(address, bytes, stream, placement, gate)?;
        self.least.store(ranges.least(), Ordering::Release);
        self.lowest.fetch_min(address, Ordering::Release);
        self.highest.fetch_max(address + bytes, Ordering::Release);
        Ok(())
    }

    /// Takes back the range at `address`. Work put on its stream may still use it. Waits on the host for other streams
    /// that use a freed block.
    ///
    /// # Errors
    /// [`AllocError::StillInUse`] if blocks live in it: free them first. During a capture no stream can be waited for,
    /// so freed blocks that other streams use count as live. [`AllocError::UnknownAddress`] if there is no such range.
    pub fn clear(&self, address: Address) -> Result<(), AllocError> {
        let mut ranges = self.ranges.lock();
        let cleared = ranges.clear(address, &*self.backing);
        self.least.store(ranges.least(), Ordering::Release);
        cleared
    }

    /// Ends allocation in the range at `address`, which was given with [`RangePlacement::InOrder`], unless it has ended
    /// already. Returns its live blocks in the order in which they were allocated. A range of the same size that is
    /// given with these blocks as [`RangePlacement::Recorded`] places the same requests at the same offsets.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if there is no such range.
    pub fn close(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        let mut ranges = self.ranges.lock();
        let placed = ranges.close(address);
        self.least.store(ranges.least(), Ordering::Release);
        placed
    }

    /// Returns the live blocks of the range at `address`, which was given with [`RangePlacement::InOrder`], in the
    /// order in which they were allocated.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if there is no such range.
    pub fn live(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        self.ranges.lock().live(address)
    }

    /// Returns the blocks of [`live`](Self::live), and the freed blocks that no later one overlaps. Together they are
    /// the last owners of each byte that was allocated.
    ///
    /// # Errors
    /// The same as for [`live`](Self::live).
    pub fn placed(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        self.ranges.lock().placed(address)
    }

    /// Returns whether a stream is captured, so that the device cannot be waited for.
    pub fn is_capturing(&self) -> bool {
        self.ranges.lock().is_capturing()
    }

    /// Returns how many of its recorded requests the range at `address` has yet to serve; 0 if it records none.
    pub fn outstanding(&self, address: Address) -> usize {
        self.ranges.lock().outstanding(address)
    }

    /// Returns whether an address lies in a range.
    #[inline]
    pub fn contains(&self, address: Address) -> bool {
        self.lock_containing(address).is_some()
    }

    /// Allocates a block for the request, if a range of its stream serves it.
    #[inline]
    fn allocate(&self, request: Request) -> Result<Option<Block>, AllocError> {
        if request.bytes < self.least.load(Ordering::Acquire) {
            return Ok(None);
        }
        self.allocate_in_range(request)
    }

    /// Allocates a block for the request in a range, and enters the range's gate for it.
    #[cold]
    fn allocate_in_range(&self, request: Request) -> Result<Option<Block>, AllocError> {
        let mut entered: Option<EnteredGate> = None;
        loop {
            let mut ranges = self.ranges.lock();
            let Some(place) = ranges.find(request, &*self.backing)? else { return Ok(None) };
            match ranges.gate(&place) {
                // The gate is entered with no lock held, so the place may be gone afterwards: the loop searches again.
                Some(gate) if entered.as_ref().is_none_or(|entered| !entered.is_of(&gate)) => {
                    drop(ranges);
                    drop(entered.take());
                    entered = EnteredGate::new(gate)?;
                    if entered.is_none() {
                        return Ok(None);
                    }
                }
                gate => {
                    let block = ranges.place_block(request, place);
                    self.least.store(ranges.least(), Ordering::Release);
                    drop(ranges);
                    if let Some(entered) = entered.filter(|_| gate.is_some()) {
                        entered.keep();
                    }
                    return Ok(Some(block));
                }
            }
        }
    }

    #[cold]
    fn free(&self, mut ranges: MutexGuard<'_, Ranges>, address: Address) -> Result<(), AllocError> {
        let gate = ranges.free(address, &*self.backing)?;
        drop(ranges);
        if let Some(gate) = gate {
            gate.leave();
        }
        Ok(())
    }

    /// Locks the ranges and returns the guard, if an address lies in one of them.
    #[inline]
    fn lock_containing(&self, address: Address) -> Option<MutexGuard<'_, Ranges>> {
        if address < self.lowest.load(Ordering::Acquire) || address >= self.highest.load(Ordering::Acquire) {
            return None;
        }
        Some(self.ranges.lock()).filter(|ranges| ranges.contains(address))
    }
}

impl<A: Resource> Resource for Donated<A> {
    #[inline]
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        match self.donated.allocate(request)? {
            Some(block) => Ok(block),
            None => self.inner.allocate(request),
        }
    }

    #[inline]
    fn free(&self, address: Address) -> Result<(), AllocError> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return self.donated.free(ranges, address);
        }
        self.inner.free(address)
    }
}

impl<A: CachingAllocator> CachingAllocator for Donated<A> {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        if let Some(mut ranges) = self.donated.lock_containing(address) {
            return ranges.record_stream(address, stream);
        }
        self.inner.record_stream(address, stream)
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

    /// Releases what the allocator below caches. Donated memory stays until it is [cleared](DonatedRanges::clear).
    fn release_cached(&self) -> Result<(), AllocError> {
        self.inner.release_cached()
    }

    fn begin_cycle(&self) -> Result<(), AllocError> {
        self.inner.begin_cycle()
    }

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

    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        self.inner.tune(tuning)
    }

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

    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        self.inner.release_cached_in(pool)
    }

    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError> {
        self.inner.live_blocks(pool)
    }

    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError> {
        self.inner.checkpoint(pool)
    }

    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError> {
        self.inner.restore(checkpoint)
    }

    /// Returns, for a donated block, the range that was given.
    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return ranges.extent(address);
        }
        self.inner.extent(address)
    }

    fn largest_free(&self) -> u64 {
        self.inner.largest_free()
    }

    /// Asks the allocator below only: the chunks under donated memory are unknown.
    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        self.inner.chunks_under(address, bytes)
    }

    fn block(&self, address: Address) -> Option<Block> {
        if let Some(ranges) = self.donated.lock_containing(address) {
            return ranges.live_bytes(address).map(|bytes| Block { address, bytes });
        }
        self.inner.block(address)
    }
}
