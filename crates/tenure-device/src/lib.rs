//! Devices, behind one trait.
//!
//! A [`Driver`] is one device as its driver shows it: physical memory, address space, streams, events and copies,
//! after the CUDA driver API. [`sim`] is a device in software which is stricter than a real one: what would go wrong
//! once in a thousand runs there goes wrong every time here, and says why. [`cuda`] is NVIDIA's devices. [`DeviceBacking`] puts an allocator of
//! `tenure-alloc` on any driver.

mod backing;
mod call;
pub mod cost;
pub mod cuda;
mod driver;
mod error;
mod launches;
pub mod memory;
pub mod pinned;
mod platform;
mod ring;
pub mod sim;
mod sync;

pub use backing::DeviceBacking;
pub use call::Call;
pub use cost::Counters;
pub use driver::{Access, Driver, EventHandle, EventId, EventKind, HostFunction, Priority, ProcessMemory};
pub use error::{CallError, DriverError, ErrorKind, Launch};
pub use launches::{LaunchRegistry, RECENT_LAUNCHES};
pub use platform::{Link, Platform, Properties};
