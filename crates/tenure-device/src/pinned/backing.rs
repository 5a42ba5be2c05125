//! The backing of the allocator of a pinned pool: it pins host memory in chunks and cuts segments from them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_alloc::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
use tenure_core::StreamId;

use super::chunk::PinnedChunk;
use crate::{Call, DeviceBacking, Driver, Properties};

/// The size of a huge page, in bytes. The allocator's segments are multiples of it, and so are chunks unless the limit
/// leaves less.
const ROUNDING: u64 = 2 << 20;

/// The most bytes registered at once: half of what a driver refuses.
pub(super) const MAX_CHUNK_BYTES: u64 = 256 << 30;

/// Settings of a pool of pinned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedConfig {
    /// The limit on pinned bytes at one time. With less than 2 MiB, no buffer can be allocated.
    pub limit_bytes: u64,
    /// The size in bytes of a chunk, which is registered at once and which several buffers share. A larger buffer has a
    /// chunk of its own.
    pub chunk_bytes: u64,
    /// The host's NUMA node to take memory from, if it has nodes: the one next to the device.
    pub numa_node: Option<u32>,
}

impl PinnedConfig {
    /// Returns settings with a limit of `limit_bytes` bytes, chunks of 64 MiB, and memory from any node.
    pub fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, chunk_bytes: 64 << 20, numa_node: None }
    }

    /// Takes memory from the node next to a device, if the system tells which one that is.
    pub fn near(self, device: &Properties) -> Self {
        Self { numa_node: device.numa_node, ..self }
    }
}

/// Pinned host memory as an allocator's backing. A segment is cut from the first chunk in which it fits.
pub(super) struct HostBacking {
    driver: Arc<dyn Driver>,
    /// The backing that records marks on the device's streams.
    marks: DeviceBacking,
    config: PinnedConfig,
    chunks: Mutex<PinnedChunks>,
}

/// The pinned chunks, and the bytes in them.
#[derive(Default)]
struct PinnedChunks {
    /// The chunks, by address.
    chunks: BTreeMap<Address, CutChunk>,
    /// The bytes of all chunks.
    pinned: u64,
    /// The most bytes of all chunks at once.
    peak: u64,
}

/// A chunk, and the segments cut from it.
struct CutChunk {
    chunk: PinnedChunk,
    bytes: u64,
    /// The size in bytes of each segment, by offset.
    segments: BTreeMap<u64, u64>,
}

/// The bytes pinned, and their limit and peak.
pub(super) struct PinnedUsage {
    pub(super) limit: u64,
    pub(super) pinned: u64,
    pub(super) peak: u64,
    pub(super) chunks: usize,
}

impl HostBacking {
    pub(super) fn new(driver: Arc<dyn Driver>, config: PinnedConfig) -> Self {
        let marks = DeviceBacking::new(Arc::clone(&driver));
        Self { driver, marks, config, chunks: Mutex::default() }
    }

    pub(super) fn usage(&self) -> PinnedUsage {
        let PinnedChunks { chunks, pinned, peak } = &*self.chunks.lock();
        PinnedUsage { limit: self.config.limit_bytes, pinned: *pinned, peak: *peak, chunks: chunks.len() }
    }

    /// Pins a chunk of the configured size, or of `bytes` if that is larger or if the limit leaves too little for the
    /// configured size.
    fn add_chunk(&self, chunks: &mut PinnedChunks, bytes: u64) -> Result<Address, BackingError> {
        let left = self.config.limit_bytes - chunks.pinned;
        if bytes > left {
            let call = Call::RegisterHost.name();
            return Err(BackingError::OutOfMemory { call, requested: bytes, free: left });
        }
        let whole = bytes.max(self.config.chunk_bytes).next_multiple_of(ROUNDING).min(MAX_CHUNK_BYTES);
        let bytes = if whole <= left { whole } else { bytes };
        let chunk = PinnedChunk::new(Arc::clone(&self.driver), bytes, self.config.numa_node)?;
        let address = chunk.address();
        chunks.chunks.insert(address, CutChunk { chunk, bytes, segments: BTreeMap::new() });
        chunks.pinned += bytes;
        chunks.peak = chunks.peak.max(chunks.pinned);
        Ok(address)
    }
}

impl CutChunk {
    /// Returns the offset of the first gap between segments that has `bytes` bytes.
    fn first_fit(&self, bytes: u64) -> Option<u64> {
        let ends = self.segments.iter().map(|(&offset, &bytes)| offset + bytes);
        let starts = self.segments.keys().copied().chain([self.bytes]);
        let mut gaps = std::iter::once(0).chain(ends).zip(starts);
        gaps.find(|(start, end)| end - start >= bytes).map(|(start, _)| start)
    }
}

impl Backing for HostBacking {
    fn granularity(&self) -> u64 {
        ROUNDING
    }

    /// Returns the figures of the limit, not of the host.
    fn memory_info(&self) -> Result<MemoryInfo, BackingError> {
        let PinnedUsage { limit, pinned, .. } = self.usage();
        Ok(MemoryInfo { free: limit - pinned, total: limit })
    }

    fn malloc(&self, bytes: u64) -> Result<Address, BackingError> {
        let chunks = &mut *self.chunks.lock();
        let found = chunks.chunks.iter().find_map(|(&address, cut)| Some((address, cut.first_fit(bytes)?)));
        let (address, offset) = match found {
            Some(found) => found,
            None => (self.add_chunk(chunks, bytes)?, 0),
        };
        if let Some(cut) = chunks.chunks.get_mut(&address) {
            cut.segments.insert(offset, bytes);
        }
        Ok(address + offset)
    }

    /// Frees a segment, and its chunk with the last segment. Every copy from or to it must have completed.
    fn free(&self, address: Address) -> Result<(), BackingError> {
        let chunks = &mut *self.chunks.lock();
        let cut = chunks.chunks.range_mut(..=address).next_back();
        let Some((start, cut)) = cut.filter(|(start, cut)| cut.segments.contains_key(&(address - **start))) else {
            return Err(refused("free", "no segment begins at this address"));
        };
        let (start, offset) = (*start, address - start);
        if cut.segments.len() == 1 {
            cut.chunk.unpin()?;
            chunks.pinned -= cut.bytes;
            chunks.chunks.remove(&start);
        } else {
            cut.segments.remove(&offset);
        }
        Ok(())
    }

    fn record(&self, stream: StreamId) -> Result<Mark, BackingError> {
        self.marks.record(stream)
    }

    fn completed(&self, mark: Mark) -> Result<bool, BackingError> {
        self.marks.completed(mark)
    }

    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError> {
        self.marks.wait(stream, mark)
    }

    fn synchronize(&self, mark: Mark) -> Result<(), BackingError> {
        self.marks.synchronize(mark)
    }

    fn synchronize_all(&self) -> Result<(), BackingError> {
        self.marks.synchronize_all()
    }

    // Pinned memory keeps its addresses: there are no chunks to map.

    fn reserve(&self, _bytes: u64) -> Result<Address, BackingError> {
        Err(has_no_mappings("reserve"))
    }

    fn unreserve(&self, _address: Address, _bytes: u64) -> Result<(), BackingError> {
        Err(has_no_mappings("unreserve"))
    }

    fn create(&self, _bytes: u64) -> Result<ChunkId, BackingError> {
        Err(has_no_mappings("create"))
    }

    fn release(&self, _chunk: ChunkId) -> Result<(), BackingError> {
        Err(has_no_mappings("release"))
    }

    fn map(&self, _address: Address, _chunk: ChunkId) -> Result<(), BackingError> {
        Err(has_no_mappings("map"))
    }

    fn set_access(&self, _address: Address, _bytes: u64) -> Result<(), BackingError> {
        Err(has_no_mappings("set_access"))
    }

    fn unmap(&self, _address: Address, _bytes: u64) -> Result<(), BackingError> {
        Err(has_no_mappings("unmap"))
    }
}

fn has_no_mappings(call: &'static str) -> BackingError {
    refused(call, "pinned memory is not made of chunks that can be mapped elsewhere")
}

fn refused(call: &'static str, reason: &str) -> BackingError {
    BackingError::Failed { call, reason: reason.to_owned() }
}
