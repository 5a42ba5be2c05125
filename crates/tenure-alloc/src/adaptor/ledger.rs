//! The live blocks that an adaptor has seen.

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::{Address, AllocError, Block, Request, Resource};

/// The live blocks that an adaptor has seen allocated, by address: a free names nothing but the address.
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
    pub(super) fn enter(&self, request: Request, block: Block) {
        if block.address != 0 {
            self.live.lock().insert(block.address, LedgerEntry { request, block });
        }
    }

    /// Removes the block at `address`, if it was entered.
    ///
    /// Call it before the block is freed below, never after: by then another block may have the address.
    pub(super) fn strike(&self, address: Address) -> Option<LedgerEntry> {
        self.live.lock().remove(&address)
    }

    /// Removes the block at `address` and frees it below; enters it again if that fails.
    pub(super) fn free(&self, inner: &impl Resource, address: Address) -> Result<Option<LedgerEntry>, AllocError> {
        let struck = self.strike(address);
        match (inner.free(address), struck) {
            (Ok(()), _) => Ok(struck),
            (Err(error), Some(LedgerEntry { request, block })) => {
                self.enter(request, block);
                Err(error)
            }
            (Err(error), None) => Err(error),
        }
    }
}
