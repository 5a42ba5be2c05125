//! Tiers of a host's memory, and tensors placed in them.
//!
//! A [`Tier`] is memory of one kind: DRAM, a NUMA node, a DAX device, or a file that emulates persistent memory. A
//! [`Placement`] sends each allocation of the threads that entered it to the tier that a
//! [`Mapping`](tenure_plan::Mapping) has for its key, and reports where everything is, verified. A [`Recorder`] records
//! a program's allocations and makes the problem from which a mapping is planned. A [`Disk`] writes bytes to files and
//! reads them back. A [`Mover`] moves tensors of a device or of the host to a disk or to pinned memory, and back before
//! they are needed. A [`codec`] makes them smaller on the way. A [`FileReader`] reads existing files, such as weights.
//!
//! ```
//! use tenure_core::{KeyId, Tag};
//! use tenure_tier::{Medium, Tier};
//!
//! let tier = Tier::open("PM", &Medium::Path(std::env::temp_dir()), Some(16 << 20))?; // a file in its place
//! let data = tier.allocate_for(4096, Tag::Activation, KeyId::NONE)?;
//! assert!(tier.addresses().contains(&(data.as_ptr().addr() as u64)));
//! println!("{}: {}", tier.name(), tier.nature());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]
#![deny(unsafe_op_in_unsafe_fn)]

mod blocks;
pub mod codec;
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
pub use mover::{
    Destination, LinkStatistics, Links, MovableBytes, Mover, MoverError, MoverOptions, PendingFetch, Stored, Urgency,
};
pub use placement::{Placement, PlacementGuard, PlacementOptions, WhenFull};
pub use reader::{FilePart, FileReader, SourceFile};
pub use recorder::{RecordedEvent, Recorder, RecorderGuard};
pub use report::{KeyReport, Report, TagReport, TierReport};
pub use system::{available_bytes, memory_bytes, refuse_unavailable_memory};
pub use tier::Tier;
