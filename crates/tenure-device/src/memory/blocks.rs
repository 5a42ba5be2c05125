//! Blocks of this process's memory in other processes, and theirs in this one: what `torch.multiprocessing` needs to
//! send CUDA tensors (c10's `shareIpcHandle` and `getIpcDevPtr`).

use tenure_alloc::Address;

use super::DeviceMemory;
use crate::deferred::in_host_function;
use crate::share::{BlockHandle, ShareError};

/// How another process finds a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// Where the block begins in the memory that `handle` names, in bytes.
    pub offset: u64,
    /// To be sent to the other process as it is. Blocks in the same memory have the same handle.
    pub handle: Vec<u8>,
}

/// Memory of another process, for as long as this lives. It must not be dropped while work is yet to be put on a
/// stream that uses it; work that was put there before is waited for.
///
/// Dropped in a host function or while a stream may be captured, the memory stays mapped until another block is
/// opened or dropped elsewhere: a wait for the device would be refused there, or break the capture.
pub struct ImportedBlock<'m> {
    memory: &'m DeviceMemory,
    handle: BlockHandle,
    address: Address,
}

impl DeviceMemory {
    /// The name of the live block that begins at `address`, for other processes of this user and root.
    ///
    /// The block must live until it was opened there: after that, its memory does, whatever happens here. Nobody says when
    /// the others are done, so it is for the program not to free a block that is still written or read elsewhere:
    /// `torch.multiprocessing` counts its references for that.
    ///
    /// # Errors
    /// [`ShareError::NotShareable`]: no block, or none in chunks. [`ShareError::InSharedCache`]. [`ShareError::Forked`].
    /// The system has no socket or thread left.
    pub fn share(&self, address: Address) -> Result<SharedBlock, ShareError> {
        if self.donated().contains(address) {
            return Err(ShareError::InSharedCache { address });
        }
        let allocator = self.allocator();
        let chunks = allocator.block(address).and_then(|block| allocator.chunks_under(address, block.bytes));
        let Some((chunks, first)) = chunks.and_then(|chunks| chunks.first().copied().map(|first| (chunks, first)))
        else {
            return Err(ShareError::NotShareable { address });
        };
        let handle = self.backing.exports().share(&chunks)?;
        Ok(SharedBlock { offset: address - first.address, handle: handle.encode() })
    }

    /// Maps the memory that `handle` names, of another process or this one, or finds it mapped.
    ///
    /// # Errors
    /// `handle` is none; the block lies on another device; its process is gone, has freed it, does not answer, or belongs
    /// to another user; the driver fails.
    pub fn open(&self, handle: &[u8]) -> Result<ImportedBlock<'_>, ShareError> {
        let handle = BlockHandle::decode(handle)?;
        let address = self.imports.open(&handle)?;
        let block = ImportedBlock { memory: self, handle, address };
        self.close_unused_imports();
        Ok(block)
    }

    /// Unmaps what is not used any more, if the device can be waited for.
    fn close_unused_imports(&self) {
        if !in_host_function() && !self.allocator().is_capturing() {
            self.imports.close_unused();
        }
    }
}

impl ImportedBlock<'_> {
    /// The first byte of the memory, in this process. A block in it begins [`offset`](SharedBlock::offset) bytes on.
    pub fn address(&self) -> Address {
        self.address
    }
}

impl Drop for ImportedBlock<'_> {
    fn drop(&mut self) {
        self.memory.imports.end_use(&self.handle);
        self.memory.close_unused_imports();
    }
}
