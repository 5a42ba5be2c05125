//! The allocator of host memory.

use std::alloc::{self, Layout as MemoryLayout};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::RwLock;

use super::{Allocator, MemoryReporter, MemoryUse, NumaMove, OutOfMemory, move_to_numa_node};
use crate::{AllocatorError, DataPtr, Deleter, Device};

/// An allocator of host memory, aligned to 64 bytes: a cache line, and the widest vector register. c10's
/// `DefaultCPUAllocator`.
///
/// ```
/// use tenure_core::{Allocator, CpuAllocator, Device};
///
/// let allocator = CpuAllocator::new();
/// let data = allocator.allocate(1000)?;
/// assert_eq!((data.device(), data.as_ptr() as usize % CpuAllocator::ALIGNMENT), (Device::CPU, 0));
/// assert_eq!(allocator.allocated_bytes(), 1000);
/// drop(data);
/// assert_eq!(allocator.allocated_bytes(), 0);
/// # Ok::<(), tenure_core::AllocatorError>(())
/// ```
#[derive(Default)]
pub struct CpuAllocator {
    account: Arc<Account>,
    junk: bool,
    numa_node: Option<u32>,
}

/// The counters and the reporter, which live as long as the allocator or any of its allocations.
#[derive(Default)]
struct Account {
    allocated: AtomicUsize,
    reporter: RwLock<Option<Arc<dyn MemoryReporter>>>,
}

/// The header in front of each allocation's bytes, which makes the pointer alone enough to free it.
#[repr(align(64))]
struct Header {
    bytes: usize,
    account: Arc<Account>,
}

/// The only pointer to `free` that is handed out: another mention of the function may have another address.
static FREE: Deleter = free;

const _: () = assert!(size_of::<Header>() == CpuAllocator::ALIGNMENT && align_of::<Header>() == size_of::<Header>());

impl CpuAllocator {
    /// The alignment of every pointer that is returned, in bytes.
    pub const ALIGNMENT: usize = 64;

    /// The bytes that [`with_junk`](Self::with_junk) fills memory with: not a number as `f32`, and huge as `f64`, `i32`
    /// or `i64`.
    pub const JUNK: [u8; 4] = 0x7fed_beef_u32.to_ne_bytes();

    /// Creates an allocator that returns memory as the system does.
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills fresh memory with [`JUNK`](Self::JUNK), so that reads before the first write are noticed.
    pub fn with_junk(self) -> Self {
        Self { junk: true, ..self }
    }

    /// Moves fresh memory to a NUMA node with [`move_to_numa_node`]. Where NUMA is unavailable, memory stays where it
    /// is.
    pub fn with_numa_node(self, node: u32) -> Self {
        Self { numa_node: Some(node), ..self }
    }

    /// Reports every allocation and free from now on to `reporter`. `None` ends the reports.
    pub fn set_reporter(&self, reporter: Option<Arc<dyn MemoryReporter>>) {
        let replaced = std::mem::replace(&mut *self.account.reporter.write(), reporter);
        drop(replaced);
    }

    /// Returns the bytes in live allocations.
    pub fn allocated_bytes(&self) -> usize {
        self.account.allocated.load(Ordering::Relaxed)
    }

    fn out_of_memory(&self, requested: usize) -> AllocatorError {
        let allocated = self.allocated_bytes();
        if let Some(reporter) = self.account.reporter() {
            reporter.out_of_memory(&OutOfMemory {
                bytes: requested,
                total_allocated: allocated,
                total_reserved: allocated,
                device: Device::CPU,
            });
        }
        AllocatorError::OutOfMemory { device: Device::CPU, requested, allocated }
    }
}

// SAFETY: memory comes from the system, and nothing else uses it until `free` gives it back. `free` takes the pointer.
unsafe impl Allocator for CpuAllocator {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        if bytes == 0 {
            return Ok(DataPtr::null(Device::CPU));
        }
        let memory = memory_layout(bytes).ok_or(AllocatorError::TooLarge { requested: bytes })?;
        // SAFETY: the size is not zero, as it includes the header.
        let header = unsafe { alloc::alloc(memory) }.cast::<Header>();
        if header.is_null() {
            return Err(self.out_of_memory(bytes));
        }
        // SAFETY: the memory begins with room for an aligned header, and the data comes right after it.
        let data = unsafe {
            header.write(Header { bytes, account: Arc::clone(&self.account) });
            header.add(1).cast::<u8>()
        };
        self.account.change(data, bytes.cast_signed());
        // SAFETY: `free` undoes all of this, once. An account may be used from any thread.
        let owner = unsafe { DataPtr::new(data, data.cast(), FREE, Device::CPU) };

        if let Some(node) = self.numa_node {
            // This comes before the first touch, so that there is nothing to move yet.
            match move_to_numa_node(data, bytes, node)? {
                NumaMove::Moved | NumaMove::Unavailable(_) => {}
            }
        }
        if self.junk {
            // SAFETY: the bytes were just allocated, and no other code knows them.
            unsafe { fill_with_junk(data, bytes) }
        }
        Ok(owner)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: by the trait's contract.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }

    fn raw_deleter(&self) -> Option<Deleter> {
        Some(FREE)
    }
}

/// # Safety
/// `context` is a pointer that a `CpuAllocator` gave, and is not used again.
unsafe fn free(context: *mut c_void) {
    let data = context.cast::<u8>();
    // SAFETY: the allocator wrote a header right before the data, and this moves it out for the last time.
    let (header, Header { bytes, account }) = unsafe {
        let header = data.cast::<Header>().sub(1);
        (header, header.read())
    };
    let memory = memory_layout(bytes).expect("the same bytes were allocated");
    // SAFETY: the memory was allocated with this layout, and its content is moved out.
    unsafe { alloc::dealloc(header.cast(), memory) };
    account.change(data, -bytes.cast_signed());
}

/// Returns the memory layout of the header and `bytes` bytes after it.
fn memory_layout(bytes: usize) -> Option<MemoryLayout> {
    let all = bytes.checked_add(size_of::<Header>())?;
    MemoryLayout::from_size_align(all, align_of::<Header>()).ok()
}

/// # Safety
/// `data` points to `bytes` writable bytes that nothing else uses.
unsafe fn fill_with_junk(data: *mut u8, bytes: usize) {
    for start in (0..bytes).step_by(CpuAllocator::JUNK.len()) {
        let length = CpuAllocator::JUNK.len().min(bytes - start);
        // SAFETY: `start + length` is at most `bytes`.
        unsafe { ptr::copy_nonoverlapping(CpuAllocator::JUNK.as_ptr(), data.add(start), length) };
    }
}

impl Account {
    /// Counts and reports `change` bytes at `data`.
    fn change(&self, data: *mut u8, change: isize) {
        let before = self.allocated.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
        let total = before.wrapping_add_signed(change);
        if let Some(reporter) = self.reporter() {
            reporter.memory_use(&MemoryUse {
                address: data.addr(),
                bytes: change,
                total_allocated: total,
                total_reserved: total,
                device: Device::CPU,
            });
        }
    }

    fn reporter(&self) -> Option<Arc<dyn MemoryReporter>> {
        self.reporter.read().clone()
    }
}
