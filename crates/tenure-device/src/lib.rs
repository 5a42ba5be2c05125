//! Devices, behind one trait.
//!
//! A [`Driver`] is one device as its driver shows it: physical memory, address space, streams, events and copies,
//! after the CUDA driver API. [`sim`] is a device in software which is stricter than a real one: what would go wrong
//! once in a thousand runs there goes wrong every time here, and says why. [`cuda`] is NVIDIA's devices.
//! [`DeviceBacking`] puts an allocator of `tenure-alloc` on any driver. [`share`] shares a device's memory between
//! processes, and [`background`] its time.
//!
//! Above a driver stand [`functions`] (devices by their index), [`Streams`] (pools of streams, the current stream of a
//! thread) and [`Event`], after c10/cuda. [`memory`] is a process's memory on a device, and [`pinned`] the host memory
//! at the other end of its copies.

pub mod background;
mod backing;
pub mod cache;
mod call;
mod check;
pub mod collective;
pub mod cost;
pub mod cuda;
mod deferred;
mod driver;
mod error;
mod event;
pub mod functions;
pub mod graph;
pub mod host;
mod launches;
pub mod memory;
mod opened;
pub mod pinned;
mod platform;
mod ring;
pub mod share;
pub mod sim;
mod stream;
mod streams;
mod sync;

pub use backing::DeviceBacking;
pub use call::Call;
pub use check::{LaunchError, check_launch, check_warn};
pub use cost::Counters;
pub use driver::{
    Access, Driver, EventHandle, EventId, EventKind, Executor, GraphId, HostFunction, MemoryHandle, Priority,
    ProcessMemory,
};
pub use error::{CallError, DriverError, ErrorKind, Launch};
pub use event::Event;
pub use launches::{LaunchRegistry, RECENT_LAUNCHES};
pub use opened::OpenedMemory;
pub use platform::{Link, Platform, Properties};
pub use stream::{Stream, StreamGuard, StreamKind};
pub use streams::{STREAMS_PER_POOL, Streams};
pub use tenure_core::Clock;
