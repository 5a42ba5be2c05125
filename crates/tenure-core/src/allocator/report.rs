//! Reports of an allocator's allocations, frees and refused requests.

use crate::Device;

/// A receiver of every allocation and free of an allocator. c10's `MemoryReportingInfoBase`.
///
/// The allocator calls it on the thread that allocates or frees, with no lock held. A reporter may allocate.
pub trait MemoryReporter: Send + Sync {
    /// Reports that memory was allocated or freed.
    fn memory_use(&self, event: &MemoryUse);

    /// Reports that a request was refused.
    fn out_of_memory(&self, event: &OutOfMemory);
}

/// An allocation or a free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The address of the first byte. After a free it only identifies the allocation.
    pub address: usize,
    /// The bytes that were allocated, or minus the bytes that were freed.
    pub bytes: isize,
    /// Bytes in live allocations after this allocation or free.
    pub total_allocated: usize,
    /// Bytes that the allocator holds from the system. For one that caches nothing, this equals `total_allocated`.
    pub total_reserved: usize,
    /// The device of the memory.
    pub device: Device,
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The bytes that were asked for.
    pub bytes: usize,
    /// Bytes in live allocations.
    pub total_allocated: usize,
    /// Bytes that the allocator holds from the system.
    pub total_reserved: usize,
    /// The device of the memory.
    pub device: Device,
}
