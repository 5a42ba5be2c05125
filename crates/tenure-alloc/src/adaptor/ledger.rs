//! A record of the live blocks that were allocated through an adaptor.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{Address, AllocError, Block, Request, Resource};

/// The live blocks that were allocated through an adaptor, by address. It looks up the request when a block is freed,
/// since a free names only the address.
#[derive(Default)]
pub(super) struct Ledger {
    live: Mutex<FxHashMap<Address, LedgerEntry>>,
}

/// A live block and the request it serves.
#[derive(Clone, Copy)]
pub(super) struct LedgerEntry {
    pub(super) request: Request,
    pub(super) block: Block,
}

impl Ledger {
    /// Enters a block, unless it is empty (address 0).
    pub(super) fn insert(&self, request: Request, block: Block) {
        if block.address != 0 {
            self.live.lock().insert(block.address, LedgerEntry { request, block });
        }
    }

    /// Removes the block at `address`, if it was entered.
    ///
    /// Call it before the block is freed below, never after: by then another block may have the address.
    pub(super) fn remove(&self, address: Address) -> Option<LedgerEntry> {
        self.live.lock().remove(&address)
    }

    /// Removes the block at `address` and frees it below; enters it again if that fails.
    pub(super) fn free(&self, inner: &impl Resource, address: Address) -> Result<Option<LedgerEntry>, AllocError> {
        let entry = self.remove(address);
        match (inner.free(address), entry) {
            (Ok(()), _) => Ok(entry),
            (Err(error), Some(LedgerEntry { request, block })) => {
                self.insert(request, block);
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    }
}
