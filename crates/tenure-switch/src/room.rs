//! A device's memory for weights, in chunks, each of which one model has at a time.
//!
//! A model has addresses for all of its weights for as long as it is known, so that a captured graph stays right; chunks are
//! mapped there when it is brought. What leaves is copied nowhere: its chunk is mapped for the next model at once, and
//! unmapped where it was when there is time, after all that used it.

use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark};
use tenure_core::StreamId;
use tenure_device::memory::DeviceMemory;

use crate::SwitchError;

/// Chunks of a device, and who has them.
pub(crate) struct Room {
    memory: &'static DeviceMemory,
    chunk_bytes: u64,
    /// Chunks that may be made yet.
    unmade: usize,
    /// Chunks that there are, and the most that there were at once.
    made: usize,
    peak: usize,
    free: Vec<Free>,
    stale: Vec<Stale>,
}

/// A chunk that no model has.
pub(crate) struct Free {
    chunk: ChunkId,
    /// Work that may still use it.
    used: Option<Mark>,
}

/// An address at which a chunk is mapped that its model does not have any more.
struct Stale {
    address: Address,
    used: [Option<Mark>; 2],
}

/// Addresses of a model's weights, and the chunks that are there.
pub(crate) struct Window {
    pub(crate) address: Address,
    /// In the order of addresses.
    pub(crate) chunks: Vec<Option<ChunkId>>,
}

impl Room {
    pub(crate) fn new(memory: &'static DeviceMemory, chunk_bytes: u64, budget_bytes: u64) -> Self {
        let unmade = (budget_bytes / chunk_bytes) as usize;
        Self { memory, chunk_bytes, unmade, made: 0, peak: 0, free: Vec::new(), stale: Vec::new() }
    }

    /// Chunks that can be had without evicting anybody.
    pub(crate) fn free_chunks(&self) -> usize {
        self.free.len() + self.unmade
    }

    /// Bytes of the device that chunks take, whether or not a model has them; and the most that they took at once.
    pub(crate) fn taken_bytes(&self) -> (u64, u64) {
        (self.made as u64 * self.chunk_bytes, self.peak as u64 * self.chunk_bytes)
    }

    /// Addresses for so many bytes.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Window, SwitchError> {
        let count = bytes.div_ceil(self.chunk_bytes);
        let address = match count {
            0 => 0,
            _ => self.memory.backing().reserve(count * self.chunk_bytes)?,
        };
        Ok(Window { address, chunks: vec![None; count as usize] })
    }

    /// Takes chunks for empty places of a window, so that nobody else has them. There must be as many.
    pub(crate) fn take(&mut self, window: &Window, slots: &[usize]) -> Result<Vec<Free>, SwitchError> {
        for slot in slots {
            // It was evicted, and is back before its place was cleared.
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
        // Those that were used longest ago: others wait for less.
        Ok(self.free.drain(..slots.len()).collect())
    }

    /// Gives back what was taken, and not mapped.
    pub(crate) fn give_back(&mut self, taken: impl IntoIterator<Item = Free>) {
        self.free.extend(taken);
    }

    /// Takes a window's chunk, if there is one. It was used by what comes before the marks.
    pub(crate) fn empty(&mut self, window: &mut Window, slot: usize, copied: Option<Mark>, used: Option<Mark>) {
        if let Some(chunk) = window.chunks[slot].take() {
            // Copies come one after the other.
            self.free.push(Free { chunk, used });
            self.stale.push(Stale { address: window.place(slot, self.chunk_bytes), used: [copied, used] });
        }
    }

    /// Unmaps what was used last by work that the device has passed.
    pub(crate) fn tidy(&mut self) -> Result<(), SwitchError> {
        for index in (0..self.stale.len()).rev() {
            self.clear(index, false)?;
        }
        Ok(())
    }

    /// Gives back addresses; waits for what uses them.
    pub(crate) fn unreserve(&mut self, window: &Window) -> Result<(), SwitchError> {
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

    /// Gives chunks that no model has back to the device, which can be made again.
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

    /// Unmaps a stale mapping, if the device has passed what uses it, or when it has.
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

impl Drop for Room {
    fn drop(&mut self) {
        // What the driver does not take back it keeps until the process ends.
        let _ = self.trim();
    }
}

impl Window {
    fn place(&self, slot: usize, chunk_bytes: u64) -> Address {
        self.address + slot as u64 * chunk_bytes
    }

    /// Maps a chunk in a place where none is. What `copies` does from now on comes after all that used the chunk.
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
            // The first error is the one to tell.
            let _ = backing.unmap(address, chunk_bytes);
        })?;
        self.chunks[slot] = Some(free.chunk);
        Ok(())
    }
}
