//! Block allocators over a [`Backing`].
//!
//! No code here depends on a kind of device. A backing provides physical chunks, address space and stream marks, and an
//! allocator decides which block lives where. [`native`] is PyTorch's own allocator, exactly, with and without
//! expandable segments; [`paged`] is Tenure's.
//!
//! ```
//! use tenure_alloc::Arena;
//!
//! let mut arena = Arena::new(1 << 30, 1 << 20);
//! let weights = arena.allocate_low(300_000).expect("there is room");
//! let activation = arena.allocate_high(4096).expect("there is room");
//! arena.free(activation.address)?;
//! assert!(weights.address == 1 << 30 && arena.free_bytes() < (1 << 20) - 300_000);
//! # Ok::<(), tenure_alloc::AllocError>(())
//! ```
#![allow(clippy::disallowed_methods, reason = "only tests keep off the wall clock")]

mod accounts;
pub mod adaptor;
mod arena;
mod backing;
mod bump;
mod caching;
mod error;
mod history;
mod hooks;
pub mod native;
pub mod paged;
pub mod pages;
mod private;
mod resource;
mod rounding;
mod runs;
pub mod snapshot;
mod statistics;
mod sync;

pub use arena::Arena;
pub use backing::{Address, Backing, BackingError, ChunkId, MappedChunk, Mark, MemoryInfo};
pub use bump::BumpPool;
pub use caching::{
    CachingAllocator, CycleBlock, Cycles, Divisions, FreeMemoryCallback, LiveBlocks, MemoryLimits, MemoryReports,
    OutOfMemory, OutOfMemoryObserver, PoolCheckpoints, PrivatePools, RepeatedCycle, Tuning,
};
pub use error::AllocError;
pub use history::{
    History, HistoryAction, HistoryClock, HistoryContext, HistoryContextGuard, HistoryEvent, KeepContexts, Recording,
    Tracker,
};
pub use native::{NativeAllocator, NativeConfig};
pub use paged::{PagedAllocator, PagedConfig};
pub use pages::{PageHeap, PageHeapConfig};
pub use private::{PoolCheckpoint, PoolSource, PoolUse, Restored, StreamFilter};
pub use resource::{Block, PoolId, Request, Resource};
pub use snapshot::Snapshot;
pub use statistics::{PoolKind, PoolStatistics, Stat, Statistics, TagStatistics};
