//! Private pools, as every allocator offers them: the sources of their memory, and checkpoints to set them back to.

use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, BackingError, PoolId, PoolKind};

/// A filter that returns whether an allocation on a stream goes to a private pool. It is called on the allocating
/// thread with the allocator's lock held: it must not call the allocator.
pub type StreamFilter = Box<dyn Fn(StreamId) -> bool + Send + Sync>;

/// A source of segments for a private pool, in place of the backing: a program's own allocator
/// (`torch.cuda.MemPool(allocator)`). It is called with no lock held, so that it may allocate here itself. Its own
/// allocations go to no private pool, and it must not hand them on as segments.
pub trait PoolSource: Send + Sync {
    /// Allocates a segment of `bytes` bytes, readable and writable, for work on `stream`.
    ///
    /// # Errors
    /// [`BackingError::OutOfMemory`] if there is no memory: the allocator then tries to serve the request in other
    /// ways.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Address, BackingError>;

    /// Takes a whole segment back. Work of `stream` may still use it.
    fn free(&self, address: Address, bytes: u64, stream: StreamId);
}

/// The reason for which allocations go to a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// A stream is captured into a graph, or may be: no stream is queried or waited for.
    Capture,
    /// The program keeps memory apart (`torch.cuda.use_mem_pool`). Streams are queried and waited for as usual.
    Eager,
}

/// The live blocks of a private pool at some time. PyTorch's `PrivatePoolState`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCheckpoint {
    pub(crate) pool: PoolId,
    /// The blocks, by address.
    pub(crate) blocks: Vec<CheckpointBlock>,
}

impl PoolCheckpoint {
    /// Returns the pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Returns the first addresses of the blocks, in order.
    pub fn addresses(&self) -> impl Iterator<Item = Address> {
        self.blocks.iter().map(|block| block.address)
    }
}

/// A live block of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CheckpointBlock {
    pub(crate) address: Address,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: StreamId,
    pub(crate) kind: PoolKind,
    pub(crate) tag: Tag,
    pub(crate) key: KeyId,
}

/// The effect of setting a pool back. An address may be in both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The blocks that lived before, by address. They are freed, and the caller must not free them again.
    pub freed: Vec<Address>,
    /// The blocks that live now, by address. The caller must free them.
    pub allocated: Vec<Address>,
}
