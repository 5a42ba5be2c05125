//! The engine: serves requests by best fit, and splits and merges blocks. Its other methods are in the files of their
//! subjects, which all use this one.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tenure_core::{KeyId, StreamId, Tag};

use super::blocks::{Block, BlockId, BlockState, BlockTable, PendingBlocks, PoolRef, StreamUse};
use super::captures::Captures;
use super::config::{LARGE_SEGMENT, MIN_BLOCK, NativeConfig, SMALL_LIMIT, pool_kind, segment_size};
use super::expandable::ExpandableSegment;
use super::pool::{Pools, Returned};
use crate::accounts::Accounts;
use crate::{
    Address, AllocError, Backing, History, HistoryAction, HistoryEvent, MemoryInfo, OutOfMemory, PoolId, PoolKind,
    Request, Tuning,
};

/// Blocks, pools and segments. The allocator that owns the engine also owns the [`Accounts`], and lends them to each
/// call that changes or reads them.
pub(crate) struct Engine {
    pub(crate) config: NativeConfig,
    pub(super) backing: Arc<dyn Backing>,
    pub(super) history: Arc<History>,
    pub(super) blocks: BlockTable,
    pub(super) pools: Pools,
    /// Live blocks, by address.
    pub(super) live: FxHashMap<Address, BlockId>,
    pub(super) pending: PendingBlocks,
    pub(crate) captures: Captures,
    pub(super) segments: Vec<Option<ExpandableSegment>>,
    /// The number of segments ever made.
    pub(super) made: u64,
    /// Segments to give back to the sources of pools, once the lock can be released.
    pub(super) returned: Vec<Returned>,
}

/// A request, its rounded size in bytes, and the pool that serves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) request: Request,
    pub(super) bytes: u64,
    pub(super) pool: PoolRef,
}

/// An engine and its allocator's accounts, under a lock that can be released for a while.
pub(crate) trait Locked {
    /// Returns the engine and the accounts.
    fn engine(&mut self) -> (&mut Engine, &mut Accounts);

    /// Calls `call` with the lock released, and returns its result.
    fn unlocked<T>(&mut self, call: impl FnOnce() -> T) -> T;
}

impl Engine {
    pub(crate) fn new(
        backing: Arc<dyn Backing>,
        config: NativeConfig,
        history: Arc<History>,
    ) -> Result<Self, AllocError> {
        config.validate(backing.granularity())?;
        Ok(Self {
            config,
            backing,
            history,
            blocks: BlockTable::default(),
            pools: Pools::default(),
            live: FxHashMap::default(),
            pending: PendingBlocks::default(),
            captures: Captures::default(),
            segments: Vec::new(),
            made: 0,
            returned: Vec::new(),
        })
    }

    /// Allocates a free block for `request`, if there is one.
    #[inline]
    pub(crate) fn allocate_free(
        &mut self,
        accounts: &mut Accounts,
        request: Request,
    ) -> Result<Option<crate::Block>, AllocError> {
        let wanted = self.resolve(request)?;
        Ok(self.take_free(accounts, &wanted).map(|id| self.hand_out(accounts, &wanted, id)))
    }

    /// Allocates a free block for `request` from a private pool that lends its free blocks: see
    /// [`use_pool_on_oom`](crate::PrivatePools::use_pool_on_oom).
    pub(crate) fn borrow(
        &mut self,
        accounts: &mut Accounts,
        request: Request,
    ) -> Result<Option<crate::Block>, AllocError> {
        let wanted = self.resolve(request)?;
        Ok(self.take_from_private_pools(accounts, &wanted).map(|(wanted, id)| self.hand_out(accounts, &wanted, id)))
    }

    /// Counts and records that there is no memory for `request`. Returns the error for the caller and the state for the
    /// observers.
    pub(super) fn out_of_memory(
        &mut self,
        accounts: &mut Accounts,
        request: Request,
    ) -> Result<(AllocError, OutOfMemory), AllocError> {
        let bytes = self.config.round(request.bytes)?;
        let info = self.backing.memory_info()?;
        let allowed = accounts.limit.bytes();
        let reserved = accounts.reserved();
        let allocated = accounts.statistics.all.allocated_bytes.current;
        let inactive = reserved - allocated;
        let overhead = accounts.limit.counted_overhead(&*self.backing);
        let requested = segment_size(bytes);
        let rejected = accounts.limit.rejects(reserved + overhead + requested);
        accounts.statistics.count_out_of_memory(rejected);
        let Request { stream, tag, key, .. } = request;
        let address = info.free;
        let pool = self.pool_for(stream);
        self.history.record(|| {
            HistoryEvent::new(HistoryAction::OutOfMemory, address, bytes, stream).with_purpose(tag, key).in_pool(pool)
        });
        let MemoryInfo { free, total } = info;
        let seen = OutOfMemory { requested, allowed, overhead, allocated, inactive, total, free, rejected };
        Ok((seen.error(request.bytes, stream), seen))
    }

    pub(crate) fn free(&mut self, accounts: &mut Accounts, address: Address) -> Result<(), AllocError> {
        let id = *self.live.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        let must_wait = !self.blocks[id].uses.is_empty();
        let capturing = self.captures.any();
        let marks = if must_wait && !capturing { self.await_streams(id, |_| true)? } else { 0 };
        self.live.remove(&address);
        let block = &mut self.blocks[id];
        block.state = BlockState::Pending(marks);
        accounts.statistics.block_freed(block.pool.kind, block.tag, block.bytes);
        if self.config.is_oversize(block.bytes) {
            accounts.statistics.oversize_allocations.decrease(1);
        }
        self.record_block(HistoryAction::FreeRequested, id);
        if !must_wait {
            self.complete(accounts, id);
        } else if capturing {
            self.pending.deferred.push_back(id);
        }
        Ok(())
    }

    pub(crate) fn record_stream(&mut self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        let id = *self.live.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        let in_capture = self.captures.is_captured(stream);
        let block = &mut self.blocks[id];
        // Stream order protects uses on the block's own stream.
        if stream != block.stream {
            match block.uses.iter_mut().find(|used| used.stream == stream) {
                Some(used) => used.only_in_capture &= in_capture,
                None => block.uses.push(StreamUse { stream, only_in_capture: in_capture }),
            }
        }
        Ok(())
    }

    pub(crate) fn retag(
        &mut self,
        accounts: &mut Accounts,
        address: Address,
        tag: Tag,
        key: KeyId,
    ) -> Result<(), AllocError> {
        let id = *self.live.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        let block = &mut self.blocks[id];
        let from = std::mem::replace(&mut block.tag, tag);
        block.key = key;
        accounts.statistics.block_retagged(from, tag, block.requested, block.bytes);
        Ok(())
    }

    /// Records that the program annotated a live block.
    pub(crate) fn annotate(&self, address: Address) -> Result<(), AllocError> {
        let id = *self.live.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        self.record_block(HistoryAction::Annotate, id);
        Ok(())
    }

    /// Returns the pool that allocations on `stream` go to now.
    pub(crate) fn pool_for(&self, stream: StreamId) -> PoolId {
        self.pools.pair(self.captures.owner_for(stream)).id
    }

    /// Returns the live block at `address`.
    pub(crate) fn block(&self, address: Address) -> Option<crate::Block> {
        let bytes = self.blocks[*self.live.get(&address)?].bytes;
        Some(crate::Block { address, bytes })
    }

    /// Changes a setting for later allocations.
    pub(crate) fn tune(&mut self, accounts: &mut Accounts, tuning: Tuning) -> Result<(), AllocError> {
        let mut config = self.config.clone();
        match tuning {
            Tuning::Rounding(divisions) => config.roundup_power2_divisions = divisions,
            Tuning::MaxSplitSize(bytes) => config.max_split_size = bytes,
            Tuning::GarbageCollectionThreshold(threshold) => config.garbage_collection_threshold = threshold,
            Tuning::ExpandableSegments(on) => config.expandable_segments = on,
            Tuning::RejectAbove(fraction) => accounts.limit.set_rejection(fraction)?,
        }
        config.validate(self.backing.granularity())?;
        accounts.statistics.max_split_size = config.max_split_size;
        self.config = config;
        Ok(())
    }

    /// Returns to its pool a freed block that no stream uses any more, merged with its free neighbours.
    pub(super) fn complete(&mut self, accounts: &mut Accounts, id: BlockId) {
        self.record_block(HistoryAction::FreeCompleted, id);
        let block = &mut self.blocks[id];
        block.state = BlockState::Free;
        let Block { pool, requested, bytes, tag, segment, .. } = *block;
        accounts.statistics.block_completed(pool.kind, tag, requested, bytes);
        let (merged, merged_bytes) = self.merge(id);
        self.insert_free(id);
        // Pages of expandable segments can be released whatever the state of their neighbours.
        if segment.is_none() {
            let block = &self.blocks[id];
            let split = if block.is_split() { (1, block.bytes) } else { (0, 0) };
            accounts.count_inactive(pool.kind, (merged, merged_bytes), split);
        }
    }

    /// Joins `id`, which is in no set, with neighbours in the same state. Returns the number of neighbours and their
    /// bytes.
    pub(super) fn merge(&mut self, id: BlockId) -> (u64, u64) {
        let mut merged = (0, 0);
        let Block { prev, next, state, pool, .. } = self.blocks[id];
        for other in [prev, next].into_iter().flatten() {
            let neighbour = &self.blocks[other];
            if neighbour.state != state {
                continue;
            }
            if state == BlockState::Unmapped {
                self.pools.get_mut(pool).remove_unmapped(neighbour);
            } else {
                self.pools.get_mut(pool).remove_free(neighbour);
            }
            merged = (merged.0 + 1, merged.1 + neighbour.bytes);
            self.blocks.join(id, other);
        }
        merged
    }

    /// Adds a free block to its pool.
    pub(super) fn insert_free(&mut self, id: BlockId) {
        let block = &mut self.blocks[id];
        self.pools.get_mut(block.pool).insert_free(id, block);
    }

    /// Removes a free block from its pool.
    pub(super) fn remove_free(&mut self, id: BlockId) {
        let block = &self.blocks[id];
        self.pools.get_mut(block.pool).remove_free(block);
    }

    /// Takes the best fitting block out of the pool.
    pub(super) fn take_free(&mut self, accounts: &Accounts, wanted: &Wanted) -> Option<BlockId> {
        if self.collects_garbage(accounts) {
            self.pools.get_mut(wanted.pool).lookups += 1;
        }
        let found = self.best_fit(wanted)?;
        self.remove_free(found);
        Some(found)
    }

    /// Returns the smallest free block that fits; among equal ones the lowest.
    fn best_fit(&self, wanted: &Wanted) -> Option<BlockId> {
        let mut fitting = self.pools.get(wanted.pool).fitting(wanted.request.stream, wanted.bytes);
        // Blocks of expandable segments serve no request once these segments are turned off, as in PyTorch.
        let is_expandable = self.is_expandable(wanted);
        let mut found = fitting.find(|id| is_expandable || self.blocks[*id].segment.is_none())?;
        if self.blocks[found].segment.is_some() {
            // A block that can grow counts as large as it can become.
            for next in fitting {
                if self.blocks[found].segment.is_none() || self.grown_bytes(next) >= self.grown_bytes(found) {
                    break;
                }
                found = next;
            }
        }
        self.may_serve(wanted.bytes, self.blocks[found].bytes).then_some(found)
    }

    /// Makes a block that is in no set live, after splitting off the part that is not needed.
    pub(super) fn hand_out(&mut self, accounts: &mut Accounts, wanted: &Wanted, id: BlockId) -> crate::Block {
        let kind = wanted.pool.kind;
        let was_split = self.blocks[id].is_split();
        let expandable = self.blocks[id].segment.is_some();
        let whole = self.blocks[id].bytes;
        let rest = if self.should_split(wanted, whole - wanted.bytes) {
            let rest = self.blocks.cut(id, wanted.bytes);
            self.blocks[rest].state = BlockState::Free;
            self.blocks[rest].requested = self.blocks[id].requested;
            self.insert_free(rest);
            whole - wanted.bytes
        } else {
            0
        };
        if !expandable {
            let inactive_before = if was_split { (1, whole) } else { (0, 0) };
            accounts.count_inactive(kind, inactive_before, (u64::from(rest > 0), rest));
        }
        self.occupy(accounts, id, wanted.request)
    }

    /// Makes a block that is in no set live.
    pub(super) fn occupy(&mut self, accounts: &mut Accounts, id: BlockId, request: Request) -> crate::Block {
        let block = &mut self.blocks[id];
        block.state = BlockState::Allocated;
        block.requested = request.bytes;
        block.tag = request.tag;
        block.key = request.key;
        let Block { address, bytes, pool, .. } = *block;
        self.live.insert(address, id);
        accounts.statistics.block_allocated(pool.kind, request.tag, request.bytes, bytes);
        if self.config.is_oversize(bytes) {
            accounts.statistics.oversize_allocations.increase(1);
        }
        self.record_block(HistoryAction::Alloc, id);
        crate::Block { address, bytes }
    }

    /// Returns whether segments made for the request are expandable.
    pub(super) fn is_expandable(&self, wanted: &Wanted) -> bool {
        self.config.expandable_segments || self.pools.pair(wanted.pool.owner).is_expandable
    }

    /// Returns whether `rest` bytes at the end of a block are split off as a free block of their own.
    fn should_split(&self, wanted: &Wanted, rest: u64) -> bool {
        if self.pools.pair(wanted.pool.owner).is_unsplit {
            false
        } else if wanted.pool.kind == PoolKind::Small || self.is_expandable(wanted) {
            rest >= MIN_BLOCK
        } else {
            rest > SMALL_LIMIT && !self.config.is_oversize(wanted.bytes)
        }
    }

    /// Returns whether a block of `found` bytes may serve `bytes`. An oversize block serves only oversize requests, and
    /// only if they are less than 20 MiB smaller.
    fn may_serve(&self, bytes: u64, found: u64) -> bool {
        match (self.config.is_oversize(bytes), self.config.is_oversize(found)) {
            (false, oversize) => !oversize,
            (true, _) => found < bytes + LARGE_SEGMENT,
        }
    }

    /// Returns the bytes that a free block would have if chunks were mapped in the unmapped range after it.
    fn grown_bytes(&self, id: BlockId) -> u64 {
        let block = &self.blocks[id];
        let next = block.next.map(|next| &self.blocks[next]).filter(|next| next.state == BlockState::Unmapped);
        block.bytes + next.map_or(0, |next| next.bytes)
    }

    /// Rounds a request and finds the pool that serves it.
    pub(super) fn resolve(&self, request: Request) -> Result<Wanted, AllocError> {
        let bytes = self.config.round(request.bytes)?;
        let pool = PoolRef { owner: self.captures.owner_for(request.stream), kind: pool_kind(bytes) };
        Ok(Wanted { request, bytes, pool })
    }

    /// Records an event of a segment.
    pub(super) fn record_segment(
        &self,
        action: HistoryAction,
        address: Address,
        bytes: u64,
        stream: StreamId,
        pool: PoolRef,
    ) {
        self.history
            .record(|| HistoryEvent::new(action, address, bytes, stream).in_pool(self.pools.pair(pool.owner).id));
    }

    /// Records an event of a block.
    fn record_block(&self, action: HistoryAction, id: BlockId) {
        self.history.record(|| {
            let Block { address, requested, stream, pool, tag, key, .. } = self.blocks[id];
            let pool = self.pools.pair(pool.owner).id;
            HistoryEvent::new(action, address, requested, stream).with_purpose(tag, key).in_pool(pool)
        });
    }
}
