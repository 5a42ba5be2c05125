//! [`Resource`]: the interface of everything that hands out blocks.

use std::sync::Arc;

use tenure_core::{KeyId, StreamId, Tag};

use crate::{Address, AllocError};

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The bytes requested, not rounded.
    pub bytes: u64,
    /// The stream that will use the block and that orders its free. It must be the same stream on every thread, so not
    /// CUDA's `cudaStreamPerThread` (2).
    pub stream: StreamId,
    /// The block's purpose.
    pub tag: Tag,
    /// The block's identity.
    pub key: KeyId,
}

impl Request {
    /// Makes a request with no tag and no key.
    pub fn new(bytes: u64, stream: StreamId) -> Self {
        Self { bytes, stream, tag: Tag::Unknown, key: KeyId::NONE }
    }

    /// Returns the request with `tag` as its tag.
    pub fn with_tag(self, tag: Tag) -> Self {
        Self { tag, ..self }
    }

    /// Returns the request with `key` as its key.
    pub fn with_key(self, key: KeyId) -> Self {
        Self { key, ..self }
    }
}

/// A block, `address..address + bytes`. It belongs to the caller until freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The first byte.
    pub address: Address,
    /// The bytes set aside: the request, rounded by the allocator.
    pub bytes: u64,
}

/// A private pool, such as a graph capture's. PyTorch's `MempoolId_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PoolId(pub u64, pub u64);

/// A resource that hands out stream-ordered blocks: an allocator, or an adaptor over one.
pub trait Resource: Send + Sync {
    /// Allocates a block of at least `request.bytes` bytes. A request of zero bytes gets address 0 and no memory.
    fn allocate(&self, request: Request) -> Result<Block, AllocError>;

    /// Frees the block that starts at `address`. Work already put on its streams may still use it. Address 0 is
    /// ignored.
    fn free(&self, address: Address) -> Result<(), AllocError>;
}

/// A shared resource, for adaptors that do not own the resource below them.
impl<R: Resource + ?Sized> Resource for Arc<R> {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        (**self).allocate(request)
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        (**self).free(address)
    }
}
