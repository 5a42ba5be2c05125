//! Devices: one trait, with a simulated and a CUDA driver.
//!
//! A [`Driver`] makes the calls to one device: physical memory, address space, streams, events and copies, after the
//! CUDA driver API. [`sim`] is a device in software that is stricter than a real one: a fault that shows once in a
//! thousand runs on a real device shows every time here, with its cause. [`cuda`] is NVIDIA's devices.
//! [`DeviceBacking`] lets an allocator of `tenure-alloc` use any driver. [`share`] shares a device's memory between
//! processes, and [`background`] its time.
//!
//! On top of a driver are [`functions`] (devices by their index), [`Streams`] (pools of streams, the current stream of
//! a thread) and [`Event`], after c10/cuda. [`memory`] is a process's memory on a device, and [`pinned`] the host
//! memory for copies from and to it; [`zero_copy`] is host memory that a device uses in place. [`exchange`] exchanges
//! blocks with PyTorch, and [`allocation_clock`] counts the blocks that PyTorch allocates.
//!
//! ```
//! use std::sync::Arc;
//! use tenure_alloc::{MemoryReports, PagedAllocator, Request, Resource};
//! use tenure_core::StreamId;
//! use tenure_device::DeviceBacking;
//! use tenure_device::sim::{SimConfig, SimDriver};
//!
//! let device = Arc::new(SimDriver::new(SimConfig::default()));
//! let allocator = PagedAllocator::new(Arc::new(DeviceBacking::new(device)), Default::default())?;
//! let block = allocator.allocate(Request::new(1 << 20, StreamId::NULL))?;
//! allocator.free(block.address)?;
//! assert_eq!(allocator.statistics().all.allocated_bytes.current, 0);
//! # Ok::<(), tenure_alloc::AllocError>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]

pub mod activity;
mod activity_log;
pub mod allocation_clock;
pub mod background;
mod backing;
pub mod cache;
mod call;
pub mod collective;
mod copies;
pub mod cost;
pub mod cuda;
mod deferred;
mod driver;
mod error;
mod event;
pub mod exchange;
mod executor;
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
mod stream_pools;
mod streams;
pub mod zero_copy;

pub use backing::DeviceBacking;
pub use call::{
    AccessMode, Call, DeviceProcess, EventHandle, EventId, EventKind, GraphId, HostFunction, MemoryHandle, Priority,
};
pub use copies::NotedCopy;
pub use cost::Counters;
pub use cuda::interposition::LibraryUse;
pub use driver::{CopyCalls, Driver, EventCalls, GraphCalls, MemoryCalls, SharingCalls, StreamCalls};
pub use error::{CallError, DriverError, ErrorKind, Launch};
pub use event::Event;
pub use executor::Executor;
pub use launches::{LaunchError, LaunchRegistry, RECENT_LAUNCHES, check_launch, check_warn};
pub use opened::OpenedMemory;
pub use platform::{LinkKind, Platform, Properties};
pub use stream::{Stream, StreamGuard};
pub use stream_pools::{STREAMS_PER_POOL, StreamKind};
pub use streams::Streams;
pub use tenure_core::Clock;
