//! A process's memory on a device: a driver, an allocator on it, and errors that list the holders of memory.
//!
//! ```
//! use std::sync::Arc;
//! use tenure_alloc::Request;
//! use tenure_core::StreamId;
//! use tenure_device::memory::{DeviceMemory, MemoryConfig};
//! use tenure_device::sim::{SimConfig, SimDriver};
//!
//! let driver = Arc::new(SimDriver::new(SimConfig::default()));
//! let memory = DeviceMemory::new(driver, MemoryConfig::default())?;
//! let block = memory.allocate(Request::new(1 << 20, StreamId::NULL))?;
//! memory.free(block.address)?;
//! assert_eq!(memory.allocator().statistics().all.allocated_bytes.peak, 1 << 20);
//! # Ok::<(), tenure_device::memory::MemoryError>(())
//! ```

mod blocks;
mod device_use;
mod devices;
mod error;
mod preemption;
mod report;
mod storage;

use std::str::FromStr;
use std::sync::{Arc, OnceLock};

use tenure_alloc::adaptor::{Donated, DonatedRanges};
use tenure_alloc::{
    Address, AllocError, Block, CachingAllocator, LiveBlocks, NativeAllocator, NativeConfig, PagedAllocator,
    PagedConfig, Request, Resource,
};
use tenure_core::{Device, StreamId};

pub use crate::platform::MAX_DEVICES;
pub use blocks::{ImportedBlock, SharedBlock};
pub use device_use::DeviceUse;
pub use devices::{allocator, device, install, installed, preempt};
pub use error::MemoryError;
pub use preemption::{AroundWait, Preemption};
pub use report::OutOfMemoryReport;
pub use storage::{lead_to, record_stream};

use crate::activity_log;
use crate::deferred::{DeferredFrees, in_host_function};
use crate::share::Imports;
use crate::{DeviceBacking, Driver, Streams};

/// Settings of a process's memory on a device.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryConfig {
    /// The allocator and its settings. The device's number is filled in.
    pub policy: AllocatorPolicy,
    /// The largest share of the device, from 0 to 1, that this process may hold.
    pub fraction: f64,
    /// Bytes of the device that the allocator leaves free, for other libraries of this process and for other processes:
    /// it takes no more memory from the driver if less would be left.
    pub headroom_bytes: u64,
}

/// An allocator and its settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum AllocatorPolicy {
    /// Tenure's allocator.
    Paged(PagedConfig),
    /// PyTorch's allocator, with expandable segments if its settings say so.
    Native(NativeConfig),
}

impl Default for MemoryConfig {
    /// Returns Tenure's allocator, the whole device and no headroom.
    fn default() -> Self {
        Self { policy: AllocatorPolicy::default(), fraction: 1.0, headroom_bytes: 0 }
    }
}

impl Default for AllocatorPolicy {
    fn default() -> Self {
        Self::Paged(PagedConfig::default())
    }
}

/// Parses a policy's name, `paged`, `native` or `expandable`, and gives it default settings.
impl FromStr for AllocatorPolicy {
    type Err = MemoryError;

    fn from_str(name: &str) -> Result<Self, MemoryError> {
        match name {
            "paged" => Ok(Self::default()),
            "native" => Ok(Self::Native(NativeConfig::default())),
            "expandable" => Ok(Self::Native(NativeConfig::expandable())),
            _ => Err(MemoryError::UnknownPolicy { name: name.to_owned() }),
        }
    }
}

/// `cudaStreamPerThread`: a name for a different stream in each thread.
const PER_THREAD: StreamId = StreamId(2);

/// This process's memory on one device. PyTorch's `DeviceCachingAllocator` with its streams and backing.
///
/// Allocating and freeing cost what the allocator underneath costs, and a few branches.
pub struct DeviceMemory {
    allocator: Allocator,
    backing: Arc<DeviceBacking>,
    /// The streams. They are dropped after the allocator, which knows them.
    streams: Streams,
    device: Device,
    /// Blocks imported from other processes.
    imports: Imports,
    /// Frees requested in host functions, which cannot make them.
    deferred: DeferredFrees,
    /// The preemption that can stop threads that allocate. Without one, an allocation costs one more load.
    preemption: OnceLock<Arc<Preemption>>,
}

/// The device's allocator. A branch, rather than `dyn`, tells the two apart, so that the short path of an allocation is
/// inlined.
#[expect(clippy::large_enum_variant, reason = "there is one for each device, and a box costs each allocation a load")]
enum Allocator {
    Paged(Donated<PagedAllocator>),
    Native(Box<Donated<NativeAllocator>>),
}

impl DeviceMemory {
    /// Creates the memory of the driver's device. Reserves address space at once, and no memory.
    ///
    /// # Errors
    /// A setting of `config` is not valid, or the driver fails.
    pub fn new(driver: Arc<dyn Driver>, config: MemoryConfig) -> Result<Self, MemoryError> {
        let device = driver.device();
        let streams = Streams::new(Arc::clone(&driver));
        let backing = Arc::new(DeviceBacking::new(driver).with_headroom(config.headroom_bytes));
        let allocator = match config.policy {
            AllocatorPolicy::Paged(mut config) => {
                config.device = device.index().into();
                let allocator = PagedAllocator::new(Arc::clone(&backing) as _, config)?;
                Allocator::Paged(Donated::new(allocator, Arc::clone(&backing) as _))
            }
            AllocatorPolicy::Native(mut config) => {
                config.device = device.index().into();
                let allocator = NativeAllocator::new(Arc::clone(&backing) as _, config)?;
                Allocator::Native(Box::new(Donated::new(allocator, Arc::clone(&backing) as _)))
            }
        };
        let imports = Imports::new(Arc::clone(backing.driver()));
        let (deferred, preemption) = Default::default();
        let memory = Self { allocator, backing, streams, device, imports, deferred, preemption };
        if config.fraction != 1.0 {
            memory.allocator().set_memory_fraction(config.fraction)?;
        }
        Ok(memory)
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the backing, through which the allocator calls the driver.
    pub fn backing(&self) -> &DeviceBacking {
        &self.backing
    }

    /// Returns the device's driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.backing.driver()
    }

    /// Returns the device's streams. Storages are allocated on the thread's current one.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// Returns the allocator, for statistics, snapshots, limits, pools and callbacks. First makes the frees that host
    /// functions requested.
    pub fn allocator(&self) -> &dyn CachingAllocator {
        self.free_deferred();
        match &self.allocator {
            Allocator::Paged(allocator) => allocator,
            Allocator::Native(allocator) => &**allocator,
        }
    }

    /// Returns the donated ranges: memory that the allocator did not take from the driver, such as a shared pool's, and
    /// from which it serves requests for a while.
    pub fn donated(&self) -> &DonatedRanges {
        match &self.allocator {
            Allocator::Paged(allocator) => allocator.donated(),
            Allocator::Native(allocator) => allocator.donated(),
        }
    }

    /// Allocates a block of at least `request.bytes` bytes. A request of 0 bytes returns address 0 and takes no memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] with a report that lists the holders of memory; [`MemoryError::PerThreadStream`];
    /// failures of the driver.
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<Block, MemoryError> {
        if request.stream == PER_THREAD {
            return Err(MemoryError::PerThreadStream);
        }
        if let Some(preemption) = self.preemption.get() {
            preemption.at_allocation(self.driver(), request.stream);
        }
        self.free_deferred();
        let allocated = match &self.allocator {
            Allocator::Paged(allocator) => allocator.allocate(request),
            Allocator::Native(allocator) => allocator.allocate(request),
        };
        let block = allocated.map_err(|error| self.with_report(request, error))?;
        if activity_log::is_on() {
            activity_log::memory_changed(self.device, block.bytes as i64);
        }
        Ok(block)
    }

    /// Frees the block that starts at `address`; work already put on its streams may still use it. Address 0 is
    /// ignored.
    ///
    /// In a host function, from which the driver cannot be called, the block is freed with the next call elsewhere.
    ///
    /// # Errors
    /// No live block begins at `address`; failures of the driver. In a host function there is no error.
    #[inline]
    pub fn free(&self, address: Address) -> Result<(), MemoryError> {
        if in_host_function() {
            self.deferred.push(address);
            return Ok(());
        }
        self.free_deferred();
        Ok(self.free_now(address)?)
    }

    /// Returns whether `address` lies in the address space that the `paged` allocator reserved, or in a donated range
    /// beside it. Always false with the `native` allocator, whose blocks may lie anywhere.
    #[inline]
    pub fn owns(&self, address: Address) -> bool {
        match &self.allocator {
            Allocator::Paged(allocator) => {
                allocator.inner().addresses().contains(&address) || allocator.donated().contains(address)
            }
            Allocator::Native(_) => false,
        }
    }

    /// Frees a block at once, from outside host functions.
    #[inline]
    fn free_now(&self, address: Address) -> Result<(), AllocError> {
        if activity_log::is_on() {
            self.tell_freed(address);
        }
        match &self.allocator {
            Allocator::Paged(allocator) => allocator.free(address),
            Allocator::Native(allocator) => allocator.free(address),
        }
    }

    /// Tells the recording of activities that a block is about to be freed.
    #[cold]
    fn tell_freed(&self, address: Address) {
        let block = match &self.allocator {
            Allocator::Paged(allocator) => allocator.block(address),
            Allocator::Native(allocator) => allocator.block(address),
        };
        if let Some(block) = block {
            activity_log::memory_changed(self.device, -(block.bytes as i64));
        }
    }

    /// Frees the blocks whose frees host functions requested.
    #[inline]
    fn free_deferred(&self) {
        self.deferred.free_deferred(|address| self.free_now(address));
    }

    /// Records that `stream` uses the block at `address` too. After its free, the block is not reused until that stream
    /// has passed what was put on it before the free.
    ///
    /// # Errors
    /// No live block begins at `address`; [`MemoryError::PerThreadStream`].
    #[inline]
    pub fn record_stream(&self, address: Address, stream: StreamId) -> Result<(), MemoryError> {
        if stream == PER_THREAD {
            return Err(MemoryError::PerThreadStream);
        }
        match &self.allocator {
            Allocator::Paged(allocator) => allocator.record_stream(address, stream)?,
            Allocator::Native(allocator) => allocator.record_stream(address, stream)?,
        }
        Ok(())
    }

    /// Lets `peer` reach this memory in place, present and future allocations: kernels of `peer` can then use its
    /// addresses. Nothing happens if it can already. PyTorch's `enablePeerAccess(peer, device)`.
    ///
    /// # Errors
    /// `peer` cannot reach this device ([`Platform::can_access_peer`](crate::Platform::can_access_peer)), or is this
    /// device; failures of the driver.
    pub fn enable_peer(&self, peer: Device) -> Result<(), MemoryError> {
        Ok(self.driver().enable_peer(peer.index())?)
    }

    /// Installs `preemption`: while it is stopped, threads that allocate here or launch graphs wait. Later calls have
    /// no effect.
    pub fn preempt(&self, preemption: Arc<Preemption>) {
        self.preemption.get_or_init(|| preemption);
    }

    /// Must be called before a graph is launched on `stream`. Waits while the preemption, if there is one, is stopped.
    pub(crate) fn before_launch(&self, stream: StreamId) {
        if let Some(preemption) = self.preemption.get() {
            preemption.at_launch(self.driver(), stream);
        }
    }

    /// Converts an allocator's error. Adds a report if memory was out.
    #[cold]
    fn with_report(&self, request: Request, error: AllocError) -> MemoryError {
        match OutOfMemoryReport::new(self.allocator(), &self.backing, request, &error) {
            Some(report) => MemoryError::OutOfMemory(Box::new(report)),
            None => error.into(),
        }
    }
}
