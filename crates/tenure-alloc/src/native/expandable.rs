//! Expandable segments: reserved ranges larger than the device, with chunks mapped where blocks need them.
//!
//! A segment's blocks are free, unmapped or in use. Where a free block and an unmapped one lie side by side, the free
//! one grows as chunks are mapped. Physical memory goes back chunk by chunk, whatever else lives in the segment.

use std::ops::Range;

use crate::{Address, Backing, BackingError, ChunkId};

/// A reserved range, divided into slots of one chunk each.
#[derive(Debug)]
pub(super) struct ExpandableSegment {
    pub(super) base: Address,
    pub(super) bytes: u64,
    pub(super) chunk_bytes: u64,
    /// The slots; those beyond the end of this list are vacant.
    pub(super) slots: Vec<Slot>,
    /// The number of chunks held.
    held: u64,
}

/// The chunk in one slot. Under a mapped block every slot is mapped and accessible. Under an unmapped block, a chunk
/// may remain from a failed call that could not be undone; it is used first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// No chunk.
    Vacant,
    /// A chunk that is not mapped.
    Created(ChunkId),
    /// A mapped chunk.
    Mapped(ChunkId),
}

impl ExpandableSegment {
    /// Reserves the address space of a segment.
    pub(super) fn reserve(backing: &dyn Backing, device_bytes: u64, chunk_bytes: u64) -> Result<Self, BackingError> {
        // The range is an eighth larger than the device, so that chunks unmapped early on can be mapped at the end.
        let bytes = (device_bytes + device_bytes / 8).next_multiple_of(chunk_bytes);
        let base = backing.reserve(bytes)?;
        Ok(Self { base, bytes, chunk_bytes, slots: Vec::new(), held: 0 })
    }

    /// Returns the bytes of the chunks held.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held * self.chunk_bytes
    }

    /// Returns the slots of a range of whole chunks.
    pub(super) fn slots_of(&self, address: Address, bytes: u64) -> Range<usize> {
        let first = (address - self.base) / self.chunk_bytes;
        first as usize..(first + bytes / self.chunk_bytes) as usize
    }

    /// Returns the first address of a slot.
    pub(super) fn address_of(&self, slot: usize) -> Address {
        self.base + slot as u64 * self.chunk_bytes
    }

    /// Returns the slots of the whole chunks inside a range.
    pub(super) fn whole_chunks(&self, address: Address, bytes: u64) -> Range<usize> {
        let first = (address - self.base).div_ceil(self.chunk_bytes);
        let end = (address + bytes - self.base) / self.chunk_bytes;
        first as usize..end.max(first) as usize
    }

    /// Puts chunks under `slots` and makes them accessible. On failure, removes as many of them again as it can.
    pub(super) fn map(&mut self, backing: &dyn Backing, slots: Range<usize>) -> Result<(), BackingError> {
        if self.slots.len() < slots.end {
            self.slots.resize(slots.end, Slot::Vacant);
        }
        let mapped = self.try_map(backing, slots.clone());
        if mapped.is_err() {
            // A chunk that cannot be removed stays in its slot, counted as held, for the next call.
            let _ = slots.into_iter().try_for_each(|slot| self.release_slot(backing, slot));
        }
        mapped
    }

    /// Does the work of [`map`](Self::map), without the cleanup after a failure.
    fn try_map(&mut self, backing: &dyn Backing, slots: Range<usize>) -> Result<(), BackingError> {
        for slot in slots.clone() {
            if self.slots[slot] == Slot::Vacant {
                self.slots[slot] = Slot::Created(backing.create(self.chunk_bytes)?);
                self.held += 1;
            }
        }
        for slot in slots.clone() {
            if let Slot::Created(chunk) = self.slots[slot] {
                backing.map(self.address_of(slot), chunk)?;
                self.slots[slot] = Slot::Mapped(chunk);
            }
        }
        backing.set_access(self.address_of(slots.start), slots.len() as u64 * self.chunk_bytes)
    }

    /// Unmaps and releases the chunk under `slot`, if there is one.
    pub(super) fn release_slot(&mut self, backing: &dyn Backing, slot: usize) -> Result<(), BackingError> {
        if let Some(&Slot::Mapped(chunk)) = self.slots.get(slot) {
            backing.unmap(self.address_of(slot), self.chunk_bytes)?;
            self.slots[slot] = Slot::Created(chunk);
        }
        if let Some(&Slot::Created(chunk)) = self.slots.get(slot) {
            backing.release(chunk)?;
            self.slots[slot] = Slot::Vacant;
            self.held -= 1;
        }
        Ok(())
    }

    /// Counts the slots at the start of `slots` that are not mapped any more.
    pub(super) fn unmapped_prefix(&self, slots: Range<usize>) -> usize {
        slots.take_while(|&slot| !matches!(self.slots[slot], Slot::Mapped(_))).count()
    }
}
