//! Physical chunks, and the windows of address space that show them.
//!
//! # Note [Windows]
//!
//! A chunk is physical memory: it is mapped and unmapped whole. A *window* is a range of addresses under which chunks
//! are mapped side by side. A chunk may be mapped in many windows at once, and stays mapped where it was: two
//! addresses of one chunk are coherent in stream order, so that memory "moves" by one more mapping, at once, without
//! unmapping anything and without waiting for any stream. A range of a window is free where the bytes under it are
//! free, whichever window they were last used through; [`Space::runs`] holds these ranges. Windows never touch each
//! other and no window shows a chunk twice, so the bytes of a run are distinct and any part of one can be handed out.

use std::collections::{BTreeMap, BTreeSet};

use slab::Slab;
use smallvec::SmallVec;
use tenure_core::StreamId;

use super::address_space::AddressSpace;
use super::progress::{Progress, Use, Uses};
use super::runs::Runs;
use crate::{Address, Backing, BackingError, ChunkId};

/// Memory that blocks of one pool share.
#[derive(Default)]
pub(super) struct Space {
    pub(super) chunks: Slab<Chunk>,
    /// By first address.
    pub(super) windows: BTreeMap<Address, Window>,
    /// The free ranges of every window.
    pub(super) runs: Runs,
    /// The chunks with no byte in use: (bytes, index).
    pub(super) whole: BTreeSet<(u64, usize)>,
    /// Bytes of all chunks.
    pub(super) reserved: u64,
    /// Mappings that could neither be completed nor undone: (address, chunk). Undone before the chunk is released.
    stuck: Vec<(Address, usize)>,
    /// The end of the block placed last.
    end_of_last: Address,
    /// Counts window uses, to find the one not used for longest.
    clock: u64,
}

/// Physical memory.
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) bytes: u64,
    /// Its free ranges, by offset; merged where they touch.
    pub(super) free: SmallVec<[Extent; 2]>,
    /// First address of each of its mappings.
    pub(super) mapped_at: SmallVec<[Address; 4]>,
    /// Work that may still touch its free bytes.
    pub(super) uses: Uses,
}

/// A range of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A maximal range of addresses with chunks mapped side by side.
pub(super) struct Window {
    /// Bytes mapped.
    pub(super) bytes: u64,
    /// Bytes of address space it owns: it can grow while `bytes` stays below, see [`room`](Self::room).
    pub(super) owned: u64,
    /// (first address, index) of its chunks, by address.
    pub(super) chunks: Vec<(Address, usize)>,
    /// Live blocks that start in it.
    pub(super) blocks: usize,
    /// Work that may still use its addresses.
    pub(super) uses: Uses,
    used_at: u64,
}

/// A part of an address range that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) chunk: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl Chunk {
    pub(super) fn is_whole(&self) -> bool {
        self.free.first().is_some_and(|extent| extent.bytes == self.bytes)
    }

    /// Free bytes at the start of a chunk that is in use further on.
    pub(super) fn free_prefix(&self) -> u64 {
        self.free.first().filter(|extent| extent.offset == 0 && !self.is_whole()).map_or(0, |extent| extent.bytes)
    }

    /// Free bytes at the end of a chunk that is in use before.
    pub(super) fn free_suffix(&self) -> u64 {
        self.free
            .last()
            .filter(|extent| extent.end() == self.bytes && !self.is_whole())
            .map_or(0, |extent| extent.bytes)
    }

    fn occupy(&mut self, offset: u64, bytes: u64) {
        let at = self.free.partition_point(|extent| extent.offset <= offset) - 1;
        let extent = self.free.remove(at);
        debug_assert!(extent.end() >= offset + bytes, "{bytes} bytes at {offset} are not free in {extent:?}");
        let tail = Extent { offset: offset + bytes, bytes: extent.end() - offset - bytes };
        if tail.bytes > 0 {
            self.free.insert(at, tail);
        }
        if offset > extent.offset {
            self.free.insert(at, Extent { offset: extent.offset, bytes: offset - extent.offset });
        }
    }

    fn vacate(&mut self, offset: u64, bytes: u64) {
        let mut freed = Extent { offset, bytes };
        let mut at = self.free.partition_point(|extent| extent.offset < offset);
        if self.free.get(at).is_some_and(|next| next.offset == freed.end()) {
            freed.bytes += self.free.remove(at).bytes;
        }
        if at > 0 && self.free[at - 1].end() == offset {
            at -= 1;
            let previous = self.free.remove(at);
            freed = Extent { offset: previous.offset, bytes: previous.bytes + freed.bytes };
        }
        self.free.insert(at, freed);
    }
}

impl Window {
    /// Bytes that can still be mapped behind its end. One granule stays free, so that windows never touch.
    pub(super) fn room(&self, granularity: u64) -> u64 {
        (self.owned - self.bytes).saturating_sub(granularity)
    }
}

impl Space {
    /// A new whole chunk, mapped nowhere.
    pub(super) fn create(&mut self, bytes: u64, backing: &dyn Backing) -> Result<usize, BackingError> {
        let id = backing.create(bytes)?;
        let free = SmallVec::from_slice(&[Extent { offset: 0, bytes }]);
        let index = self.chunks.insert(Chunk { id, bytes, free, mapped_at: SmallVec::new(), uses: Uses::default() });
        self.whole.insert((bytes, index));
        self.reserved += bytes;
        Ok(index)
    }

    /// The window that contains a mapped address, and its first address.
    pub(super) fn window(&self, address: Address) -> (Address, &Window) {
        let (&first, window) = self.windows.range(..=address).next_back().expect("the address is mapped");
        (first, window)
    }

    /// The parts of a mapped range, in address order.
    pub(super) fn pieces(&self, address: Address, bytes: u64) -> SmallVec<[Piece; 8]> {
        let (_, window) = self.window(address);
        let first = window.chunks.partition_point(|(start, _)| *start <= address) - 1;
        let end = address + bytes;
        let covering = window.chunks[first..].iter().take_while(|(start, _)| *start < end);
        covering
            .map(|&(start, chunk)| {
                let from = address.max(start);
                let until = end.min(start + self.chunks[chunk].bytes);
                Piece { chunk, offset: from - start, bytes: until - from }
            })
            .collect()
    }

    /// Takes a free range into use by a block that starts at `address`.
    pub(super) fn occupy(&mut self, address: Address, bytes: u64) {
        for piece in self.pieces(address, bytes) {
            let chunk = &mut self.chunks[piece.chunk];
            if chunk.is_whole() {
                self.whole.remove(&(chunk.bytes, piece.chunk));
            }
            chunk.occupy(piece.offset, piece.bytes);
            for &mapped in &chunk.mapped_at {
                self.runs.remove(mapped + piece.offset, piece.bytes);
            }
        }
        self.end_of_last = address + bytes;
        self.clock += 1;
        let used_at = self.clock;
        let window = self.window_mut(address);
        window.blocks += 1;
        window.used_at = used_at;
    }

    /// Frees the range of a block, last used as `last` says.
    pub(super) fn vacate(&mut self, address: Address, bytes: u64, last: Use) {
        for piece in self.pieces(address, bytes) {
            let chunk = &mut self.chunks[piece.chunk];
            chunk.uses.add(last);
            chunk.vacate(piece.offset, piece.bytes);
            if chunk.is_whole() {
                self.whole.insert((chunk.bytes, piece.chunk));
            }
            for &mapped in &chunk.mapped_at {
                self.runs.insert(mapped + piece.offset, piece.bytes);
            }
        }
        let window = self.window_mut(address);
        window.blocks -= 1;
        window.uses.add(last);
    }

    /// The first free range of at least `least` bytes, the first `bytes` of which `stream` may touch without a wait.
    pub(super) fn first_fit(
        &mut self,
        bytes: u64,
        least: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<Option<Address>, BackingError> {
        let mut from = 0;
        while let Some(run) = self.runs.first_fit(least, from) {
            let mut address = run.address;
            while run.end() - address >= least {
                match self.behind_unready(address, bytes, stream, progress)? {
                    None => return Ok(Some(address)),
                    Some(behind) => address = behind.min(run.end()),
                }
            }
            from = run.end();
        }
        Ok(None)
    }

    /// The range behind the block placed last, if it is free and `stream` may touch it without a wait.
    pub(super) fn behind_last(
        &mut self,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<Option<Address>, BackingError> {
        let address = self.end_of_last;
        let fits = self.runs.containing(address).is_some_and(|run| run.address == address && run.bytes >= bytes);
        Ok((fits && self.behind_unready(address, bytes, stream, progress)?.is_none()).then_some(address))
    }

    /// The end of the first chunk in a range that `stream` may not touch without a wait.
    fn behind_unready(
        &mut self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<Option<Address>, BackingError> {
        let mut at = address;
        for piece in self.pieces(address, bytes) {
            let chunk = &mut self.chunks[piece.chunk];
            if !progress.is_ready_for(stream, &mut chunk.uses)? {
                return Ok(Some(at - piece.offset + chunk.bytes));
            }
            at += piece.bytes;
        }
        Ok(None)
    }

    /// Makes `stream` run behind all work on the range.
    pub(super) fn wait(
        &self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<(), BackingError> {
        self.pieces(address, bytes).iter().try_for_each(|piece| progress.wait(stream, &self.chunks[piece.chunk].uses))
    }

    /// Maps chunks side by side at the end of the window at `first`, or in a new window there that owns `owned` bytes.
    ///
    /// # Errors
    /// What the backing said. Nothing has changed, but that a mapping which the backing refused to undo is remembered.
    pub(super) fn map(
        &mut self,
        first: Address,
        owned: u64,
        chunks: &[usize],
        backing: &dyn Backing,
    ) -> Result<(), BackingError> {
        let start = first + self.windows.get(&first).map_or(0, |window| window.bytes);
        let mut end = start;
        let mut placed = Vec::with_capacity(chunks.len());
        let mapped = chunks.iter().try_for_each(|&index| {
            let chunk = &self.chunks[index];
            backing.map(end, chunk.id)?;
            placed.push((end, index));
            end += chunk.bytes;
            Ok(())
        });
        if let Err(error) = mapped.and_then(|()| backing.set_access(start, end - start)) {
            if !placed.is_empty() && backing.unmap(start, end - start).is_err() {
                self.stuck.append(&mut placed);
                if let Some(window) = self.windows.get_mut(&first) {
                    window.owned = window.bytes;
                }
            }
            return Err(error);
        }
        self.clock += 1;
        let fresh = || Window { bytes: 0, owned, chunks: Vec::new(), blocks: 0, uses: Uses::default(), used_at: 0 };
        let window = self.windows.entry(first).or_insert_with(fresh);
        window.bytes += end - start;
        window.used_at = self.clock;
        window.chunks.extend_from_slice(&placed);
        for (address, index) in placed {
            let chunk = &mut self.chunks[index];
            chunk.mapped_at.push(address);
            for extent in &chunk.free {
                self.runs.insert(address + extent.offset, extent.bytes);
            }
        }
        Ok(())
    }

    /// Whether a mapping at `address` is left that could not be undone.
    pub(super) fn is_stuck_from(&self, address: Address) -> bool {
        self.stuck.iter().any(|(stuck, _)| *stuck == address)
    }

    /// Gives a whole chunk back to the backing; the device has finished with it. `blocks` are the first addresses of
    /// the live blocks, in order.
    ///
    /// # Errors
    /// What the backing said. The chunk stays, mapped wherever it was not yet unmapped.
    pub(super) fn release(
        &mut self,
        index: usize,
        blocks: &[Address],
        addresses: &mut AddressSpace,
        backing: &dyn Backing,
    ) -> Result<(), BackingError> {
        let bytes = self.chunks[index].bytes;
        while let Some(&address) = self.chunks[index].mapped_at.last() {
            backing.unmap(address, bytes)?;
            self.forget_mapping(address, index, blocks, addresses);
        }
        while let Some(at) = self.stuck.iter().position(|(_, stuck)| *stuck == index) {
            backing.unmap(self.stuck[at].0, bytes)?;
            self.stuck.swap_remove(at);
        }
        backing.release(self.chunks[index].id)?;
        self.chunks.remove(index);
        self.whole.remove(&(bytes, index));
        self.reserved -= bytes;
        Ok(())
    }

    /// Unmaps the window not used for longest, if it holds no block and the device has finished with it.
    pub(super) fn retire_window(
        &mut self,
        progress: &mut Progress,
        addresses: &mut AddressSpace,
        backing: &dyn Backing,
    ) -> Result<bool, BackingError> {
        let idle = self.windows.iter_mut().filter(|(_, window)| window.blocks == 0);
        let Some((&first, window)) = idle.min_by_key(|(_, window)| window.used_at) else {
            return Ok(false);
        };
        // Stamped anew, so that a window the device is not done with does not hide the others.
        self.clock += 1;
        window.used_at = self.clock;
        if !progress.is_finished(&mut window.uses)? {
            return Ok(false);
        }
        backing.unmap(first, window.bytes)?;
        if let Some(window) = self.windows.remove(&first) {
            for (address, index) in window.chunks {
                self.hide(address, index);
            }
            addresses.give_back(first, window.owned);
        }
        Ok(true)
    }

    /// Mappings in all windows.
    pub(super) fn mappings(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk.mapped_at.len()).sum()
    }

    /// Drops an unmapped chunk from its window, which falls in two if the chunk was not at one of its ends.
    fn forget_mapping(&mut self, address: Address, index: usize, blocks: &[Address], addresses: &mut AddressSpace) {
        self.hide(address, index);
        let bytes = self.chunks[index].bytes;
        let (first, _) = self.window(address);
        let Some(mut left) = self.windows.remove(&first) else { return };
        let at = left.chunks.partition_point(|(start, _)| *start < address);
        let behind = left.chunks.split_off(at + 1);
        left.chunks.pop();
        let blocks_in = |range: std::ops::Range<Address>| {
            blocks.partition_point(|block| *block < range.end) - blocks.partition_point(|block| *block < range.start)
        };
        if !behind.is_empty() {
            let start = address + bytes;
            let end = first + left.bytes;
            let owned = first + left.owned - start;
            let (uses, used_at) = (left.uses.clone(), left.used_at);
            let blocks = blocks_in(start..end);
            self.windows.insert(start, Window { bytes: end - start, owned, chunks: behind, blocks, uses, used_at });
            left.owned = start - first;
        }
        if left.chunks.is_empty() {
            addresses.give_back(first, left.owned);
        } else {
            left.bytes = address - first;
            left.blocks = blocks_in(first..address);
            self.windows.insert(first, left);
        }
    }

    /// Takes the free ranges of a chunk's mapping out of the runs.
    fn hide(&mut self, address: Address, index: usize) {
        let chunk = &mut self.chunks[index];
        chunk.mapped_at.retain(|mapped| *mapped != address);
        for extent in &chunk.free {
            self.runs.remove(address + extent.offset, extent.bytes);
        }
    }

    fn window_mut(&mut self, address: Address) -> &mut Window {
        self.windows.range_mut(..=address).next_back().expect("the address is mapped").1
    }
}
