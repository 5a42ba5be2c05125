//! A device's memory for weights, in chunks. One model at a time has each chunk.
//!
//! A registered model keeps addresses for all of its weights, so that a captured graph stays right. Chunks are mapped
//! there when the model is brought. Evicted weights are copied nowhere: their chunk is mapped for the next model at
//! once. The old mapping is removed later, after all work that used it.

use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark};
use tenure_core::StreamId;
use tenure_device::memory::DeviceMemory;

use crate::SwitchError;

/// The chunks of a device, and their owners.
pub(crate) struct ChunkRoom {
    memory: &'static DeviceMemory,
    chunk_bytes: u64,
    /// The number of chunks that may still be created.
    unmade: usize,
    /// The number of chunks that exist, and the most that existed at once.
    made: usize,
    peak: usize,
    free: Vec<Free>,
    stale: Vec<Stale>,
}

/// A chunk that no model has.
pub(crate) struct Free {
    chunk: ChunkId,
    /// The last work that may still use it.
    used: Option<Mark>,
}

/// An address at which a chunk is still mapped that its model no longer has.
struct Stale {
    address: Address,
    used: [Option<Mark>; 2],
}

/// The addresses of a model's weights, and the chunks mapped there.
pub(crate) struct ModelWindow {
    pub(crate) address: Address,
    /// The chunks, in the order of addresses.
    pub(crate) chunks: Vec<Option<ChunkId>>,
}

impl ChunkRoom {
    pub(crate) fn new(memory: &'static DeviceMemory, chunk_bytes: u64, budget_bytes: u64) -> Self {
        let unmade = (budget_bytes / chunk_bytes) as usize;
        Self { memory, chunk_bytes, unmade, made: 0, peak: 0, free: Vec::new(), stale: Vec::new() }
    }

    /// Returns the number of chunks that can be taken without an eviction.
    pub(crate) fn free_chunks(&self) -> usize {
        self.free.len() + self.unmade
    }

    /// Returns the bytes of the device that chunks take, whether or not a model has them, and the most that they took
    /// at once.
    pub(crate) fn taken_bytes(&self) -> (u64, u64) {
        (self.made as u64 * self.chunk_bytes, self.peak as u64 * self.chunk_bytes)
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

    /// Takes chunks for empty places of a window, so that no other model gets them. There must be enough free chunks.
    pub(crate) fn take(&mut self, window: &ModelWindow, slots: &[usize]) -> Result<Vec<Free>, SwitchError> {
        for slot in slots {
            // The chunk was evicted, and its place is needed again before the old mapping is removed.
            let address = window.place(*slot, self.chunk_bytes);
            if let Some(stale) = self.stale.iter().position(|stale| stale.address == address) {
                self.clear(stale, true)?;
            }
        }
        while self.free.len() < slots.len() {
            let chunk = self.memory.backing().create(self.chunk_bytes)?;
            self.unmade -= 1;
            self.made += 1;
            self.peak = self.peak.max(self.made);
            self.free.push(Free { chunk, used: None });
        }
        // The chunks that were used longest ago: the copies wait less for them.
        Ok(self.free.drain(..slots.len()).collect())
    }

    /// Gives back chunks that were taken, and not mapped.
    pub(crate) fn give_back(&mut self, taken: impl IntoIterator<Item = Free>) {
        self.free.extend(taken);
    }

    /// Takes a window's chunk away, if there is one. Work up to the marks used it.
    pub(crate) fn empty(&mut self, window: &mut ModelWindow, slot: usize, copied: Option<Mark>, used: Option<Mark>) {
        if let Some(chunk) = window.chunks[slot].take() {
            // Copies run one after the other, so they need no mark here.
            self.free.push(Free { chunk, used });
            self.stale.push(Stale { address: window.place(slot, self.chunk_bytes), used: [copied, used] });
        }
    }

    /// Removes old mappings whose last use the device has passed.
    pub(crate) fn tidy(&mut self) -> Result<(), SwitchError> {
        for index in (0..self.stale.len()).rev() {
            self.clear(index, false)?;
        }
        Ok(())
    }

    /// Gives back addresses, after a wait for the work that uses them.
    pub(crate) fn unreserve(&mut self, window: &ModelWindow) -> Result<(), SwitchError> {
        let bytes = window.chunks.len() as u64 * self.chunk_bytes;
        let range = window.address..window.address + bytes;
        while let Some(index) = self.stale.iter().position(|stale| range.contains(&stale.address)) {
            self.clear(index, true)?;
        }
        if bytes > 0 {
            self.memory.backing().unreserve(window.address, bytes)?;
        }
        Ok(())
    }

    /// Gives unused chunks back to the device. They can be created again.
    pub(crate) fn trim(&mut self) -> Result<(), SwitchError> {
        while let Some(index) = self.stale.len().checked_sub(1) {
            self.clear(index, true)?;
        }
        while let Some(free) = self.free.pop() {
            if let Err(error) = self.memory.backing().release(free.chunk) {
                self.free.push(free);
                return Err(error.into());
            }
            self.unmade += 1;
            self.made -= 1;
        }
        Ok(())
    }

    /// Removes an old mapping if the device has passed the work that uses it; if `waits` is set, waits for that.
    fn clear(&mut self, index: usize, waits: bool) -> Result<(), SwitchError> {
        let backing = self.memory.backing();
        for mark in self.stale[index].used.into_iter().flatten() {
            if waits {
                backing.synchronize(mark)?;
            } else if !backing.completed(mark)? {
                return Ok(());
            }
        }
        backing.unmap(self.stale[index].address, self.chunk_bytes)?;
        self.stale.swap_remove(index);
        Ok(())
    }
}

impl Drop for ChunkRoom {
    fn drop(&mut self) {
        // Chunks that the driver does not take back stay until the process ends.
        let _ = self.trim();
    }
}

impl ModelWindow {
    fn place(&self, slot: usize, chunk_bytes: u64) -> Address {
        self.address + slot as u64 * chunk_bytes
    }

    /// Maps a chunk in an empty place. Later work of `copies` runs after all work that used the chunk.
    pub(crate) fn map(
        &mut self,
        slot: usize,
        free: &Free,
        chunk_bytes: u64,
        backing: &impl Backing,
        copies: StreamId,
    ) -> Result<(), BackingError> {
        let address = self.place(slot, chunk_bytes);
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
