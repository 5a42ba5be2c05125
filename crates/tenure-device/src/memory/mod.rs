//! A process's memory on a device: a driver, an allocator on it, and errors that say who holds what.
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
mod config;
mod devices;
mod error;
mod preemption;
mod pytorch;
mod report;
mod storage;

use std::sync::{Arc, OnceLock};

use tenure_alloc::adaptor::{Donated, DonatedRanges};
use tenure_alloc::{Address, AllocError, Block, CachingAllocator, NativeAllocator, PagedAllocator, Request, Resource};
use tenure_core::{Device, StreamId};

pub use blocks::{ImportedBlock, SharedBlock};
pub use config::{MemoryConfig, Policy};
pub use devices::{MAX_DEVICES, allocator, device, install, installed, preempt};
pub use error::MemoryError;
pub use preemption::{AroundWait, Preemption};
pub use report::OutOfMemoryReport;
pub use storage::record_stream;

use crate::deferred::{DeferredFrees, in_host_function};
use crate::share::Imports;
use crate::{DeviceBacking, Driver, Streams};

/// `cudaStreamPerThread`: a name for another stream in each thread.
const PER_THREAD: StreamId = StreamId(2);

/// This process's memory on one device. PyTorch's `DeviceCachingAllocator` and what it stands on.
///
/// Allocating and freeing cost what the allocator underneath costs: nothing is added but a few branches.
pub struct DeviceMemory {
    allocator: Allocator,
    backing: Arc<DeviceBacking>,
    /// Last, since streams outlive the allocator that knows them.
    streams: Streams,
    device: Device,
    /// Blocks of other processes.
    imports: Imports,
    /// Frees that could not be made where they were asked for: in host functions.
    deferred: DeferredFrees,
    /// Where threads that allocate can be stopped. Without one, an allocation costs a load more.
    preemption: OnceLock<Arc<Preemption>>,
}

/// The two are told apart by a branch rather than through `dyn`, so that the short path of an allocation is inlined.
#[expect(clippy::large_enum_variant, reason = "there is one for each device, and a box costs each allocation a load")]
enum Allocator {
    Paged(Donated<PagedAllocator>),
    Native(Box<Donated<NativeAllocator>>),
}

impl DeviceMemory {
    /// The memory of the device behind `driver`. Takes address space at once, and no memory.
    ///
    /// # Errors
    /// A setting of `config` makes no sense, or the driver fails.
    pub fn new(driver: Arc<dyn Driver>, config: MemoryConfig) -> Result<Self, MemoryError> {
        let device = driver.device();
        let streams = Streams::new(Arc::clone(&driver));
        let backing = Arc::new(DeviceBacking::new(driver));
        let allocator = match config.policy {
            Policy::Paged(mut config) => {
                config.device = device.index().into();
                let allocator = PagedAllocator::new(Arc::clone(&backing) as _, config)?;
                Allocator::Paged(Donated::new(allocator, Arc::clone(&backing) as _))
            }
            Policy::Native(mut config) => {
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

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// What stands between the allocator and the driver.
    pub fn backing(&self) -> &DeviceBacking {
        &self.backing
    }

    /// The device's driver.
    pub fn driver(&self) -> &Arc<dyn Driver> {
        self.backing.driver()
    }

    /// The device's streams. Storages are allocated on the thread's current one.
    pub fn streams(&self) -> &Streams {
        &self.streams
    }

    /// The allocator: statistics, snapshots, limits, pools and callbacks. What host functions freed is freed first.
    pub fn allocator(&self) -> &dyn CachingAllocator {
        self.settle();
        match &self.allocator {
            Allocator::Paged(allocator) => allocator,
            Allocator::Native(allocator) => &**allocator,
        }
    }

    /// Memory from outside, such as a shared pool's, that the allocator serves requests from for a while.
    pub fn donated(&self) -> &DonatedRanges {
        match &self.allocator {
            Allocator::Paged(allocator) => allocator.donated(),
            Allocator::Native(allocator) => allocator.donated(),
        }
    }

    /// A block of at least `request.bytes` bytes; address 0 and no memory for a request of none.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] with a report of who holds what; [`MemoryError::PerThreadStream`]; failures of the
    /// driver.
    #[inline]
    pub fn allocate(&self, request: Request) -> Result<Block, MemoryError> {
        if request.stream == PER_THREAD {
            return Err(MemoryError::PerThreadStream);
        }
        if let Some(preemption) = self.preemption.get() {
            preemption.at_allocation(self.driver(), request.stream);
        }
        self.settle();
        let allocated = match &self.allocator {
            Allocator::Paged(allocator) => allocator.allocate(request),
            Allocator::Native(allocator) => allocator.allocate(request),
        };
        allocated.map_err(|error| self.explain(request, error))
    }

    /// Ends the tenure of the block that starts at `address`; work already put on its streams may still use it.
    /// Address 0 is ignored.
    ///
    /// In a host function, from which no driver can be called, the block is freed with the next call elsewhere.
    ///
    /// # Errors
    /// `address` is no live block; failures of the driver. None in a host function.
    #[inline]
    pub fn free(&self, address: Address) -> Result<(), MemoryError> {
        if in_host_function() {
            self.deferred.push(address);
            return Ok(());
        }
        self.settle();
        Ok(self.free_now(address)?)
    }

    /// Whether `address` lies in address space that is this memory's alone, or in memory from outside that it was given.
    /// Blocks may lie elsewhere too.
    #[inline]
    pub fn owns(&self, address: Address) -> bool {
        match &self.allocator {
            Allocator::Paged(allocator) => {
                allocator.inner().addresses().contains(&address) || allocator.donated().contains(address)
            }
            Allocator::Native(_) => false,
        }
    }

    #[inline]
    fn free_now(&self, address: Address) -> Result<(), AllocError> {
        match &self.allocator {
            Allocator::Paged(allocator) => allocator.free(address),
            Allocator::Native(allocator) => allocator.free(address),
        }
    }

    /// Frees what host functions freed.
    #[inline]
    fn settle(&self) {
        self.deferred.settle(|address| self.free_now(address));
    }

    /// Says that `stream` uses the block at `address` too: after its free it is not reused until that stream has
    /// passed what was put on it before the free.
    ///
    /// # Errors
    /// `address` is no live block; [`MemoryError::PerThreadStream`].
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

    /// Lets `peer` reach this memory in place: what is allocated now, and what will be. Then kernels of `peer` can use
    /// its addresses. Nothing happens if it can already. PyTorch's `enablePeerAccess(peer, device)`.
    ///
    /// # Errors
    /// There is no way from `peer` to this device ([`Platform::can_access_peer`](crate::Platform::can_access_peer)), or
    /// it is this device; failures of the driver.
    pub fn enable_peer(&self, peer: Device) -> Result<(), MemoryError> {
        Ok(self.driver().enable_peer(peer.index())?)
    }

    /// Has threads that allocate here or launch graphs stop when `preemption` says so. The first call counts.
    pub fn preempt(&self, preemption: Arc<Preemption>) {
        self.preemption.get_or_init(|| preemption);
    }

    /// A graph is launched on `stream`.
    pub(crate) fn before_launch(&self, stream: StreamId) {
        if let Some(preemption) = self.preemption.get() {
            preemption.at_launch(self.driver(), stream);
        }
    }

    #[cold]
    fn explain(&self, request: Request, error: AllocError) -> MemoryError {
        match OutOfMemoryReport::new(self, request, &error) {
            Some(report) => MemoryError::OutOfMemory(Box::new(report)),
            None => error.into(),
        }
    }
}
