//! Tiers of a host's memory, and tensors placed in them.
//!
//! A [`Tier`] is memory of one kind: DRAM, a NUMA node, a DAX device, or a file that stands for persistent memory. A
//! [`Placement`] sends each allocation of the threads that entered it to the tier that a
//! [`Mapping`](tenure_plan::Mapping) has for its key, and says what is where, verified. A [`Recorder`] makes the problem
//! that a mapping is planned of, from what a program allocates. A [`Disk`] is for what nobody computes with: its bytes go
//! out to files, and come back. A [`Mover`] brings what a device or the host computes with there, or to pinned memory, and
//! back before it is needed. A [`codec`] makes it fewer bytes. A
//! [`Reader`] reads files of others, such as weights.
#![deny(unsafe_op_in_unsafe_fn)]

pub mod codec;
mod dax;
mod disk;
mod error;
mod forks;
mod kernel_times;
mod medium;
mod mover;
mod placement;
mod reader;
mod recorder;
mod region;
#[forbid(unsafe_code)]
mod report;
mod system;
mod tier;

pub use disk::{Disk, DiskError, DiskOptions, DiskStatistics, GpuDirect, Spilled, Ticket};
pub use error::TierError;
pub use medium::{Medium, Nature};
pub use mover::{Arrival, Bytes, Destination, LinkStatistics, Links, Mover, MoverError, MoverOptions, Stored, Urgency};
pub use placement::{Options, Placement, PlacementGuard, WhenFull};
pub use reader::{Part, Reader, Source};
pub use recorder::{Event, Recorder, RecorderGuard};
pub use report::{KeyReport, Report, TagReport, TierReport};
pub use system::{available_bytes, memory_bytes};
pub use tier::Tier;
