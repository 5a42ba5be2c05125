//! [`Backing`]: the interface between allocators and a device.

use tenure_core::StreamId;

/// A device address, in bytes. This crate never dereferences it.
pub type Address = u64;

/// A physical chunk. It is created, released, mapped and unmapped as a whole, and may be mapped at any number of
/// addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// A physical chunk and the address where it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// The size of the whole chunk, in bytes.
    pub bytes: u64,
    /// The address where its first byte is mapped.
    pub address: Address,
}

/// A point in a stream: all work that was put on the stream before [`Backing::record`] returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// The stream that the point is on.
    pub stream: StreamId,
    /// The number of the mark; it grows with every record on the same stream.
    pub sequence: u64,
}

/// The physical memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that no process holds.
    pub free: u64,
    /// Bytes in all.
    pub total: u64,
}

/// The reason for which a backing refused. A failed call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// There is not enough physical memory.
    #[error("{call}: out of device memory: asked for {requested} bytes, {free} are free")]
    OutOfMemory {
        /// The driver call.
        call: &'static str,
        /// Bytes requested.
        requested: u64,
        /// Bytes the device has free.
        free: u64,
    },
    /// Any other failure of a driver call.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The driver call.
        call: &'static str,
        /// The driver's message.
        reason: String,
    },
}

/// The device as an allocator uses it: physical memory, address space, and the progress of streams.
///
/// Sizes and addresses of chunks and ranges are multiples of [`granularity`](Self::granularity). A call that fails
/// leaves the backing as it was. Calls may come from any thread.
pub trait Backing: Send + Sync {
    /// Returns the size of the smallest physical chunk, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Returns the free and total memory of the device.
    fn memory_info(&self) -> Result<MemoryInfo, BackingError>;

    /// Returns the bytes of the device that this process holds beside the memory it got here: its context, kernels and
    /// libraries. They count against an allocator's limit. The number may be a little old.
    fn overhead_bytes(&self) -> u64 {
        0
    }

    /// Allocates a physical segment with an address of its own (`cudaMalloc`).
    fn malloc(&self, bytes: u64) -> Result<Address, BackingError>;

    /// Gives back a segment of [`malloc`](Self::malloc). The device may wait for all its streams first.
    fn free(&self, address: Address) -> Result<(), BackingError>;

    /// Reserves address space with no memory under it.
    fn reserve(&self, bytes: u64) -> Result<Address, BackingError>;

    /// Gives back a whole range of [`reserve`](Self::reserve) under which nothing is mapped.
    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// Creates a physical chunk that is not mapped anywhere yet.
    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError>;

    /// Gives back a chunk that is not mapped anywhere.
    fn release(&self, chunk: ChunkId) -> Result<(), BackingError>;

    /// Maps a whole chunk at `address`, in reserved space where nothing is mapped. It is not accessible yet.
    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError>;

    /// Makes whole mapped chunks in `address..address + bytes` readable and writable.
    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// Unmaps whole chunks in `address..address + bytes`. Work that uses the addresses must have completed.
    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// Records a mark after everything put on `stream` so far.
    fn record(&self, stream: StreamId) -> Result<Mark, BackingError>;

    /// Returns whether the device has passed `mark`. Never waits.
    fn completed(&self, mark: Mark) -> Result<bool, BackingError>;

    /// Makes later work of `stream` wait, on the device, until `mark` is passed. The host does not wait.
    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError>;

    /// Blocks the host until `mark` is passed.
    fn synchronize(&self, mark: Mark) -> Result<(), BackingError>;

    /// Blocks the host until everything put on any stream so far is done. This thread must not be capturing a stream.
    fn synchronize_all(&self) -> Result<(), BackingError>;
}
