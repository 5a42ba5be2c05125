//! The traits of a device's driver.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};

use tenure_alloc::{Address, ChunkId, MemoryInfo};
use tenure_core::{Device, StreamId};

use crate::LibraryUse;
use crate::call::{
    AccessMode, DeviceProcess, EventHandle, EventId, EventKind, GraphId, HostFunction, MemoryHandle, Priority,
};
use crate::error::CallError;

/// The driver of one device. The calls are modelled on the CUDA driver API, one trait for each concern; a caller of
/// `dyn Driver` has them all.
///
/// A failed call changed nothing, unless it [lost the context](crate::ErrorKind::loses_context): then every later call
/// fails. Any thread may make calls.
///
/// Errors carry no call site, since a call through `dyn Driver` cannot know it: `?` in a function that returns
/// [`DriverError`](crate::DriverError) adds it.
pub trait Driver:
    MemoryCalls + SharingCalls + CopyCalls + StreamCalls + EventCalls + GraphCalls + Any + Send + Sync
{
    /// Returns the driver's device.
    fn device(&self) -> Device;

    /// Returns the device's identifier, the same in every process: [`Properties::uuid`](crate::Properties::uuid).
    fn uuid(&self) -> [u8; 16];

    /// Returns the processes that hold memory of the device, this one included, or `None` where the system does not
    /// tell.
    fn processes(&self) -> Option<Vec<DeviceProcess>>;

    /// Returns the device memory that other libraries of this process hold, the most first, as far as it is seen.
    fn library_uses(&self) -> Vec<LibraryUse> {
        Vec::new()
    }

    /// Blocks the host until everything put on the device has completed.
    fn synchronize(&self) -> Result<(), CallError>;
}

/// Device memory: segments, which have an address from the start, and physical chunks that are mapped into reserved
/// address space. Addresses, sizes and chunk sizes of the mapping calls are multiples of
/// [`granularity`](Self::granularity).
pub trait MemoryCalls {
    /// Returns the size of the smallest physical chunk, in bytes; a power of two.
    fn granularity(&self) -> u64;

    /// Returns the free and total physical memory, in bytes.
    fn memory_info(&self) -> Result<MemoryInfo, CallError>;

    /// Allocates physical memory with an address of its own, readable and writable.
    fn malloc(&self, bytes: u64) -> Result<Address, CallError>;

    /// Frees memory of [`malloc`](Self::malloc), after everything put on the device has completed.
    fn free(&self, address: Address) -> Result<(), CallError>;

    /// Reserves address space without memory.
    fn reserve(&self, bytes: u64) -> Result<Address, CallError>;

    /// Frees a whole range of [`reserve`](Self::reserve) in which nothing is mapped.
    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), CallError>;

    /// Allocates physical memory without an address.
    fn create(&self, bytes: u64) -> Result<ChunkId, CallError>;

    /// Frees a chunk that is mapped nowhere.
    fn release(&self, chunk: ChunkId) -> Result<(), CallError>;

    /// Maps a whole chunk at `address`, in reserved space where nothing is mapped. A chunk may be mapped at several
    /// addresses. The mapping is not accessible yet.
    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), CallError>;

    /// Makes whole mapped chunks, without a gap, accessible. `access` replaces what was allowed before.
    fn set_access(&self, address: Address, bytes: u64, access: AccessMode) -> Result<(), CallError>;

    /// Gives device number `peer` the same access as this device to its accessible memory: memory of
    /// [`malloc`](Self::malloc) and every mapping, present and future. Nothing happens if it has that already.
    fn enable_peer(&self, peer: u8) -> Result<(), CallError>;

    /// Unmaps whole mapped chunks, without a gap. Does not wait: work that uses the addresses must be known to have
    /// completed, or the context is lost.
    fn unmap(&self, address: Address, bytes: u64) -> Result<(), CallError>;
}

/// Memory and events that several processes use: exporting them here, importing and opening those of another process.
pub trait SharingCalls {
    /// Returns a descriptor through which another process can [`import`](Self::import) the chunk. The descriptor, and
    /// every import, keeps the physical memory after the chunk's release.
    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, CallError>;

    /// Imports the chunk of a descriptor of [`export`](Self::export), under an id of this process. `bytes` must be the
    /// size that the chunk was created with, since the driver does not tell it.
    fn import(&self, chunk: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, CallError>;

    /// Returns a handle with which another process can [`open`](Self::open_memory) memory of [`malloc`](MemoryCalls::malloc).
    /// The caller must keep the memory meanwhile.
    fn export_memory(&self, address: Address) -> Result<MemoryHandle, CallError>;

    /// Opens memory of another process, given a handle that [`export_memory`](Self::export_memory) returned there.
    /// Returns its address here and its size in bytes. It can be opened more than once.
    fn open_memory(&self, handle: &MemoryHandle) -> Result<(Address, u64), CallError>;

    /// Undoes one [`open_memory`](Self::open_memory). Work that uses the memory must have completed.
    fn close_memory(&self, address: Address) -> Result<(), CallError>;

    /// Returns a handle with which another process can [`open`](Self::open_event) an event of
    /// [`EventKind::Interprocess`].
    fn export_event(&self, event: EventId) -> Result<EventHandle, CallError>;

    /// Opens an event of another process, given a handle that [`export_event`](Self::export_event) returned there.
    fn open_event(&self, handle: &EventHandle) -> Result<EventId, CallError>;
}

/// Copies between the host and the device, fills, and the pinned host memory that makes copies fast.
pub trait CopyCalls {
    /// Pins host memory: makes it fast to copy from and to, for all devices of this process, and keeps it from being
    /// swapped out. With `AccessMode::Read` the memory may be mapped read-only.
    ///
    /// # Safety
    /// `address..address + bytes` stays mapped until [`unregister_host`](Self::unregister_host).
    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError>;

    /// Returns the address at which kernels of this device use registered host memory in place, whichever driver
    /// registered it: they read it, and write it if it was registered with `AccessMode::ReadWrite`. They do so at the
    /// speed of the link, and need no copy on the device. The address holds until the memory is unregistered.
    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError>;

    /// Undoes this driver's [`register_host`](Self::register_host) of the same address. On every device, copies from
    /// and to the memory and kernels that read it in place must have completed.
    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError>;

    /// Copies `source` to the device in the order of `stream`, and blocks the host until the copy is done.
    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError>;

    /// Copies from the device to `target` in the order of `stream`, and blocks the host until the copy is done.
    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError>;

    /// Puts a copy from the host on `stream`.
    ///
    /// # Safety
    /// `source..source + bytes` stays readable, and no other code writes it, until `stream` has passed the copy.
    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError>;

    /// Puts a copy to the host on `stream`.
    ///
    /// # Safety
    /// `target..target + bytes` stays writable, and no other code touches it, until `stream` has passed the copy.
    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError>;

    /// Puts a copy from device memory to device memory on `stream`.
    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError>;

    /// Puts a fill of `bytes` bytes with `value` on `stream`.
    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError>;
}

/// Streams: queues of work that run in order. Streams do not wait for the null stream, nor it for them.
pub trait StreamCalls {
    /// Creates a stream.
    fn create_stream(&self, priority: Priority) -> Result<StreamId, CallError>;

    /// Destroys a stream. Work already put on it still runs.
    fn destroy_stream(&self, stream: StreamId) -> Result<(), CallError>;

    /// Returns whether everything put on `stream` has completed. Never waits.
    fn query_stream(&self, stream: StreamId) -> Result<bool, CallError>;

    /// Fails if the driver knows that work of `stream` failed. Never waits, and harms no stream capture: for a captured
    /// stream, it reports what earlier calls returned.
    fn check_stream(&self, stream: StreamId) -> Result<(), CallError>;

    /// Blocks the host until everything put on `stream` has completed.
    fn synchronize_stream(&self, stream: StreamId) -> Result<(), CallError>;

    /// Puts a function of the host on `stream`, which must not be captured.
    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), CallError>;
}

/// Events: points in a stream that other streams and the host wait for, and that measure time.
pub trait EventCalls {
    /// Creates an event. It counts as completed until it is recorded.
    fn create_event(&self, kind: EventKind) -> Result<EventId, CallError>;

    /// Destroys an event. Waits already put on streams still hold.
    fn destroy_event(&self, event: EventId) -> Result<(), CallError>;

    /// Records `event` on `stream`: it is passed once the work that is on the stream now has completed. Waits for an
    /// earlier record that are already on streams do not change.
    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), CallError>;

    /// Returns whether the device has passed `event`. Never waits.
    fn query_event(&self, event: EventId) -> Result<bool, CallError>;

    /// Makes later work of `stream` wait, on the device, until `event` is passed. The event may be of another device of
    /// the same platform; simulated devices refuse that ([`OtherDevice`](crate::ErrorKind::OtherDevice)).
    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), CallError>;

    /// Blocks the host until `event` is passed.
    fn synchronize_event(&self, event: EventId) -> Result<(), CallError>;

    /// Returns the device time between two passed events of [`EventKind::Timing`], in µs.
    fn elapsed_us(&self, start: EventId, end: EventId) -> Result<f64, CallError>;
}

/// Graphs: work of a stream that is captured once, and launched any number of times.
pub trait GraphCalls {
    /// Captures later work of `stream` into a graph, and runs none of it, until [`end_capture`](Self::end_capture). A
    /// stream that waits for an event recorded on a captured stream is captured too, and the first stream must wait for
    /// it before the end. Until then the thread that began the capture must not wait for the device or query it; other
    /// threads may, except on captured streams. The null stream cannot be captured.
    fn begin_capture(&self, stream: StreamId) -> Result<(), CallError>;

    /// Ends the capture that began on `stream`. If this fails, there is no graph, and the capture is over.
    fn end_capture(&self, stream: StreamId) -> Result<GraphId, CallError>;

    /// Returns whether work put on `stream` is captured. Harms no capture.
    fn is_capturing(&self, stream: StreamId) -> Result<bool, CallError>;

    /// Makes later work of a captured stream wait, in each launch of the graph, for the last record of `event` before
    /// that launch. On other streams this is [`wait_event`](EventCalls::wait_event). The event must outlive the graph.
    fn wait_event_outside(&self, stream: StreamId, event: EventId) -> Result<(), CallError>;

    /// Puts a whole graph on `stream`. Launches of one graph run one after the other, on any streams.
    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), CallError>;

    /// Destroys a graph. Launches already made still run.
    fn destroy_graph(&self, graph: GraphId) -> Result<(), CallError>;
}
