//! Heaps: the blocks of one stream, under a lock that only this stream's users take.

use std::sync::Arc;

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tenure_core::{KeyId, StreamId, Tag};

use super::config::SLAB_BYTES;
use super::counters::Counters;
use super::directory::LoanKind;
use super::large::{LargeBlock, LargeBlocks};
use super::latch::{Latch, LatchGuard};
use super::parked::{Loan, Loans, ParkedLoans};
use super::progress::{DeviceProgress, EpochUses};
use super::slabs::{SlabBlockState, Slabs};
use super::state::PagedState;
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Address, AllocError, BackingError, Block, History, HistoryAction, HistoryEvent, PoolId, PoolKind, Request,
    Statistics,
};

/// The heap of a stream. It has cache lines of its own, so that heaps of different streams do not slow each other down.
#[repr(align(128))]
pub(super) struct Heap {
    pub(super) stream: StreamId,
    /// Bytes requested from this heap and not freed. The value is exact if the reader holds the heap's lock.
    requested: AtomicU64,
    blocks: Latch<HeapBlocks>,
}

/// The state under a heap's lock.
pub(super) struct HeapBlocks {
    stream: StreamId,
    /// The number of the state's last placement or return: see Note [Parking].
    clock: Arc<AtomicU64>,
    slabs: Slabs,
    /// Live blocks in slabs, by address.
    by_address: FxHashMap<Address, u32>,
    /// Other streams that use a block in a slab, by the block's number.
    users: FxHashMap<u32, SmallVec<[StreamId; 1]>>,
    /// Freed blocks in slabs that other streams may still use.
    pending: Vec<(u32, EpochUses)>,
    large: LargeBlocks,
    parked: ParkedLoans,
    /// Whether the only slab is empty and parked. It stays in `slabs` meanwhile, so that a program which allocates and
    /// frees one block by turns does not add and remove the slab each time.
    is_idle: bool,
    /// The peak of the requested bytes at the times when parked memory was reused; `None` once it was reported to the
    /// state.
    reuse_peak: Option<u64>,
    counters: Counters,
}

/// The result of a free.
pub(super) enum Freed {
    /// The block is free.
    Done,
    /// The block is free, and the caller must give [the parked memory](HeapBlocks::take_returns) back to the state.
    WithReturns,
    /// The block is not freed yet: other streams use it.
    InUse,
}

impl Heap {
    pub(super) fn new(stream: StreamId, clock: Arc<AtomicU64>) -> Self {
        let blocks = HeapBlocks {
            stream,
            clock,
            slabs: Slabs::default(),
            by_address: FxHashMap::default(),
            users: FxHashMap::default(),
            pending: Vec::new(),
            large: LargeBlocks::default(),
            parked: ParkedLoans::default(),
            is_idle: false,
            reuse_peak: None,
            counters: Counters::default(),
        };
        Self { stream, requested: AtomicU64::new(0), blocks: Latch::new(blocks) }
    }

    /// Returns the bytes requested, as last published.
    pub(super) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> LatchGuard<'_, HeapBlocks> {
        self.blocks.lock()
    }

    /// Allocates a block in a slab that the heap has, or in a parked one.
    #[inline]
    pub(super) fn allocate_small(
        &self,
        blocks: &mut HeapBlocks,
        request: Request,
        bytes: u64,
        history: &History,
    ) -> Option<Block> {
        let was_idle = blocks.is_idle;
        if was_idle {
            blocks.parked.take(SLAB_BYTES, LoanKind::Slab, blocks.now())?;
            blocks.is_idle = false;
        }
        let mut block = blocks.allocate_small(request, bytes, history);
        if was_idle {
            blocks.note_reuse();
        }
        if block.is_none() {
            let slab = blocks.parked.take(SLAB_BYTES, LoanKind::Slab, blocks.now())?;
            blocks.slabs.add(slab);
            block = blocks.allocate_small(request, bytes, history);
            blocks.note_reuse();
        }
        let block = block?;
        self.publish(blocks);
        Some(block)
    }

    /// Allocates a block of `bytes` bytes in a parked range.
    #[inline]
    pub(super) fn allocate_parked(
        &self,
        blocks: &mut HeapBlocks,
        request: Request,
        bytes: u64,
        history: &History,
    ) -> Option<Block> {
        let range = blocks.parked.take(bytes, LoanKind::Range, blocks.now())?;
        let block = self.add_large(blocks, request, range, history);
        blocks.note_reuse();
        Some(block)
    }

    /// Adds the block that takes up a range lent by the state.
    pub(super) fn add_large(&self, blocks: &mut HeapBlocks, request: Request, range: Loan, history: &History) -> Block {
        let Loan { address, bytes, .. } = range;
        let block = blocks.large.insert(request, range);
        if history.is_on() {
            block.record(HistoryAction::Alloc, address, PoolId::default(), history);
        }
        blocks.counters.allocated(PoolKind::Large, request.tag, request.bytes, bytes);
        self.publish(blocks);
        Block { address, bytes }
    }

    /// Frees a block in a slab that no other stream uses.
    #[inline]
    pub(super) fn free_small(&self, address: Address, history: &History) -> Result<Freed, AllocError> {
        let blocks = &mut *self.blocks.lock();
        if !blocks.users.is_empty() && blocks.is_used_elsewhere(address) {
            return Ok(Freed::InUse);
        }
        let index = blocks.by_address.remove(&address).ok_or(AllocError::UnknownAddress(address))?;
        blocks.note_freed(index, history);
        let freed = blocks.complete_small(index, history);
        self.publish(blocks);
        Ok(freed)
    }

    /// Frees a larger block that no other stream uses.
    #[inline]
    pub(super) fn free_large(&self, address: Address, history: &History) -> Result<Freed, AllocError> {
        let blocks = &mut *self.blocks.lock();
        let Some(block) = blocks.large.take(address)? else { return Ok(Freed::InUse) };
        blocks.counters.freed(PoolKind::Large, block.tag, block.requested, block.bytes);
        if history.is_on() {
            block.record(HistoryAction::FreeRequested, address, PoolId::default(), history);
        }
        let freed = blocks.complete_large(address, &block, history);
        self.publish(blocks);
        Ok(freed)
    }

    /// Frees a block that other streams use: it becomes free when they have finished the work put on them so far.
    pub(super) fn free_in_use(
        &self,
        address: Address,
        state: &Mutex<PagedState>,
        history: &History,
    ) -> Result<(), AllocError> {
        let blocks = &mut *self.blocks.lock();
        let progress = &mut state.lock().progress;
        if let Some(&index) = blocks.by_address.get(&address) {
            let mut uses = EpochUses::default();
            for &user in blocks.users.get(&index).into_iter().flatten() {
                uses.add(progress.mark_now(user)?);
            }
            blocks.users.remove(&index);
            blocks.by_address.remove(&address);
            blocks.slabs.entry_mut(index).state = SlabBlockState::Pending;
            blocks.pending.push((index, uses));
            blocks.note_freed(index, history);
            let entry = blocks.slabs.entry(index);
            blocks.counters.awaited(PoolKind::Small, entry.tag, u64::from(entry.requested), entry.bytes());
        } else {
            let block = blocks.large.free(address, progress)?;
            blocks.counters.freed(PoolKind::Large, block.tag, block.requested, block.bytes);
            blocks.counters.awaited(PoolKind::Large, block.tag, block.requested, block.bytes);
            block.record(HistoryAction::FreeRequested, address, PoolId::default(), history);
        }
        self.publish(blocks);
        Ok(())
    }

    /// Makes the number of requested bytes readable without the lock.
    #[inline]
    fn publish(&self, blocks: &HeapBlocks) {
        self.requested.store(blocks.counters.requested(), Ordering::Relaxed);
    }
}

impl HeapBlocks {
    /// Returns whether a freed block waits for other streams.
    #[inline]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty() || self.large.has_pending()
    }

    /// Adds a slab lent by the state, all free.
    pub(super) fn add_slab(&mut self, slab: Loan) {
        self.unpark_idle_slab();
        self.slabs.add(slab);
    }

    /// Records that `stream` uses a block too. Returns whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        let Some(&index) = self.by_address.get(&address) else { return self.large.record_stream(address, stream) };
        if stream != self.stream {
            let users = self.users.entry(index).or_default();
            if !users.contains(&stream) {
                users.push(stream);
            }
        }
        true
    }

    /// Changes a live block's tag and key. Returns whether the block is here.
    pub(super) fn retag(&mut self, address: Address, tag: Tag, key: KeyId) -> bool {
        if let Some(&index) = self.by_address.get(&address) {
            let entry = self.slabs.entry_mut(index);
            let from = std::mem::replace(&mut entry.tag, tag);
            entry.key = key;
            self.counters.retagged(from, tag, u64::from(entry.requested), entry.bytes());
        } else if let Some((from, block)) = self.large.retag(address, tag, key) {
            self.counters.retagged(from, tag, block.requested, block.bytes);
        } else {
            return false;
        }
        true
    }

    /// Records that the program annotated a live block.
    pub(super) fn annotate(&self, address: Address, history: &History) -> Result<(), AllocError> {
        if let Some(&index) = self.by_address.get(&address) {
            self.record(HistoryAction::Annotate, index, history);
            return Ok(());
        }
        let block = self.large.get(address).filter(|block| !block.is_freed);
        let block = block.ok_or(AllocError::UnknownAddress(address))?;
        block.record(HistoryAction::Annotate, address, PoolId::default(), history);
        Ok(())
    }

    /// Returns the bytes of the live block at an address.
    pub(super) fn bytes_of(&self, address: Address) -> Option<u64> {
        match self.by_address.get(&address) {
            Some(&index) => Some(self.slabs.entry(index).bytes()),
            None => self.large.get(address).filter(|block| !block.is_freed).map(|block| block.bytes),
        }
    }

    /// Makes the freed blocks free whose other streams have finished using them; if `wait`, waits for these streams on
    /// the host. Afterwards, also after
    /// an error, the caller must give back [the memory that is no longer parked](Self::take_returns).
    pub(super) fn complete_frees(
        &mut self,
        progress: &mut DeviceProgress,
        wait: bool,
        history: &History,
    ) -> Result<(), BackingError> {
        let mut at = 0;
        while let Some((index, uses)) = self.pending.get_mut(at) {
            let index = *index;
            if wait {
                progress.synchronize(uses)?;
            }
            if progress.is_finished(uses)? {
                self.pending.swap_remove(at);
                let entry = self.slabs.entry(index);
                self.counters.completed(PoolKind::Small, entry.tag, u64::from(entry.requested), entry.bytes());
                self.complete_small(index, history);
            } else {
                at += 1;
            }
        }
        let mut done = Vec::new();
        let result = self.large.complete_frees(progress, wait, &mut done);
        for (address, block) in done {
            self.counters.completed(PoolKind::Large, block.tag, block.requested, block.bytes);
            self.complete_large(address, &block, history);
        }
        result
    }

    /// Takes all parked memory, which the caller must give back to the state.
    pub(super) fn take_parked(&mut self) -> Loans {
        self.unpark_idle_slab();
        self.parked.take_all()
    }

    /// Takes all parked memory if a free broke the stack, else none: see [`Freed::WithReturns`].
    pub(super) fn take_returns(&mut self) -> Loans {
        if self.parked.has_returns() { self.take_parked() } else { Loans::new() }
    }

    /// Returns the peak of the requested bytes at the times when parked memory was reused since the last call.
    pub(super) fn take_reuse_peak(&mut self) -> Option<u64> {
        self.reuse_peak.take()
    }

    /// Takes all parked memory and every empty slab.
    pub(super) fn take_unused(&mut self) -> Loans {
        let mut unused = self.take_parked();
        unused.extend(std::iter::from_fn(|| self.slabs.take_empty()));
        unused
    }

    pub(super) fn slabs(&self) -> &Slabs {
        &self.slabs
    }

    pub(super) fn large(&self) -> &LargeBlocks {
        &self.large
    }

    /// Adds this heap's counters to an allocator's statistics.
    pub(super) fn add_statistics(&self, statistics: &mut Statistics) {
        self.counters.add_to(statistics);
        let (count, bytes) = self.slabs.inactive_split();
        for pool in statistics.both(PoolKind::Small) {
            pool.inactive_split.increase(count);
            pool.inactive_split_bytes.increase(bytes);
        }
    }

    pub(super) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    #[inline]
    fn allocate_small(&mut self, request: Request, bytes: u64, history: &History) -> Option<Block> {
        let index = self.slabs.allocate(request, bytes)?;
        let entry = self.slabs.entry(index);
        let address = entry.address;
        let bytes = entry.bytes();
        self.by_address.insert(address, index);
        self.counters.allocated(PoolKind::Small, request.tag, request.bytes, bytes);
        if history.is_on() {
            self.record(HistoryAction::Alloc, index, history);
        }
        Some(Block { address, bytes })
    }

    /// Counts and records the request to free a block of a slab.
    #[inline]
    fn note_freed(&mut self, index: u32, history: &History) {
        let entry = self.slabs.entry(index);
        self.counters.freed(PoolKind::Small, entry.tag, u64::from(entry.requested), entry.bytes());
        if history.is_on() {
            self.record(HistoryAction::FreeRequested, index, history);
        }
    }

    /// Makes a block of a slab free, and parks the slabs that became empty.
    #[inline]
    fn complete_small(&mut self, index: u32, history: &History) -> Freed {
        if history.is_on() {
            self.record(HistoryAction::FreeCompleted, index, history);
        }
        if self.slabs.free(index) { self.park_empty() } else { Freed::Done }
    }

    /// Parks the empty slabs, but keeps one while others are in use, so that a block that comes and goes does not need
    /// a new slab each time.
    fn park_empty(&mut self) -> Freed {
        if self.slabs.in_use() == 0
            && self.slabs.empty() == 1
            && let Some(slab) = self.slabs.first_empty()
        {
            self.is_idle = true;
            return self.park(slab);
        }
        let kept = usize::from(self.slabs.in_use() > 0);
        let mut freed = Freed::Done;
        while self.slabs.empty() > kept
            && let Some(slab) = self.slabs.take_empty()
        {
            freed = self.park(slab);
        }
        freed
    }

    /// Parks memory that holds no block any more.
    #[inline]
    fn park(&mut self, loan: Loan) -> Freed {
        if self.parked.park(loan, self.now()) { Freed::Done } else { Freed::WithReturns }
    }

    /// Parks the range of a larger block that was taken out.
    #[inline]
    fn complete_large(&mut self, address: Address, block: &LargeBlock, history: &History) -> Freed {
        if history.is_on() {
            block.record(HistoryAction::FreeCompleted, address, PoolId::default(), history);
        }
        let LargeBlock { bytes, number, is_made, .. } = *block;
        self.park(Loan { address, bytes, kind: LoanKind::Range, number, is_made })
    }

    /// Updates the peak of the requested bytes after parked memory was reused.
    #[inline]
    fn note_reuse(&mut self) {
        self.reuse_peak = self.reuse_peak.max(Some(self.counters.requested()));
    }

    /// Removes the parked slab from `slabs`, if it is [idle](Self::is_idle).
    fn unpark_idle_slab(&mut self) {
        if std::mem::take(&mut self.is_idle) {
            self.slabs.take_empty();
        }
    }

    /// Returns whether other streams use the block of a slab at an address.
    #[cold]
    fn is_used_elsewhere(&self, address: Address) -> bool {
        self.by_address.get(&address).is_some_and(|index| self.users.contains_key(index))
    }

    /// Returns the number of the state's last change.
    #[inline]
    fn now(&self) -> u64 {
        self.clock.load(Ordering::Acquire)
    }

    /// Records an event of the block of a slab with this number.
    #[cold]
    fn record(&self, action: HistoryAction, index: u32, history: &History) {
        let entry = self.slabs.entry(index);
        let address = entry.address;
        let bytes = u64::from(entry.requested);
        let stream = self.stream;
        let tag = entry.tag;
        let key = entry.key;
        history.record(|| HistoryEvent::new(action, address, bytes, stream).with_purpose(tag, key));
    }
}
