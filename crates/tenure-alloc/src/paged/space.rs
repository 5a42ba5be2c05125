//! Physical chunks, and the windows of address space that show them.
//!
//! # Note [Windows]
//!
//! A chunk is physical memory: it is mapped and unmapped whole. A *window* is a range of addresses under which chunks
//! are mapped side by side. A chunk may be mapped in many windows at once, and stays mapped where it was: two
//! addresses of one chunk are coherent in stream order, so that memory "moves" by one more mapping, at once, without
//! unmapping anything and without waiting for any stream. A range of a window is free where the bytes under it are
//! free, whichever window they were last used through. Windows never touch each other and no window shows a chunk twice,
//! so the bytes of a free range are distinct and any part of one can be handed out.
//!
//! The chunks say what is free; the windows sum it up, for the search. A chunk is mapped a dozen times where sizes are
//! random, but nearly every search ends in a window that was the first for its chunks. So a change is made known to the
//! chunk's first window, its *home*, at once, and to the others only when a search comes to one of them.

use slab::Slab;
use tenure_core::StreamId;

use super::address_space::AddressSpace;
use super::chunk::{Chunk, Mapping};
use super::progress::{Progress, Use};
use super::windows::{Place, Window, Windows};
use crate::{Address, Backing, BackingError};

/// Memory that blocks of one pool share.
#[derive(Default)]
pub(super) struct Space {
    pub(super) chunks: Slab<Chunk>,
    pub(super) windows: Windows,
    /// Chunks of which only the home window knows what is free.
    stale: Vec<usize>,
    /// Bytes of all chunks.
    pub(super) reserved: u64,
    /// Mappings that could neither be completed nor undone: (address, chunk). Undone before the chunk is released.
    stuck: Vec<(Address, usize)>,
    /// The end of the block placed last.
    end_of_last: Address,
    /// Counts window uses, to find the one not used for longest.
    clock: u64,
}

/// A part of an address range that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) chunk: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Space {
    /// A new whole chunk, mapped nowhere.
    pub(super) fn create(&mut self, bytes: u64, backing: &dyn Backing) -> Result<usize, BackingError> {
        let id = backing.create(bytes)?;
        self.reserved += bytes;
        Ok(self.chunks.insert(Chunk::new(id, bytes)))
    }

    /// The chunks with no byte in use, (bytes, index), from the smallest up.
    pub(super) fn wholes(&self) -> Vec<(u64, usize)> {
        let wholes = self.chunks.iter().filter(|(_, chunk)| chunk.is_whole());
        let mut wholes: Vec<_> = wholes.map(|(index, chunk)| (chunk.bytes, index)).collect();
        wholes.sort_unstable();
        wholes
    }

    /// The parts of a mapped range, in address order.
    #[inline]
    pub(super) fn pieces(&self, place: Place, bytes: u64) -> impl Iterator<Item = Piece> + '_ {
        (place.slot..).map_while(move |slot| self.piece(place, bytes, slot))
    }

    /// The part of a mapped range in a slot of its window.
    #[inline]
    fn piece(&self, place: Place, bytes: u64, slot: usize) -> Option<Piece> {
        let &(start, chunk) = self.windows.get(place.window).chunks.get(slot)?;
        let begin = place.address.max(start);
        let end = (place.address + bytes).min(start + self.chunks[chunk].bytes);
        (begin < end).then(|| Piece { chunk, offset: begin - start, bytes: end - begin })
    }

    /// Takes a free range into use by a block that starts at `place`.
    pub(super) fn occupy(&mut self, place: Place, bytes: u64) {
        let mut slot = place.slot;
        while let Some(piece) = self.piece(place, bytes, slot) {
            self.chunks[piece.chunk].occupy(piece.offset, piece.bytes);
            self.note_change(piece.chunk);
            slot += 1;
        }
        self.end_of_last = place.address + bytes;
        self.clock += 1;
        let window = self.windows.get_mut(place.window);
        window.blocks += 1;
        window.used_at = self.clock;
    }

    /// Frees the range of a block, last used as `last` says.
    pub(super) fn vacate(&mut self, address: Address, bytes: u64, last: Use) {
        let place = self.windows.place(address);
        let mut slot = place.slot;
        while let Some(piece) = self.piece(place, bytes, slot) {
            let chunk = &mut self.chunks[piece.chunk];
            chunk.uses.add(last);
            chunk.vacate(piece.offset, piece.bytes);
            let is_stale = self.note_change(piece.chunk);
            if is_stale && !std::mem::replace(&mut self.chunks[piece.chunk].is_stale, true) {
                self.stale.push(piece.chunk);
            }
            slot += 1;
        }
        let window = self.windows.get_mut(place.window);
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
    ) -> Result<Option<Place>, BackingError> {
        let mut from = 0;
        while let Some(mut place) = self.first_range(least, from) {
            let mut unready = self.behind_unready(place, bytes, stream, progress)?;
            if unready.is_none() {
                return Ok(Some(place));
            }
            from = self.free_until(place);
            while let Some(behind) = unready.filter(|behind| behind + least <= from) {
                place = self.windows.place(behind);
                unready = self.behind_unready(place, bytes, stream, progress)?;
                if unready.is_none() {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// The first free range of at least `bytes` bytes that begins at or behind `from`; none may lie across it.
    pub(super) fn first_range(&mut self, bytes: u64, from: Address) -> Option<Place> {
        let found = self.seek(bytes, from);
        debug_assert_eq!(found.map(|place| place.address), self.seek_plainly(bytes, from));
        found
    }

    fn seek(&mut self, bytes: u64, from: Address) -> Option<Place> {
        for rank in self.windows.rank(from)..self.windows.len() {
            let window = self.windows.ranked(rank);
            if !self.stale.is_empty() && !self.windows.is_kept(window) {
                self.raise_all();
            }
            if self.windows.may_fit(window, bytes) {
                self.sum_up(window);
                let found = self.windows.first_fit(window, bytes, from, &self.chunks);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// The same, from what the chunks say alone.
    fn seek_plainly(&self, bytes: u64, from: Address) -> Option<Address> {
        self.windows.iter().find_map(|(_, window)| {
            let mut range = (0, 0);
            let extents = window.chunks.iter().flat_map(|&(start, chunk)| {
                self.chunks[chunk].free.iter().map(move |extent| (start + extent.offset, extent.bytes))
            });
            extents.into_iter().find_map(|(address, length)| {
                let is_next = range.0 + range.1 == address;
                range = if is_next { (range.0, range.1 + length) } else { (address, length) };
                (range.0 >= from && range.1 >= bytes).then_some(range.0)
            })
        })
    }

    /// The range behind the block placed last, if it is free and `stream` may touch it without a wait.
    pub(super) fn behind_last(
        &mut self,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<Option<Place>, BackingError> {
        let Some(place) = self.windows.free_range_at(self.end_of_last, &self.chunks) else { return Ok(None) };
        let fits = self.free_until(place) - place.address >= bytes;
        Ok((fits && self.behind_unready(place, bytes, stream, progress)?.is_none()).then_some(place))
    }

    /// The end of the first chunk in a range that `stream` may not touch without a wait.
    fn behind_unready(
        &mut self,
        place: Place,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<Option<Address>, BackingError> {
        let end = place.address + bytes;
        for &(start, index) in &self.windows.get(place.window).chunks[place.slot..] {
            if start >= end {
                break;
            }
            let chunk = &mut self.chunks[index];
            if !progress.is_ready_for(stream, &mut chunk.uses)? {
                return Ok(Some(start + chunk.bytes));
            }
        }
        Ok(None)
    }

    /// Makes `stream` run behind all work on the range.
    pub(super) fn wait(
        &self,
        place: Place,
        bytes: u64,
        stream: StreamId,
        progress: &mut Progress,
    ) -> Result<(), BackingError> {
        self.pieces(place, bytes).try_for_each(|piece| progress.wait(stream, &self.chunks[piece.chunk].uses))
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
        let window = self.windows.at(first);
        let start = window.map_or(first, |window| self.windows.get(window).end());
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
                if let Some(window) = window.map(|window| self.windows.get_mut(window)) {
                    window.owned = window.bytes;
                }
            }
            return Err(error);
        }
        self.clock += 1;
        let index = window.unwrap_or_else(|| self.windows.insert(Window::new(first, owned)));
        let window = self.windows.get_mut(index);
        window.used_at = self.clock;
        for (address, chunk) in placed {
            let mapped_at = &mut self.chunks[chunk].mapped_at;
            window.is_home &= mapped_at.is_empty();
            mapped_at.push(Mapping { address, window: index, slot: window.chunks.len() });
            window.chunks.push((address, chunk));
        }
        self.windows.sum_up(index, &self.chunks);
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
        while let Some(&mapping) = self.chunks[index].mapped_at.last() {
            backing.unmap(mapping.address, bytes)?;
            self.chunks[index].mapped_at.pop();
            self.forget_mapping(mapping, blocks, addresses);
        }
        while let Some(at) = self.stuck.iter().position(|(_, stuck)| *stuck == index) {
            backing.unmap(self.stuck[at].0, bytes)?;
            self.stuck.swap_remove(at);
        }
        backing.release(self.chunks[index].id)?;
        self.chunks.remove(index);
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
        let idle = self.windows.iter().filter(|(_, window)| window.blocks == 0);
        let Some((index, _)) = idle.min_by_key(|(_, window)| window.used_at) else { return Ok(false) };
        // Stamped anew, so that a window the device is not done with does not hide the others.
        self.clock += 1;
        let window = self.windows.get_mut(index);
        window.used_at = self.clock;
        if !progress.is_finished(&mut window.uses)? {
            return Ok(false);
        }
        backing.unmap(window.first, window.bytes)?;
        let window = self.windows.remove(index);
        for (address, chunk) in window.chunks {
            self.chunks[chunk].mapped_at.retain(|mapping| mapping.address != address);
        }
        addresses.give_back(window.first, window.owned);
        Ok(true)
    }

    /// Mappings in all windows.
    pub(super) fn mappings(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk.mapped_at.len()).sum()
    }

    /// Makes known to all windows what was freed.
    fn raise_all(&mut self) {
        for index in self.stale.drain(..) {
            // It may have been released meanwhile.
            let Some(chunk) = self.chunks.get_mut(index) else { continue };
            chunk.is_stale = false;
            for mapping in &self.chunks[index].mapped_at {
                if !self.windows.is_kept(mapping.window) {
                    self.windows.raise(mapping.window, mapping.slot, &self.chunks);
                }
            }
        }
    }

    /// Sums up what is free of a window, if that is not known.
    #[inline]
    fn sum_up(&mut self, window: usize) {
        if !self.windows.is_kept(window) {
            self.windows.sum_up(window, &self.chunks);
        }
    }

    /// Makes known to the windows that are kept up to date what is free of a chunk. Whether there are others.
    #[inline]
    fn note_change(&mut self, index: usize) -> bool {
        let chunk = &self.chunks[index];
        let free = chunk.sum;
        let mut has_others = false;
        for mapping in &chunk.mapped_at {
            if self.windows.is_kept(mapping.window) {
                self.windows.set(mapping.window, mapping.slot, free);
            } else {
                has_others = true;
            }
        }
        has_others
    }

    /// The end of the free range that begins at `place`.
    fn free_until(&mut self, place: Place) -> Address {
        self.sum_up(place.window);
        self.windows.free_until(place, &self.chunks)
    }

    /// Drops an unmapped chunk from its window, which falls in two if the chunk was not at one of its ends.
    fn forget_mapping(&mut self, mapping: Mapping, blocks: &[Address], addresses: &mut AddressSpace) {
        let mut left = self.windows.remove(mapping.window);
        let behind = left.chunks.split_off(mapping.slot + 1);
        left.chunks.pop();
        let (first, end, until) = (left.first, left.end(), left.first + left.owned);
        let start = behind.first().map_or(until, |(start, _)| *start);
        let blocks_in = |range: std::ops::Range<Address>| {
            blocks.partition_point(|block| *block < range.end) - blocks.partition_point(|block| *block < range.start)
        };
        if !behind.is_empty() {
            let mut right = Window::new(start, until - start);
            (right.chunks, right.blocks, right.is_home) = (behind, blocks_in(start..end), left.is_home);
            (right.uses, right.used_at) = (left.uses.clone(), left.used_at);
            self.insert(right);
        }
        left.owned = start - first;
        if left.chunks.is_empty() {
            addresses.give_back(first, left.owned);
        } else {
            left.blocks = blocks_in(first..mapping.address);
            self.insert(left);
        }
    }

    /// Adds a window of chunks that are mapped there.
    fn insert(&mut self, window: Window) {
        let index = self.windows.insert(window);
        for (slot, (address, chunk)) in self.windows.get(index).chunks.iter().enumerate() {
            let mut mapped_at = self.chunks[*chunk].mapped_at.iter_mut();
            if let Some(mapping) = mapped_at.find(|mapping| mapping.address == *address) {
                (mapping.window, mapping.slot) = (index, slot);
            }
        }
        self.windows.sum_up(index, &self.chunks);
    }
}
