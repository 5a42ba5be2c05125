//! The allocator of pinned memory: what it pins, what it keeps, and what it gives back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use serde::Serialize;
use tenure_alloc::{
    Address, AllocError, Backing, BackingError, History, HistoryAction, HistoryContext, HistoryEvent, PoolId, Stat,
};
use tenure_core::StreamId;

use super::PinnedError;
use super::blocks::{BlockId, Blocks, Kind, Owner, PAGE_BYTES, rounded};
use super::chunk::{Forks, PinnedChunk};
use super::pools::{PoolFilter, Pools};
use super::uses::{Use, Waiting};
use crate::deferred::{DeferredFrees, in_host_function};
use crate::{DeviceBacking, Driver, Properties};

/// The most bytes registered at once: half of what a driver refuses.
pub(super) const MAX_CHUNK_BYTES: u64 = 256 << 30;
/// The bytes that may be pinned beyond the most that was in use.
const SLACK_BYTES: u64 = 64 << 20;
/// The part of the most bytes in use that may be pinned beside it: one in so many bytes.
const SLACK_PART: u64 = 8;

/// The allocators of this process.
static ALLOCATORS: Mutex<Vec<Weak<PinnedAllocator>>> = Mutex::new(Vec::new());

/// Settings of pinned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedConfig {
    /// Who uses it, for reports.
    pub user: &'static str,
    /// The limit on pinned bytes at one time.
    pub limit_bytes: u64,
    /// The limit on the pinned bytes that no block uses.
    pub cache_bytes: u64,
    /// The host's NUMA node to take memory from, if it has nodes: the one next to the device.
    pub numa_node: Option<u32>,
    /// What forked processes see of the memory.
    pub forks: Forks,
}

impl PinnedConfig {
    /// Returns settings with a limit of `limit_bytes` bytes, which may all be cached, and memory from any node that
    /// forked processes do not have.
    pub fn new(limit_bytes: u64) -> Self {
        Self { user: "Tenure", limit_bytes, cache_bytes: u64::MAX, numa_node: None, forks: Forks::Without }
    }

    /// Takes memory from the node next to a device, if the system tells which one that is.
    pub fn near(self, device: &Properties) -> Self {
        Self { numa_node: device.numa_node, ..self }
    }
}

/// The figures of an allocator of pinned memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedStatistics {
    /// The most bytes that may be pinned.
    pub limit_bytes: u64,
    /// The bytes of live blocks.
    pub live_bytes: u64,
    /// The blocks in use: live ones, and freed ones that streams still use.
    pub blocks: Stat,
    /// The bytes of the blocks in use.
    pub used_bytes: Stat,
    /// The bytes that were requested for the blocks in use.
    pub requested_bytes: Stat,
    /// The chunks that are pinned.
    pub chunks: Stat,
    /// The bytes that are pinned.
    pub pinned_bytes: Stat,
    /// The chunks pinned so far by the power of two that their bytes are rounded up to.
    pub chunks_by_size: BTreeMap<u32, u64>,
    /// The calls that pinned chunks.
    pub pinning: CallTimes,
    /// The calls that unpinned them.
    pub unpinning: CallTimes,
}

impl PinnedStatistics {
    /// Sets the peaks to the current values.
    fn reset_peaks(&mut self) {
        self.stats().into_iter().for_each(Stat::reset_peak);
        for times in [&mut self.pinning, &mut self.unpinning] {
            (times.shortest, times.longest) = (None, Duration::ZERO);
        }
    }

    /// Sets the sums to zero.
    fn reset_accumulated(&mut self) {
        self.stats().into_iter().for_each(Stat::reset_accumulated);
        self.chunks_by_size.clear();
        for times in [&mut self.pinning, &mut self.unpinning] {
            (times.count, times.total) = (0, Duration::ZERO);
        }
    }

    fn stats(&mut self) -> [&mut Stat; 5] {
        let Self { blocks, used_bytes, requested_bytes, chunks, pinned_bytes, .. } = self;
        [blocks, used_bytes, requested_bytes, chunks, pinned_bytes]
    }
}

/// The time that calls of one kind took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// The number of calls.
    pub count: u64,
    /// The time of all of them.
    pub total: Duration,
    /// The time of the shortest.
    pub shortest: Option<Duration>,
    /// The time of the longest.
    pub longest: Duration,
}

impl CallTimes {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
        self.shortest = Some(self.shortest.map_or(time, |shortest| shortest.min(time)));
        self.longest = self.longest.max(time);
    }
}

/// The pinned memory of one user, in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedUse {
    /// The user.
    pub user: &'static str,
    /// The bytes that it requested and has not freed.
    pub requested_bytes: u64,
    /// The bytes of its blocks, live or still used by streams.
    pub used_bytes: u64,
    /// The bytes that are pinned for it.
    pub pinned_bytes: u64,
}

impl PinnedUse {
    /// Returns the users of pinned memory in this process, by name.
    pub fn of_process() -> Vec<Self> {
        let mut uses: BTreeMap<&str, Self> = BTreeMap::new();
        let allocators: Vec<_> = ALLOCATORS.lock().iter().filter_map(Weak::upgrade).collect();
        for allocator in allocators {
            let user = allocator.config.user;
            let PinnedStatistics { requested_bytes, used_bytes, pinned_bytes, .. } = allocator.statistics();
            let sum = uses.entry(user).or_insert(Self { user, requested_bytes: 0, used_bytes: 0, pinned_bytes: 0 });
            sum.requested_bytes += requested_bytes.current;
            sum.used_bytes += used_bytes.current;
            sum.pinned_bytes += pinned_bytes.current;
        }
        uses.into_values().collect()
    }
}

/// A block of pinned memory.
#[derive(Clone, Debug)]
pub struct PinnedBlock {
    /// Its first address.
    pub address: Address,
    /// Its bytes.
    pub bytes: u64,
    /// The private pool that it belongs to.
    pub pool: PoolId,
    /// Whether it is allocated.
    pub is_live: bool,
    /// Whether it is allocated, or streams still use it.
    pub is_used: bool,
    /// The context of its allocation, if it was kept.
    pub context: Option<HistoryContext>,
}

/// An allocator of pinned memory, by addresses. PyTorch's `CachingHostAllocator`, without its rounding: a block takes
/// the bytes that were asked for, to the page.
///
/// Freed blocks stay pinned for later requests. The bytes that are pinned exceed those in use at their peak by at most an
/// eighth and 64 MiB: before more is pinned, chunks in which nothing lives are given back, those that have been free for
/// longest first, and no chunk is cut for a smaller block if that leaves more in fragments. Memory is mapped, pinned and
/// unpinned without the allocator's lock.
pub struct PinnedAllocator {
    driver: Arc<dyn Driver>,
    config: PinnedConfig,
    state: Mutex<State>,
    history: History,
    /// Whether a private pool is in use: read without the lock.
    has_pools: AtomicBool,
    /// Frees that could not be made when they were called.
    deferred: DeferredFrees,
}

#[derive(Default)]
struct State {
    blocks: Blocks,
    chunks: FxHashMap<Address, PinnedChunk>,
    live: FxHashMap<Address, Live>,
    waiting: Waiting,
    pools: Pools,
    /// The bytes that threads are pinning now.
    underway_bytes: u64,
    /// The pinned bytes that threads are unpinning now.
    leaving_bytes: u64,
    /// The most bytes in use since the last time when the cache was given back.
    most_used: u64,
    statistics: PinnedStatistics,
}

/// A live block.
struct Live {
    block: BlockId,
    requested: u64,
    uses: Vec<Use>,
    /// The pools whose graphs use it, with the device of each.
    kept_by: Vec<(PoolId, Arc<DeviceBacking>)>,
    /// Whether it was freed while a stream that used it was captured for no known pool: then it is never used again.
    is_captured: bool,
}

/// A chunk that is no longer in the state, but still pinned.
struct Removed {
    chunk: PinnedChunk,
    bytes: u64,
    owner: Owner,
    kind: Kind,
}

/// What may be given back for a new chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Chunks beyond what was in use at the peak.
    Excess,
    /// Every chunk in which nothing lives, also if a stream has to be waited for.
    Everything,
}

impl PinnedAllocator {
    /// Creates an allocator that pins memory with `driver`, for all devices. Nothing is pinned yet.
    pub fn new(driver: Arc<dyn Driver>, config: PinnedConfig) -> Arc<Self> {
        let statistics = PinnedStatistics { limit_bytes: config.limit_bytes, ..PinnedStatistics::default() };
        let state = Mutex::new(State { statistics, ..State::default() });
        let (history, has_pools, deferred) = Default::default();
        let allocator = Arc::new(Self { driver, config, state, history, has_pools, deferred });
        let mut allocators = ALLOCATORS.lock();
        allocators.retain(|other| other.strong_count() > 0);
        allocators.push(Arc::downgrade(&allocator));
        allocator
    }

    /// Allocates `requested` bytes, aligned to 512, with arbitrary contents; 0 bytes have address 0. `stream` returns
    /// the one whose work needs them; it is called only while a private pool is in use.
    ///
    /// # Errors
    /// [`PinnedError::LimitReached`], [`PinnedError::TooLarge`], [`PinnedError::NotPinned`].
    pub fn allocate(&self, requested: u64, stream: impl FnOnce() -> Option<Use>) -> Result<Address, PinnedError> {
        if requested == 0 {
            return Ok(0);
        }
        if requested > MAX_CHUNK_BYTES {
            return Err(PinnedError::TooLarge { requested });
        }
        self.free_deferred();
        let mut state = self.state.lock();
        let owner = state.pools.owner_for(stream);
        match self.find(&mut state, owner, rounded(requested)) {
            Some(block) => {
                let address = self.hand_out(&mut state, block, requested);
                self.trim(state);
                Ok(address)
            }
            None => {
                drop(state);
                self.pin(owner, requested)
            }
        }
    }

    /// Pins a chunk for a request, and serves the request from it.
    #[cold]
    fn pin(&self, owner: Owner, requested: u64) -> Result<Address, PinnedError> {
        let wanted = rounded(requested);
        let kind = Kind::of(wanted);
        // Better than to pin more. If a device cannot be awaited, its blocks stay for later.
        let _ = self.complete_retired();
        for effort in [Effort::Excess, Effort::Everything] {
            let released = if effort == Effort::Everything { self.release_cached() } else { Ok(()) };
            let mut state = self.state.lock();
            // Fragments and the other kind's chunks are better than a failure.
            let fragments = if effort == Effort::Everything { u64::MAX } else { state.slack() };
            let found = state.blocks.take(owner, wanted, fragments).or_else(|| {
                let may_mix = effort == Effort::Everything && kind == Kind::Small;
                may_mix.then(|| state.blocks.take_from(owner, Kind::Large, wanted, fragments)).flatten()
            });
            if let Some(block) = found {
                return Ok(self.hand_out(&mut state, block, requested));
            }
            let bytes = Kind::chunk_bytes(wanted, state.statistics.pinned_bytes.current);
            let removed = state.remove_excess(bytes, wanted, self.config.limit_bytes);
            drop(state);
            // What is not unpinned counts below.
            let unpinned = self.unpin(removed);
            let mut state = self.state.lock();
            let left = self.config.limit_bytes.saturating_sub(state.held_bytes());
            let bytes = bytes.min(left).max(wanted.next_multiple_of(PAGE_BYTES));
            if bytes > left {
                released.and(unpinned)?;
                continue;
            }
            state.underway_bytes += bytes;
            drop(state);
            let start = Instant::now();
            let chunk = PinnedChunk::new(Arc::clone(&self.driver), bytes, &self.config);
            let mut state = self.state.lock();
            state.underway_bytes -= bytes;
            match chunk {
                Ok(chunk) => {
                    // The pool may be gone meanwhile.
                    let owner = state.pools.living(owner);
                    let pool = state.pools.id_of(owner);
                    self.record_event(HistoryAction::SegmentAlloc, chunk.address(), bytes, pool);
                    state.count_chunk(bytes, start.elapsed());
                    state.insert_chunk(chunk, bytes, owner, kind);
                    let block = state.blocks.take(owner, wanted, u64::MAX).ok_or(AllocError::TooLarge(wanted))?;
                    return Ok(self.hand_out(&mut state, block, requested));
                }
                Err(source) => {
                    let has_cache = state.statistics.pinned_bytes.current > state.statistics.live_bytes;
                    if effort == Effort::Everything || !has_cache {
                        let PinnedStatistics { pinned_bytes, used_bytes, .. } = &state.statistics;
                        let (pinned, used) = (pinned_bytes.current, used_bytes.current);
                        return Err(PinnedError::NotPinned { requested, pinned, used, source });
                    }
                }
            }
        }
        let PinnedStatistics { limit_bytes, used_bytes, .. } = self.state.lock().statistics;
        Err(PinnedError::LimitReached { requested, used: used_bytes.current, limit: limit_bytes })
    }

    /// Records that a stream copies from or to a block. Once the block is freed, its memory is not used again before the
    /// stream has passed what was put on it before. Returns false if no live block begins at `address`.
    pub fn record(&self, address: Address, stream: &Use) -> bool {
        let state = &mut *self.state.lock();
        let Some(live) = state.live.get_mut(&address) else { return false };
        match state.pools.pool_for(stream) {
            Some(pool) if live.kept_by.iter().any(|(id, _)| *id == pool) => {}
            Some(pool) => live.kept_by.push((pool, Arc::clone(&stream.device))),
            None if live.uses.contains(stream) => {}
            None => live.uses.push(stream.clone()),
        }
        true
    }

    /// Frees a block. In a host function, and where the driver refuses to record marks, the next call frees it.
    ///
    /// # Errors
    /// No live block begins at the address.
    pub fn free(&self, address: Address) -> Result<(), PinnedError> {
        if address == 0 {
            return Ok(());
        }
        if in_host_function() {
            self.deferred.push(address);
            return Ok(());
        }
        self.free_deferred();
        match self.try_free(address) {
            Err(error @ AllocError::UnknownAddress(_)) => Err(error.into()),
            // A drop has no caller that could try again, for example after a host function that Tenure does not know of:
            // the next call does.
            Err(_) => {
                self.deferred.push(address);
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn try_free(&self, address: Address) -> Result<(), AllocError> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let live = state.live.get_mut(&address).ok_or(AllocError::UnknownAddress(address))?;
        // No mark can be recorded on a stream that is captured now: what it did before waits with its graph.
        for of in live.uses.extract_if(.., |of| of.is_capturing()) {
            match state.pools.pool_for(&of) {
                Some(pool) => live.kept_by.push((pool, of.device)),
                None => live.is_captured = true,
            }
        }
        // The marks are recorded without the lock. The block stays live meanwhile.
        let uses = live.uses.clone();
        let mut state = guard;
        if !uses.is_empty() {
            drop(state);
            let marks = uses.iter().map(Use::record).collect::<Result<Vec<_>, _>>()?;
            state = self.state.lock();
            let Some(block) = state.live.get(&address).map(|live| live.block) else { return Ok(()) };
            for (of, mark) in uses.iter().zip(marks) {
                state.waiting.add_mark(of.clone(), mark, block);
            }
        }
        let Some(live) = state.end(address) else { return Ok(()) };
        let Live { block, kept_by, is_captured, .. } = live;
        self.record_block(&state, HistoryAction::FreeRequested, block);
        let marks = uses.len() + kept_by.len() + usize::from(is_captured);
        if marks == 0 {
            self.complete(&mut state, block);
        } else {
            state.waiting.add(block, marks);
            for (pool, device) in kept_by {
                state.pools.keep(pool, device, block);
            }
            let PinnedStatistics { used_bytes, live_bytes, .. } = &state.statistics;
            if state.blocks.free_bytes() + used_bytes.current - live_bytes > self.config.cache_bytes {
                self.poll(&mut state);
            }
        }
        self.trim(state);
        Ok(())
    }

    /// Gives back what is cached beyond the limit on it. What is not unpinned stays cached.
    fn trim(&self, mut state: MutexGuard<'_, State>) {
        let removed = state.remove_beyond(self.config.cache_bytes);
        drop(state);
        let _ = self.unpin(removed);
    }

    /// Frees the blocks whose frees could not be made before.
    fn free_deferred(&self) {
        self.deferred.free_deferred(|address| self.try_free(address));
    }

    /// Unpins and unmaps every chunk in which no block lives. Waits for copies from and to freed blocks, unless a pool is
    /// in use: a capture may be underway then.
    ///
    /// # Errors
    /// It returns the first failure of the driver. What is not unpinned stays cached.
    pub fn release_cached(&self) -> Result<(), PinnedError> {
        self.free_deferred();
        let state = self.state.lock();
        let last = if state.pools.is_any_underway() { Vec::new() } else { state.waiting.last() };
        drop(state);
        let waits = last.iter().map(|(of, mark)| of.device.synchronize(*mark));
        let waited = waits.fold(Ok(()), Result::and).map_err(|error| AllocError::from(error).into());
        let waited = waited.and(self.complete_retired());
        let mut state = self.state.lock();
        self.poll(&mut state);
        state.most_used = state.statistics.used_bytes.current;
        let removed = state.remove_beyond(0);
        drop(state);
        waited.and(self.unpin(removed))
    }

    /// Frees the blocks whose graphs are gone, once their devices have done all work. Does nothing while a pool is in
    /// use.
    fn complete_retired(&self) -> Result<(), PinnedError> {
        let mut state = self.state.lock();
        if state.pools.is_any_underway() {
            return Ok(());
        }
        let retired = state.pools.take_retired();
        drop(state);
        let mut waited = Ok(());
        for (device, block) in retired {
            let passed = device.synchronize_all();
            let mut state = self.state.lock();
            if let Err(error) = passed {
                state.pools.retire(device, block);
                waited = waited.and(Err(AllocError::from(error).into()));
            } else if state.waiting.pass(block) {
                self.complete(&mut state, block);
            }
        }
        waited
    }

    /// Unpins chunks. Those that fail are cached again; returns the first error.
    fn unpin(&self, removed: Vec<Removed>) -> Result<(), PinnedError> {
        let mut failed = Ok(());
        for Removed { mut chunk, bytes, owner, kind } in removed {
            let start = Instant::now();
            let unpinned = chunk.unpin();
            let mut state = self.state.lock();
            state.leaving_bytes -= bytes;
            let owner = state.pools.living(owner);
            if unpinned.is_ok() {
                let pool = state.pools.id_of(owner);
                self.record_event(HistoryAction::SegmentFree, chunk.address(), bytes, pool);
                state.uncount_chunk(bytes, start.elapsed());
            } else {
                state.insert_chunk(chunk, bytes, owner, kind);
                failed = failed.and(unpinned);
            }
        }
        Ok(failed.map_err(|error| AllocError::from(BackingError::from(error)))?)
    }

    /// Takes a block, after a look at which freed ones have been passed if none is free.
    fn find(&self, state: &mut State, owner: Owner, bytes: u64) -> Option<BlockId> {
        let fragments = state.slack();
        state.blocks.take(owner, bytes, fragments).or_else(|| {
            self.poll(state);
            state.blocks.take(owner, bytes, fragments)
        })
    }

    fn hand_out(&self, state: &mut State, block: BlockId, requested: u64) -> Address {
        self.record_block(state, HistoryAction::Alloc, block);
        state.begin(block, requested)
    }

    /// Frees the blocks that their streams have passed.
    fn poll(&self, state: &mut State) {
        for block in state.waiting.passed() {
            self.complete(state, block);
        }
    }

    /// Frees a block that no stream uses any more.
    fn complete(&self, state: &mut State, block: BlockId) {
        self.record_block(state, HistoryAction::FreeCompleted, block);
        let bytes = state.blocks.bytes(block);
        state.statistics.blocks.decrease(1);
        state.statistics.used_bytes.decrease(bytes);
        state.blocks.give_back(block);
    }

    fn record_block(&self, state: &State, action: HistoryAction, block: BlockId) {
        if self.history.is_on() {
            let pool = state.pools.id_of(state.blocks.owner(block));
            self.record_event(action, state.blocks.address(block), state.blocks.bytes(block), pool);
        }
    }

    fn record_event(&self, action: HistoryAction, address: Address, bytes: u64, pool: PoolId) {
        self.history.record(|| HistoryEvent::new(action, address, bytes, StreamId::NULL).in_pool(pool));
    }

    /// Sends allocations on the filter's streams to a private pool, which gets one more use. The filter must not call
    /// the allocator.
    pub fn begin_pool(&self, id: PoolId, filter: PoolFilter) {
        // While a pool is in use, no device is awaited.
        let _ = self.complete_retired();
        let mut state = self.state.lock();
        state.pools.begin(id, filter);
        self.has_pools.store(true, Ordering::Release);
    }

    /// Stops sending allocations to a private pool.
    pub fn end_pool(&self, id: PoolId) {
        let mut state = self.state.lock();
        state.pools.end(id);
        self.has_pools.store(state.pools.is_any_underway(), Ordering::Release);
    }

    /// Takes a use from a private pool. After the last one, its memory serves other requests, except for blocks that
    /// its graphs used: these wait for [`release_cached`](Self::release_cached).
    pub fn release_pool(&self, id: PoolId) {
        let mut state = self.state.lock();
        if let Some(owner) = state.pools.release(id) {
            state.blocks.dissolve(owner);
        }
        self.has_pools.store(state.pools.is_any_underway(), Ordering::Release);
    }

    /// Returns whether allocations on some streams go to a private pool.
    pub fn has_pools(&self) -> bool {
        self.has_pools.load(Ordering::Acquire)
    }

    /// Returns the figures.
    pub fn statistics(&self) -> PinnedStatistics {
        self.free_deferred();
        self.state.lock().statistics.clone()
    }

    /// Sets the peaks of the figures to the current values.
    pub fn reset_peak_statistics(&self) {
        self.state.lock().statistics.reset_peaks();
    }

    /// Sets the sums of the figures to zero.
    pub fn reset_accumulated_statistics(&self) {
        self.state.lock().statistics.reset_accumulated();
    }

    /// Returns the history of events.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Returns every block, in use or not, in the order of addresses.
    pub fn blocks(&self) -> Vec<PinnedBlock> {
        let state = &*self.state.lock();
        let shown = |id, is_live, is_used| {
            let (address, bytes) = (state.blocks.address(id), state.blocks.bytes(id));
            let pool = state.pools.id_of(state.blocks.owner(id));
            PinnedBlock { address, bytes, pool, is_live, is_used, context: self.history.context_of(address) }
        };
        let live = state.live.values().map(|live| shown(live.block, true, true));
        let waiting = state.waiting.blocks().map(|id| shown(id, false, true));
        let free = state.blocks.free().map(|id| shown(id, false, false));
        let mut blocks: Vec<_> = live.chain(waiting).chain(free).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }

    /// Returns the bytes of the live block that begins at `address`.
    pub fn bytes(&self, address: Address) -> Option<u64> {
        let state = self.state.lock();
        state.live.get(&address).map(|live| state.blocks.bytes(live.block))
    }
}

impl State {
    /// Begins the life of a block.
    fn begin(&mut self, block: BlockId, requested: u64) -> Address {
        let (address, bytes) = (self.blocks.address(block), self.blocks.bytes(block));
        let live = Live { block, requested, uses: Vec::new(), kept_by: Vec::new(), is_captured: false };
        self.live.insert(address, live);
        let statistics = &mut self.statistics;
        statistics.live_bytes += bytes;
        statistics.blocks.increase(1);
        statistics.used_bytes.increase(bytes);
        statistics.requested_bytes.increase(requested);
        self.most_used = self.most_used.max(statistics.used_bytes.current);
        address
    }

    /// Ends the life of a block, which streams may still use.
    fn end(&mut self, address: Address) -> Option<Live> {
        let live = self.live.remove(&address)?;
        self.statistics.live_bytes -= self.blocks.bytes(live.block);
        self.statistics.requested_bytes.decrease(live.requested);
        Some(live)
    }

    fn count_chunk(&mut self, bytes: u64, time: Duration) {
        self.statistics.chunks.increase(1);
        self.statistics.pinned_bytes.increase(bytes);
        *self.statistics.chunks_by_size.entry(bytes.next_power_of_two().ilog2()).or_default() += 1;
        self.statistics.pinning.add(time);
    }

    fn uncount_chunk(&mut self, bytes: u64, time: Duration) {
        self.statistics.chunks.decrease(1);
        self.statistics.pinned_bytes.decrease(bytes);
        self.statistics.unpinning.add(time);
    }

    /// Adds a chunk, which is counted, as a free block.
    fn insert_chunk(&mut self, chunk: PinnedChunk, bytes: u64, owner: Owner, kind: Kind) {
        self.blocks.add_chunk(chunk.address(), bytes, owner, kind);
        self.chunks.insert(chunk.address(), chunk);
    }

    /// Returns the bytes that are pinned or will be soon.
    fn held_bytes(&self) -> u64 {
        self.statistics.pinned_bytes.current + self.underway_bytes
    }

    /// Returns the bytes that may be pinned beyond the most that were in use.
    fn slack(&self) -> u64 {
        slack(self.most_used)
    }

    /// Removes the chunks that must go before `bytes` more are pinned for a block of `wanted` bytes.
    fn remove_excess(&mut self, bytes: u64, wanted: u64, limit: u64) -> Vec<Removed> {
        let most_used = self.most_used.max(self.statistics.used_bytes.current + wanted);
        let allowed = (most_used + slack(most_used)).min(limit).saturating_sub(bytes);
        let mut removed = Vec::new();
        while self.held_bytes() - self.leaving_bytes > allowed
            && let Some(chunk) = self.remove_oldest()
        {
            removed.push(chunk);
        }
        removed
    }

    /// Removes chunks in which nothing lives until at most `bytes` bytes are free.
    fn remove_beyond(&mut self, bytes: u64) -> Vec<Removed> {
        let mut removed = Vec::new();
        while self.blocks.free_bytes() > bytes
            && let Some(chunk) = self.remove_oldest()
        {
            removed.push(chunk);
        }
        removed
    }

    fn remove_oldest(&mut self) -> Option<Removed> {
        let (address, bytes, owner, kind) = self.blocks.remove_oldest_chunk()?;
        let chunk = self.chunks.remove(&address)?;
        self.leaving_bytes += bytes;
        Some(Removed { chunk, bytes, owner, kind })
    }
}

impl Drop for PinnedAllocator {
    /// Leaves memory mapped that streams may still use, because they could not be waited for.
    fn drop(&mut self) {
        let state = self.state.get_mut();
        if state.statistics.used_bytes.current > 0 {
            std::mem::forget(std::mem::take(&mut state.chunks));
        }
    }
}

/// Returns the bytes that may be pinned beyond `most_used`.
fn slack(most_used: u64) -> u64 {
    SLACK_BYTES + most_used / SLACK_PART
}
