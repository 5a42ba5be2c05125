//! Block allocators over a [`Backing`].
//!
//! Nothing here knows a device: a backing hands out physical chunks, address space and stream marks, and an
//! allocator decides which block lives where. [`native`] and [`expandable`] are PyTorch's own policies, exactly;
//! [`paged`] is Tenure's.

mod backing;
mod error;
mod resource;

pub use backing::{Address, Backing, BackingError, ChunkId, Mark, MemoryInfo};
pub use error::AllocError;
pub use resource::{Block, PoolId, Request, Resource};
