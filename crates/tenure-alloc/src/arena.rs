//! [`Arena`]: an allocator of addresses that fills a range from both ends.

use std::collections::BTreeMap;

use crate::{Address, AllocError, Block};

/// A range of memory that is filled from both ends: FlashNeuron's memory manager (`FN_memory`, FAST'21).
///
/// Long-lived blocks go to the low end and short-lived blocks to the high end. Neither kind leaves holes among the
/// other, and the room between them stays in one piece. The arena only keeps account of addresses: it touches no memory
/// and knows no stream, so its owner must not reuse a freed block before the work on it is ordered.
#[derive(Debug)]
pub struct Arena {
    base: Address,
    block_bytes: u64,
    /// The number of blocks of `block_bytes` bytes. The fields below also count in blocks.
    blocks: u64,
    free_blocks: u64,
    /// Runs of free blocks: first block and length. No two runs touch.
    free: BTreeMap<u64, u64>,
    /// Allocated runs at the low end: first block and length.
    low: BTreeMap<u64, u64>,
    /// Allocated runs at the high end.
    high: BTreeMap<u64, u64>,
    /// The block at which the next search from the low end begins.
    cursor: u64,
}

impl Arena {
    /// FlashNeuron's block, in bytes.
    pub const BLOCK_BYTES: u64 = 4096;

    /// Makes an empty arena over `base..base + bytes`, in blocks of [`BLOCK_BYTES`](Self::BLOCK_BYTES). A last piece
    /// that is shorter than a block is not used.
    pub fn new(base: Address, bytes: u64) -> Self {
        Self::with_checked_blocks(base, bytes, Self::BLOCK_BYTES)
    }

    /// Makes an empty arena over `base..base + bytes`, in blocks of `block_bytes`.
    ///
    /// # Errors
    /// [`AllocError::InvalidSetting`] if `block_bytes` is zero.
    pub fn with_block_bytes(base: Address, bytes: u64, block_bytes: u64) -> Result<Self, AllocError> {
        if block_bytes == 0 {
            return Err(AllocError::invalid("block_bytes", 0, "a block must have at least one byte"));
        }
        Ok(Self::with_checked_blocks(base, bytes, block_bytes))
    }

    /// Makes an empty arena; `block_bytes` is not zero.
    fn with_checked_blocks(base: Address, bytes: u64, block_bytes: u64) -> Self {
        let blocks = bytes / block_bytes;
        let free = if blocks == 0 { BTreeMap::new() } else { BTreeMap::from([(0, blocks)]) };
        let low = BTreeMap::new();
        let high = BTreeMap::new();
        Self { base, block_bytes, blocks, free_blocks: blocks, free, low, high, cursor: 0 }
    }

    /// Allocates a block of at least `bytes` bytes at the low end, or returns `None` if no free run is as long
    /// (`device_malloc`). Zero bytes get address 0 and no memory.
    ///
    /// The search is next fit. It goes up from the end of the last low block, or from a lower one that was freed since,
    /// to the first high block, then up from the bottom. Only if there is no room below the high end does it search the
    /// holes within that end, upward.
    pub fn allocate_low(&mut self, bytes: u64) -> Option<Block> {
        let length = bytes.div_ceil(self.block_bytes);
        if length == 0 {
            return Some(Block { address: 0, bytes: 0 });
        }
        let limit = self.high.first_key_value().map_or(self.blocks, |(&first, _)| first);
        let first = self
            .first_fit(self.cursor, limit, length)
            .or_else(|| self.first_fit(0, limit, length))
            .or_else(|| self.first_fit(limit, self.blocks, length))?;
        self.take(first, length);
        self.low.insert(first, length);
        self.cursor = first + length;
        Some(self.block(first, length))
    }

    /// Allocates a block of at least `bytes` bytes at the high end, at the highest place where it fits, or returns
    /// `None` if no free run is as long (`device_malloc_reverse`). Zero bytes get address 0 and no memory.
    pub fn allocate_high(&mut self, bytes: u64) -> Option<Block> {
        let length = bytes.div_ceil(self.block_bytes);
        if length == 0 {
            return Some(Block { address: 0, bytes: 0 });
        }
        let (&run, &free) = self.free.iter().rfind(|&(_, &free)| length <= free)?;
        let first = run + free - length;
        self.take(first, length);
        self.high.insert(first, length);
        Some(self.block(first, length))
    }

    /// Frees the block at `address`, at either end (`device_free`). Address 0 of an empty block is ignored.
    ///
    /// # Errors
    /// [`AllocError::UnknownAddress`] if no live block starts at `address`.
    pub fn free(&mut self, address: Address) -> Result<(), AllocError> {
        let first = address.checked_sub(self.base).filter(|offset| offset.is_multiple_of(self.block_bytes));
        let first = first.map(|offset| offset / self.block_bytes);
        let freed_low = first.and_then(|first| self.low.remove_entry(&first));
        let freed = freed_low.or_else(|| first.and_then(|first| self.high.remove_entry(&first)));
        let Some((first, length)) = freed else {
            return if address == 0 { Ok(()) } else { Err(AllocError::UnknownAddress(address)) };
        };
        if freed_low.is_some() {
            self.cursor = self.cursor.min(first);
        }
        self.give_back(first, length);
        Ok(())
    }

    /// Returns the bytes of the arena, in whole blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks * self.block_bytes
    }

    /// Returns the free bytes, in however many pieces (`device_occupancy_size`).
    pub fn free_bytes(&self) -> u64 {
        self.free_blocks * self.block_bytes
    }

    /// Returns the bytes of the longest free run: the largest request that can be met.
    pub fn largest_free_bytes(&self) -> u64 {
        self.free.values().max().map_or(0, |blocks| blocks * self.block_bytes)
    }

    /// Returns the free fraction, 0 to 1 (`device_occupancy`, whose name says the opposite). An empty arena has 0.
    pub fn free_fraction(&self) -> f64 {
        self.free_fraction_after(0)
    }

    /// Returns the fraction that would be free with `bytes` more allocated (`device_occupancy_future`). It is negative
    /// if `bytes` exceeds the free bytes.
    pub fn free_fraction_after(&self, bytes: u64) -> f64 {
        let blocks = bytes.div_ceil(self.block_bytes);
        (self.free_blocks as f64 - blocks as f64) / self.blocks.max(1) as f64
    }

    /// Returns the lowest block in `from..limit` from which `length` blocks below `limit` are free.
    fn first_fit(&self, from: u64, limit: u64, length: u64) -> Option<u64> {
        let around = self.free.range(..from).next_back();
        let runs = around.into_iter().chain(self.free.range(from..));
        let mut fits = runs.map(|(&run, &free)| (run.max(from), limit.min(run + free)));
        fits.find(|&(first, end)| first.checked_add(length).is_some_and(|taken| taken <= end)).map(|(first, _)| first)
    }

    /// Takes blocks out of the free run around them.
    fn take(&mut self, first: u64, length: u64) {
        let (&run, &free) = self.free.range(..=first).next_back().expect("a free run around the blocks");
        self.free.remove(&run);
        if run < first {
            self.free.insert(run, first - run);
        }
        let end = first + length;
        if end < run + free {
            self.free.insert(end, run + free - end);
        }
        self.free_blocks -= length;
    }

    /// Makes blocks free, in one run with the free blocks beside them.
    fn give_back(&mut self, first: u64, length: u64) {
        self.free_blocks += length;
        let after = self.free.remove(&(first + length)).unwrap_or(0);
        let before = self.free.range_mut(..first).next_back().filter(|(run, free)| **run + **free == first);
        match before {
            Some((_, free)) => *free += length + after,
            None => {
                self.free.insert(first, length + after);
            }
        }
    }

    fn block(&self, first: u64, length: u64) -> Block {
        Block { address: self.base + first * self.block_bytes, bytes: length * self.block_bytes }
    }
}
