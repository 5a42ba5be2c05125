//! Private pools, as every allocator offers them: where their memory comes from, and the state they can be set back to.

use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, BackingError, PoolId, PoolKind};

/// Says whether an allocation on a stream goes to a private pool. Called on the allocating thread with the allocator's
/// lock held: it must not call the allocator.
pub type StreamFilter = Box<dyn Fn(StreamId) -> bool + Send + Sync>;

/// Where the segments of a private pool come from, if not from the backing: a program's own allocator
/// (`torch.cuda.MemPool(allocator)`). Called with no lock held, so that it may allocate here itself; what it allocates
/// goes to no private pool, and must not be handed on as a segment.
pub trait PoolSource: Send + Sync {
    /// A segment of `bytes` bytes, readable and writable, for work on `stream`.
    ///
    /// # Errors
    /// [`BackingError::OutOfMemory`] if there is none: the allocator then tries to serve the request otherwise.
    fn allocate(&self, bytes: u64, stream: StreamId) -> Result<Address, BackingError>;

    /// Takes a whole segment back. Work of `stream` may still use it.
    fn free(&self, address: Address, bytes: u64, stream: StreamId);
}

/// Why allocations go to a private pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolUse {
    /// A stream is captured into a graph, or may be: nothing is asked about streams, and none is waited for.
    Capture,
    /// The program keeps memory apart (`torch.cuda.use_mem_pool`). Streams are asked and waited for as ever.
    Eager,
}

/// The live blocks of a private pool at some time. PyTorch's `PrivatePoolState`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolCheckpoint {
    pub(crate) pool: PoolId,
    /// By address.
    pub(crate) blocks: Vec<CheckpointBlock>,
}

impl PoolCheckpoint {
    /// The pool.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// First addresses of the blocks, in order.
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

/// What setting a pool back did. An address may be in both lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The blocks that lived before, by address: they are freed, and not the caller's to free any more.
    pub freed: Vec<Address>,
    /// The blocks that live now, by address: the caller's to free.
    pub allocated: Vec<Address>,
}
