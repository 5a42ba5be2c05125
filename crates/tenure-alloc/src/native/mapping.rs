//! Blocks of expandable segments: chunks are mapped where a block grows, and unmapped under free ones.

use super::blocks::{Block, BlockId, BlockState, PoolRef};
use super::config::chunk_size;
use super::engine::{Engine, Wanted};
use super::expandable::{ExpandableSegment, Slot};
use crate::accounts::Accounts;
use crate::{Address, AllocError, Backing, BackingError, HistoryAction, MappedChunk};

impl Engine {
    /// Returns a block of at least `wanted.bytes`, in no set, at the lowest address where chunks can be mapped for it.
    pub(super) fn map_for(&mut self, accounts: &mut Accounts, wanted: &Wanted) -> Result<BlockId, BackingError> {
        let mut id = match self.find_room(wanted) {
            Some(id) => id,
            None => self.reserve_segment(accounts, wanted)?,
        };
        if self.blocks[id].state == BlockState::Unmapped {
            id = self.map_block(accounts, id, wanted.bytes)?;
        }
        // `find_room` found room, so a free block that is too small has an unmapped range after it.
        while let Block { bytes, next: Some(next), .. } = self.blocks[id]
            && bytes < wanted.bytes
        {
            id = self.map_block(accounts, next, wanted.bytes - bytes)?;
        }
        self.remove_free(id);
        Ok(id)
    }

    /// Unmaps the whole chunks of a free block, after waiting for the work on its stream.
    pub(super) fn unmap_block(&mut self, accounts: &mut Accounts, id: BlockId) -> Result<(), AllocError> {
        let Block { address, bytes, stream, pool, segment, .. } = self.blocks[id];
        let segment = segment.expect("only blocks of expandable segments are unmapped");
        let slots = self.segment(segment).whole_chunks(address, bytes);
        if slots.is_empty() {
            return Ok(());
        }
        let mark = self.backing.record(stream)?;
        self.backing.synchronize(mark)?;
        let result = self.on_segment(accounts, segment, pool, |segment, backing| {
            slots.clone().try_for_each(|slot| segment.release_slot(backing, slot))
        });
        let unmapped = self.segment(segment).unmapped_prefix(slots.clone()) as u64;
        if unmapped > 0 {
            let first = self.segment(segment).address_of(slots.start);
            self.mark_unmapped(accounts, id, first, unmapped * chunk_size(pool.kind));
        }
        Ok(result?)
    }

    /// Releases chunks that remain under an unmapped range, and the whole segment if the range is all of it.
    pub(super) fn release_unmapped(&mut self, accounts: &mut Accounts, id: BlockId) -> Result<(), AllocError> {
        let Block { address, bytes, pool, segment, .. } = self.blocks[id];
        let index = segment.expect("only expandable segments have unmapped ranges");
        let slots = self.segment(index).slots_of(address, bytes);
        let slots = slots.start..slots.end.min(self.segment(index).slots.len());
        self.on_segment(accounts, index, pool, |segment, backing| {
            slots.into_iter().try_for_each(|slot| segment.release_slot(backing, slot))
        })?;
        if !self.blocks[id].is_split() {
            self.backing.unreserve(address, bytes)?;
            self.pools.get_mut(pool).remove_unmapped(&self.blocks[id]);
            self.blocks.remove(id);
            self.segments[index] = None;
        }
        Ok(())
    }

    /// Returns the first block of the lowest run with enough room: free and unmapped blocks of the pool, with an
    /// unmapped one among the first two.
    fn find_room(&self, wanted: &Wanted) -> Option<BlockId> {
        let usable = |&id: &BlockId| matches!(self.blocks[id].state, BlockState::Free | BlockState::Unmapped);
        self.pools.get(wanted.pool).unmapped_of(wanted.request.stream).find_map(|unmapped| {
            let first = self.blocks[unmapped].prev.filter(usable).unwrap_or(unmapped);
            let run = std::iter::successors(Some(first), |&id| self.blocks[id].next.filter(usable));
            let mut room = 0;
            run.map(|id| self.blocks[id].bytes)
                .any(|bytes| {
                    room += bytes;
                    room >= wanted.bytes
                })
                .then_some(first)
        })
    }

    /// Reserves a new segment: one unmapped block.
    fn reserve_segment(&mut self, accounts: &Accounts, wanted: &Wanted) -> Result<BlockId, BackingError> {
        let chunk_bytes = chunk_size(wanted.pool.kind);
        let segment = ExpandableSegment::reserve(&*self.backing, accounts.limit.total, chunk_bytes)?;
        let index = self.segments.iter().position(Option::is_none).unwrap_or_else(|| {
            self.segments.push(None);
            self.segments.len() - 1
        });
        let block = Block::new(segment.base, segment.bytes, wanted.request.stream, wanted.pool, BlockState::Unmapped);
        self.made += 1;
        let id = self.blocks.insert(Block { segment: Some(index), made: self.made, ..block });
        self.pools.get_mut(wanted.pool).insert_unmapped(id, &self.blocks[id]);
        self.segments[index] = Some(segment);
        Ok(id)
    }

    /// Maps chunks under the first `bytes` of an unmapped block, or under all of it. Returns the free block that they
    /// become part of.
    fn map_block(&mut self, accounts: &mut Accounts, id: BlockId, bytes: u64) -> Result<BlockId, BackingError> {
        let Block { address, bytes: available, stream, pool, segment, .. } = self.blocks[id];
        let index = segment.expect("only expandable segments have unmapped ranges");
        let bytes = bytes.next_multiple_of(chunk_size(pool.kind)).min(available);
        let slots = self.segment(index).slots_of(address, bytes);
        self.on_segment(accounts, index, pool, |segment, backing| segment.map(backing, slots))?;
        accounts.statistics.num_device_alloc += 1;
        self.record_segment(HistoryAction::SegmentMap, address, bytes, stream, pool);

        self.pools.get_mut(pool).remove_unmapped(&self.blocks[id]);
        if bytes < available {
            let rest = self.blocks.cut(id, bytes);
            self.pools.get_mut(pool).insert_unmapped(rest, &self.blocks[rest]);
        }
        self.blocks[id].state = BlockState::Free;
        self.merge(id);
        self.insert_free(id);
        Ok(id)
    }

    /// Turns `bytes` at `first` of a free block, whose chunks are gone, into an unmapped block.
    fn mark_unmapped(&mut self, accounts: &mut Accounts, id: BlockId, first: Address, bytes: u64) {
        let Block { address, bytes: whole, stream, pool, .. } = self.blocks[id];
        self.remove_free(id);
        let mut unmapped = id;
        if address < first {
            unmapped = self.blocks.cut(id, first - address);
            self.blocks[unmapped].requested = std::mem::take(&mut self.blocks[id].requested);
            self.insert_free(id);
        }
        if first + bytes < address + whole {
            let rest = self.blocks.cut(unmapped, bytes);
            self.insert_free(rest);
        }
        self.blocks[unmapped].state = BlockState::Unmapped;
        self.merge(unmapped);
        self.pools.get_mut(pool).insert_unmapped(unmapped, &self.blocks[unmapped]);
        accounts.statistics.num_device_free += 1;
        self.record_segment(HistoryAction::SegmentUnmap, first, bytes, stream, pool);
    }

    /// See [`LiveBlocks::chunks_under`](crate::LiveBlocks::chunks_under).
    pub(crate) fn chunks_under(&self, address: Address, bytes: u64) -> Option<Vec<MappedChunk>> {
        let block = &self.blocks[*self.live.get(&address)?];
        let segment = self.segment(block.segment?);
        let first = ((address - segment.base) / segment.chunk_bytes) as usize;
        let end = (address + bytes.min(block.bytes) - segment.base).div_ceil(segment.chunk_bytes) as usize;
        (first..end)
            .map(|slot| match segment.slots[slot] {
                Slot::Mapped(chunk) => {
                    Some(MappedChunk { chunk, bytes: segment.chunk_bytes, address: segment.address_of(slot) })
                }
                _ => None,
            })
            .collect()
    }

    /// Returns a segment by its index.
    fn segment(&self, index: usize) -> &ExpandableSegment {
        self.segments[index].as_ref().expect("a segment outlives its blocks")
    }

    /// Changes a segment, and counts the chunks that were created or released, whether or not the change failed.
    fn on_segment(
        &mut self,
        accounts: &mut Accounts,
        index: usize,
        pool: PoolRef,
        change: impl FnOnce(&mut ExpandableSegment, &dyn Backing) -> Result<(), BackingError>,
    ) -> Result<(), BackingError> {
        let segment = self.segments[index].as_mut().expect("a segment outlives its blocks");
        let before = segment.held_bytes();
        let result = change(segment, &*self.backing);
        let after = segment.held_bytes();
        self.change_reserved(accounts, pool, before, after);
        result
    }
}
