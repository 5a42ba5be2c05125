//! The trait of a device's driver, and the types in its calls.

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};

use serde::{Deserialize, Serialize};
use tenure_alloc::{Address, ChunkId, MemoryInfo};
use tenure_core::{Device, StreamId};

use crate::CallError;

/// An event of a driver: a point in a stream that can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub u64);

/// Work of a driver that was recorded once, to be launched any number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GraphId(pub u64);

/// The use of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Order alone, the cheapest.
    #[default]
    Order,
    /// Order, and the time between two events.
    Timing,
    /// Order, between processes too; keeps no time.
    Interprocess,
}

/// A handle of an event of [`EventKind::Interprocess`], to send to another process. CUDA's `CUipcEventHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EventHandle(pub [u8; 64]);

/// A handle of memory of [`Driver::malloc`], to send to another process. CUDA's `CUipcMemHandle`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryHandle(pub [u8; 64]);

/// The rank of a stream's work when the device has more work than it can run at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Priority {
    /// The lowest priority. On today's NVIDIA devices it is the same as [`Default`](Self::Default).
    Low,
    /// The priority of the null stream, and of a stream created without a priority, such as PyTorch's: CUDA's 0.
    #[default]
    Default,
    /// The highest priority.
    High,
}

impl Priority {
    /// Every priority, the lowest first: `Priority::ALL[priority as usize] == priority`.
    pub const ALL: [Self; 3] = [Self::Low, Self::Default, Self::High];
}

/// The accesses that a mapping allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessMode {
    /// Reads; a write loses the context.
    Read,
    /// Reads and writes.
    #[default]
    ReadWrite,
}

/// A process that holds memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProcess {
    /// The process's number in this process's namespace.
    pub pid: u32,
    /// Bytes of device memory that it holds, its context included; `None` where the driver does not say.
    pub bytes: Option<u64>,
}

/// A function that runs on the host in a stream's order. It must not call the driver.
pub type HostFunction = Box<dyn FnOnce() + Send>;

/// The driver of one device. The calls are modelled on the CUDA driver API.
///
/// A failed call changed nothing, unless it [lost the context](crate::ErrorKind::loses_context): then every later call
/// fails. Any thread may make calls. Addresses, sizes and chunk sizes of the mapping calls are multiples of
/// [`granularity`](Self::granularity). Streams do not wait for the null stream, nor it for them.
///
/// Errors carry no call site, since a call through `dyn Driver` cannot know it: `?` in a function that returns
/// [`DriverError`](crate::DriverError) adds it.
pub trait Driver: Any + Send + Sync {
    /// Returns the driver's device.
    fn device(&self) -> Device;

    /// Returns the device's identifier, the same in every process: [`Properties::uuid`](crate::Properties::uuid).
    fn uuid(&self) -> [u8; 16];

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

    /// Returns a descriptor through which another process can [`import`](Self::import) the chunk. The descriptor, and
    /// every import, keeps the physical memory after the chunk's release.
    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, CallError>;

    /// Imports the chunk of a descriptor of [`export`](Self::export), under an id of this process. `bytes` must be the
    /// size that the chunk was created with, since the driver does not tell it.
    fn import(&self, chunk: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, CallError>;

    /// Returns a handle with which another process can [`open`](Self::open_memory) memory of [`malloc`](Self::malloc).
    /// The caller must keep the memory meanwhile.
    fn export_memory(&self, address: Address) -> Result<MemoryHandle, CallError>;

    /// Opens memory of another process, given a handle that [`export_memory`](Self::export_memory) returned there.
    /// Returns its address here and its size in bytes. It can be opened more than once.
    fn open_memory(&self, handle: &MemoryHandle) -> Result<(Address, u64), CallError>;

    /// Undoes one [`open_memory`](Self::open_memory). Work that uses the memory must have completed.
    fn close_memory(&self, address: Address) -> Result<(), CallError>;

    /// Pins host memory: makes it fast to copy from and to, for all devices of this process, and keeps it from being
    /// swapped out. With `AccessMode::Read` the memory may be mapped read-only.
    ///
    /// # Safety
    /// `address..address + bytes` stays mapped until [`unregister_host`](Self::unregister_host).
    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError>;

    /// Returns the address at which kernels of this device read registered host memory in place, whichever driver
    /// registered it. They read at the speed of the link, and need no copy on the device. The address holds until the
    /// memory is unregistered.
    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError>;

    /// Undoes this driver's [`register_host`](Self::register_host) of the same address. On every device, copies from
    /// and to the memory and kernels that read it in place must have completed.
    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError>;

    /// Returns the processes that hold memory of the device, this one included, or `None` where the system does not
    /// tell.
    fn processes(&self) -> Option<Vec<DeviceProcess>>;

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

    /// Blocks the host until everything put on the device has completed.
    fn synchronize(&self) -> Result<(), CallError>;

    /// Creates an event. It counts as completed until it is recorded.
    fn create_event(&self, kind: EventKind) -> Result<EventId, CallError>;

    /// Returns a handle with which another process can [`open`](Self::open_event) an event of
    /// [`EventKind::Interprocess`].
    fn export_event(&self, event: EventId) -> Result<EventHandle, CallError>;

    /// Opens an event of another process, given a handle that [`export_event`](Self::export_event) returned there.
    fn open_event(&self, handle: &EventHandle) -> Result<EventId, CallError>;

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

    /// Puts a function of the host on `stream`, which must not be captured.
    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), CallError>;

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
    /// that launch. On other streams this is [`wait_event`](Self::wait_event). The event must outlive the graph.
    fn wait_event_outside(&self, stream: StreamId, event: EventId) -> Result<(), CallError>;

    /// Puts a whole graph on `stream`. Launches of one graph run one after the other, on any streams.
    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), CallError>;

    /// Destroys a graph. Launches already made still run.
    fn destroy_graph(&self, graph: GraphId) -> Result<(), CallError>;
}
