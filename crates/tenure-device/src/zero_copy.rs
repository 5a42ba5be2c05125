//! Zero-copy memory: pinned host memory whose bytes a device reads and writes in place, over its link.
//!
//! A storage of a device may lie there: whatever uses it works, at the speed of the link. So bytes that are used once a
//! step, such as an optimizer's state, need no room on the device and no copies. It is also where an allocation may go
//! that finds no room on the device.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;
use tenure_alloc::Address;
use tenure_core::{DataPtr, Device, Storage, StreamId, Unforked};

use crate::CallError;
use crate::memory::DeviceMemory;
use crate::pinned::{PinnedBuffer, PinnedError, PinnedPool};
use crate::platform::MAX_DEVICES;

/// The buffers of all zero-copy storages, by their addresses on their devices.
static BUFFERS: Unforked<Option<FxHashMap<Address, PinnedBuffer>>> = Unforked::new(None);

/// For each device, what serves the allocations that find no room.
static OVERFLOWS: [Unforked<Option<Overflow>>; MAX_DEVICES] = [const { Unforked::new(None) }; MAX_DEVICES];

/// The function that serves an allocation which finds no room: of so many bytes, for work on a stream.
type Serve = dyn Fn(usize, StreamId) -> Option<Storage> + Send + Sync;

#[derive(Clone)]
struct Overflow(Arc<Serve>);

impl fmt::Debug for Overflow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Overflow")
    }
}

/// Zero-copy memory of a device, in a pool of pinned memory. Clones share it.
#[derive(Clone)]
pub struct ZeroCopy {
    memory: &'static DeviceMemory,
    pool: PinnedPool,
    usage: Arc<Usage>,
}

#[derive(Default)]
struct Usage {
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
}

/// An error of zero-copy memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ZeroCopyError {
    /// There is too little pinned memory.
    #[error(transparent)]
    Pinned(#[from] PinnedError),
    /// The device cannot use host memory in place, or a copy failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl ZeroCopy {
    /// Creates the zero-copy memory of a device, in a pool that its driver pins.
    pub fn new(memory: &'static DeviceMemory, pool: PinnedPool) -> Self {
        Self { memory, pool, usage: Arc::default() }
    }

    /// Allocates a storage of the device, with arbitrary contents, for work on `stream`. It is not resizable. Its memory
    /// is used again only after the work that is on the stream when the storage is dropped.
    ///
    /// # Errors
    /// There is too little pinned memory, or the device cannot use host memory in place.
    pub fn allocate(&self, bytes: usize, stream: StreamId) -> Result<Storage, ZeroCopyError> {
        let buffer = self.pool.allocate(bytes)?;
        buffer.record_stream(stream);
        self.storage_of(buffer)
    }

    /// Allocates a storage as [`allocate`](Self::allocate) does, and copies `bytes` bytes of the device into it, in the
    /// order of `stream`.
    ///
    /// # Errors
    /// It returns the errors of [`allocate`](Self::allocate), and failures of the driver.
    pub fn allocate_copy(&self, source: Address, bytes: usize, stream: StreamId) -> Result<Storage, ZeroCopyError> {
        let mut buffer = self.pool.allocate(bytes)?;
        buffer.record_stream(stream);
        // SAFETY: the host never touches the buffer, whose memory outlives the work on the stream.
        unsafe { self.memory.driver().copy_from_device_async(buffer.as_mut_ptr(), source, bytes as u64, stream)? };
        self.storage_of(buffer)
    }

    /// Copies the storage that begins at `address` to the device, in the order of `stream`. Returns false if there is no
    /// such storage.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn copy_to_device(&self, address: Address, target: Address, stream: StreamId) -> Result<bool, ZeroCopyError> {
        let buffers = BUFFERS.lock();
        let Some(buffer) = buffers.as_ref().and_then(|buffers| buffers.get(&address)) else { return Ok(false) };
        buffer.record_stream(stream);
        // SAFETY: the host never touches the buffer, whose memory outlives the work on the stream.
        unsafe { self.memory.driver().copy_to_device_async(target, buffer.as_ptr(), buffer.len() as u64, stream)? };
        Ok(true)
    }

    /// Copies bytes of the device to the storage that begins at `address`, as many as it has, in the order of `stream`.
    /// Returns false if there is no such storage.
    ///
    /// # Errors
    /// Failures of the driver.
    pub fn copy_from_device(&self, address: Address, source: Address, stream: StreamId) -> Result<bool, ZeroCopyError> {
        let mut buffers = BUFFERS.lock();
        let Some(buffer) = buffers.as_mut().and_then(|buffers| buffers.get_mut(&address)) else { return Ok(false) };
        buffer.record_stream(stream);
        let bytes = buffer.len() as u64;
        // SAFETY: as above.
        unsafe { self.memory.driver().copy_from_device_async(buffer.as_mut_ptr(), source, bytes, stream)? };
        Ok(true)
    }

    fn storage_of(&self, buffer: PinnedBuffer) -> Result<Storage, ZeroCopyError> {
        let bytes = buffer.len();
        let device = self.memory.device();
        if bytes == 0 {
            // SAFETY: there are no bytes.
            return Ok(unsafe { Storage::from_data_ptr(DataPtr::null(device), 0, None) });
        }
        let address = self.memory.driver().host_on_device(buffer.as_ptr())?;
        BUFFERS.lock().get_or_insert_default().insert(address, buffer);
        let now = self.usage.bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.usage.peak_bytes.fetch_max(now, Ordering::Relaxed);
        let usage = Arc::clone(&self.usage);
        let release = move || {
            usage.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
            let buffer = BUFFERS.lock().as_mut().and_then(|buffers| buffers.remove(&address));
            drop(buffer);
        };
        // To the host, a device's address is only a number.
        let data = std::ptr::without_provenance_mut(address as usize);
        let data = DataPtr::foreign(data, device, release);
        // SAFETY: the device can use the buffer until the deleter drops it.
        Ok(unsafe { Storage::from_data_ptr(data, bytes, None) })
    }

    /// Returns the bytes of the storages that live.
    pub fn bytes(&self) -> u64 {
        self.usage.bytes.load(Ordering::Relaxed)
    }

    /// Returns the most bytes of storages that lived at once since the last call.
    pub fn take_peak_bytes(&self) -> u64 {
        self.usage.peak_bytes.swap(self.bytes(), Ordering::Relaxed)
    }
}

/// Returns whether a zero-copy storage begins at an address.
pub fn contains(address: Address) -> bool {
    BUFFERS.lock().as_ref().is_some_and(|buffers| buffers.contains_key(&address))
}

/// Records that `stream` uses the storage that begins at an address. Returns false if there is none.
pub fn record_stream(address: Address, stream: StreamId) -> bool {
    let buffers = BUFFERS.lock();
    let buffer = buffers.as_ref().and_then(|buffers| buffers.get(&address));
    buffer.inspect(|buffer| buffer.record_stream(stream)).is_some()
}

/// Sets the function that is asked where an allocation of another library, such as PyTorch, finds no room on a device.
/// It may return a storage in its place. The caller holds no lock.
pub fn on_overflow(device: Device, serve: impl Fn(usize, StreamId) -> Option<Storage> + Send + Sync + 'static) {
    let Some(overflow) = OVERFLOWS.get(usize::from(device.index())) else { return };
    let former = overflow.lock().replace(Overflow(Arc::new(serve)));
    drop(former);
}

/// Asks for a storage in place of an allocation that found no room.
#[cold]
pub fn overflow(device: Device, bytes: usize, stream: StreamId) -> Option<Storage> {
    let Overflow(serve) = OVERFLOWS.get(usize::from(device.index()))?.lock().clone()?;
    serve(bytes, stream)
}
