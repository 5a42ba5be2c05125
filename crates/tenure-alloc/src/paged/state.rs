//! What the device lock guards: chunks, windows, blocks that are not in slabs, and private pools.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;
use tenure_core::{KeyId, StreamId, Tag};

use super::address_space::AddressSpace;
use super::config::Config;
use super::directory::Lent;
use super::large::{LargeBlock, LargeBlocks};
use super::parked::{Loan, NEVER_PARKED};
use super::progress::Progress;
use super::shown::Shown;
use super::space::Space;
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Action, Address, AllocError, Backing, BackingError, Event, History, MappedChunk, PoolId, PoolKind, Request,
    Statistics, StreamFilter,
};

/// The space that serves everybody.
pub(super) const COMMON: usize = 0;

pub(super) struct State {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) history: Arc<History>,
    pub(super) config: Config,
    pub(super) granularity: u64,
    pub(super) addresses: AddressSpace,
    pub(super) progress: Progress,
    /// The common space, at [`COMMON`], and those of private pools.
    pub(super) spaces: Slab<Space>,
    pub(super) pools: FxHashMap<PoolId, Pool>,
    /// Who asked for allocations to go to a pool, the last first.
    pub(super) filters: Vec<(PoolId, StreamFilter)>,
    /// Blocks of private pools, and those of streams that have no heap.
    pub(super) blocks: LargeBlocks,
    /// What is lent to heaps, by first address: see Note [Parking].
    pub(super) loans: FxHashMap<Address, (StreamId, Loan)>,
    /// Numbers the placements in the common space and the returns to it: see Note [Parking].
    pub(super) clock: Arc<AtomicU64>,
    /// Of what is reserved, and of the blocks here.
    pub(super) statistics: Statistics,
    /// The most bytes ever requested at once.
    pub(super) peak_requested: u64,
    /// Blocks placed since the last was freed.
    pub(super) streak: u32,
    /// Bytes that this process may hold.
    pub(super) allowed: u64,
    /// Bytes of the device.
    total: u64,
}

/// A private pool: its memory serves nobody else while it is in use.
pub(super) struct Pool {
    pub(super) space: usize,
    uses: usize,
    lends: bool,
}

/// How far to go for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effort {
    /// What is free in one piece.
    Free,
    /// Whatever can be made, pieced together or waited for.
    Any,
}

/// Why there is no block.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The device is full, or the limit is reached, or there is none without more [`Effort`].
    Full,
    /// A call of the backing failed for another reason.
    Backing(BackingError),
}

impl From<BackingError> for Refusal {
    fn from(error: BackingError) -> Self {
        match error {
            BackingError::OutOfMemory { .. } => Self::Full,
            other => Self::Backing(other),
        }
    }
}

impl State {
    pub(super) fn new(
        backing: Arc<dyn Backing>,
        config: Config,
        addresses: AddressSpace,
        total: u64,
        history: Arc<History>,
    ) -> Self {
        let common = Space::new(Shown::new(Arc::clone(&history), PoolId::default()));
        Self {
            granularity: backing.granularity(),
            progress: Progress::new(Arc::clone(&backing)),
            backing,
            history,
            config,
            addresses,
            spaces: [(COMMON, common)].into_iter().collect(),
            pools: FxHashMap::default(),
            filters: Vec::new(),
            blocks: LargeBlocks::default(),
            loans: FxHashMap::default(),
            clock: Arc::default(),
            statistics: Statistics::default(),
            peak_requested: 0,
            streak: 0,
            allowed: total,
            total,
        }
    }

    /// Memory for the heap of `stream`. `requested` bytes are requested in all.
    pub(super) fn lend(
        &mut self,
        stream: StreamId,
        bytes: u64,
        lent: Lent,
        requested: u64,
        effort: Effort,
    ) -> Result<Loan, Refusal> {
        // A free ends a streak, and what follows it goes by other rules.
        let in_streak = self.in_streak();
        let (address, is_made) = self.find(bytes, stream, COMMON, requested, effort)?;
        let number = if in_streak { NEVER_PARKED } else { self.clock.load(Ordering::Relaxed) };
        let loan = Loan { address, bytes, lent, number, is_made };
        self.loans.insert(address, (stream, loan));
        if lent == Lent::Slab {
            self.statistics.large_pool.reserved_bytes.decrease(bytes);
            self.statistics.small_pool.reserved_bytes.increase(bytes);
        }
        Ok(loan)
    }

    /// Takes back what was lent to a heap.
    pub(super) fn take_back(&mut self, loan: Loan) {
        let Loan { address, bytes, lent, .. } = loan;
        let Some((stream, _)) = self.loans.remove(&address) else { return };
        self.streak = 0;
        self.vacate(address, bytes, stream, COMMON);
        if lent == Lent::Slab {
            self.statistics.small_pool.reserved_bytes.decrease(bytes);
            self.statistics.large_pool.reserved_bytes.increase(bytes);
        }
    }

    /// A block of `bytes` bytes, of no heap. `requested` bytes are requested in all, with this one.
    pub(super) fn allocate(
        &mut self,
        request: Request,
        bytes: u64,
        space: usize,
        requested: u64,
        effort: Effort,
    ) -> Result<Address, Refusal> {
        self.settle(false)?;
        let (address, _) = self.find(bytes, request.stream, space, requested, effort)?;
        self.register(request, bytes, space, address);
        Ok(address)
    }

    /// A block out of a pool that lends its free memory before an out-of-memory error.
    pub(super) fn borrow(&mut self, request: Request, bytes: u64) -> Result<Option<Address>, BackingError> {
        let lenders: Vec<usize> = self.pools.values().filter(|pool| pool.lends).map(|pool| pool.space).collect();
        for id in lenders {
            let (space, progress) = (&mut self.spaces[id], &mut self.progress);
            let mut found = space.first_fit(bytes, bytes, request.stream, progress)?;
            if found.is_none() && !progress.is_capturing() {
                found = space.first_range(bytes, 0);
                found.map_or(Ok(()), |place| space.wait(place, bytes, request.stream, progress))?;
            }
            if let Some(place) = found {
                space.occupy(place, bytes);
                self.register(request, bytes, id, place.address);
                return Ok(Some(place.address));
            }
        }
        Ok(None)
    }

    /// Ends the tenure of a block.
    pub(super) fn free(&mut self, address: Address) -> Result<(), AllocError> {
        let taken = self.blocks.take(address)?;
        let block = match &taken {
            Some(block) => block,
            None => self.blocks.free(address, &mut self.progress)?,
        };
        self.statistics.block_freed(PoolKind::Large, block.tag, block.requested, block.bytes);
        block.record(Action::FreeRequested, address, pool_of(&self.pools, block.space), &self.history);
        if let Some(block) = taken {
            self.complete(address, &block);
        }
        Ok(())
    }

    /// Lets `stream` use a block too. Whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        self.blocks.record_stream(address, stream)
    }

    /// Says anew what a block is for. Whether the block is here.
    pub(super) fn retag(&mut self, address: Address, tag: Tag, key: KeyId) -> bool {
        let Some((from, block)) = self.blocks.retag(address, tag, key) else { return false };
        self.statistics.block_retagged(from, tag, block.requested, block.bytes);
        true
    }

    /// Completes the frees that every stream has passed; waits for them on the host if `wait`.
    pub(super) fn settle(&mut self, wait: bool) -> Result<(), BackingError> {
        if !self.blocks.has_pending() {
            return Ok(());
        }
        let mut done = Vec::new();
        let settled = self.blocks.settle(&mut self.progress, wait, &mut done);
        for (address, block) in done {
            self.complete(address, &block);
        }
        settled
    }

    /// Gives every chunk with no byte in use back to the backing, of the common space and of pools given up. Waits on
    /// the host for the work that used them.
    pub(super) fn release_whole(&mut self) -> Result<(), BackingError> {
        self.release_given_up()?;
        self.release_wholes(&[COMMON])
    }

    /// The same for pools given up only.
    pub(super) fn release_given_up(&mut self) -> Result<(), BackingError> {
        let given_up: Vec<usize> = self.pools.values().filter(|pool| pool.uses == 0).map(|pool| pool.space).collect();
        let released = self.release_wholes(&given_up);
        self.pools.retain(|_, pool| {
            let is_over = pool.uses == 0 && self.spaces[pool.space].chunks.is_empty();
            if is_over {
                self.spaces.remove(pool.space);
            }
            !is_over
        });
        released
    }

    fn release_wholes(&mut self, spaces: &[usize]) -> Result<(), BackingError> {
        let mut live: Vec<Address> =
            self.blocks.iter().map(|(address, _)| address).chain(self.loans.keys().copied()).collect();
        live.sort_unstable();
        let released = spaces.iter().try_for_each(|&id| {
            let whole: Vec<usize> = self.spaces[id].wholes().into_iter().map(|(_, index)| index).collect();
            whole.into_iter().try_for_each(|index| {
                self.progress.synchronize(&mut self.spaces[id].chunks[index].uses)?;
                self.release(index, id, &live)
            })
        });
        self.count_windows();
        released
    }

    /// Whether allocations on `stream` go to a private pool now.
    pub(super) fn sends_to_pool(&self, stream: StreamId) -> bool {
        self.private_space(stream).is_some()
    }

    /// The pool that a space serves.
    pub(super) fn pool_of(&self, space: usize) -> PoolId {
        pool_of(&self.pools, space)
    }

    /// The private space that allocations on `stream` go to now.
    pub(super) fn private_space(&self, stream: StreamId) -> Option<usize> {
        let (pool, _) = self.filters.iter().rev().find(|(_, filter)| filter(stream))?;
        self.pools.get(pool).map(|pool| pool.space)
    }

    pub(super) fn begin_pool(&mut self, pool: PoolId, filter: StreamFilter) {
        let Self { spaces, history, .. } = self;
        let fresh = || {
            let space = Space::new(Shown::new(Arc::clone(history), pool));
            Pool { space: spaces.insert(space), uses: 0, lends: false }
        };
        self.pools.entry(pool).or_insert_with(fresh).uses += 1;
        self.filters.push((pool, filter));
        self.progress.capture_begins();
    }

    pub(super) fn end_pool(&mut self, pool: PoolId) -> Result<(), AllocError> {
        let at = self.filters.iter().rposition(|(id, _)| *id == pool).ok_or(AllocError::UnknownPool(pool))?;
        drop(self.filters.remove(at));
        self.progress.capture_ends();
        Ok(())
    }

    pub(super) fn release_pool(&mut self, pool: PoolId) -> Result<(), AllocError> {
        let known = self.pools.get_mut(&pool).filter(|pool| pool.uses > 0);
        known.ok_or(AllocError::UnknownPool(pool))?.uses -= 1;
        Ok(())
    }

    pub(super) fn lend_pool(&mut self, pool: PoolId) -> Result<(), AllocError> {
        self.pools.get_mut(&pool).ok_or(AllocError::UnknownPool(pool))?.lends = true;
        Ok(())
    }

    /// The chunks mapped under a range of addresses; `None` if none are.
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        self.spaces.iter().find_map(|(_, space)| {
            let window = space.windows.over(address)?;
            let under = window.chunks[window.slot_of(address)..].iter().take_while(|(at, _)| *at < address + bytes);
            let mapped = |&(address, index): &(Address, usize)| {
                let chunk = &space.chunks[index];
                MappedChunk { chunk: chunk.id, bytes: chunk.bytes, address }
            };
            Some(under.map(mapped).collect())
        })
    }

    /// Counts and records an out-of-memory error.
    pub(super) fn note_out_of_memory(&mut self, request: Request, free: u64) {
        self.statistics.num_ooms += 1;
        let Request { bytes, stream, tag, key } = request;
        let pool = self.private_space(stream).map_or(PoolId::default(), |space| self.pool_of(space));
        self.history
            .record(|| Event::new(Action::OutOfMemory, free, bytes, stream).with_purpose(tag, key).in_pool(pool));
    }

    /// The counters of everything but the blocks of heaps, with the free bytes of chunks partly in use.
    pub(super) fn statistics(&mut self) -> Statistics {
        let partial =
            self.spaces.iter().flat_map(|(_, space)| space.chunks.iter()).filter(|(_, chunk)| !chunk.is_whole());
        let extents: Vec<u64> = partial.flat_map(|(_, chunk)| chunk.free.iter().map(|extent| extent.bytes)).collect();
        for pool in self.statistics.both(PoolKind::Large) {
            pool.inactive_split.set(extents.len() as u64);
            pool.inactive_split_bytes.set(extents.iter().sum());
        }
        self.statistics.clone()
    }

    /// Bytes of the device that count against the limit beside what is reserved. Nobody is asked where there is no limit.
    pub(super) fn overhead(&self) -> u64 {
        if self.allowed < self.total { self.backing.overhead_bytes() } else { 0 }
    }

    /// Bytes reserved in all.
    pub(super) fn reserved(&self) -> u64 {
        self.statistics.all.reserved_bytes.current
    }

    fn vacate(&mut self, address: Address, bytes: u64, stream: StreamId, space: usize) {
        let last = self.progress.use_now(stream);
        self.spaces[space].vacate(address, bytes, last);
        self.count_change();
    }

    /// Counts a change of what is free.
    pub(super) fn count_change(&self) {
        self.clock.fetch_add(1, Ordering::Release);
    }

    fn register(&mut self, request: Request, bytes: u64, space: usize, address: Address) {
        let range = Loan { address, bytes, lent: Lent::Range, number: NEVER_PARKED, is_made: false };
        let block = self.blocks.insert(request, range, space);
        let pool = pool_of(&self.pools, space);
        block.record(Action::Alloc, address, pool, &self.history);
        self.statistics.block_allocated(PoolKind::Large, request.tag, request.bytes, bytes);
    }

    /// Makes the memory of a freed block free.
    fn complete(&mut self, address: Address, block: &LargeBlock) {
        self.streak = 0;
        // Before its bytes go home: see Note [Where bytes are shown].
        block.record(Action::FreeCompleted, address, self.pool_of(block.space), &self.history);
        self.vacate(address, block.bytes, block.stream, block.space);
        self.statistics.block_completed(PoolKind::Large, block.tag, block.bytes);
    }

    pub(super) fn release(&mut self, index: usize, id: usize, live: &[Address]) -> Result<(), BackingError> {
        let space = &mut self.spaces[id];
        let bytes = space.chunks[index].bytes;
        let released = space.release(index, live, &mut self.addresses, &*self.backing);
        self.clock.fetch_add(1, Ordering::Release);
        released?;
        self.statistics.num_device_free += 1;
        self.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.reserved_bytes.decrease(bytes));
        Ok(())
    }

    pub(super) fn count_created(&mut self, bytes: u64) {
        self.statistics.num_device_alloc += 1;
        self.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.reserved_bytes.increase(bytes));
    }

    /// A window is what PyTorch's figures call a segment.
    pub(super) fn count_windows(&mut self) {
        let windows = self.spaces.iter().map(|(_, space)| space.windows.len() as u64).sum::<u64>();
        self.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.segment.set(windows));
    }
}

fn pool_of(pools: &FxHashMap<PoolId, Pool>, space: usize) -> PoolId {
    if space == COMMON {
        return PoolId::default();
    }
    pools.iter().find(|(_, pool)| pool.space == space).map_or(PoolId::default(), |(id, _)| *id)
}
