//! Segments: memory taken from the backing, and given back whole.

use super::blocks::{Block, BlockId, BlockState, PoolRef};
use super::config::segment_size;
use super::engine::{Engine, Locked, Wanted};
use super::pool::Returned;
use super::source;
use crate::accounts::Accounts;
use crate::{Address, AllocError, BackingError, HistoryAction};

impl Engine {
    /// Makes a new segment, or a larger one, with a block for `wanted` that is in no set. Returns `None` if memory is
    /// out.
    pub(super) fn add_segment(locked: &mut impl Locked, wanted: &Wanted) -> Result<Option<BlockId>, AllocError> {
        let bytes = segment_size(wanted.bytes);
        source::give_back(locked);
        let (engine, accounts) = locked.engine();
        let limit = accounts.limit.bytes();
        let total = accounts.limit.total;
        if limit < total && accounts.held(&*engine.backing) + bytes > limit || wanted.bytes > total {
            return Ok(None);
        }
        let added = match engine.pools.pair(wanted.pool.owner).source.clone() {
            Some(source) => source::allocate(locked, &*source, bytes, wanted),
            None if engine.is_expandable(wanted) => return none_if_full(engine.map_for(accounts, wanted)),
            None => engine.backing.malloc(bytes),
        };
        let (engine, accounts) = locked.engine();
        none_if_full(added.map(|address| engine.insert_segment(accounts, wanted, address, bytes)))
    }

    /// Counts and records a new segment; returns its only block, which is in no set.
    fn insert_segment(&mut self, accounts: &mut Accounts, wanted: &Wanted, address: Address, bytes: u64) -> BlockId {
        let Wanted { request, pool, .. } = *wanted;
        self.made += 1;
        let block = Block::new(address, bytes, request.stream, pool, BlockState::Free);
        let id = self.blocks.insert(Block { made: self.made, ..block });
        self.change_reserved(accounts, pool, 0, bytes);
        accounts.statistics.both(pool.kind).into_iter().for_each(|pool| pool.segment.increase(1));
        if self.config.is_oversize(bytes) {
            accounts.statistics.oversize_segments.increase(1);
        }
        accounts.statistics.num_device_alloc += 1;
        self.record_segment(HistoryAction::SegmentAlloc, address, bytes, request.stream, pool);
        id
    }

    /// Updates the reserved bytes of a pool, of which `before` bytes become `after` bytes.
    pub(super) fn change_reserved(&mut self, accounts: &mut Accounts, pool: PoolRef, before: u64, after: u64) {
        let pair = self.pools.pair_mut(pool.owner);
        pair.reserved = pair.reserved + after - before;
        accounts.statistics.reserved_changed(pair.id, pool.kind, before, after);
    }

    /// Returns whether a block is the whole of a segment that is not expandable.
    pub(super) fn is_whole_segment(&self, id: BlockId) -> bool {
        let block = &self.blocks[id];
        block.segment.is_none() && !block.is_split()
    }

    /// Gives a free block that is a whole segment back to the backing, or [back](source::give_back) to its source.
    pub(super) fn release_segment(&mut self, accounts: &mut Accounts, id: BlockId) -> Result<(), AllocError> {
        let Block { address, bytes, stream, pool, .. } = self.blocks[id];
        match self.pools.pair(pool.owner).source.clone() {
            Some(source) => self.returned.push(Returned { source, address, bytes, stream }),
            None => self.backing.free(address)?,
        }
        self.remove_free(id);
        self.blocks.remove(id);
        self.change_reserved(accounts, pool, bytes, 0);
        accounts.statistics.both(pool.kind).into_iter().for_each(|pool| pool.segment.decrease(1));
        if self.config.is_oversize(bytes) {
            accounts.statistics.oversize_segments.decrease(1);
        }
        accounts.statistics.num_device_free += 1;
        self.record_segment(HistoryAction::SegmentFree, address, bytes, stream, pool);
        Ok(())
    }
}

/// Returns `None` for the backing's out-of-memory error.
fn none_if_full(added: Result<BlockId, BackingError>) -> Result<Option<BlockId>, AllocError> {
    match added {
        Ok(id) => Ok(Some(id)),
        Err(BackingError::OutOfMemory { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
