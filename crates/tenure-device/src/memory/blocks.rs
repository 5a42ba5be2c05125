//! Blocks shared with other processes, as `torch.multiprocessing` needs to send CUDA tensors (c10's `shareIpcHandle`
//! and `getIpcDevPtr`).

use tenure_alloc::Address;

use super::DeviceMemory;
use crate::deferred::in_host_function;
use crate::share::{BlockHandle, ShareError};

/// The location of a block in the form in which it is sent to another process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBlock {
    /// The offset of the block, in bytes, in the memory that `handle` names.
    pub offset: u64,
    /// The handle to send to the other process unchanged. Blocks in the same memory have the same handle.
    pub handle: Vec<u8>,
}

/// Memory of another process, mapped while this lives. Before it is dropped, all work that uses the memory must be on
/// its stream; the drop waits for such work.
///
/// A drop in a host function or while a stream may be captured leaves the memory mapped until another block is opened
/// or dropped elsewhere: a host function may not wait for the device, and a wait would break the capture.
pub struct ImportedBlock<'m> {
    memory: &'m DeviceMemory,
    handle: BlockHandle,
    address: Address,
}

impl DeviceMemory {
    /// Shares the live block that begins at `address` with other processes of this user and root. Returns its location,
    /// to be sent to them.
    ///
    /// The block must live until another process has opened it. After that its memory stays there, whatever happens
    /// here. The allocator does not learn when the other processes are done. So the program must not free a block that
    /// is still written or read elsewhere: `torch.multiprocessing` counts its references for that.
    ///
    /// # Errors
    /// [`ShareError::NotShareable`]: there is no such block, or it does not consist of chunks.
    /// [`ShareError::InSharedCache`]. [`ShareError::Forked`].
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

    /// Opens the memory that `handle` names, of another process or this one. Maps it if it is not mapped yet.
    ///
    /// # Errors
    /// `handle` is not valid; the block lies on another device; its process is gone, has freed it, does not answer, or
    /// belongs to another user; the driver fails.
    pub fn open(&self, handle: &[u8]) -> Result<ImportedBlock<'_>, ShareError> {
        let handle = BlockHandle::decode(handle)?;
        let address = self.imports.open(&handle)?;
        let block = ImportedBlock { memory: self, handle, address };
        self.close_unused_imports();
        Ok(block)
    }

    /// Unmaps imports that are no longer used, if the device can be waited for.
    fn close_unused_imports(&self) {
        if !in_host_function() && !self.allocator().is_capturing() {
            self.imports.close_unused();
        }
    }
}

impl ImportedBlock<'_> {
    /// Returns the address of the memory's first byte in this process. A block begins [`offset`](SharedBlock::offset)
    /// bytes after it.
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
