use tenure_core::StreamId;

/// A device address, in bytes. Never dereferenced here.
pub type Address = u64;

/// A physical chunk: created and released whole, mapped and unmapped whole, at any number of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// A physical chunk, and where it is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedChunk {
    /// The chunk.
    pub chunk: ChunkId,
    /// Its bytes, all of them.
    pub bytes: u64,
    /// Where its first byte is mapped.
    pub address: Address,
}

/// A point in a stream: everything put on the stream before [`Backing::record`] returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mark {
    /// The stream the point is on.
    pub stream: StreamId,
    /// Grows with every record on the same stream.
    pub sequence: u64,
}

/// Physical memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Not held by anybody.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// Why a backing refused. A failed call changed nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackingError {
    /// Not enough physical memory.
    #[error("{call}: out of device memory: asked for {requested} bytes, {free} are free")]
    OutOfMemory {
        /// The driver call.
        call: &'static str,
        /// Bytes asked for.
        requested: u64,
        /// Bytes the device has free.
        free: u64,
    },
    /// Any other failure of a driver call.
    #[error("{call} failed: {reason}")]
    Failed {
        /// The driver call.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
}

/// What an allocator stands on: physical memory, address space, and the progress of streams.
///
/// Sizes and addresses of chunks and ranges are multiples of [`granularity`](Self::granularity).
/// A call that fails leaves the backing as it was. Calls may come from any thread.
pub trait Backing: Send + Sync {
    /// Smallest physical chunk, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Free and total memory of the device.
    fn memory_info(&self) -> Result<MemoryInfo, BackingError>;

    /// Bytes of the device that this process holds beside what it got here: its context, kernels and libraries. They
    /// count against an allocator's limit. May be a little old.
    fn overhead_bytes(&self) -> u64 {
        0
    }

    /// A physical segment with an address of its own (`cudaMalloc`).
    fn malloc(&self, bytes: u64) -> Result<Address, BackingError>;

    /// Gives back a segment of [`malloc`](Self::malloc). The device may wait for all its streams first.
    fn free(&self, address: Address) -> Result<(), BackingError>;

    /// Address space with no memory under it.
    fn reserve(&self, bytes: u64) -> Result<Address, BackingError>;

    /// Gives back a whole range of [`reserve`](Self::reserve) under which nothing is mapped.
    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// A physical chunk, not mapped anywhere yet.
    fn create(&self, bytes: u64) -> Result<ChunkId, BackingError>;

    /// Gives back a chunk that is mapped nowhere.
    fn release(&self, chunk: ChunkId) -> Result<(), BackingError>;

    /// Maps a whole chunk at `address`, in reserved space where nothing is mapped. It is not accessible yet.
    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), BackingError>;

    /// Makes whole mapped chunks in `address..address + bytes` readable and writable.
    fn set_access(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// Unmaps whole chunks in `address..address + bytes`. Work that uses the addresses must have completed.
    fn unmap(&self, address: Address, bytes: u64) -> Result<(), BackingError>;

    /// A mark after everything put on `stream` so far.
    fn record(&self, stream: StreamId) -> Result<Mark, BackingError>;

    /// Whether the device has passed `mark`. Never waits.
    fn completed(&self, mark: Mark) -> Result<bool, BackingError>;

    /// Makes later work of `stream` wait, on the device, until `mark` is passed. The host does not wait.
    fn wait(&self, stream: StreamId, mark: Mark) -> Result<(), BackingError>;

    /// Blocks the host until `mark` is passed.
    fn synchronize(&self, mark: Mark) -> Result<(), BackingError>;

    /// Blocks the host until everything put on any stream so far is passed. No stream may be captured by this thread.
    fn synchronize_all(&self) -> Result<(), BackingError>;
}
