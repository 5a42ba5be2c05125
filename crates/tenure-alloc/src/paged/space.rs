//! Physical chunks, and the windows of address space that show them.
//!
//! # Note [Windows]
//!
//! A chunk is physical memory: it is mapped and unmapped whole. A *window* is a range of addresses under which chunks
//! are mapped side by side. A chunk may be mapped in many windows at once, and keeps its earlier mappings. Two
//! addresses of one chunk are coherent in stream order. So memory "moves" by one more mapping, at once, without
//! unmapping anything and without waiting for any stream. A range of a window is free where the bytes under it are
//! free, whichever window they were last used through. Windows never touch each other and no window shows a chunk
//! twice, so the bytes of a free range are distinct and any part of one can be handed out.
//!
//! The chunks hold the free ranges; the windows sum them up, for the search. With random sizes a chunk is mapped a
//! dozen times, but nearly every search ends in a window that was made of new chunks. So the summaries of these
//! windows, and of long ones, are kept up to date. For each other window an upper bound of the longest free range is
//! known. A placement leaves the bound valid. A free makes chunks *stale*, and a search that comes to such a window
//! first raises the bounds where stale chunks are mapped. If the bound then allows a fit, the window is summed up anew.

use std::collections::VecDeque;

use slab::Slab;
use tenure_core::StreamId;

use super::chunk::{Chunk, Extent, Mapping};
use super::mapping_recorder::MappingRecorder;
use super::progress::{DeviceProgress, EpochUse};
use super::windows::{AddressSpace, MappedAddress, Window, WindowChanges, Windows};
use crate::{Address, Backing, BackingError, MappedChunk};

/// The number of cycles for which a window is kept without a use. The places of blocks differ a little from cycle to
/// cycle.
const CYCLES: usize = 4;

/// The memory that blocks of one pool share.
pub(super) struct Space {
    pub(super) chunks: Slab<Chunk>,
    pub(super) windows: Windows,
    /// The stale chunks: bytes of them were freed that the bounds of some windows do not include yet.
    pub(super) stale: Vec<usize>,
    /// Bytes of all chunks.
    pub(super) reserved: u64,
    /// Bytes in blocks.
    occupied: u64,
    /// Mappings that could be neither completed nor undone: (address, chunk). They are undone before the chunk is
    /// released.
    stuck: Vec<(Address, usize)>,
    /// The end of the block placed last.
    pub(super) end_of_last: Address,
    /// The number of window uses so far, to find the window not used for longest.
    clock: u64,
    /// The clock at the beginning of each of the last [`CYCLES`] cycles.
    cycles: VecDeque<u64>,
    recorder: MappingRecorder,
}

/// A part of an address range that lies in one chunk.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChunkPiece {
    pub(super) chunk: usize,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

impl Space {
    /// Makes an empty space.
    pub(super) fn new(recorder: MappingRecorder) -> Self {
        Self {
            chunks: Slab::new(),
            windows: Windows::default(),
            stale: Vec::new(),
            reserved: 0,
            occupied: 0,
            stuck: Vec::new(),
            end_of_last: 0,
            clock: 0,
            cycles: VecDeque::new(),
            recorder,
        }
    }

    /// Creates a whole chunk that is not mapped anywhere.
    pub(super) fn create(&mut self, bytes: u64, backing: &dyn Backing) -> Result<usize, BackingError> {
        let id = backing.create(bytes)?;
        self.reserved += bytes;
        Ok(self.chunks.insert(Chunk::new(id, bytes)))
    }

    /// Returns the bytes of chunks that are in no block.
    pub(super) fn free_bytes(&self) -> u64 {
        self.reserved - self.occupied
    }

    /// Returns the chunks with no byte in use, (bytes, index), from the smallest up.
    pub(super) fn whole_chunks(&self) -> Vec<(u64, usize)> {
        let whole_chunks = self.chunks.iter().filter(|(_, chunk)| chunk.is_whole());
        let mut whole_chunks: Vec<_> = whole_chunks.map(|(index, chunk)| (chunk.bytes, index)).collect();
        whole_chunks.sort_unstable();
        whole_chunks
    }

    /// Returns the parts of a mapped range, in address order.
    #[inline]
    pub(super) fn pieces(&self, place: MappedAddress, bytes: u64) -> impl Iterator<Item = ChunkPiece> + '_ {
        (place.slot..).map_while(move |slot| self.piece(place, bytes, slot))
    }

    /// Returns the part of a mapped range in a slot of its window.
    #[inline]
    fn piece(&self, place: MappedAddress, bytes: u64, slot: usize) -> Option<ChunkPiece> {
        let &(start, chunk) = self.windows.get(place.window).chunks.get(slot)?;
        let begin = place.address.max(start);
        let end = (place.address + bytes).min(start + self.chunks[chunk].bytes);
        (begin < end).then(|| ChunkPiece { chunk, offset: begin - start, bytes: end - begin })
    }

    /// Returns the chunks under a range that a block is in.
    pub(super) fn chunks_under(&self, address: Address, bytes: u64) -> Vec<MappedChunk> {
        let place = self.windows.locate(address);
        let chunks = &self.windows.get(place.window).chunks;
        let pieces = chunks[place.slot..].iter().take_while(|(start, _)| *start < address + bytes);
        pieces
            .map(|&(address, index)| {
                let chunk = &self.chunks[index];
                MappedChunk { chunk: chunk.id, bytes: chunk.bytes, address }
            })
            .collect()
    }

    /// Returns the range of the chunks under a block, which are mapped side by side: first byte and bytes.
    pub(super) fn extent(&self, address: Address, bytes: u64) -> Option<(Address, u64)> {
        let chunks = self.chunks_under(address, bytes);
        Some((chunks.first()?.address, chunks.iter().map(|chunk| chunk.bytes).sum()))
    }

    /// Takes a free range into use by a block that starts at `place`.
    pub(super) fn occupy(&mut self, place: MappedAddress, bytes: u64) {
        if self.recorder.is_recording() {
            self.record_moves(place, bytes, |home, here| (home, here));
        }
        let mut slot = place.slot;
        let mut changes = WindowChanges::new();
        while let Some(piece) = self.piece(place, bytes, slot) {
            self.chunks[piece.chunk].occupy(piece.offset, piece.bytes);
            self.update_windows(piece.chunk, &mut changes);
            slot += 1;
        }
        self.windows.update_sums(&changes);
        self.occupied += bytes;
        self.end_of_last = place.address + bytes;
        self.clock += 1;
        let window = self.windows.get_mut(place.window);
        window.blocks += 1;
        window.used_at = self.clock;
    }

    /// Notes that the block at an address is the placement of a number. Those before `first` are forgotten.
    pub(super) fn note_past(&mut self, address: Address, bytes: u64, number: u64, first: u64) {
        let place = self.windows.locate(address);
        let mut slot = place.slot;
        while let Some(ChunkPiece { chunk, offset, bytes }) = self.piece(place, bytes, slot) {
            self.chunks[chunk].note_past(number, Extent { offset, bytes }, first);
            slot += 1;
        }
    }

    /// Frees the range of a block; `last` is its last use.
    pub(super) fn vacate(&mut self, address: Address, bytes: u64, last: EpochUse) {
        let place = self.windows.locate(address);
        if self.recorder.is_recording() {
            self.record_moves(place, bytes, |home, here| (here, home));
        }
        let mut slot = place.slot;
        let mut changes = WindowChanges::new();
        while let Some(piece) = self.piece(place, bytes, slot) {
            let chunk = &mut self.chunks[piece.chunk];
            chunk.uses.add(last);
            chunk.vacate(piece.offset, piece.bytes);
            let is_stale = self.update_windows(piece.chunk, &mut changes);
            let chunk = &mut self.chunks[piece.chunk];
            if is_stale && !chunk.is_stale {
                chunk.is_stale = true;
                self.stale.push(piece.chunk);
            }
            slot += 1;
        }
        self.windows.update_sums(&changes);
        self.occupied -= bytes;
        let window = self.windows.get_mut(place.window);
        window.blocks -= 1;
        window.uses.add(last);
    }

    /// Makes `stream` run after all work on the range.
    pub(super) fn wait(
        &self,
        place: MappedAddress,
        bytes: u64,
        stream: StreamId,
        progress: &mut DeviceProgress,
    ) -> Result<(), BackingError> {
        self.pieces(place, bytes).try_for_each(|piece| progress.wait(stream, &self.chunks[piece.chunk].uses))
    }

    /// Maps chunks side by side at the end of the window at `first`, or in a new window there that owns `owned` bytes.
    ///
    /// # Errors
    /// The error of the backing. Nothing has changed then, except that a mapping which the backing refused to undo is
    /// remembered.
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
            let Chunk { bytes, mapped_at, .. } = &mut self.chunks[chunk];
            window.is_home &= mapped_at.is_empty();
            if mapped_at.is_empty() {
                self.recorder.record_mapped(address, *bytes);
            }
            mapped_at.push(Mapping { address, window: index, slot: window.chunks.len() });
            window.chunks.push((address, chunk));
        }
        self.windows.summarize(index, &self.chunks);
        Ok(())
    }

    /// Returns whether a mapping at `address` is left that could not be undone.
    pub(super) fn is_stuck_from(&self, address: Address) -> bool {
        self.stuck.iter().any(|(stuck, _)| *stuck == address)
    }

    /// Gives a whole chunk back to the backing; the device must have finished with it. `blocks` are the first addresses
    /// of the live blocks, in order.
    ///
    /// # Errors
    /// The error of the backing. The chunk stays, mapped wherever it was not yet unmapped.
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
            if self.chunks[index].mapped_at.is_empty() {
                self.recorder.record_unmapped(mapping.address, bytes);
            }
            self.remove_from_window(mapping, blocks, addresses);
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

    /// Unmaps, among the windows that hold no block, the one not used for longest, if the device has finished using it.
    /// Returns whether it unmapped a window.
    pub(super) fn retire_window(
        &mut self,
        progress: &mut DeviceProgress,
        addresses: &mut AddressSpace,
        backing: &dyn Backing,
    ) -> Result<bool, BackingError> {
        let idle = self.windows.iter().filter(|(_, window)| window.blocks == 0);
        let Some((index, _)) = idle.min_by_key(|(_, window)| window.used_at) else { return Ok(false) };
        // If the device still uses this window, the next call shall try another: so it counts as used now.
        self.clock += 1;
        self.windows.get_mut(index).used_at = self.clock;
        self.unmap(index, progress, addresses, backing)
    }

    /// Begins a cycle. Unmaps the windows that none of the last [`CYCLES`] cycles used, if all their chunks are also
    /// mapped elsewhere.
    pub(super) fn begin_cycle(
        &mut self,
        progress: &mut DeviceProgress,
        addresses: &mut AddressSpace,
        backing: &dyn Backing,
    ) -> Result<(), BackingError> {
        self.cycles.push_back(self.clock);
        if self.cycles.len() <= CYCLES {
            return Ok(());
        }
        let before = self.cycles.pop_front().unwrap_or(0);
        let unused =
            self.windows.iter().filter(|(_, window)| window.blocks == 0 && !window.is_home && window.used_at <= before);
        let unused: Vec<usize> = unused.map(|(index, _)| index).collect();
        for index in unused {
            if self.windows.get(index).chunks.iter().all(|(_, chunk)| self.chunks[*chunk].mapped_at.len() > 1) {
                self.unmap(index, progress, addresses, backing)?;
            }
        }
        Ok(())
    }

    /// Unmaps a window that holds no block, if the device has finished using its addresses. Returns whether it unmapped
    /// the window.
    fn unmap(
        &mut self,
        index: usize,
        progress: &mut DeviceProgress,
        addresses: &mut AddressSpace,
        backing: &dyn Backing,
    ) -> Result<bool, BackingError> {
        let window = self.windows.get_mut(index);
        if !progress.is_finished(&mut window.uses)? {
            return Ok(false);
        }
        backing.unmap(window.first, window.bytes)?;
        let window = self.windows.remove(index);
        for (address, chunk) in window.chunks {
            let Chunk { bytes, free, mapped_at, .. } = &mut self.chunks[chunk];
            let was_home = mapped_at.first().is_some_and(|home| home.address == address);
            mapped_at.retain(|mapping| mapping.address != address);
            match mapped_at.first() {
                Some(home) if was_home => free.iter().for_each(|extent| {
                    self.recorder.record_moved(address + extent.offset, home.address + extent.offset, extent.bytes);
                }),
                Some(_) => {}
                None => self.recorder.record_unmapped(address, *bytes),
            }
        }
        addresses.give_back(window.first, window.owned);
        Ok(true)
    }

    /// Returns the number of mappings in all windows.
    pub(super) fn mappings(&self) -> usize {
        self.chunks.iter().map(|(_, chunk)| chunk.mapped_at.len()).sum()
    }

    /// Records that the bytes of a block are shown at another address from now on: see Note [Where bytes are shown].
    /// `direction` gets a byte's address in its chunk's home and in the block, and returns them as (from, to).
    #[cold]
    fn record_moves(
        &self,
        place: MappedAddress,
        bytes: u64,
        direction: impl Fn(Address, Address) -> (Address, Address),
    ) {
        let starts = self.windows.get(place.window).chunks[place.slot..].iter().map(|(start, _)| *start);
        for (piece, start) in self.pieces(place, bytes).zip(starts) {
            let home = self.chunks[piece.chunk].mapped_at[0].address;
            if home != start {
                let (from, to) = direction(home + piece.offset, start + piece.offset);
                self.recorder.record_moved(from, to, piece.bytes);
            }
        }
    }

    /// Copies a chunk's summary to the windows that are kept up to date. The caller updates their sums once it knows
    /// all changes of a block. Returns whether the chunk is also mapped in windows that are not kept up to date.
    #[inline]
    fn update_windows(&mut self, index: usize, changes: &mut WindowChanges) -> bool {
        let chunk = &self.chunks[index];
        let mut has_others = false;
        for mapping in &chunk.mapped_at {
            if self.windows.is_maintained(mapping.window) {
                self.windows.set_slot(mapping.window, mapping.slot, &chunk.summary, changes);
            } else {
                has_others = true;
            }
        }
        has_others
    }

    /// Removes an unmapped chunk from its window. Splits the window in two, unless the chunk was at one of its ends.
    fn remove_from_window(&mut self, mapping: Mapping, blocks: &[Address], addresses: &mut AddressSpace) {
        let mut left = self.windows.remove(mapping.window);
        let right_chunks = left.chunks.split_off(mapping.slot + 1);
        left.chunks.pop();
        let first = left.first;
        let end = left.end();
        let owned_end = left.first + left.owned;
        let start = right_chunks.first().map_or(owned_end, |(start, _)| *start);
        let blocks_in = |range: std::ops::Range<Address>| {
            blocks.partition_point(|block| *block < range.end) - blocks.partition_point(|block| *block < range.start)
        };
        if !right_chunks.is_empty() {
            let mut right = Window::new(start, owned_end - start);
            (right.chunks, right.blocks, right.is_home) = (right_chunks, blocks_in(start..end), left.is_home);
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
        self.windows.summarize(index, &self.chunks);
    }
}
