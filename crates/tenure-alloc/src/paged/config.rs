//! Settings, and what follows from them.

use crate::{AllocError, rounding};

/// Every block is a multiple of this.
pub(super) const GRANULE: u64 = rounding::GRANULE;
/// The largest request that lives in a slab.
pub(super) const SMALL_LIMIT: u64 = 1 << 20;
/// Bytes of a slab.
pub(super) const SLAB_BYTES: u64 = 2 << 20;
/// No device has as much.
const MAX_DEVICE_BYTES: u64 = 1 << 46;
/// PyTorch counts devices in a signed byte.
const MAX_DEVICES: u32 = 128;

/// How a [`PagedAllocator`](super::PagedAllocator) behaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The device's number in snapshots.
    pub device: u32,
    /// What may be reserved beyond the most that was ever requested at once: this part of it, but at least
    /// [`slack_bytes`](Self::slack_bytes). Within it new chunks are made before free ones are pieced together.
    pub slack: f64,
    /// See [`slack`](Self::slack), in bytes.
    pub slack_bytes: u64,
    /// The smallest chunk made while the slack lasts, in bytes. Small chunks waste less, large ones cost less.
    pub min_chunk_bytes: u64,
    /// The largest chunk, in bytes.
    pub max_chunk_bytes: u64,
    /// Between the two, a new chunk is this part of what is reserved.
    pub chunk_share: f64,
    /// A new block is made of about so many new chunks at most.
    pub block_chunks: u64,
    /// New chunks are so many times as large while the memory has a limit: there free memory is pieced together whatever it
    /// is made of, and each piece costs time.
    pub limited_coarseness: u64,
    /// Windows that hold no block are unmapped when there are more mappings than this for each chunk.
    pub mappings_per_chunk: usize,
    /// Address space to reserve, in bytes; `None` for 64 times the device's memory, but 1 to 64 TiB.
    pub address_space_bytes: Option<u64>,
}

/// The purpose of new chunks.
#[derive(Clone, Copy)]
pub(super) struct ChunksFor {
    /// For one of many blocks that are placed before one is freed.
    pub(super) in_streak: bool,
    /// For memory that has a limit.
    pub(super) is_limited: bool,
}

impl Default for Config {
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

impl Config {
    /// More and finer chunks than the default's, and less slack. Until a program repeats itself that takes seven to twenty
    /// times the modelled driver time of `cudaMalloc`, at most a third of a second in all on the recorded programs; and
    /// every one stays within 1 % or 64 MiB of what it asks for. For programs that run long, such as PyTorch's.
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
        let invalid = |setting, value: String, expected| Err(AllocError::InvalidSetting { setting, value, expected });
        if !(0.0..=1.0).contains(&self.slack) {
            return invalid("slack", self.slack.to_string(), "it must lie between 0 and 1");
        }
        if !(0.0..=1.0).contains(&self.chunk_share) {
            return invalid("chunk_share", self.chunk_share.to_string(), "it must lie between 0 and 1");
        }
        if self.min_chunk_bytes == 0 || self.min_chunk_bytes > self.max_chunk_bytes {
            let value = self.min_chunk_bytes.to_string();
            return invalid("min_chunk_bytes", value, "it must be more than 0 and at most max_chunk_bytes");
        }
        if self.max_chunk_bytes > MAX_DEVICE_BYTES {
            return invalid("max_chunk_bytes", self.max_chunk_bytes.to_string(), "it must be at most 64 TiB");
        }
        let allowed = SLAB_BYTES..=2 * MAX_DEVICE_BYTES;
        if let Some(bytes) = self.address_space_bytes.filter(|bytes| !allowed.contains(bytes)) {
            return invalid("address_space_bytes", bytes.to_string(), "it must lie between 2 MiB and 128 TiB");
        }
        if self.device >= MAX_DEVICES {
            return invalid("device", self.device.to_string(), "devices are numbered from 0 to 127");
        }
        if self.block_chunks == 0 {
            return invalid("block_chunks", "0".to_owned(), "a block needs at least one chunk");
        }
        if self.limited_coarseness == 0 {
            return invalid("limited_coarseness", "0".to_owned(), "it must be at least 1");
        }
        if self.mappings_per_chunk == 0 {
            return invalid("mappings_per_chunk", "0".to_owned(), "a chunk needs at least one mapping");
        }
        Ok(())
    }

    /// What may be reserved when at most `requested` bytes were ever requested at once.
    pub(super) fn budget(&self, requested: u64) -> u64 {
        requested.saturating_add(((requested as f64 * self.slack) as u64).max(self.slack_bytes))
    }

    /// Bytes of new chunks for a block of `bytes` bytes when so many are reserved. Blocks of a streak live long: fewer
    /// and larger chunks do for them. So they do for a huge block, whose many chunks would cost much.
    pub(super) fn chunk_bytes(&self, bytes: u64, reserved: u64, chunks_for: ChunksFor, granularity: u64) -> u64 {
        let coarseness = if chunks_for.is_limited { self.limited_coarseness } else { 1 };
        let share = ((reserved as f64 * self.chunk_share) as u64).saturating_mul(coarseness);
        let share = share.max(self.min_chunk_bytes);
        let share = if chunks_for.in_streak { 2 * share } else { share };
        let least = share.max((bytes / self.block_chunks).saturating_mul(coarseness));
        least.clamp(self.min_chunk_bytes, self.max_chunk_bytes).next_multiple_of(granularity)
    }
}

/// The bytes of a block for a request, before it is rounded any further.
pub(super) fn round(bytes: u64) -> Result<u64, AllocError> {
    if bytes > rounding::MAX_REQUEST { Err(AllocError::TooLarge(bytes)) } else { Ok(bytes.next_multiple_of(GRANULE)) }
}
