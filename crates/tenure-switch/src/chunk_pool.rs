//! A pool of chunks: a device's memory for weights. One model at a time has each chunk.
//!
//! A registered model keeps addresses for all of its weights, so that a captured graph stays right. Chunks are mapped
//! there when the model is loaded. Evicted weights are copied nowhere: their chunk is mapped for the next model at
//! once. The old mapping is removed later, after all work that used it.

use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark};
use tenure_core::StreamId;
use tenure_device::memory::DeviceMemory;

use crate::SwitchError;

/// The chunks of a device that no model has, and the mappings that are still to be removed.
pub(crate) struct ChunkPool {
    memory: &'static DeviceMemory,
    chunk_bytes: u64,
    /// The number of chunks that may still be created.
    creatable: usize,
    /// The number of chunks that exist, with or without a model.
    created: usize,
    /// The most chunks that existed at once.
    peak: usize,
    free: Vec<FreeChunk>,
    old: Vec<OldMapping>,
}

/// A chunk that no model has.
pub(crate) struct FreeChunk {
    chunk: ChunkId,
    /// The last work that may still use it.
    used: Option<Mark>,
}

/// An address at which a chunk is still mapped that its model no longer has.
struct OldMapping {
    address: Address,
    used: [Option<Mark>; 2],
}

/// The addresses of a model's weights, and the chunks mapped there.
pub(crate) struct ModelWindow {
    pub(crate) address: Address,
    /// The chunk of each slot, in the order of addresses; `None` while that part of the weights is not on the device.
    pub(crate) chunks: Vec<Option<ChunkId>>,
}

impl ChunkPool {
    pub(crate) fn new(memory: &'static DeviceMemory, chunk_bytes: u64, budget_bytes: u64) -> Self {
        let creatable = (budget_bytes / chunk_bytes) as usize;
        Self { memory, chunk_bytes, creatable, created: 0, peak: 0, free: Vec::new(), old: Vec::new() }
    }

    /// Returns the number of chunks that can be taken without an eviction.
    pub(crate) fn free_chunks(&self) -> usize {
        self.free.len() + self.creatable
    }

    /// Returns the bytes of the device that chunks take, whether or not a model has them, and the most that they took
    /// at once.
    pub(crate) fn taken_bytes(&self) -> (u64, u64) {
        (self.created as u64 * self.chunk_bytes, self.peak as u64 * self.chunk_bytes)
    }

    /// Reserves addresses for `bytes` bytes.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<ModelWindow, SwitchError> {
        let count = bytes.div_ceil(self.chunk_bytes);
        let address = match count {
            0 => 0,
            _ => self.memory.backing().reserve(count * self.chunk_bytes)?,
        };
        Ok(ModelWindow { address, chunks: vec![None; count as usize] })
    }

    /// Takes a free chunk for each of a window's slots, which must be empty. There must be enough free chunks.
    pub(crate) fn take(&mut self, window: &ModelWindow, slots: &[usize]) -> Result<Vec<FreeChunk>, SwitchError> {
        for slot in slots {
            // The slot's chunk was evicted, and the slot is needed again before the old mapping is removed.
            let address = window.address_of(*slot, self.chunk_bytes);
            if let Some(old) = self.old.iter().position(|old| old.address == address) {
                self.clear(old, true)?;
            }
        }
        while self.free.len() < slots.len() {
            let chunk = self.memory.backing().create(self.chunk_bytes)?;
            self.creatable -= 1;
            self.created += 1;
            self.peak = self.peak.max(self.created);
            self.free.push(FreeChunk { chunk, used: None });
        }
        // The first ones were used longest ago, so copies wait less for them.
        Ok(self.free.drain(..slots.len()).collect())
    }

    /// Gives back chunks that were taken, and not mapped.
    pub(crate) fn give_back(&mut self, taken: impl IntoIterator<Item = FreeChunk>) {
        self.free.extend(taken);
    }

    /// Makes the chunk of a window's slot free, if it has one. Its memory is used by work up to the marks: `copied`
    /// after the last copies to it, `used` after the last computation.
    pub(crate) fn release(&mut self, window: &mut ModelWindow, slot: usize, copied: Option<Mark>, used: Option<Mark>) {
        if let Some(chunk) = window.chunks[slot].take() {
            // Copies run one after the other, so they need no mark here.
            self.free.push(FreeChunk { chunk, used });
            self.old.push(OldMapping { address: window.address_of(slot, self.chunk_bytes), used: [copied, used] });
        }
    }

    /// Removes old mappings whose last use the device has passed.
    pub(crate) fn tidy(&mut self) -> Result<(), SwitchError> {
        for index in (0..self.old.len()).rev() {
            self.clear(index, false)?;
        }
        Ok(())
    }

    /// Gives back addresses, after a wait for the work that uses them.
    pub(crate) fn unreserve(&mut self, window: &ModelWindow) -> Result<(), SwitchError> {
        let bytes = window.chunks.len() as u64 * self.chunk_bytes;
        let range = window.address..window.address + bytes;
        while let Some(index) = self.old.iter().position(|old| range.contains(&old.address)) {
            self.clear(index, true)?;
        }
        if bytes > 0 {
            self.memory.backing().unreserve(window.address, bytes)?;
        }
        Ok(())
    }

    /// Gives unused chunks back to the device. They can be created again.
    pub(crate) fn trim(&mut self) -> Result<(), SwitchError> {
        while let Some(index) = self.old.len().checked_sub(1) {
            self.clear(index, true)?;
        }
        while let Some(free) = self.free.pop() {
            if let Err(error) = self.memory.backing().release(free.chunk) {
                self.free.push(free);
                return Err(error.into());
            }
            self.creatable += 1;
            self.created -= 1;
        }
        Ok(())
    }

    /// Removes an old mapping if the device has passed the work that uses it; if `waits` is set, waits for that.
    fn clear(&mut self, index: usize, waits: bool) -> Result<(), SwitchError> {
        let backing = self.memory.backing();
        for mark in self.old[index].used.into_iter().flatten() {
            if waits {
                backing.synchronize(mark)?;
            } else if !backing.completed(mark)? {
                return Ok(());
            }
        }
        backing.unmap(self.old[index].address, self.chunk_bytes)?;
        self.old.swap_remove(index);
        Ok(())
    }
}

impl Drop for ChunkPool {
    fn drop(&mut self) {
        // Chunks that the driver does not take back stay until the process ends.
        let _ = self.trim();
    }
}

impl ModelWindow {
    /// Returns the address of a slot.
    fn address_of(&self, slot: usize, chunk_bytes: u64) -> Address {
        self.address + slot as u64 * chunk_bytes
    }

    /// Maps a chunk in an empty slot. Later work of `copies` runs after all work that used the chunk.
    pub(crate) fn map(
        &mut self,
        slot: usize,
        free: &FreeChunk,
        chunk_bytes: u64,
        backing: &impl Backing,
        copies: StreamId,
    ) -> Result<(), BackingError> {
        let address = self.address_of(slot, chunk_bytes);
        if let Some(used) = free.used {
            backing.wait(copies, used)?;
        }
        backing.map(address, free.chunk)?;
        backing.set_access(address, chunk_bytes).inspect_err(|_| {
            // The caller needs the first error.
            let _ = backing.unmap(address, chunk_bytes);
        })?;
        self.chunks[slot] = Some(free.chunk);
        Ok(())
    }
}
