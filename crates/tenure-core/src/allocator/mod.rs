//! Who gives memory, for which device.
#![deny(unsafe_op_in_unsafe_fn)]

mod cpu;
mod numa;
#[forbid(unsafe_code)]
mod registry;
#[forbid(unsafe_code)]
mod report;
#[forbid(unsafe_code)]
mod scope;

use std::ffi::c_void;

pub use self::cpu::CpuAllocator;
pub use self::numa::{NumaMove, move_to_numa_node};
pub use self::registry::AllocatorRegistry;
pub use self::report::{MemoryReporter, MemoryUse, OutOfMemory};
pub use self::scope::AllocatorScope;
pub(crate) use self::scope::Chosen;
use crate::{AllocatorError, DataPtr, Deleter, Device};

/// Gives memory on one device. c10's `Allocator`.
///
/// # Safety
/// - [`allocate`](Self::allocate) gives a pointer to as many bytes as were asked for, readable and writable from
///   [`device`](Self::device), used by nobody else until the `DataPtr` is dropped; or, for 0 bytes, a null pointer.
/// - If there is a [`raw_deleter`](Self::raw_deleter), it frees what `allocate` gave, when called with the pointer.
pub unsafe trait Allocator: Send + Sync {
    /// The device that memory is given on.
    fn device(&self) -> Device;

    /// `bytes` bytes of memory, not initialised. For 0 bytes a null pointer, which has the device all the same.
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
    /// Both are as many bytes on this allocator's device, and do not overlap; `source` is not written to and `target`
    /// not used by anybody else meanwhile.
    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError>;

    /// The deleter of every `DataPtr` from here, if its context is always the pointer itself.
    fn raw_deleter(&self) -> Option<Deleter> {
        None
    }

    /// Memory as a bare pointer, to be given back by [`raw_deallocate`](Self::raw_deallocate); null for 0 bytes.
    ///
    /// # Errors
    /// [`AllocatorError::NoRawAllocation`] without a [`raw_deleter`](Self::raw_deleter), and those of
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

    /// Gives back memory of [`raw_allocate`](Self::raw_allocate). Null is ignored.
    ///
    /// # Safety
    /// `data` comes from `raw_allocate` of this allocator, and is not used again.
    unsafe fn raw_deallocate(&self, data: *mut u8) {
        if let Some(deleter) = self.raw_deleter()
            && !data.is_null()
        {
            // SAFETY: the pointer is its context, and the caller gives it up.
            unsafe { deleter(data.cast::<c_void>()) }
        }
    }
}
