//! Allocators of memory, by device.
#![deny(unsafe_op_in_unsafe_fn)]

mod cpu;
mod numa;
#[forbid(unsafe_code)]
mod registry;
#[forbid(unsafe_code)]
mod scope;

use std::ffi::c_void;

pub use self::cpu::CpuAllocator;
pub use self::numa::{NumaMove, move_to_numa_node};
pub use self::registry::AllocatorRegistry;
pub use self::scope::AllocatorScope;
pub(crate) use self::scope::ChosenAllocator;
use crate::{AllocatorError, DataPtr, Deleter, Device};

/// An allocator of memory on one device. c10's `Allocator`.
///
/// # Safety
/// - [`allocate`](Self::allocate) returns a pointer to `bytes` bytes that are readable and writable from
///   [`device`](Self::device), and that nothing else uses until the `DataPtr` is dropped. For 0 bytes it returns a null
///   pointer.
/// - If there is a [`raw_deleter`](Self::raw_deleter), calling it with a pointer from `allocate` frees the memory.
pub unsafe trait Allocator: Send + Sync {
    /// Returns the device of the memory.
    fn device(&self) -> Device;

    /// Allocates `bytes` bytes of uninitialised memory. For 0 bytes it returns a null pointer, which has the device all
    /// the same.
    ///
    /// # Errors
    /// [`AllocatorError::OutOfMemory`], [`AllocatorError::TooLarge`], and failures of the device.
    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError>;

    /// Copies `bytes` bytes from `source` to `target`, in order with the work that uses them.
    ///
    /// # Errors
    /// Failures of the device.
    ///
    /// # Safety
    /// Both point to at least `bytes` bytes on this allocator's device, which do not overlap. Meanwhile nothing else
    /// writes to `source` or uses `target`.
    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError>;

    /// Returns the deleter of every `DataPtr` of this allocator, if its context is always the pointer itself.
    fn raw_deleter(&self) -> Option<Deleter> {
        None
    }

    /// Allocates memory as a bare pointer, to be freed by [`raw_deallocate`](Self::raw_deallocate). It is null for 0
    /// bytes.
    ///
    /// # Errors
    /// [`AllocatorError::NoRawAllocation`] without a [`raw_deleter`](Self::raw_deleter), and the errors of
    /// [`allocate`](Self::allocate).
    fn raw_allocate(&self, bytes: usize) -> Result<*mut u8, AllocatorError> {
        if self.raw_deleter().is_none() {
            return Err(AllocatorError::NoRawAllocation { device: self.device() });
        }
        let mut data = self.allocate(bytes)?;
        let context = data.release_context();
        debug_assert_eq!(context, data.as_ptr().cast(), "raw_deleter promises that the context is the pointer");
        Ok(context.cast())
    }

    /// Frees memory of [`raw_allocate`](Self::raw_allocate). Null is ignored.
    ///
    /// # Safety
    /// `data` comes from `raw_allocate` of this allocator, and is not used again.
    unsafe fn raw_deallocate(&self, data: *mut u8) {
        if let Some(deleter) = self.raw_deleter()
            && !data.is_null()
        {
            // SAFETY: the pointer is its own context, and the caller gives it up.
            unsafe { deleter(data.cast::<c_void>()) }
        }
    }
}

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
