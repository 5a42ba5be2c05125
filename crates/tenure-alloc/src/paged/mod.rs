//! Tenure's own allocator: address space is free, pages are not.
//!
//! Small requests live in slabs of a heap per stream, behind that heap's lock alone. Slabs and larger blocks lie in
//! *windows*: ranges of address space under which physical chunks are mapped side by side. Chunks that are free in one
//! window are shown in another where they are needed, so that what is reserved stays close to what is asked for.

mod address_space;
mod bins;
mod chunk;
mod compose;
mod config;
mod counters;
mod directory;
mod heap;
mod heaps;
mod large;
mod latch;
mod parked;
mod placement;
mod private;
mod progress;
mod report;
mod runs;
mod search;
mod segments;
mod shown;
mod slabs;
mod space;
mod state;
mod tree;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use tenure_core::{KeyId, StreamId, Tag};

pub use config::Config;

use crate::hooks::Hooks;
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Address, AllocError, Backing, Block, CachingAllocator, Divisions, FreeMemoryCallback, History, MappedChunk,
    OutOfMemory, OutOfMemoryObserver, PoolCheckpoint, PoolId, PoolSource, PoolUse, Request, Resource, Restored,
    Snapshot, Statistics, StreamFilter, Tuning, rounding,
};
use address_space::AddressSpace;
use config::{SLAB_BYTES, SMALL_LIMIT, round};
use directory::{Directory, Lent};
use heap::{Blocks, Freed, Heap};
use heaps::Heaps;
use latch::LatchGuard;
use parked::Loans;
use state::{Effort, Refusal, State};

/// Tenure's allocator of a device.
///
/// A heap's lock is taken before the device lock, never after it. Callbacks and observers run without any.
///
/// A failing call of the backing fails the request that it was made for and nothing else.
pub struct PagedAllocator {
    heaps: Heaps,
    directory: Directory,
    /// Private pools that allocations are sent to now.
    filters: AtomicU64,
    /// Whether requests are rounded to more than 512 bytes: 0 or 1.
    rounds: AtomicU64,
    divisions: RwLock<Divisions>,
    /// Boxed, so that its lock shares no cache line with what every allocation reads.
    state: Box<Mutex<State>>,
    history: Arc<History>,
    hooks: Hooks,
    backing: Arc<dyn Backing>,
    addresses: (Address, u64),
    total: u64,
}

impl PagedAllocator {
    /// An allocator over `backing`. It reserves its address space at once, and no memory.
    ///
    /// # Errors
    /// A setting of `config` makes no sense, or the backing refuses the address space.
    pub fn new(backing: Arc<dyn Backing>, config: Config) -> Result<Self, AllocError> {
        Self::with_history(backing, config, History::default())
    }

    /// The same, with a history of a clock of its own.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_history(backing: Arc<dyn Backing>, config: Config, history: History) -> Result<Self, AllocError> {
        config.validate()?;
        let total = backing.memory_info()?.total;
        let granularity = backing.granularity();
        let wanted = config.address_space_bytes.unwrap_or_else(|| total.saturating_mul(64).clamp(1 << 40, 1 << 46));
        let bytes = wanted.next_multiple_of(granularity);
        let first = backing.reserve(bytes)?;
        let history = Arc::new(history);
        let addresses = AddressSpace::new(first, bytes, granularity);
        let state = State::new(Arc::clone(&backing), config, addresses, Arc::clone(&history))?;
        Ok(Self {
            heaps: Heaps::new(Arc::clone(&state.clock)),
            directory: Directory::new(first, bytes),
            filters: AtomicU64::new(0),
            rounds: AtomicU64::new(0),
            divisions: RwLock::default(),
            state: Box::new(Mutex::new(state)),
            history,
            hooks: Hooks::default(),
            backing,
            addresses: (first, bytes),
            total,
        })
    }

    /// The address space that is this allocator's alone. Blocks of private pools may lie elsewhere.
    pub fn addresses(&self) -> Range<Address> {
        let (first, bytes) = self.addresses;
        first..first + bytes
    }

    /// A block of the stream's heap, with more memory from the state if need be.
    #[inline]
    fn allocate_in(&self, heap: &Heap, number: u16, request: Request) -> Result<Block, AllocError> {
        let rounded = self.round(request.bytes)?;
        let (bytes, lent) = if rounded <= SMALL_LIMIT { (SLAB_BYTES, Lent::Slab) } else { (rounded, Lent::Range) };
        loop {
            let mut blocks = heap.lock();
            if blocks.has_pending() {
                self.settle(&mut blocks, false)?;
            }
            let found = match lent {
                Lent::Slab => heap.allocate_small(&mut blocks, request, rounded, &self.history),
                Lent::Range => heap.allocate_parked(&mut blocks, request, bytes, &self.history),
            };
            if let Some(block) = found {
                return Ok(block);
            }
            let (parked, reused) = (blocks.take_parked(), blocks.take_reused());
            drop(blocks);
            self.catch_up(heap, parked, reused);
            let lend =
                |state: &mut State, requested, effort| state.lend(request.stream, bytes, lent, requested, effort);
            let loan = match self.obtain(request, lend)? {
                Found::Lent(block) => return Ok(block),
                Found::Sought(loan) => loan,
            };
            self.directory.enter(loan.address, number, lent);
            let mut blocks = heap.lock();
            match lent {
                Lent::Slab => blocks.add_slab(loan),
                Lent::Range => return Ok(heap.place(&mut blocks, request, loan, &self.history)),
            }
        }
    }

    /// Tells the state what `heap` did without it.
    fn catch_up(&self, heap: &Heap, parked: Loans, reused: Option<u64>) {
        if parked.is_empty() && reused.is_none() {
            return;
        }
        let state = &mut *self.state.lock();
        self.take_back(state, parked);
        state.streak = 0;
        if let Some(most) = reused {
            let others = self.heaps.requested().saturating_sub(heap.requested());
            state.peak_requested = state.peak_requested.max(others + most);
        }
    }

    /// A block of a private pool, or of a stream that has no heap.
    fn allocate_apart(&self, request: Request) -> Result<Block, AllocError> {
        let bytes = self.round(request.bytes)?;
        let attempt = |state: &mut State, requested, effort| {
            if state.private.engine.captures.diverts(request.stream) {
                return state.allocate_private(request, effort);
            }
            let address = state.allocate(request, bytes, requested, effort)?;
            Ok(Block { address, bytes })
        };
        Ok(match self.obtain(request, attempt)? {
            Found::Sought(block) | Found::Lent(block) => block,
        })
    }

    /// What `attempt` finds; if need be, after everything that can be given back was.
    #[inline(never)]
    fn obtain<T>(
        &self,
        request: Request,
        attempt: impl Fn(&mut State, u64, Effort) -> Result<T, Refusal>,
    ) -> Result<Found<T>, AllocError> {
        let try_once = |state: &mut State, effort| match attempt(
            state,
            self.heaps.requested() + state.requested + request.bytes,
            effort,
        ) {
            Ok(found) => Ok(Some(Found::Sought(found))),
            Err(Refusal::Full) => Ok(None),
            Err(Refusal::Failed(error)) => Err(error),
        };
        if let Some(found) = try_once(&mut self.state.lock(), Effort::Free)? {
            return Ok(found);
        }
        self.unpark();
        if let Some(found) = try_once(&mut self.state.lock(), Effort::Any)? {
            return Ok(found);
        }
        if self.hooks.has_callbacks() && self.hooks.free_memory() {
            self.unpark();
            if let Some(found) = try_once(&mut self.state.lock(), Effort::Any)? {
                return Ok(found);
            }
        }
        self.obtain_at_last(request, |state| try_once(state, Effort::Any))
    }

    /// The last means before an out-of-memory error: waiting for every stream, and pools that lend.
    #[cold]
    fn obtain_at_last<T>(
        &self,
        request: Request,
        try_once: impl Fn(&mut State) -> Result<Option<Found<T>>, AllocError>,
    ) -> Result<Found<T>, AllocError> {
        // The host cannot wait for a stream that is being captured.
        if !self.state.lock().progress.is_capturing() {
            self.settle_all()?;
            self.release_given_up(None)?;
            let state = &mut *self.state.lock();
            state.statistics_mut().num_alloc_retries += 1;
            // A private pool's segments are not made of the common space's chunks.
            if state.private.engine.captures.diverts(request.stream) {
                state.release_whole()?;
            }
            if let Some(found) = try_once(state)? {
                return Ok(found);
            }
        }
        let mut state = self.state.lock();
        let bytes = self.round(request.bytes)?;
        if let Some(block) = state.borrow(request)? {
            return Ok(Found::Lent(block));
        }
        let free = self.backing.memory_info()?.free;
        let (allowed, reserved, total) = (state.limit().bytes(), state.reserved(), self.total);
        let overhead = state.limit().overhead(&*self.backing);
        state.note_out_of_memory(request, free);
        drop(state);
        let allocated = self.statistics().all.allocated_bytes.current;
        let inactive = reserved.saturating_sub(allocated);
        self.hooks.out_of_memory(&OutOfMemory { requested: bytes, allowed, overhead, inactive, total, free });
        let (requested, stream) = (request.bytes, request.stream);
        let error = AllocError::OutOfMemory {
            requested,
            stream,
            allocated,
            reserved,
            inactive,
            overhead,
            free,
            total,
            allowed,
        };
        Err(error)
    }

    /// Completes what the streams have passed of a heap's frees; waits for all of them if `wait`.
    fn settle(&self, blocks: &mut LatchGuard<'_, Blocks>, wait: bool) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let settled = blocks.settle(&mut state.progress, wait, &self.history);
        self.take_back(&mut state, blocks.take_ended());
        Ok(settled?)
    }

    /// Waits on the host for every pending free, and takes back everything that no block is in.
    fn settle_all(&self) -> Result<(), AllocError> {
        for heap in self.heaps.all() {
            let mut blocks = heap.lock();
            self.settle(&mut blocks, true)?;
            let unused = blocks.take_unused();
            self.take_back(&mut self.state.lock(), unused);
        }
        let mut state = self.state.lock();
        state.statistics_mut().num_sync_all_streams += 1;
        state.settle(true)?;
        state.private.engine.finish(true)
    }

    /// Gives back what private pools hold that nobody uses any more: `pool`, or all.
    fn release_given_up(&self, pool: Option<PoolId>) -> Result<(), AllocError> {
        let streams: Vec<StreamId> = self.heaps.all().map(|heap| heap.stream).collect();
        self.state.lock().release_given_up(pool, &streams)
    }

    /// Takes back what every heap has parked.
    fn unpark(&self) {
        for heap in self.heaps.all() {
            let mut blocks = heap.lock();
            let parked = blocks.take_parked();
            if !parked.is_empty() {
                self.take_back(&mut self.state.lock(), parked);
            }
        }
    }

    /// Takes back memory that a heap gave up.
    fn take_back(&self, state: &mut State, loans: Loans) {
        for loan in loans {
            self.directory.remove(loan.address, loan.lent);
            state.take_back(loan);
        }
    }

    /// Bytes of the live block at an address, if a heap has it.
    fn lent_bytes(&self, address: Address) -> Option<u64> {
        self.owner(address)?.0.lock().bytes_of(address)
    }

    /// Bytes of the block for a request.
    #[inline]
    fn round(&self, bytes: u64) -> Result<u64, AllocError> {
        let rounded = round(bytes)?;
        let rounds = self.rounds.load(Ordering::Acquire) > 0;
        Ok(if rounds { rounding::round(bytes, &self.divisions.read()) } else { rounded })
    }

    /// The heap that the memory at an address is lent to, and what lies there.
    #[inline]
    fn owner(&self, address: Address) -> Option<(&Heap, Lent)> {
        let (number, lent) = self.directory.owner(address)?;
        Some((self.heaps.numbered(number)?, lent))
    }
}

/// Bounds the peaks of live blocks, which are sums over heaps, by the peak of what was reserved, which is exact.
fn bound_peaks(statistics: &mut Statistics) {
    for pool in [&mut statistics.all, &mut statistics.small_pool, &mut statistics.large_pool] {
        let most = pool.reserved_bytes.peak;
        for stat in [&mut pool.requested_bytes, &mut pool.allocated_bytes, &mut pool.active_bytes] {
            stat.peak = stat.peak.min(most);
        }
    }
}

/// What was found for a request.
enum Found<T> {
    /// What was asked for.
    Sought(T),
    /// A block of a private pool that lends its free memory.
    Lent(Block),
}

impl Resource for PagedAllocator {
    #[inline]
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let to_pool = || {
            self.filters.load(Ordering::Acquire) > 0
                && self.state.lock().private.engine.captures.diverts(request.stream)
        };
        match self.heaps.of(request.stream) {
            Some((number, heap)) if !to_pool() => self.allocate_in(heap, number, request),
            _ => self.allocate_apart(request),
        }
    }

    #[inline]
    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let Some((heap, lent)) = self.owner(address) else { return self.state.lock().free(address) };
        let freed = match lent {
            Lent::Slab => heap.free_small(address, &self.history)?,
            Lent::Range => heap.free_large(address, &self.history)?,
        };
        match freed {
            Freed::Done => {}
            Freed::Ended => {
                let loans = heap.lock().take_ended();
                self.take_back(&mut self.state.lock(), loans);
            }
            Freed::InUse => heap.free_in_use(address, &self.state, &self.history)?,
        }
        Ok(())
    }
}

impl CachingAllocator for PagedAllocator {
    fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        let known = address == 0
            || match self.owner(address) {
                Some((heap, _)) => heap.lock().record_stream(address, stream),
                None => self.state.lock().record_stream(address, stream),
            };
        if known { Ok(()) } else { Err(AllocError::UnknownAddress(address)) }
    }

    fn retag(&self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        let known = address == 0
            || match self.owner(address) {
                Some((heap, _)) => heap.lock().retag(address, tag, key),
                None => self.state.lock().retag(address, tag, key),
            };
        if known { Ok(()) } else { Err(AllocError::UnknownAddress(address)) }
    }

    fn block(&self, address: Address) -> Option<Block> {
        match self.owner(address) {
            Some((heap, _)) => heap.lock().bytes_of(address).map(|bytes| Block { address, bytes }),
            None => self.state.lock().block(address),
        }
    }

    /// Does nothing while a stream is captured: memory cannot be released without asking how far streams are.
    fn release_cached(&self) -> Result<(), AllocError> {
        if self.state.lock().progress.is_capturing() {
            return Ok(());
        }
        self.settle_all()?;
        self.release_given_up(None)?;
        Ok(self.state.lock().release_whole()?)
    }

    fn statistics(&self) -> Statistics {
        // All locks at once, heaps first: the figures are of one moment.
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
        self.state.lock().statistics_mut().reset_peak();
    }

    fn reset_accumulated_statistics(&self) {
        self.heaps.all().for_each(|heap| heap.lock().counters_mut().reset_accumulated());
        self.state.lock().statistics_mut().reset_accumulated();
    }

    fn snapshot_of(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        report::snapshot(self, pool, traces)
    }

    fn history(&self) -> &History {
        &self.history
    }

    fn tune(&self, tuning: Tuning) -> Result<bool, AllocError> {
        let Tuning::Rounding(divisions) = tuning else { return Ok(false) };
        self.state.lock().private.engine.tune(tuning)?;
        *self.divisions.write() = divisions;
        self.rounds.store(u64::from(divisions.iter().any(|&steps| steps > 1)), Ordering::Release);
        Ok(true)
    }

    fn set_memory_fraction(&self, fraction: f64) -> Result<(), AllocError> {
        self.state.lock().private.engine.limit.set(fraction)
    }

    fn memory_fraction(&self) -> f64 {
        self.state.lock().limit().fraction()
    }

    fn count_overhead(&self, counts: bool) {
        self.state.lock().private.engine.limit.counts_overhead = counts;
    }

    fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.hooks.add_callback(callback);
    }

    fn add_out_of_memory_observer(&self, observer: OutOfMemoryObserver) {
        self.hooks.add_observer(observer);
    }

    fn create_pool(&self, pool: PoolId, source: Option<Arc<dyn PoolSource>>) -> Result<(), AllocError> {
        self.state.lock().private.engine.create_pool(pool, source)
    }

    fn pool_uses(&self, pool: PoolId) -> usize {
        self.state.lock().private.engine.pool_uses(pool)
    }

    fn begin_pool(&self, pool: PoolId, purpose: PoolUse, filter: StreamFilter) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let begun = state.begin_pool(pool, purpose, filter);
        self.filters.store(state.private.engine.captures.underway() as u64, Ordering::Release);
        begun
    }

    fn end_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let ended = state.end_pool(pool);
        self.filters.store(state.private.engine.captures.underway() as u64, Ordering::Release);
        ended
    }

    fn is_capturing(&self) -> bool {
        self.state.lock().progress.is_capturing()
    }

    fn release_pool(&self, pool: PoolId) -> Result<(), AllocError> {
        self.state.lock().private.engine.release_pool(pool)
    }

    fn use_pool_on_oom(&self, pool: PoolId, on: bool) -> Result<(), AllocError> {
        self.state.lock().private.engine.use_pool_on_oom(pool, on)
    }

    fn set_no_split(&self, pool: PoolId) -> Result<(), AllocError> {
        self.state.lock().private.engine.set_no_split(pool)
    }

    /// Does nothing while a stream is captured, as [`release_cached`](Self::release_cached).
    fn release_cached_in(&self, pool: PoolId) -> Result<(), AllocError> {
        if pool == PoolId::default() {
            return self.release_cached();
        }
        if self.state.lock().progress.is_capturing() { Ok(()) } else { self.release_given_up(Some(pool)) }
    }

    fn live_blocks(&self, pool: PoolId) -> Result<Vec<Address>, AllocError> {
        self.state.lock().private.engine.live_blocks(pool)
    }

    fn checkpoint(&self, pool: PoolId) -> Result<PoolCheckpoint, AllocError> {
        self.state.lock().private.engine.checkpoint(pool)
    }

    fn restore(&self, checkpoint: &PoolCheckpoint) -> Result<Restored, AllocError> {
        self.state.lock().private.engine.restore(checkpoint)
    }

    /// The chunks under the block, as far as they are mapped side by side; for a block of a private pool its segment.
    fn extent(&self, address: Address) -> Option<(Address, u64)> {
        let Some(bytes) = self.lent_bytes(address) else { return self.state.lock().extent(address) };
        let chunks = self.state.lock().chunks_under(address, bytes);
        let first = chunks.first()?.address;
        Some((first, chunks.iter().map(|chunk| chunk.bytes).sum()))
    }

    fn largest_free(&self) -> u64 {
        self.unpark();
        let state = &mut *self.state.lock();
        state.space.longest_range().max(state.private.engine.largest_free())
    }

    fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        match self.lent_bytes(address) {
            Some(block) => Some(self.state.lock().chunks_under(address, bytes.min(block))),
            None => self.state.lock().chunks_of_apart(address, bytes),
        }
    }
}

impl Drop for PagedAllocator {
    /// Gives every chunk that holds no block back, and with the last one the address space. Errors have nobody to go
    /// to.
    fn drop(&mut self) {
        if self.release_cached().is_ok() && self.state.lock().reserved() == 0 {
            let _ = self.backing.unreserve(self.addresses.0, self.addresses.1);
        }
    }
}
