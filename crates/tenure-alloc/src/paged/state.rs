//! The state under the device lock: chunks, windows, blocks that no heap has, and private pools.

use std::sync::Arc;

use parking_lot::MutexGuard;
use rustc_hash::FxHashMap;
use tenure_core::{KeyId, StreamId, Tag};

use super::config::PagedConfig;
use super::directory::LoanKind;
use super::forecast::Forecast;
use super::large::{LargeBlock, LargeBlocks};
use super::mapping_recorder::MappingRecorder;
use super::parked::{Loan, NEVER_PARKED};
use super::places::Places;
use super::private::Private;
use super::progress::DeviceProgress;
use super::space::Space;
use super::windows::AddressSpace;
use crate::accounts::Accounts;
use crate::native::{Engine, Locked};
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Address, AllocError, Backing, BackingError, Block, History, HistoryAction, HistoryEvent, MappedChunk, PoolId,
    PoolKind, Request, Statistics,
};

/// The state of a [`PagedAllocator`](super::PagedAllocator) under its device lock.
pub(super) struct PagedState {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) history: Arc<History>,
    pub(super) config: PagedConfig,
    pub(super) granularity: u64,
    pub(super) addresses: AddressSpace,
    pub(super) progress: DeviceProgress,
    pub(super) space: Space,
    pub(super) places: Places,
    pub(super) forecast: Forecast,
    pub(super) private: Private,
    /// The counters of all reserved memory, of the blocks here and of those of private pools; and the limit.
    pub(super) accounts: Accounts,
    /// Blocks of streams that have no heap.
    pub(super) blocks: LargeBlocks,
    /// Bytes requested for these blocks.
    pub(super) requested: u64,
    /// Memory lent to heaps, by first address: see Note [Parking].
    pub(super) loans: FxHashMap<Address, (StreamId, Loan)>,
    /// The number of placements in the common space and of returns to it: see Note [Parking].
    pub(super) clock: Arc<AtomicU64>,
    /// The most bytes ever requested at once.
    pub(super) peak_requested: u64,
    /// The number of blocks placed since the last free. Many of them are a *streak*: see Note [Where a block goes].
    pub(super) streak: u32,
    /// The number of windows that the statistics include so far.
    windows: u64,
    /// The free ranges of chunks partly in use that the statistics include so far: (ranges, bytes).
    inactive: (u64, u64),
}

/// The means by which a request may get memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// Only a free range in one piece. The stream may have to wait for it if it is its place of a period ago.
    Free,
    /// Also new chunks, ranges pieced together from several chunks, and memory that the stream must wait for.
    Any,
}

/// The reason why a request got no block.
#[derive(Debug)]
pub(super) enum NoBlock {
    /// The device is full, or the limit is reached, or more [`Effort`] is needed.
    Full,
    /// Another error.
    Failed(AllocError),
}

impl From<BackingError> for NoBlock {
    fn from(error: BackingError) -> Self {
        match error {
            BackingError::OutOfMemory { .. } => Self::Full,
            other => Self::Failed(other.into()),
        }
    }
}

impl From<AllocError> for NoBlock {
    fn from(error: AllocError) -> Self {
        Self::Failed(error)
    }
}

impl PagedState {
    pub(super) fn new(
        backing: Arc<dyn Backing>,
        config: PagedConfig,
        addresses: AddressSpace,
        private: Private,
        accounts: Accounts,
        history: Arc<History>,
    ) -> Self {
        let space = Space::new(MappingRecorder::new(Arc::clone(&history)));
        Self {
            granularity: backing.granularity(),
            progress: DeviceProgress::new(Arc::clone(&backing)),
            backing,
            history,
            config,
            addresses,
            space,
            places: Places::default(),
            forecast: Forecast::default(),
            private,
            accounts,
            blocks: LargeBlocks::default(),
            requested: 0,
            loans: FxHashMap::default(),
            clock: Arc::default(),
            peak_requested: 0,
            streak: 0,
            windows: 0,
            inactive: (0, 0),
        }
    }

    /// Lends `bytes` bytes to the heap of `stream`: for the larger block with this index in its sequence, or for a slab
    /// if there is none. `requested` bytes are requested from the whole allocator.
    pub(super) fn lend(
        &mut self,
        stream: StreamId,
        bytes: u64,
        index: Option<u64>,
        requested: u64,
        effort: Effort,
    ) -> Result<Loan, NoBlock> {
        let kind = if index.is_some() { LoanKind::Range } else { LoanKind::Slab };
        // A free ends a streak, and placement after it follows other rules.
        let in_streak = self.in_streak();
        let (address, is_made) = self.find(bytes, stream, index, requested, effort)?;
        let number = if in_streak { NEVER_PARKED } else { self.clock.load(Ordering::Relaxed) };
        let loan = Loan { address, bytes, kind, number, is_made };
        self.loans.insert(address, (stream, loan));
        if kind == LoanKind::Slab {
            self.accounts.statistics.large_pool.reserved_bytes.decrease(bytes);
            self.accounts.statistics.small_pool.reserved_bytes.increase(bytes);
        }
        Ok(loan)
    }

    /// Takes back a loan to a heap.
    pub(super) fn take_back(&mut self, loan: Loan) {
        let Loan { address, bytes, kind, .. } = loan;
        let Some((stream, _)) = self.loans.remove(&address) else { return };
        self.streak = 0;
        self.vacate(address, bytes, stream);
        if kind == LoanKind::Slab {
            self.accounts.statistics.small_pool.reserved_bytes.decrease(bytes);
            self.accounts.statistics.large_pool.reserved_bytes.increase(bytes);
        }
    }

    /// Allocates a block of `bytes` bytes that belongs to no heap. `requested` bytes are requested in all, with this
    /// block.
    pub(super) fn allocate(
        &mut self,
        request: Request,
        bytes: u64,
        requested: u64,
        effort: Effort,
    ) -> Result<Address, NoBlock> {
        self.complete_frees(false)?;
        let (address, _) = self.find(bytes, request.stream, Some(self.blocks.next_index()), requested, effort)?;
        self.insert_block(request, bytes, address);
        Ok(address)
    }

    /// Frees a block.
    pub(super) fn free(&mut self, address: Address) -> Result<(), AllocError> {
        if self.blocks.get(address).is_none() {
            return self.private.engine.free(&mut self.accounts, address);
        }
        let taken = self.blocks.take(address)?;
        let block = match &taken {
            Some(block) => block,
            None => self.blocks.free(address, &mut self.progress)?,
        };
        self.requested -= block.requested;
        self.accounts.statistics.block_freed(PoolKind::Large, block.tag, block.bytes);
        block.record(HistoryAction::FreeRequested, address, PoolId::default(), &self.history);
        if let Some(block) = taken {
            self.complete(address, &block);
        }
        Ok(())
    }

    /// Records that `stream` uses a block too. Returns whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        self.blocks.record_stream(address, stream) || self.private.engine.record_stream(address, stream).is_ok()
    }

    /// Changes a block's tag and key. Returns whether the block is here.
    pub(super) fn retag(&mut self, address: Address, tag: Tag, key: KeyId) -> bool {
        let Some((from, block)) = self.blocks.retag(address, tag, key) else {
            return self.private.engine.retag(&mut self.accounts, address, tag, key).is_ok();
        };
        self.accounts.statistics.block_retagged(from, tag, block.requested, block.bytes);
        true
    }

    /// Records that the program annotated a live block that belongs to no heap.
    pub(super) fn annotate(&self, address: Address) -> Result<(), AllocError> {
        match self.blocks.get(address).filter(|block| !block.is_freed) {
            Some(block) => block.record(HistoryAction::Annotate, address, PoolId::default(), &self.history),
            None => self.private.engine.annotate(address)?,
        }
        Ok(())
    }

    /// Returns the live block at an address, if it belongs to no heap.
    pub(super) fn block(&self, address: Address) -> Option<Block> {
        let bytes = self.blocks.live_bytes(address);
        bytes.map(|bytes| Block { address, bytes }).or_else(|| self.private.engine.block(address))
    }

    /// Returns the range of the chunks under the block at `address`, which is in no heap: first byte and bytes. For a
    /// block of a private pool it is the segment.
    pub(super) fn extent(&self, address: Address) -> Option<(Address, u64)> {
        let Some(block) = self.blocks.get(address).filter(|block| !block.is_freed) else {
            return self.private.engine.extent(address);
        };
        self.space.extent(address, block.bytes)
    }

    /// Returns the chunks under the block at `address`, which is in no heap.
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        match self.blocks.get(address).filter(|block| !block.is_freed) {
            Some(block) => Some(self.space.chunks_under(address, bytes.min(block.bytes))),
            None => self.private.chunks_under(address, bytes),
        }
    }

    /// Makes the freed blocks free that no stream uses any more; if `wait`, waits for the streams on the host.
    pub(super) fn complete_frees(&mut self, wait: bool) -> Result<(), BackingError> {
        if !self.blocks.has_pending() {
            return Ok(());
        }
        let mut done = Vec::new();
        let result = self.blocks.complete_frees(&mut self.progress, wait, &mut done);
        for (address, block) in done {
            self.complete(address, &block);
        }
        result
    }

    /// Gives every chunk with no byte in use back to the backing. Waits on the host for the work that used these
    /// chunks.
    pub(super) fn release_whole(&mut self) -> Result<(), BackingError> {
        let mut live: Vec<Address> =
            self.blocks.iter().map(|(address, _)| address).chain(self.loans.keys().copied()).collect();
        live.sort_unstable();
        let released = self.space.whole_chunks().into_iter().try_for_each(|(_, index)| {
            self.progress.synchronize(&mut self.space.chunks[index].uses)?;
            self.release(index, &live)
        });
        self.count_windows();
        released
    }

    /// Counts and records an out-of-memory error.
    pub(super) fn note_out_of_memory(&mut self, request: Request, free: u64, rejected: bool) {
        self.accounts.statistics.count_out_of_memory(rejected);
        let Request { bytes, stream, tag, key } = request;
        let pool = self.private.engine.pool_for(stream);
        self.history.record(|| {
            HistoryEvent::new(HistoryAction::OutOfMemory, free, bytes, stream).with_purpose(tag, key).in_pool(pool)
        });
    }

    /// Returns the counters of everything except the blocks of heaps, with the free bytes of chunks partly in use.
    pub(super) fn statistics(&mut self) -> Statistics {
        let partial = self.space.chunks.iter().filter(|(_, chunk)| !chunk.is_whole());
        let extents = partial.flat_map(|(_, chunk)| chunk.free.iter().map(|extent| extent.bytes));
        let now = extents.fold((0, 0), |(count, bytes), extent| (count + 1, bytes + extent));
        let before = std::mem::replace(&mut self.inactive, now);
        self.accounts.count_inactive(PoolKind::Large, before, now);
        self.accounts.statistics.clone()
    }

    /// Frees a range of the common space that `stream` used.
    fn vacate(&mut self, address: Address, bytes: u64, stream: StreamId) {
        let last = self.progress.use_now(stream);
        self.places.note_free(address);
        self.forecast.note_free(address);
        self.space.vacate(address, bytes, last);
        self.count_change();
    }

    /// Gives the next number to a placement or a return: see Note [Parking].
    pub(super) fn count_change(&self) {
        self.clock.fetch_add(1, Ordering::Release);
    }

    /// Enters, counts and records a block that belongs to no heap.
    fn insert_block(&mut self, request: Request, bytes: u64, address: Address) {
        let range = Loan { address, bytes, kind: LoanKind::Range, number: NEVER_PARKED, is_made: false };
        let block = self.blocks.insert(request, range);
        block.record(HistoryAction::Alloc, address, PoolId::default(), &self.history);
        self.requested += request.bytes;
        self.accounts.statistics.block_allocated(PoolKind::Large, request.tag, request.bytes, bytes);
    }

    /// Makes the memory of a freed block free.
    fn complete(&mut self, address: Address, block: &LargeBlock) {
        self.streak = 0;
        // Recorded before its bytes go home: see Note [Where bytes are shown].
        block.record(HistoryAction::FreeCompleted, address, PoolId::default(), &self.history);
        self.vacate(address, block.bytes, block.stream);
        let LargeBlock { tag, requested, bytes, .. } = *block;
        self.accounts.statistics.block_completed(PoolKind::Large, tag, requested, bytes);
    }

    /// Gives a chunk with no byte in use back to the backing, and counts it. `live` are the first addresses of the live
    /// blocks and loans, in order.
    pub(super) fn release(&mut self, index: usize, live: &[Address]) -> Result<(), BackingError> {
        let space = &mut self.space;
        let bytes = space.chunks[index].bytes;
        let released = space.release(index, live, &mut self.addresses, &*self.backing);
        self.clock.fetch_add(1, Ordering::Release);
        released?;
        self.accounts.statistics.num_device_free += 1;
        self.accounts.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.reserved_bytes.decrease(bytes));
        Ok(())
    }

    /// Counts a new chunk of `bytes` bytes.
    pub(super) fn count_created(&mut self, bytes: u64) {
        self.accounts.statistics.num_device_alloc += 1;
        self.accounts.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.reserved_bytes.increase(bytes));
    }

    /// Updates the number of segments: PyTorch's statistics count each window as one.
    pub(super) fn count_windows(&mut self) {
        let now = self.space.windows.len() as u64;
        let before = std::mem::replace(&mut self.windows, now);
        for pool in self.accounts.statistics.both(PoolKind::Large) {
            pool.segment.increase(now.saturating_sub(before));
            pool.segment.decrease(before.saturating_sub(now));
        }
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
pub(super) fn allocate_privately(
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
