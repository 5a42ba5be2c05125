//! The blocks that chunks are cut into: which ranges are free, and which of them serves a request.

use std::collections::BTreeMap;
use std::ops::{Index, IndexMut, RangeInclusive};

use tenure_alloc::Address;

/// The unit in bytes of small blocks, and the alignment of every block.
const GRANULE: u64 = 512;
/// The unit in bytes of large blocks and of chunks.
pub(super) const PAGE_BYTES: u64 = 4096;
/// The largest small block, in bytes.
const SMALL_LIMIT: u64 = 1 << 20;
/// The sizes in bytes of the chunks that small blocks share.
const SMALL_CHUNK: RangeInclusive<u64> = 64 << 10..=2 << 20;
/// The part of a large block that it may waste: one in so many bytes.
const WASTE: u64 = 128;
/// The most freed blocks that are parked.
const PARKED: usize = 8;

/// A block's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockId(u32);

/// Whose requests a block may serve: those of a private pool, or all others'.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner(pub(super) u32);

impl Owner {
    /// The owner of what belongs to no private pool.
    pub(super) const COMMON: Self = Self(0);
}

/// The sizes that a chunk serves. Small blocks share chunks, which so can be given back without regard to large ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Small,
    Large,
}

impl Kind {
    /// Returns the kind of a block of so many bytes.
    pub(super) fn of(bytes: u64) -> Self {
        if bytes <= SMALL_LIMIT { Self::Small } else { Self::Large }
    }

    /// Returns the bytes of the chunk to pin for a block of `bytes`, if `pinned` bytes are pinned. A large block gets a
    /// chunk of its own. Small ones share chunks that grow with what is pinned: they are few, and their free rest is
    /// small beside it.
    pub(super) fn chunk_bytes(bytes: u64, pinned: u64) -> u64 {
        let own = bytes.next_multiple_of(PAGE_BYTES);
        match Self::of(bytes) {
            Self::Small => {
                let share = (pinned / WASTE).next_multiple_of(PAGE_BYTES);
                share.clamp(*SMALL_CHUNK.start(), *SMALL_CHUNK.end()).max(own)
            }
            Self::Large => own,
        }
    }

    /// Returns the smallest rest of a block that is cut off when `bytes` of it are taken.
    fn least_rest(self, bytes: u64) -> u64 {
        match self {
            Self::Small => GRANULE,
            Self::Large => (bytes / WASTE).next_multiple_of(PAGE_BYTES).max(PAGE_BYTES),
        }
    }
}

/// Returns the bytes of the block for a request of so many.
pub(super) fn rounded(requested: u64) -> u64 {
    match Kind::of(requested) {
        Kind::Small => requested.next_multiple_of(GRANULE),
        Kind::Large => requested.next_multiple_of(PAGE_BYTES),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the set of free blocks. Neighbours that are free are one block.
    Free,
    /// Freed, but kept as it is for a request of the same size.
    Parked,
    Taken,
}

/// A range of a chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    address: Address,
    bytes: u64,
    owner: Owner,
    kind: Kind,
    state: State,
    /// The neighbours in the chunk, by address.
    prev: Option<BlockId>,
    next: Option<BlockId>,
    /// When a free block that is a whole chunk became that: a number that grows.
    whole_since: u64,
}

/// The order of free blocks: the first that is large enough fits best.
type FreeKey = (Owner, Kind, u64, Address);

/// The blocks of all chunks.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    /// The blocks, by index. Those of `vacant` mean nothing.
    slots: Vec<Block>,
    vacant: Vec<BlockId>,
    free: BTreeMap<FreeKey, BlockId>,
    /// The parked blocks, the last freed one at the end.
    parked: Vec<BlockId>,
    /// Free blocks that are whole chunks, by the time since when they are.
    whole: BTreeMap<u64, BlockId>,
    whole_count: u64,
    /// The bytes of the free blocks that are whole chunks.
    whole_bytes: u64,
    /// The bytes that are not taken.
    free_bytes: u64,
}

impl Blocks {
    /// Returns the bytes that are not taken.
    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    pub(super) fn address(&self, id: BlockId) -> Address {
        self[id].address
    }

    pub(super) fn bytes(&self, id: BlockId) -> u64 {
        self[id].bytes
    }

    pub(super) fn owner(&self, id: BlockId) -> Owner {
        self[id].owner
    }

    /// Iterates over the blocks that are not taken.
    pub(super) fn free(&self) -> impl Iterator<Item = BlockId> {
        self.free.values().chain(&self.parked).copied()
    }

    /// Adds a chunk as one free block.
    pub(super) fn add_chunk(&mut self, address: Address, bytes: u64, owner: Owner, kind: Kind) {
        let block = Block { address, bytes, owner, kind, state: State::Free, prev: None, next: None, whole_since: 0 };
        let id = self.insert(block);
        self.free_bytes += bytes;
        self.insert_free(id);
    }

    /// Removes the chunk that has been free for the longest time. Returns its address, bytes, owner and kind.
    pub(super) fn remove_oldest_chunk(&mut self) -> Option<(Address, u64, Owner, Kind)> {
        self.unpark();
        let id = *self.whole.first_key_value()?.1;
        let Block { address, bytes, owner, kind, .. } = self[id];
        self.remove_free(id);
        self.vacant.push(id);
        self.free_bytes -= bytes;
        Some((address, bytes, owner, kind))
    }

    /// Takes a block of `bytes` bytes, as [`rounded`] returns them, from a chunk of its kind. No whole chunk is cut if
    /// more than `fragments` bytes were free then in chunks that are in use.
    pub(super) fn take(&mut self, owner: Owner, bytes: u64, fragments: u64) -> Option<BlockId> {
        let fits = |id: &BlockId| self[*id].bytes == bytes && self[*id].owner == owner;
        if let Some(place) = self.parked.iter().rposition(fits) {
            let id = self.parked.remove(place);
            self[id].state = State::Taken;
            self.free_bytes -= bytes;
            return Some(id);
        }
        self.take_from(owner, Kind::of(bytes), bytes, fragments)
    }

    /// Takes a block from the chunks of a kind: the lowest of the smallest that are large enough.
    pub(super) fn take_from(&mut self, owner: Owner, kind: Kind, bytes: u64, fragments: u64) -> Option<BlockId> {
        self.unpark();
        let least_rest = kind.least_rest(bytes);
        let may_be_cut = fragments.saturating_sub(self.free_bytes - self.whole_bytes);
        let serves = |id: &BlockId| {
            let rest = self[*id].bytes - bytes;
            rest < least_rest || rest <= may_be_cut || !self[*id].is_whole()
        };
        let fitting = (owner, kind, bytes, 0)..=(owner, kind, u64::MAX, Address::MAX);
        let id = self.free.range(fitting).map(|(_, id)| *id).find(serves)?;
        self.remove_free(id);
        self[id].state = State::Taken;
        if self[id].bytes - bytes >= least_rest {
            let rest = self.cut(id, bytes);
            self.insert_free(rest);
        }
        self.free_bytes -= self[id].bytes;
        Some(id)
    }

    /// Gives a taken block back.
    pub(super) fn give_back(&mut self, id: BlockId) {
        debug_assert_eq!(self[id].state, State::Taken);
        self.free_bytes += self[id].bytes;
        self[id].state = State::Parked;
        if self.parked.len() == PARKED {
            let oldest = self.parked.remove(0);
            self.join_and_insert(oldest);
        }
        self.parked.push(id);
    }

    /// Gives all blocks of a private pool to the common ones.
    pub(super) fn dissolve(&mut self, owner: Owner) {
        self.unpark();
        let first = (owner, Kind::Small, 0, 0);
        let last = (owner, Kind::Large, u64::MAX, Address::MAX);
        let free: Vec<FreeKey> = self.free.range(first..=last).map(|(key, _)| *key).collect();
        for key in free {
            if let Some(id) = self.free.remove(&key) {
                self.free.insert((Owner::COMMON, key.1, key.2, key.3), id);
            }
        }
        self.slots.iter_mut().filter(|block| block.owner == owner).for_each(|block| block.owner = Owner::COMMON);
    }

    fn unpark(&mut self) {
        while let Some(id) = self.parked.pop() {
            self.join_and_insert(id);
        }
    }

    /// Makes a block free, as one with its free neighbours.
    fn join_and_insert(&mut self, id: BlockId) {
        let is_free = |id: &BlockId| self[*id].state == State::Free;
        let (prev, next) = (self[id].prev.filter(is_free), self[id].next.filter(is_free));
        self[id].state = State::Free;
        let mut first = id;
        if let Some(prev) = prev {
            self.remove_free(prev);
            self.join_next(prev);
            first = prev;
        }
        if let Some(next) = next {
            self.remove_free(next);
            self.join_next(first);
        }
        self.insert_free(first);
    }

    /// Joins a block with its next neighbour.
    fn join_next(&mut self, id: BlockId) {
        let Some(next) = self[id].next else { return };
        let Block { bytes, next: after, .. } = self[next];
        self[id].bytes += bytes;
        self[id].next = after;
        if let Some(after) = after {
            self[after].prev = Some(id);
        }
        self.vacant.push(next);
    }

    /// Cuts a block after its first `bytes` bytes. Returns the rest, which is free and not yet in the set.
    fn cut(&mut self, id: BlockId, bytes: u64) -> BlockId {
        let whole = self[id];
        let rest = Block {
            address: whole.address + bytes,
            bytes: whole.bytes - bytes,
            state: State::Free,
            prev: Some(id),
            ..whole
        };
        let rest = self.insert(rest);
        self[id].bytes = bytes;
        self[id].next = Some(rest);
        if let Some(after) = whole.next {
            self[after].prev = Some(rest);
        }
        rest
    }

    fn insert(&mut self, block: Block) -> BlockId {
        if let Some(id) = self.vacant.pop() {
            self[id] = block;
            return id;
        }
        self.slots.push(block);
        BlockId(self.slots.len() as u32 - 1)
    }

    fn insert_free(&mut self, id: BlockId) {
        self.free.insert(self[id].key(), id);
        if self[id].is_whole() {
            self.whole_count += 1;
            self[id].whole_since = self.whole_count;
            self.whole.insert(self.whole_count, id);
            self.whole_bytes += self[id].bytes;
        }
    }

    fn remove_free(&mut self, id: BlockId) {
        let block = self[id];
        self.free.remove(&block.key());
        if block.is_whole() {
            self.whole.remove(&block.whole_since);
            self.whole_bytes -= block.bytes;
        }
    }
}

impl Block {
    fn key(&self) -> FreeKey {
        (self.owner, self.kind, self.bytes, self.address)
    }

    fn is_whole(&self) -> bool {
        self.prev.is_none() && self.next.is_none()
    }
}

impl Index<BlockId> for Blocks {
    type Output = Block;

    #[inline]
    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id.0 as usize]
    }
}

impl IndexMut<BlockId> for Blocks {
    #[inline]
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn take(blocks: &mut Blocks, bytes: u64) -> Option<(BlockId, Address)> {
        let id = blocks.take(Owner::COMMON, rounded(bytes), 8 * MIB)?;
        Some((id, blocks.address(id)))
    }

    #[test]
    fn a_block_wastes_less_than_a_page_or_one_byte_in_128() {
        let mut blocks = Blocks::default();
        blocks.add_chunk(0x100_0000, 40 * MIB, Owner::COMMON, Kind::Large);
        let (exact, _) = take(&mut blocks, 33 * MIB + 1).unwrap();
        assert_eq!(blocks.bytes(exact), 33 * MIB + PAGE_BYTES);
        let (nearly, _) = take(&mut blocks, 7 * MIB - 50 * 1024).unwrap();
        assert_eq!(blocks.bytes(nearly), 7 * MIB - PAGE_BYTES, "the rest is too small to be cut off");
    }

    #[test]
    fn no_chunk_is_cut_that_would_leave_too_much_in_fragments() {
        let mut blocks = Blocks::default();
        blocks.add_chunk(0x1000_0000, 12 * MIB, Owner::COMMON, Kind::Large);
        blocks.add_chunk(0x2000_0000, 20 * MIB, Owner::COMMON, Kind::Large);
        assert_eq!(take(&mut blocks, 3 * MIB), None, "9 MiB would be left");
        let (cut, low) = take(&mut blocks, 5 * MIB).unwrap();
        assert_eq!((low, take(&mut blocks, 13 * MIB)), (0x1000_0000, None), "14 MiB would be left");
        assert_eq!(take(&mut blocks, 4 * MIB).map(|(_, address)| address), Some(low + 5 * MIB));
        assert_eq!(take(&mut blocks, 20 * MIB).map(|(_, address)| address), Some(0x2000_0000));
        blocks.give_back(cut);
    }

    #[test]
    fn the_chunks_of_small_blocks_grow_with_what_is_pinned() {
        assert_eq!(Kind::chunk_bytes(1, 0), 64 << 10);
        assert_eq!(Kind::chunk_bytes(MIB, 0), MIB);
        assert_eq!(Kind::chunk_bytes(1, 128 * MIB), MIB);
        assert_eq!(Kind::chunk_bytes(1, 1024 * MIB), 2 * MIB);
        assert_eq!(Kind::chunk_bytes(9 * MIB + 1, 1024 * MIB), 9 * MIB + PAGE_BYTES);
    }

    #[test]
    fn free_neighbours_serve_what_neither_could() {
        let mut blocks = Blocks::default();
        blocks.add_chunk(0x100_0000, 8 * MIB, Owner::COMMON, Kind::Large);
        let (first, low) = take(&mut blocks, 4 * MIB).unwrap();
        let (second, _) = take(&mut blocks, 4 * MIB).unwrap();
        blocks.give_back(first);
        assert_eq!(take(&mut blocks, 8 * MIB), None);
        blocks.give_back(second);
        assert_eq!(take(&mut blocks, 8 * MIB).map(|(_, address)| address), Some(low));
    }

    #[test]
    fn the_chunk_that_has_been_free_for_longest_goes_first() {
        let mut blocks = Blocks::default();
        for (address, count) in [(0x1000_0000, 2), (0x2000_0000, 3), (0x3000_0000, 4)] {
            blocks.add_chunk(address, count * MIB, Owner::COMMON, Kind::Large);
        }
        // The first is used again, and a part of the last stays in use.
        let (again, _) = take(&mut blocks, 2 * MIB).unwrap();
        let (kept, _) = take(&mut blocks, 3 * MIB + MIB / 2).unwrap();
        blocks.give_back(again);
        let order: Vec<Address> = std::iter::from_fn(|| blocks.remove_oldest_chunk()).map(|chunk| chunk.0).collect();
        assert_eq!(order, [0x2000_0000, 0x1000_0000]);
        blocks.give_back(kept);
        assert_eq!(blocks.remove_oldest_chunk().map(|chunk| chunk.1), Some(4 * MIB));
        assert_eq!(blocks.free_bytes(), 0);
    }

    #[test]
    fn a_private_pool_keeps_its_blocks_until_it_is_dissolved() {
        let mut blocks = Blocks::default();
        blocks.add_chunk(0x1000_0000, 2 * MIB, Owner(7), Kind::Large);
        assert_eq!(take(&mut blocks, 2 * MIB), None);
        let own = blocks.take(Owner(7), 2 * MIB, 0).unwrap();
        blocks.dissolve(Owner(7));
        blocks.give_back(own);
        assert!(take(&mut blocks, 2 * MIB).is_some());
    }
}
