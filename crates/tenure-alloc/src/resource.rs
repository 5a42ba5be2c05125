use std::sync::Arc;

use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, AllocError};

/// What a caller asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Bytes, as asked, not rounded.
    pub bytes: u64,
    /// The stream that will use the block, and that its free is ordered by. One stream for every thread: not CUDA's
    /// `cudaStreamPerThread` (2).
    pub stream: StreamId,
    /// What the block is for.
    pub tag: Tag,
    /// Which block it is.
    pub key: KeyId,
}

impl Request {
    /// A request with no tag and no key.
    pub fn new(bytes: u64, stream: StreamId) -> Self {
        Self { bytes, stream, tag: Tag::Unknown, key: KeyId::NONE }
    }

    /// The same request, for `tag`.
    pub fn with_tag(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }

    /// The same request, for `key`.
    pub fn with_key(self, key: KeyId) -> Self {
        Self { key, ..self }
    }
}

/// What a caller gets: `address..address + bytes`, its own until freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// First byte.
    pub address: Address,
    /// Bytes set aside: the request, rounded as the allocator rounds.
    pub bytes: u64,
}

/// A private pool, such as a graph capture's. PyTorch's `MempoolId_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u64, pub u64);

/// Anything that hands out stream-ordered blocks: allocators, and adaptors over them.
pub trait Resource: Send + Sync {
    /// A block of at least `request.bytes` bytes. A request of zero bytes gets address 0 and no memory.
    fn allocate(&self, request: Request) -> Result<Block, AllocError>;

    /// Ends the tenure of the block that starts at `address`; work already put on its streams may still use it.
    /// Address 0 is ignored.
    fn free(&self, address: Address) -> Result<(), AllocError>;
}

/// A shared resource, for adaptors that do not own what is below them.
impl<R: Resource + ?Sized> Resource for Arc<R> {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        (**self).allocate(request)
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        (**self).free(address)
    }
}
