//! What the device lock guards: chunks, windows, blocks that are not in slabs, and private pools.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;
use tenure_core::{KeyId, StreamId, Tag};

use super::address_space::AddressSpace;
use super::config::{Config, SLAB_BYTES};
use super::progress::{Progress, Uses};
use super::space::Space;
use crate::{
    Action, Address, AllocError, Backing, BackingError, Event, History, PoolId, PoolKind, Request, Statistics,
    StreamFilter,
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
    pub(super) blocks: FxHashMap<Address, LargeBlock>,
    /// The slabs of all heaps, and the stream of each.
    pub(super) slabs: FxHashMap<Address, StreamId>,
    /// Freed blocks that other streams may still use.
    pending: Vec<(Address, Uses)>,
    /// Of everything but small blocks.
    pub(super) statistics: Statistics,
    /// The most bytes ever requested at once.
    pub(super) peak_requested: u64,
    /// Blocks placed since the last was freed.
    pub(super) streak: u32,
    /// Bytes that may be reserved.
    pub(super) allowed: u64,
}

/// A block that is not in a slab.
pub(super) struct LargeBlock {
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) tag: Tag,
    pub(super) key: KeyId,
    pub(super) space: usize,
    /// Other streams that use it.
    pub(super) users: SmallVec<[StreamId; 1]>,
    pub(super) is_freed: bool,
}

/// A private pool: its memory serves nobody else while it is in use.
pub(super) struct Pool {
    pub(super) space: usize,
    uses: usize,
    lends: bool,
}

/// Why there is no block.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The device is full, or the limit is reached.
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
        Self {
            granularity: backing.granularity(),
            progress: Progress::new(Arc::clone(&backing)),
            backing,
            history,
            config,
            addresses,
            spaces: [(COMMON, Space::default())].into_iter().collect(),
            pools: FxHashMap::default(),
            filters: Vec::new(),
            blocks: FxHashMap::default(),
            slabs: FxHashMap::default(),
            pending: Vec::new(),
            statistics: Statistics::default(),
            peak_requested: 0,
            streak: 0,
            allowed: total,
        }
    }

    /// A slab for `stream`. `requested` bytes are requested in all.
    pub(super) fn slab(&mut self, stream: StreamId, requested: u64) -> Result<Address, Refusal> {
        self.settle()?;
        let address = self.find(SLAB_BYTES, stream, COMMON, requested)?;
        self.slabs.insert(address, stream);
        self.statistics.large_pool.reserved_bytes.decrease(SLAB_BYTES);
        self.statistics.small_pool.reserved_bytes.increase(SLAB_BYTES);
        Ok(address)
    }

    /// Takes back an empty slab.
    pub(super) fn return_slab(&mut self, address: Address) {
        if let Some(stream) = self.slabs.remove(&address) {
            self.streak = 0;
            let last = self.progress.use_now(stream);
            self.spaces[COMMON].vacate(address, SLAB_BYTES, last);
            self.statistics.small_pool.reserved_bytes.decrease(SLAB_BYTES);
            self.statistics.large_pool.reserved_bytes.increase(SLAB_BYTES);
        }
    }

    /// A block of `bytes` bytes. `requested` bytes are requested in all, with this one.
    pub(super) fn allocate(
        &mut self,
        request: Request,
        bytes: u64,
        space: usize,
        requested: u64,
    ) -> Result<Address, Refusal> {
        self.settle()?;
        let address = self.find(bytes, request.stream, space, requested)?;
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
                found = space.runs.first_fit(bytes, 0).map(|run| run.address);
                found.map_or(Ok(()), |address| space.wait(address, bytes, request.stream, progress))?;
            }
            if let Some(address) = found {
                space.occupy(address, bytes);
                self.register(request, bytes, id, address);
                return Ok(Some(address));
            }
        }
        Ok(None)
    }

    /// Ends the tenure of a block.
    pub(super) fn free(&mut self, address: Address) -> Result<(), AllocError> {
        let block = self.blocks.get_mut(&address).filter(|block| !block.is_freed);
        let block = block.ok_or(AllocError::UnknownAddress(address))?;
        let mut uses = Uses::default();
        for &user in &block.users {
            uses.add(self.progress.mark_now(user)?);
        }
        block.is_freed = true;
        self.statistics.block_freed(PoolKind::Large, block.tag, block.requested, block.bytes);
        let event = block.event(address);
        self.history.record(|time_us| Event { action: Action::FreeRequested, time_us, ..event });
        if block.users.is_empty() {
            self.complete(address);
        } else {
            self.pending.push((address, uses));
        }
        Ok(())
    }

    /// Lets `stream` use a block too. Whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        let Some(block) = self.blocks.get_mut(&address).filter(|block| !block.is_freed) else { return false };
        if block.stream != stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        true
    }

    /// Completes the frees that every stream has passed.
    pub(super) fn settle(&mut self) -> Result<(), BackingError> {
        let mut index = 0;
        while let Some((address, uses)) = self.pending.get_mut(index) {
            let address = *address;
            if self.progress.is_finished(uses)? {
                self.pending.swap_remove(index);
                self.complete(address);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Waits on the host until every pending free has completed.
    pub(super) fn synchronize(&mut self) -> Result<(), BackingError> {
        for (_, uses) in &mut self.pending {
            self.progress.synchronize(uses)?;
        }
        self.settle()
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
        let mut live: Vec<Address> = self.blocks.keys().chain(self.slabs.keys()).copied().collect();
        live.sort_unstable();
        let released = spaces.iter().try_for_each(|&id| {
            let whole: Vec<usize> = self.spaces[id].whole.iter().map(|(_, index)| *index).collect();
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

    /// The private space that allocations on `stream` go to now.
    pub(super) fn private_space(&self, stream: StreamId) -> Option<usize> {
        let (pool, _) = self.filters.iter().rev().find(|(_, filter)| filter(stream))?;
        self.pools.get(pool).map(|pool| pool.space)
    }

    pub(super) fn begin_pool(&mut self, pool: PoolId, filter: StreamFilter) {
        let spaces = &mut self.spaces;
        let fresh = || Pool { space: spaces.insert(Space::default()), uses: 0, lends: false };
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

    /// Counts and records an out-of-memory error.
    pub(super) fn note_out_of_memory(&mut self, request: Request, free: u64) {
        self.statistics.num_ooms += 1;
        let Request { bytes, stream, tag, key } = request;
        let action = Action::OutOfMemory;
        self.history.record(|time_us| Event { action, address: free, bytes, stream, time_us, tag, key });
    }

    /// The counters of everything but small blocks, with the free bytes of chunks partly in use.
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

    /// Bytes reserved in all.
    pub(super) fn reserved(&self) -> u64 {
        self.statistics.all.reserved_bytes.current
    }

    fn register(&mut self, request: Request, bytes: u64, space: usize, address: Address) {
        let Request { bytes: requested, stream, tag, key } = request;
        let block = LargeBlock { bytes, requested, stream, tag, key, space, users: SmallVec::new(), is_freed: false };
        self.statistics.block_allocated(PoolKind::Large, tag, requested, bytes);
        let event = block.event(address);
        self.history.record(|time_us| Event { action: Action::Alloc, time_us, ..event });
        self.blocks.insert(address, block);
    }

    /// Makes the memory of a freed block free.
    fn complete(&mut self, address: Address) {
        let Some(block) = self.blocks.remove(&address) else { return };
        self.streak = 0;
        let last = self.progress.use_now(block.stream);
        self.spaces[block.space].vacate(address, block.bytes, last);
        self.statistics.block_completed(PoolKind::Large, block.tag, block.bytes);
        let event = block.event(address);
        self.history.record(|time_us| Event { action: Action::FreeCompleted, time_us, ..event });
    }

    pub(super) fn release(&mut self, index: usize, id: usize, live: &[Address]) -> Result<(), BackingError> {
        let space = &mut self.spaces[id];
        let bytes = space.chunks[index].bytes;
        let mapped = space.chunks[index].mapped_at.first().copied();
        space.release(index, live, &mut self.addresses, &*self.backing)?;
        self.statistics.num_device_free += 1;
        self.statistics.both(PoolKind::Large).into_iter().for_each(|pool| pool.reserved_bytes.decrease(bytes));
        if let Some(address) = mapped {
            self.history.record(|time_us| segment_event(Action::SegmentUnmap, address, bytes, time_us));
        }
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

impl LargeBlock {
    /// An event of the block, undated.
    fn event(&self, address: Address) -> Event {
        let Self { requested: bytes, stream, tag, key, .. } = *self;
        Event { action: Action::Alloc, address, bytes, stream, time_us: 0, tag, key }
    }
}

pub(super) fn segment_event(action: Action, address: Address, bytes: u64, time_us: u64) -> Event {
    Event { action, address, bytes, stream: StreamId::NULL, time_us, tag: Tag::Unknown, key: KeyId::NONE }
}
