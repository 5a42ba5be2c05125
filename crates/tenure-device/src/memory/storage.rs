//! Device memory as an allocator of storages: `tenure_core::Allocator`.

use tenure_alloc::{AllocError, Request};
use tenure_core::{Allocator, AllocatorError, DataPtr, Device, Purpose, Storage, StreamId};

use super::{DeviceMemory, MemoryError, installed};
use crate::Stream;

/// Records that `stream` uses the bytes of `storage` too: once freed, they are not reused before that stream has passed
/// what was put on it before. Returns whether this process's allocator owns the bytes. The owner of other bytes must
/// keep track of their uses itself.
///
/// # Errors
/// Failures of the device.
pub fn record_stream(storage: &Storage, stream: StreamId) -> Result<bool, MemoryError> {
    let guard = storage.lock();
    let device = guard.device();
    let memory = (!device.is_cpu()).then(|| installed(device.index().into())).flatten();
    memory.map_or(Ok(false), |memory| memory.record_use(guard.as_ptr().addr() as u64, stream))
}

/// Hands the bytes of `storage` to work that is put on `stream` later, such as another library's. The work on the
/// thread's current stream comes first, on the device, and the bytes are [not reused](record_stream) before `stream`
/// has passed what is on it when they are freed. The host does not wait.
///
/// # Errors
/// Failures of the device.
#[track_caller]
pub fn lead_to(storage: &Storage, stream: &Stream) -> Result<(), MemoryError> {
    if let Some(memory) = installed(stream.device().index().into()) {
        let current = memory.streams().current();
        if current.id() != stream.id() {
            current.lead_to(stream)?;
        }
    }
    record_stream(storage, stream.id()).map(drop)
}

impl DeviceMemory {
    /// Records a use as [`record_stream`](Self::record_stream) does, for an address that may belong to other code.
    /// Returns whether it is a block of this memory.
    ///
    /// # Errors
    /// [`MemoryError::PerThreadStream`].
    pub fn record_use(&self, address: u64, stream: StreamId) -> Result<bool, MemoryError> {
        match self.record_stream(address, stream) {
            Ok(()) => Ok(true),
            Err(MemoryError::Allocator(AllocError::UnknownAddress(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

// SAFETY: a block of the allocator belongs to its holder alone until it is freed, which the deleter does;
// `DeviceMemory` lives as long as any deleter.
unsafe impl Allocator for &'static DeviceMemory {
    fn device(&self) -> Device {
        self.device
    }

    /// Allocates on the thread's current stream, for its current [`Purpose`].
    fn allocate(&self, bytes: usize) -> Result<DataPtr, AllocatorError> {
        let memory: &'static DeviceMemory = self;
        let (tag, key) = Purpose::current();
        let request = Request::new(bytes as u64, self.streams().current_id()).with_tag(tag).with_key(key);
        let block = memory.allocate(request).map_err(|error| error.into_allocator_error(self.device, bytes))?;
        if block.address == 0 {
            return Ok(DataPtr::null(self.device));
        }
        // To the host, a device's address is only a number.
        let data = std::ptr::without_provenance_mut(block.address as usize);
        Ok(DataPtr::foreign(data, self.device, move || {
            // The deleter has no caller that could try again, for example after a host function that Tenure does not
            // know of: the next call does.
            if let Err(MemoryError::Allocator(AllocError::Backing(_))) = memory.free(block.address) {
                memory.deferred.push(block.address);
            }
        }))
    }

    /// Copies on the thread's current stream. Records the source there: it may be freed, on its own stream, before the
    /// copy has run.
    unsafe fn copy(&self, source: *const u8, target: *mut u8, bytes: usize) -> Result<(), AllocatorError> {
        let stream = self.streams().current_id();
        self.record_use(source.addr() as u64, stream)
            .map_err(|error| error.into_allocator_error(self.device, bytes))?;
        let source = source.addr() as u64;
        let target = target.addr() as u64;
        self.driver().copy_on_device(target, source, bytes as u64, stream).map_err(|error| AllocatorError::Failed {
            device: self.device,
            call: error.call.name(),
            reason: error.to_string(),
        })
    }
}
