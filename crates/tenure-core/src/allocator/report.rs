use crate::Device;

/// Told of every allocation and free of an allocator. c10's `MemoryReportingInfoBase`.
///
/// Called on the thread that allocates or frees, with no lock held. A reporter may allocate.
pub trait MemoryReporter: Send + Sync {
    /// Memory was given or taken back.
    fn memory_use(&self, event: &MemoryUse);

    /// A request was refused.
    fn out_of_memory(&self, event: &OutOfMemory);
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// Address of the first byte; only a name after a free.
    pub address: usize,
    /// Bytes given, or taken back if negative.
    pub bytes: isize,
    /// Bytes in live allocations, this one counted.
    pub total_allocated: usize,
    /// Bytes the allocator holds from the system. For one that caches nothing, the same as `total_allocated`.
    pub total_reserved: usize,
    /// Where.
    pub device: Device,
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub bytes: usize,
    /// Bytes in live allocations.
    pub total_allocated: usize,
    /// Bytes the allocator holds from the system.
    pub total_reserved: usize,
    /// Where.
    pub device: Device,
}
