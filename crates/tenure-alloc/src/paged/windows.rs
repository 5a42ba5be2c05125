//! Windows: ranges of address space under which chunks are mapped side by side, in address order; and the address space
//! from which they are cut.

use slab::Slab;
use smallvec::SmallVec;

use super::chunk::Chunk;
use super::progress::EpochUses;
use super::tree::{FreeSummary, Tree};
use crate::Address;
use crate::runs::Runs;

/// A range of addresses under which chunks are mapped side by side, without a gap. A chunk's position in it is its
/// *slot*.
pub(super) struct Window {
    pub(super) first: Address,
    /// The bytes mapped.
    pub(super) bytes: u64,
    /// The bytes of address space it owns. It can grow while `bytes` stays below that: see [`room`](Self::room).
    pub(super) owned: u64,
    /// Its chunks, (first address, index), by address.
    pub(super) chunks: Vec<(Address, usize)>,
    /// The summaries of its chunks' free bytes.
    tree: Tree,
    /// Whether it is the home of all its chunks: the first place where each was mapped.
    pub(super) is_home: bool,
    /// The number of live blocks that start in it.
    pub(super) blocks: usize,
    /// Work that may still use its addresses.
    pub(super) uses: EpochUses,
    /// The space's clock when a block was last placed in it or a chunk last mapped in it.
    pub(super) used_at: u64,
}

/// The windows, by address.
#[derive(Default)]
pub(super) struct Windows {
    windows: Slab<Window>,
    /// The windows' (first address, index), by address.
    order: Vec<(Address, usize)>,
    /// The heads of the windows, by index. They are stored apart from the windows, because a search reads many.
    heads: Vec<WindowHead>,
}

/// The part of a window that a search reads first.
#[derive(Clone, Copy, Default)]
struct WindowHead {
    /// An upper bound, in bytes, on the longest free range of the window. It is exact if the summaries are up to date.
    longest: u64,
    /// Whether every change updates the window's tree at once: see Note [Windows].
    is_maintained: bool,
}

/// A run of slots in one window: their summaries have changed, but the sums in the tree above them have not yet.
pub(super) struct ChangedSlots {
    window: usize,
    /// The first and the last changed slot.
    first: usize,
    last: usize,
}

impl ChangedSlots {
    /// Returns whether a slot of `window` is one of these slots or next to one.
    fn adjoins(&self, window: usize, slot: usize) -> bool {
        self.window == window && (self.first..=self.last + 2).contains(&(slot + 1))
    }
}

/// The changed slots of every window that shows a chunk of one block. They are few: most chunks of a block lie side by
/// side in their home window, too.
pub(super) type WindowChanges = SmallVec<[ChangedSlots; 4]>;

/// The most chunks of a window whose tree may be out of date; the tree of a longer window is always kept up to date.
const SHORT: usize = 32;

/// A mapped address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MappedAddress {
    pub(super) address: Address,
    /// The window, by index.
    pub(super) window: usize,
    /// The position of the address's chunk among the window's chunks.
    pub(super) slot: usize,
}

impl Window {
    /// Makes an empty window.
    pub(super) fn new(first: Address, owned: u64) -> Self {
        let chunks = Vec::new();
        let tree = Tree::default();
        let uses = EpochUses::default();
        Self { first, bytes: 0, owned, chunks, tree, is_home: true, blocks: 0, uses, used_at: 0 }
    }

    pub(super) fn end(&self) -> Address {
        self.first + self.bytes
    }

    /// Returns the bytes that can still be mapped after its end. One granule stays unmapped, so that windows never
    /// touch.
    pub(super) fn room(&self, granularity: u64) -> u64 {
        (self.owned - self.bytes).saturating_sub(granularity)
    }

    /// Returns the free bytes at its end.
    pub(super) fn free_suffix(&self, chunks: &Slab<Chunk>) -> u64 {
        let mut bytes = 0;
        for (_, index) in self.chunks.iter().rev() {
            let free = chunks[*index].summary;
            bytes += free.suffix;
            if !free.is_whole() {
                break;
            }
        }
        bytes
    }

    /// Returns an upper bound, in bytes, on the longest free range that includes bytes of a slot.
    fn longest_bound_at(&self, slot: usize, chunks: &Slab<Chunk>) -> u64 {
        let sum =
            |slot: Option<usize>| slot.and_then(|slot| self.chunks.get(slot)).map(|(_, index)| chunks[*index].summary);
        let free = chunks[self.chunks[slot].1].summary;
        let before = sum(slot.checked_sub(1)).filter(|_| free.prefix > 0).unwrap_or_default();
        let after = sum(slot.checked_add(1)).filter(|_| free.suffix > 0).unwrap_or_default();
        // If a neighbour is all free, the range may go on beyond it. Following it is not worth the time: the bound is
        // then the size of the window.
        let is_all_free = |free: &FreeSummary| free.total > 0 && free.is_whole();
        if is_all_free(&before) || is_all_free(&after) { self.bytes } else { before.join(&free).join(&after).longest }
    }

    /// Returns the slot that an address lies in.
    pub(super) fn slot_of(&self, address: Address) -> usize {
        self.chunks.partition_point(|(start, _)| *start <= address) - 1
    }

    /// Returns the first free range of at least `bytes` bytes from `from` on: its first address and slot. No free range
    /// may lie across `from`.
    fn first_fit(&self, bytes: u64, from: Address, chunks: &Slab<Chunk>) -> Option<(Address, usize)> {
        // `before` is the number of free bytes just before the slot.
        let (mut slot, mut before) = (0, 0);
        if from > self.first {
            slot = self.slot_of(from);
            let (start, index) = self.chunks[slot];
            let chunk = &chunks[index];
            let after = chunk.free.partition_point(|extent| start + extent.offset < from);
            if let Some(extent) = chunk.free[after..].iter().find(|extent| extent.bytes >= bytes) {
                return Some((start + extent.offset, slot));
            }
            before = chunk.free[after..].last().filter(|last| last.end() == chunk.bytes).map_or(0, |last| last.bytes);
            slot += 1;
        }
        slot = self.tree.skip_while(slot, |free| {
            let is_short = before + free.prefix < bytes && free.longest < bytes;
            if is_short {
                before = free.suffix_after(before);
            }
            is_short
        });
        let &(start, index) = self.chunks.get(slot)?;
        if before + chunks[index].summary.prefix >= bytes {
            return Some(self.with_slot(start - before, slot));
        }
        let extent = chunks[index].free.iter().find(|extent| extent.bytes >= bytes)?;
        Some((start + extent.offset, slot))
    }

    /// Returns an address at or before a slot's start, and the slot that it lies in.
    fn with_slot(&self, address: Address, mut slot: usize) -> (Address, usize) {
        while self.chunks[slot].0 > address {
            slot -= 1;
        }
        (address, slot)
    }

    /// Returns whether a free range begins at an address.
    fn begins_free_range(&self, address: Address, chunks: &Slab<Chunk>) -> bool {
        if !(self.first..self.end()).contains(&address) {
            return false;
        }
        let slot = self.slot_of(address);
        let (start, index) = self.chunks[slot];
        let begins_here = chunks[index].free.iter().any(|extent| start + extent.offset == address);
        let before = slot.checked_sub(1).filter(|_| address == start).map(|before| &chunks[self.chunks[before].1]);
        begins_here && before.is_none_or(|before| before.summary.suffix == 0)
    }

    /// Returns the end of the free range that `place` lies in.
    fn free_range_end(&self, place: MappedAddress, chunks: &Slab<Chunk>) -> Address {
        let (start, index) = self.chunks[place.slot];
        let free = &chunks[index].free;
        let at = free.partition_point(|extent| start + extent.offset <= place.address);
        let end = start + free[at - 1].end();
        if end < start + chunks[index].bytes {
            return end;
        }
        let slot = self.tree.skip_while(place.slot + 1, FreeSummary::is_whole);
        self.chunks.get(slot).map_or(self.end(), |&(start, index)| start + chunks[index].summary.prefix)
    }
}

impl Windows {
    pub(super) fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns the windows in address order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Window)> {
        self.order.iter().map(|&(_, index)| (index, &self.windows[index]))
    }

    pub(super) fn get(&self, index: usize) -> &Window {
        &self.windows[index]
    }

    pub(super) fn get_mut(&mut self, index: usize) -> &mut Window {
        &mut self.windows[index]
    }

    /// Returns the window and the slot that a mapped address lies in.
    #[inline]
    pub(super) fn locate(&self, address: Address) -> MappedAddress {
        let (_, window) = self.order[self.order.partition_point(|(first, _)| *first <= address) - 1];
        MappedAddress { address, window, slot: self.windows[window].slot_of(address) }
    }

    /// Returns the window and the slot that an address lies in, if it is mapped.
    pub(super) fn find(&self, address: Address) -> Option<MappedAddress> {
        let (first, _) = *self.order.first()?;
        let place = (first <= address).then(|| self.locate(address))?;
        (address < self.windows[place.window].end()).then_some(place)
    }

    /// Returns whether a window's summary is kept up to date; if not, [`summarize`](Self::summarize) it before use.
    #[inline]
    pub(super) fn is_maintained(&self, window: usize) -> bool {
        self.heads[window].is_maintained
    }

    /// Returns whether a window may have a free range of `bytes` bytes.
    #[inline]
    pub(super) fn may_fit(&self, window: usize, bytes: u64) -> bool {
        self.heads[window].longest >= bytes
    }

    /// Returns the longest free range, in bytes, of a window that is [summarized](Self::summarize).
    pub(super) fn longest(&self, window: usize) -> u64 {
        self.heads[window].longest
    }

    /// Sets the summary of a slot of a window that is kept up to date, and adds the slot to `changes` if it differs.
    #[inline]
    pub(super) fn set_slot(&mut self, window: usize, slot: usize, free: &FreeSummary, changes: &mut WindowChanges) {
        if !self.windows[window].tree.set_piece(slot, free) {
            return;
        }
        match changes.iter_mut().rev().find(|changed| changed.adjoins(window, slot)) {
            Some(changed) => (changed.first, changed.last) = (changed.first.min(slot), changed.last.max(slot)),
            None => changes.push(ChangedSlots { window, first: slot, last: slot }),
        }
    }

    /// Updates the sums above the changed slots.
    #[inline]
    pub(super) fn update_sums(&mut self, changes: &WindowChanges) {
        for changed in changes {
            let tree = &mut self.windows[changed.window].tree;
            tree.update_sums(changed.first, changed.last);
            self.heads[changed.window].longest = tree.sum().longest;
        }
    }

    /// Raises the bound on the free ranges of a window that is not kept up to date, after bytes of a slot were freed.
    #[inline]
    pub(super) fn raise_bound(&mut self, window: usize, slot: usize, chunks: &Slab<Chunk>) {
        let most = self.windows[window].longest_bound_at(slot, chunks);
        let head = &mut self.heads[window];
        head.longest = head.longest.max(most);
    }

    /// Returns the window that begins at an address.
    pub(super) fn at(&self, first: Address) -> Option<usize> {
        let at = self.order.binary_search_by_key(&first, |(first, _)| *first).ok()?;
        Some(self.order[at].1)
    }

    /// Adds a window, not yet [summarized](Self::summarize); returns its index.
    pub(super) fn insert(&mut self, window: Window) -> usize {
        let first = window.first;
        let index = self.windows.insert(window);
        let at = self.order.partition_point(|(other, _)| *other < first);
        self.order.insert(at, (first, index));
        self.heads.resize(self.windows.capacity(), WindowHead::default());
        index
    }

    /// Removes a window, which stays mapped; returns it.
    pub(super) fn remove(&mut self, index: usize) -> Window {
        let window = self.windows.remove(index);
        self.order.retain(|(_, other)| *other != index);
        window
    }

    /// Computes the summaries of a window's free bytes anew from its chunks.
    pub(super) fn summarize(&mut self, index: usize, chunks: &Slab<Chunk>) {
        let window = &mut self.windows[index];
        window.tree.summarize(window.chunks.iter().map(|(_, chunk)| chunks[*chunk].summary));
        let FreeSummary { total, longest, .. } = *window.tree.sum();
        window.bytes = total;
        self.heads[index] = WindowHead { longest, is_maintained: window.is_home || window.chunks.len() > SHORT };
    }

    /// Returns the position, in address order, of the window with which a search from an address begins.
    pub(super) fn position_of(&self, from: Address) -> usize {
        self.order.partition_point(|(first, _)| *first <= from).saturating_sub(1)
    }

    /// Returns the window at a position in address order.
    #[inline]
    pub(super) fn at_position(&self, position: usize) -> usize {
        self.order[position].1
    }

    /// Returns the first free range of at least `bytes` bytes in a window that begins at or after `from`. No free range
    /// may lie across `from`.
    pub(super) fn first_fit(
        &self,
        window: usize,
        bytes: u64,
        from: Address,
        chunks: &Slab<Chunk>,
    ) -> Option<MappedAddress> {
        let (address, slot) = self.windows[window].first_fit(bytes, from, chunks)?;
        Some(MappedAddress { address, window, slot })
    }

    /// Returns the window and the slot of an address, if a free range begins there.
    pub(super) fn free_range_at(&self, address: Address, chunks: &Slab<Chunk>) -> Option<MappedAddress> {
        let &(_, window) = self.order.get(self.position_of(address))?;
        self.windows[window].begins_free_range(address, chunks).then(|| self.locate(address))
    }

    /// Returns the end of the free range that begins at `place`.
    pub(super) fn free_range_end(&self, place: MappedAddress, chunks: &Slab<Chunk>) -> Address {
        self.windows[place.window].free_range_end(place, chunks)
    }
}

/// The address space of an allocator: keeps track of the parts that no window owns.
pub(super) struct AddressSpace {
    free: Runs,
    granularity: u64,
    free_bytes: u64,
}

/// A window owns at least one part in this many of the free addresses if possible, so that it has room to grow.
const SHARE: u64 = 1024;

impl AddressSpace {
    /// Makes an address space of `bytes` bytes from `first` on, all free.
    pub(super) fn new(first: Address, bytes: u64, granularity: u64) -> Self {
        let mut free = Runs::default();
        free.insert(first, bytes);
        Self { free, granularity, free_bytes: bytes }
    }

    /// Takes room for a window of `bytes` bytes and for its growth: (first address, bytes owned).
    pub(super) fn take(&mut self, bytes: u64) -> Option<(Address, u64)> {
        // One granule is never mapped, so that windows do not touch.
        let least = bytes.checked_add(self.granularity)?;
        let wanted = least.saturating_mul(2).max((self.free_bytes / SHARE).next_multiple_of(self.granularity));
        let (run, owned) = match self.free.first_fit(wanted, 0) {
            Some(run) => (run, wanted),
            None => (self.free.first_fit(least, 0)?, least),
        };
        self.free.remove(run.address, owned);
        self.free_bytes -= owned;
        Some((run.address, owned))
    }

    /// Takes back a range from [`take`](Self::take) under which nothing is mapped.
    pub(super) fn give_back(&mut self, first: Address, bytes: u64) {
        self.free.insert(first, bytes);
        self.free_bytes += bytes;
    }
}
