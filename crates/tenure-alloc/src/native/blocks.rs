//! Blocks, in an arena, linked into segments by index.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, Mark, PoolKind};

/// The index of a block in [`BlockTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct BlockId(u32);

/// A pool: the index of a pair of pools (common or private), and the kind within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PoolRef {
    pub(super) owner: usize,
    pub(super) kind: PoolKind,
}

/// The state of a block. Neighbours merge when both are `Free` or both are `Unmapped`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    /// The block is in its pool's free set.
    Free,
    /// The block is in its pool's unmapped set: reserved addresses with no memory under them.
    Unmapped,
    /// The block is live.
    Allocated,
    /// The block was freed and waits for this many marks; 0 until the marks are recorded, after a capture.
    Pending(u32),
}

/// A stream other than the block's own that used the block.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamUse {
    pub(super) stream: StreamId,
    /// Whether it was recorded only while the stream was captured.
    pub(super) only_in_capture: bool,
}

/// A range of a segment.
#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) address: Address,
    pub(super) bytes: u64,
    /// Bytes requested. A free block keeps the last number that it had, or that of a block it was merged with or split
    /// from.
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) pool: PoolRef,
    pub(super) state: BlockState,
    /// The neighbours in the segment, by address.
    pub(super) prev: Option<BlockId>,
    pub(super) next: Option<BlockId>,
    /// The index of its expandable segment, if it lies in one.
    pub(super) segment: Option<usize>,
    /// The number of its segment, in the order in which segments were made.
    pub(super) made: u64,
    pub(super) uses: Vec<StreamUse>,
    /// The pool's lookup count at the time when it became free.
    pub(super) free_since: u64,
    pub(super) tag: Tag,
    pub(super) key: KeyId,
}

impl Block {
    pub(super) fn new(address: Address, bytes: u64, stream: StreamId, pool: PoolRef, state: BlockState) -> Self {
        Self {
            address,
            bytes,
            requested: 0,
            stream,
            pool,
            state,
            prev: None,
            next: None,
            segment: None,
            made: 0,
            uses: Vec::new(),
            free_since: 0,
            tag: Tag::Unknown,
            key: KeyId::NONE,
        }
    }

    /// Returns whether it is only a part of its segment, because the segment was split.
    pub(super) fn is_split(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }
}

/// Every block of an allocator.
#[derive(Debug, Default)]
pub(super) struct BlockTable {
    slots: Vec<Option<Block>>,
    /// Slots without a block.
    vacant: Vec<BlockId>,
}

impl BlockTable {
    pub(super) fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0 as usize] = Some(block);
            return id;
        }
        let id = BlockId(u32::try_from(self.slots.len()).expect("fewer than 2^32 blocks of at least 512 bytes"));
        self.slots.push(Some(block));
        id
    }

    /// Removes a block that no other block is linked to.
    pub(super) fn remove(&mut self, id: BlockId) {
        self.slots[id.0 as usize] = None;
        self.vacant.push(id);
    }

    /// Returns every block, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().flatten()
    }

    /// Returns the ids of every block, in no particular order.
    pub(super) fn ids(&self) -> impl Iterator<Item = BlockId> {
        let slots = self.slots.iter().enumerate().filter(|(_, block)| block.is_some());
        slots.map(|(index, _)| BlockId(index as u32))
    }

    /// Cuts `id` after its first `bytes`. Returns the rest, which has the same stream, pool and state and is linked in
    /// after it.
    pub(super) fn cut(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let block = &mut self[id];
        debug_assert!(0 < bytes && bytes < block.bytes);
        let rest = Block {
            prev: Some(id),
            next: block.next,
            segment: block.segment,
            made: block.made,
            ..Block::new(block.address + bytes, block.bytes - bytes, block.stream, block.pool, block.state)
        };
        block.bytes = bytes;
        let after = block.next;
        let rest = self.insert(rest);
        self[id].next = Some(rest);
        if let Some(after) = after {
            self[after].prev = Some(rest);
        }
        rest
    }

    /// Joins `id` with its neighbour `other`, and removes `other`.
    pub(super) fn join(&mut self, id: BlockId, other: BlockId) {
        let Block { address, bytes, prev, next, .. } = self[other];
        self[id].bytes += bytes;
        if self[id].prev == Some(other) {
            self[id].address = address;
            self[id].prev = prev;
            if let Some(prev) = prev {
                self[prev].next = Some(id);
            }
        } else {
            self[id].next = next;
            if let Some(next) = next {
                self[next].prev = Some(id);
            }
        }
        self.remove(other);
    }
}

impl Index<BlockId> for BlockTable {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        self.slots[id.0 as usize].as_ref().expect("an id is forgotten with its block")
    }
}

impl IndexMut<BlockId> for BlockTable {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        self.slots[id.0 as usize].as_mut().expect("an id is forgotten with its block")
    }
}

/// Freed blocks that wait for streams.
#[derive(Debug, Default)]
pub(super) struct PendingBlocks {
    /// Marks by stream, in the order in which they were recorded, so that a slow stream delays only its own blocks.
    pub(super) awaited: BTreeMap<StreamId, VecDeque<(Mark, BlockId)>>,
    /// Blocks freed during a capture, when recording and querying marks would break the capture.
    pub(super) deferred: VecDeque<BlockId>,
}
