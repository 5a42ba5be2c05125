//! Host memory of tensors on the CPU: freed pages are kept for the next tensor.
//!
//! The system clears every page that it gives, and faults pages in one by one. A tensor of some megabytes that is
//! allocated and freed pays for that each time. This allocator takes a tensor's pages from earlier tensors instead,
//! makes them huge where the system has huge pages, and holds no more of them than [`PageHeapConfig`] allows beyond the
//! most ever in use at once.

mod default_scope;

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};

#[cfg(target_os = "linux")]
use memmap2::Advice;
use memmap2::{MmapOptions, MmapRaw, UncheckedAdvice};
use parking_lot::Mutex;
use tenure_alloc::pages::Pages;
use tenure_alloc::{
    Address, AllocError, BackingError, FreeMemoryCallback, PageHeap, PageHeapConfig, PoolKind, Request, Resource, Stat,
    Statistics,
};
use tenure_core::{
    Allocator, AllocatorError, AllocatorRegistry, AtFork, DataPtr, Deleter, Device, DeviceKind, Purpose, StreamId, Tag,
};

use crate::activity_log;

pub use default_scope::OnHostMemory;

/// The bytes of address space to ask for: the next size is tried where the system refuses one.
const ADDRESS_SPACE: [usize; 3] = [1 << 44, 1 << 40, 1 << 36];
/// The size in bytes from which a block is made of pages. Smaller blocks come from the language's allocator, which
/// leaves holes that other blocks cannot use.
const LARGE_BYTES: usize = 64 << 10;
/// The size in bytes from which blocks may be refused for want of the system's memory. To ask the system takes longer than
/// to make a smaller block.
const GUARDED_BYTES: usize = 16 << 20;
/// The multiple, in bytes, of the size of large blocks.
const PAGE_BYTES: u64 = 4 << 10;
/// The step in bytes by which the room of small blocks grows and shrinks under a limit, so that most small blocks
/// change no limit.
const ROOM_STEP_BYTES: u64 = 1 << 20;
/// The alignment of every pointer, in bytes: a cache line, and the widest vector register.
const ALIGNMENT: usize = 64;

/// The host memory of this process, which is never dropped; null before its first use. A forked child has its own: other
/// threads may hold the locks of its parent's, and there are no such threads in the child to release them.
static HOST: AtomicPtr<HostMemory> = AtomicPtr::new(ptr::null_mut());

/// The host memory of the process that this one was forked from, or of an earlier one; null if there is none.
static INHERITED: AtomicPtr<HostMemory> = AtomicPtr::new(ptr::null_mut());

/// The one pointer to `free` that is handed out: taking its address elsewhere may give another address.
static FREE: Deleter = free;

/// Host memory for tensors on the CPU. A process has one.
///
/// A forked child gets one of its own. What it frees of its parent's blocks is not used again.
pub struct HostMemory {
    heap: PageHeap<HostMapping>,
    small: Mutex<SmallBlocks>,
    /// The most bytes of live blocks at once.
    peak: AtomicU64,
    /// The most bytes that may be held.
    limit: AtomicU64,
    /// Returns the bytes of memory that the system has available, if blocks are refused for which it has too few.
    available: OnceLock<fn() -> u64>,
    /// The one that this process inherited, whose blocks may still be there.
    inherited: Option<&'static HostMemory>,
}

/// The allocator that is registered: the host memory of whichever process calls it.
struct OfThisProcess;

/// The counters of small blocks, and the part of the limit that they have.
#[derive(Default)]
struct SmallBlocks {
    statistics: Statistics,
    /// The bytes of the limit that the heap leaves to small blocks, which may be more than they have. Unused without a
    /// limit.
    room_bytes: u64,
}

/// The header before the bytes of a small block.
#[repr(align(64))]
struct Header {
    bytes: usize,
    tag: Tag,
    /// The host memory that counts the block.
    owner: *const HostMemory,
}

const _: () = assert!(size_of::<Header>() == ALIGNMENT && align_of::<Header>() == ALIGNMENT);

/// Address space whose pages are created at the first touch.
struct HostMapping {
    memory: MmapRaw,
}

impl HostMemory {
    /// Makes it the allocator of tensors on the CPU, unless an allocator of higher priority is registered. A second
    /// call does nothing, nor does a call where the system gives no address space.
    ///
    /// ```
    /// use tenure_core::{AllocatorRegistry, DeviceKind, Storage};
    /// use tenure_device::host::HostMemory;
    ///
    /// HostMemory::install();
    /// let storage = Storage::new(1 << 20, AllocatorRegistry::global().allocator(DeviceKind::Cpu)?)?;
    /// # let memory = HostMemory::installed().expect("there is address space");
    /// assert!(memory.statistics().all.allocated_bytes.current >= 1 << 20);
    /// # drop(storage);
    /// # Ok::<(), tenure_core::Error>(())
    /// ```
    pub fn install() {
        if Self::installed().is_some() {
            AllocatorRegistry::global().register(DeviceKind::Cpu, Arc::new(OfThisProcess), 1);
        }
    }

    /// Returns the process's host memory, if the system gives address space.
    pub fn installed() -> Option<Arc<Self>> {
        let mut host = HOST.load(Ordering::Acquire);
        if host.is_null() {
            let made = Arc::into_raw(Self::new().ok()?).cast_mut();
            host = match HOST.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => made,
                Err(earlier) => {
                    // SAFETY: no other thread has the pointer.
                    drop(unsafe { Arc::from_raw(made) });
                    earlier
                }
            };
        }
        // SAFETY: the pointer came from `Arc::into_raw`, and is never given back.
        unsafe {
            Arc::increment_strong_count(host);
            Some(Arc::from_raw(host))
        }
    }

    fn new() -> Result<Arc<Self>, BackingError> {
        static LISTENING: Once = Once::new();
        LISTENING.call_once(|| AtFork { before: || (), in_parent: || (), in_child: leave_to_parent }.register());
        let heap = PageHeap::new(HostMapping::new()?, PageHeapConfig::default());
        let small = Mutex::default();
        let peak = AtomicU64::new(0);
        let limit = AtomicU64::new(u64::MAX);
        let inherited = inherited();
        let memory = Arc::new(Self { heap, small, peak, limit, available: OnceLock::new(), inherited });
        let weak = Arc::downgrade(&memory);
        // If a callback frees small blocks, this turns their room into room for a large block.
        memory.add_free_memory_callback(Box::new(move || weak.upgrade().is_some_and(|memory| memory.trim_room())));
        Ok(memory)
    }

    /// Returns the counters. Peaks other than that of all allocated bytes may be too high, by up to the peak of blocks
    /// below 64 KiB, since the two kinds of blocks are counted apart.
    pub fn statistics(&self) -> Statistics {
        let mut statistics = self.heap.statistics();
        statistics.merge(&self.small.lock().statistics);
        let allocated = &mut statistics.all.allocated_bytes;
        allocated.peak = self.peak.load(Ordering::Relaxed).max(allocated.current);
        statistics
    }

    /// Sets every peak to the current value.
    pub fn reset_peak_statistics(&self) {
        self.heap.reset_peak_statistics();
        let mut small = self.small.lock();
        small.statistics.reset_peak();
        self.peak.store(self.heap.live_bytes() + small.allocated_bytes(), Ordering::Relaxed);
    }

    /// Limits the bytes held at a time, pages that no tensor uses included; `None` removes the limit. An allocation
    /// beyond the limit fails, unless a [callback](Self::add_free_memory_callback) makes room.
    ///
    /// Under a limit, pages are the smallest that the system has: a huge page is held whole, however little of it is
    /// used.
    ///
    /// # Errors
    /// The system does not take back pages that no tensor uses. The limit is set all the same.
    pub fn set_limit(&self, bytes: Option<u64>) -> Result<(), AllocError> {
        self.limit.store(bytes.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.heap.pages().prefer_huge(bytes.is_none());
        self.limit_heap(&mut self.small.lock(), 1);
        if bytes.is_some() { self.release_cached() } else { Ok(()) }
    }

    /// Refuses blocks of 16 MiB or more from now on if they need more memory than the system has available, as
    /// `available` returns it in bytes. Otherwise the system hands out addresses without memory, and kills a process when
    /// they are used. A second call has no effect.
    pub fn refuse_unavailable(&self, available: fn() -> u64) {
        // The first function stays.
        let _ = self.available.set(available);
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> Option<u64> {
        Some(self.limit.load(Ordering::Relaxed)).filter(|limit| *limit < u64::MAX)
    }

    /// Adds a callback to try when the limit leaves no room. It returns whether it made some.
    pub fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.heap.add_free_memory_callback(callback);
    }

    /// Leaves small blocks as much room as they have, rounded up to a multiple of `multiple_bytes`, and the heap the
    /// rest.
    fn limit_heap(&self, small: &mut SmallBlocks, multiple_bytes: u64) {
        small.room_bytes = small.allocated_bytes().next_multiple_of(multiple_bytes);
        self.heap.set_limit(self.limit().map_or(u64::MAX, |limit| limit.saturating_sub(small.room_bytes)));
    }

    /// Leaves small blocks no more room than they have. Returns whether they had more.
    fn trim_room(&self) -> bool {
        let mut small = self.small.lock();
        let has_more = self.limit().is_some() && small.room_bytes > small.allocated_bytes();
        if has_more {
            self.limit_heap(&mut small, 1);
        }
        has_more
    }

    /// Returns whether the heap lacks room for a large block of `bytes`, beside the room of small blocks.
    fn is_short_of(&self, bytes: u64) -> bool {
        let Some(limit) = self.limit() else { return false };
        let taken = [self.heap.live_bytes(), self.small.lock().room_bytes, bytes, PAGE_BYTES];
        taken.into_iter().fold(0, u64::saturating_add) > limit
    }

    /// Gives back the pages that no tensor uses, and the unused pages of the language's allocator.
    ///
    /// # Errors
    /// The system refuses.
    pub fn release_cached(&self) -> Result<(), AllocError> {
        #[cfg(all(target_os = "linux", target_env = "gnu"))]
        // SAFETY: it frees only unused memory. Its result says whether there was any.
        let _ = unsafe { libc::malloc_trim(0) };
        self.heap.release_cached()
    }

    fn allocate_small(&self, bytes: usize) -> Option<*mut u8> {
        let layout = small_layout(bytes)?;
        let (tag, _) = Purpose::current();
        let small_bytes = loop {
            let mut small = self.small.lock();
            if self.has_room(&mut small, bytes as u64)? {
                small.count_allocated(tag, bytes as u64);
                break small.allocated_bytes();
            }
            let freed = self.freed_bytes(&small);
            drop(small);
            // The callback may change the limit, and meanwhile another thread may free what this one lacks.
            if !self.heap.free_memory() && self.freed_bytes(&self.small.lock()) == freed {
                return None;
            }
        };
        // SAFETY: the layout is not empty: it has the header.
        let start = unsafe { alloc::alloc(layout) };
        if start.is_null() {
            self.small.lock().count_freed(tag, bytes as u64);
            return None;
        }
        // SAFETY: fresh memory, aligned to and large enough for a header and the bytes after it.
        let data = unsafe {
            start.cast::<Header>().write(Header { bytes, tag, owner: self });
            start.add(size_of::<Header>())
        };
        self.peak.fetch_max(self.heap.live_bytes() + small_bytes, Ordering::Relaxed);
        Some(data)
    }

    /// Returns whether the limit has room for a small block, once the heap has given back what it does not use, or
    /// `None` if the heap cannot give it back.
    fn has_room(&self, small: &mut SmallBlocks, bytes: u64) -> Option<bool> {
        let needed = small.allocated_bytes() + bytes;
        let Some(limit) = self.limit().filter(|_| needed > small.room_bytes) else { return Some(true) };
        for room_bytes in [needed.next_multiple_of(ROOM_STEP_BYTES), needed] {
            let Some(rest) = limit.checked_sub(room_bytes) else { continue };
            if self.heap.shrink(rest).ok()? {
                small.room_bytes = room_bytes;
                self.heap.set_limit(rest);
                return Some(true);
            }
        }
        Some(false)
    }

    /// Returns the bytes of all blocks, small and large, that were ever freed.
    fn freed_bytes(&self, small: &SmallBlocks) -> u64 {
        small.statistics.all.allocated_bytes.freed + self.heap.freed_bytes()
    }

    fn free_small(&self, tag: Tag, bytes: u64) {
        let mut small = self.small.lock();
        small.count_freed(tag, bytes);
        let room = small.room_bytes.saturating_sub(small.allocated_bytes());
        if self.limit().is_some() && room >= 2 * ROOM_STEP_BYTES {
            self.limit_heap(&mut small, ROOM_STEP_BYTES);
        }
    }

    fn allocate_large(&self, bytes: usize) -> Result<*mut u8, AllocError> {
        let (tag, key) = Purpose::current();
        if self.is_short_of(bytes as u64) {
            self.trim_room();
        }
        if bytes >= GUARDED_BYTES
            && let Some(available) = self.available.get()
        {
            self.check_available(bytes as u64, *available)?;
        }
        let block = self.heap.allocate(Request::new(bytes as u64, StreamId::NULL).with_tag(tag).with_key(key))?;
        let small = self.small.lock().allocated_bytes();
        self.peak.fetch_max(self.heap.live_bytes() + small, Ordering::Relaxed);
        // The mapping's address was exposed when it was made.
        Ok(ptr::with_exposed_provenance_mut(block.address as usize))
    }

    /// Refuses a block that needs more than the pages which are held unused and the `available` bytes of the system. The
    /// system is asked only if those pages are too few: a step that repeats finds its pages there.
    fn check_available(&self, bytes: u64, available: fn() -> u64) -> Result<(), AllocError> {
        let all = self.heap.statistics().all;
        let allocated = all.allocated_bytes.current;
        let reserved = all.reserved_bytes.current;
        let unused = reserved.saturating_sub(allocated);
        if bytes <= unused {
            return Ok(());
        }
        let available = available();
        if bytes <= available.saturating_add(unused) {
            return Ok(());
        }
        Err(AllocError::OutOfMemory {
            requested: bytes,
            stream: StreamId::NULL,
            allocated,
            reserved,
            inactive: unused,
            overhead: 0,
            free: available,
            total: reserved.saturating_add(available),
            allowed: reserved.saturating_add(available),
        })
    }

    /// Tells the recording of activities of a new block of at least `bytes` bytes.
    #[cold]
    fn tell_allocated(&self, data: *mut u8, bytes: usize) {
        let bytes = self.heap.block_bytes(data.addr() as Address).unwrap_or(bytes as u64);
        activity_log::memory_changed(Device::CPU, bytes as i64);
    }
}

impl SmallBlocks {
    fn allocated_bytes(&self) -> u64 {
        self.statistics.all.allocated_bytes.current
    }

    fn count_allocated(&mut self, tag: Tag, bytes: u64) {
        self.statistics.block_allocated(PoolKind::Small, tag, bytes, bytes);
        count_held(&mut self.statistics, |reserved| reserved.increase(bytes));
    }

    fn count_freed(&mut self, tag: Tag, bytes: u64) {
        self.statistics.block_freed(PoolKind::Small, tag, bytes);
        self.statistics.block_completed(PoolKind::Small, tag, bytes, bytes);
        count_held(&mut self.statistics, |reserved| reserved.decrease(bytes));
    }
}

/// Applies `change` to the held bytes of small blocks, which are counted as held only while they are allocated: the
/// free memory around them belongs to the language's allocator.
fn count_held(small: &mut Statistics, change: impl Fn(&mut Stat)) {
    small.both(PoolKind::Small).into_iter().for_each(|pool| change(&mut pool.reserved_bytes));
}

fn small_layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(size_of::<Header>() + bytes, ALIGNMENT).ok()
}

// SAFETY: live blocks do not overlap and have at least the bytes asked for, and `free` frees each by its address alone.
unsafe impl Allocator for HostMemory {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        if bytes == 0 {
            return Ok(DataPtr::null(Device::CPU));
        }
        let out_of_memory = || AllocatorError::OutOfMemory {
            device: Device::CPU,
            requested: bytes,
            allocated: self.statistics().all.allocated_bytes.current as usize,
        };
        let data = if bytes < LARGE_BYTES {
            self.allocate_small(bytes).ok_or_else(|| {
                // The heap counts the failures of large blocks.
                self.small.lock().statistics.num_ooms += 1;
                out_of_memory()
            })?
        } else {
            self.allocate_large(bytes).map_err(|error| match error {
                AllocError::TooLarge(_) => AllocatorError::TooLarge { requested: bytes },
                AllocError::OutOfMemory { .. } => out_of_memory(),
                other => AllocatorError::Failed { device: Device::CPU, call: "allocate", reason: other.to_string() },
            })?
        };
        if activity_log::is_on() {
            self.tell_allocated(data, bytes);
        }
        // SAFETY: the pointer is its own context, for which `free` is the deleter.
        Ok(unsafe { DataPtr::new(data, data.cast(), FREE, Device::CPU) })
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller promises it.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }

    fn raw_deleter(&self) -> Option<Deleter> {
        Some(FREE)
    }
}

// SAFETY: as for `HostMemory`. A block is freed by its address, whichever process allocated it.
unsafe impl Allocator for OfThisProcess {
    fn device(&self) -> Device {
        Device::CPU
    }

    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let memory = HostMemory::installed();
        memory
            .ok_or(AllocatorError::OutOfMemory { device: Device::CPU, requested: bytes, allocated: 0 })?
            .allocate(bytes)
    }

    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        // SAFETY: the caller promises it.
        unsafe { ptr::copy_nonoverlapping(source, target, bytes) };
        Ok(())
    }

    fn raw_deleter(&self) -> Option<Deleter> {
        Some(FREE)
    }
}

/// Leaves the host memory to the parent of this process, which was just forked.
fn leave_to_parent() {
    let own = HOST.swap(ptr::null_mut(), Ordering::Relaxed);
    if !own.is_null() {
        INHERITED.store(own, Ordering::Relaxed);
    }
    default_scope::leave_all();
}

/// Returns the host memory that this process inherited.
fn inherited() -> Option<&'static HostMemory> {
    // SAFETY: the pointer was `HOST`'s, which is never given back.
    unsafe { INHERITED.load(Ordering::Relaxed).as_ref() }
}

/// # Safety
/// `context` is a pointer that [`HostMemory`] returned, and is not used again.
unsafe fn free(context: *mut c_void) {
    let address = context.addr() as Address;
    let has_block = |memory: &&HostMemory| memory.heap.addresses().contains(&address);
    // SAFETY: the pointer came from `Arc::into_raw`, and is never given back.
    let own = unsafe { HOST.load(Ordering::Acquire).as_ref() };
    if let Some(memory) = own.filter(has_block) {
        let bytes = if activity_log::is_on() { memory.heap.block_bytes(address) } else { None };
        // The block is live, so this cannot fail.
        let _ = memory.heap.free(address);
        if let Some(bytes) = bytes {
            activity_log::memory_changed(Device::CPU, -(bytes as i64));
        }
        return;
    }
    if std::iter::successors(inherited(), |memory| memory.inherited).any(|memory| has_block(&memory)) {
        return;
    }
    // SAFETY: a small block, which has a header before it and the layout that the header gives.
    unsafe {
        let start = context.cast::<u8>().sub(size_of::<Header>());
        let Header { bytes, tag, owner } = start.cast::<Header>().read();
        if let Some(memory) = own.filter(|own| ptr::eq(*own, owner)) {
            memory.free_small(tag, bytes as u64);
        }
        if let Some(layout) = small_layout(bytes) {
            alloc::dealloc(start, layout);
        }
        if activity_log::is_on() {
            activity_log::memory_changed(Device::CPU, -(bytes as i64));
        }
    }
}

impl HostMapping {
    fn new() -> Result<Self, BackingError> {
        let mapped =
            ADDRESS_SPACE.into_iter().find_map(|bytes| MmapOptions::new().len(bytes).no_reserve_swap().map_anon().ok());
        let memory = mapped.ok_or_else(|| BackingError::Failed {
            call: "mmap",
            reason: format!("the system gives no {} GiB of address space", ADDRESS_SPACE[2] >> 30),
        })?;
        let memory = MmapRaw::from(memory);
        memory.as_mut_ptr().expose_provenance();
        let mapping = Self { memory };
        mapping.prefer_huge(true);
        Ok(mapping)
    }

    /// Prefers huge pages, or none: fewer, larger pages are faulted in faster. A system without huge pages ignores it.
    fn prefer_huge(&self, is_preferred: bool) {
        #[cfg(target_os = "linux")]
        let _ = self.memory.advise(if is_preferred { Advice::HugePage } else { Advice::NoHugePage });
    }

    fn start(&self) -> Address {
        self.memory.as_mut_ptr().addr() as Address
    }
}

impl Pages for HostMapping {
    fn addresses(&self) -> Range<Address> {
        self.start()..self.start() + self.memory.len() as Address
    }

    fn discard(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
        let offset = (address - self.start()) as usize;
        // SAFETY: no block lives in the range, so no code reads its bytes.
        let advised = unsafe { self.memory.unchecked_advise_range(UncheckedAdvice::DontNeed, offset, bytes as usize) };
        advised.map_err(|error| BackingError::Failed { call: "madvise", reason: error.to_string() })
    }
}
