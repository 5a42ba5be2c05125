//! Settings, and the sizes that follow from them.

use crate::{AllocError, rounding};

/// The granule in bytes: every block is a multiple of it.
pub(super) const GRANULE: u64 = rounding::GRANULE;
/// The largest request that is placed in a slab, in bytes.
pub(super) const SMALL_LIMIT: u64 = 1 << 20;
/// The size of a slab in bytes.
pub(super) const SLAB_BYTES: u64 = 2 << 20;
/// A bound in bytes on the memory of any device.
const MAX_DEVICE_BYTES: u64 = 1 << 46;
/// The bound on the number of devices: PyTorch counts them in a signed byte.
const MAX_DEVICES: u32 = 128;

/// Settings of a [`PagedAllocator`](super::PagedAllocator).
#[derive(Clone, Debug, PartialEq)]
pub struct PagedConfig {
    /// The device's number in snapshots.
    pub device: u32,
    /// The memory that may be reserved beyond the most bytes that were ever requested at once, as a fraction of these,
    /// but at least [`slack_bytes`](Self::slack_bytes). Within this slack, new chunks are made before free ones are
    /// pieced together.
    pub slack: f64,
    /// The least slack, in bytes: see [`slack`](Self::slack).
    pub slack_bytes: u64,
    /// The smallest chunk made while the slack lasts, in bytes. Small chunks waste less, large ones cost less.
    pub min_chunk_bytes: u64,
    /// The largest chunk, in bytes.
    pub max_chunk_bytes: u64,
    /// The size of a new chunk as a fraction of the reserved bytes, between the two bounds.
    pub chunk_share: f64,
    /// The most new chunks of which a block is made, about: larger blocks get larger chunks, up to `max_chunk_bytes`.
    pub block_chunks: u64,
    /// The factor by which new chunks are larger while memory has a limit. Near a limit, free memory is pieced together
    /// from chunks of any size, and each piece costs time.
    pub limited_coarseness: u64,
    /// The number of mappings for each chunk beyond which windows that hold no block are unmapped.
    pub mappings_per_chunk: usize,
    /// The address space to reserve, in bytes; `None` for 64 times the device's memory, but at least 1 and at most 64
    /// TiB.
    pub address_space_bytes: Option<u64>,
}

/// The circumstances that decide how large new chunks are.
#[derive(Clone, Copy)]
pub(super) struct ChunksFor {
    /// Whether they are for one of many blocks that are placed before any is freed.
    pub(super) in_streak: bool,
    /// Whether the memory has a limit.
    pub(super) is_limited: bool,
}

impl Default for PagedConfig {
    fn default() -> Self {
        Self {
            device: 0,
            slack: 0.009,
            slack_bytes: 62 << 20,
            min_chunk_bytes: 11 << 20,
            max_chunk_bytes: 64 << 20,
            chunk_share: 1.0 / 400.0,
            block_chunks: 48,
            limited_coarseness: 1,
            mappings_per_chunk: 16,
            address_space_bytes: None,
        }
    }
}

impl PagedConfig {
    /// Returns settings with more and finer chunks than the default's, and less slack. Until a program repeats itself,
    /// they take seven to twenty times the modelled driver time of `cudaMalloc`, at most a third of a second in all on
    /// the recorded programs. Every recorded program stays within 1 % or 64 MiB of the bytes it requests. For programs
    /// that run long, such as PyTorch's.
    pub fn fine() -> Self {
        Self {
            slack: 0.006,
            slack_bytes: 56 << 20,
            min_chunk_bytes: 2 << 20,
            chunk_share: 1.0 / 2560.0,
            block_chunks: 192,
            limited_coarseness: 4,
            ..Self::default()
        }
    }

    pub(super) fn validate(&self) -> Result<(), AllocError> {
        if !(0.0..=1.0).contains(&self.slack) {
            return Err(AllocError::invalid("slack", self.slack, "it must lie between 0 and 1"));
        }
        if !(0.0..=1.0).contains(&self.chunk_share) {
            return Err(AllocError::invalid("chunk_share", self.chunk_share, "it must lie between 0 and 1"));
        }
        if self.min_chunk_bytes == 0 || self.min_chunk_bytes > self.max_chunk_bytes {
            let expected = "it must be more than 0 and at most max_chunk_bytes";
            return Err(AllocError::invalid("min_chunk_bytes", self.min_chunk_bytes, expected));
        }
        if self.max_chunk_bytes > MAX_DEVICE_BYTES {
            return Err(AllocError::invalid("max_chunk_bytes", self.max_chunk_bytes, "it must be at most 64 TiB"));
        }
        let allowed = SLAB_BYTES..=2 * MAX_DEVICE_BYTES;
        if let Some(bytes) = self.address_space_bytes.filter(|bytes| !allowed.contains(bytes)) {
            return Err(AllocError::invalid("address_space_bytes", bytes, "it must lie between 2 MiB and 128 TiB"));
        }
        if self.device >= MAX_DEVICES {
            return Err(AllocError::invalid("device", self.device, "devices are numbered from 0 to 127"));
        }
        if self.block_chunks == 0 {
            return Err(AllocError::invalid("block_chunks", 0, "a block needs at least one chunk"));
        }
        if self.limited_coarseness == 0 {
            return Err(AllocError::invalid("limited_coarseness", 0, "it must be at least 1"));
        }
        if self.mappings_per_chunk == 0 {
            return Err(AllocError::invalid("mappings_per_chunk", 0, "a chunk needs at least one mapping"));
        }
        Ok(())
    }

    /// Returns the bytes that may be reserved when at most `requested` bytes were ever requested at once.
    pub(super) fn budget(&self, requested: u64) -> u64 {
        requested.saturating_add(((requested as f64 * self.slack) as u64).max(self.slack_bytes))
    }

    /// Returns the bytes of new chunks for a block of `bytes` bytes, when `reserved` bytes are reserved. Blocks of a
    /// streak live long, so fewer and larger chunks suffice for them. A huge block also gets larger chunks, because
    /// many small ones would cost much time.
    pub(super) fn chunk_bytes(&self, bytes: u64, reserved: u64, chunks_for: ChunksFor, granularity: u64) -> u64 {
        let coarseness = if chunks_for.is_limited { self.limited_coarseness } else { 1 };
        let share = ((reserved as f64 * self.chunk_share) as u64).saturating_mul(coarseness);
        let share = share.max(self.min_chunk_bytes);
        let share = if chunks_for.in_streak { 2 * share } else { share };
        let least = share.max((bytes / self.block_chunks).saturating_mul(coarseness));
        least.clamp(self.min_chunk_bytes, self.max_chunk_bytes).next_multiple_of(granularity)
    }
}

/// Returns the bytes of a block for a request, before any further rounding.
pub(super) fn round(bytes: u64) -> Result<u64, AllocError> {
    if bytes > rounding::MAX_REQUEST { Err(AllocError::TooLarge(bytes)) } else { Ok(bytes.next_multiple_of(GRANULE)) }
}
