//! Blocks that are not in slabs: the requests that they serve, and the other streams that use them.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tenure_core::{KeyId, StreamId, Tag};

use super::parked::Loan;
use super::progress::{DeviceProgress, EpochUses};
use crate::{Address, AllocError, BackingError, History, HistoryAction, HistoryEvent, PoolId, Request};

/// The blocks, outside slabs, of a heap or of all streams without a heap. Their owner keeps the statistics.
#[derive(Default)]
pub(super) struct LargeBlocks {
    /// Blocks in use, and freed ones that other streams may still use.
    blocks: FxHashMap<Address, LargeBlock>,
    /// Freed blocks that other streams may still use, and these uses.
    pending: Vec<(Address, EpochUses)>,
    /// The number of blocks so far.
    made: u64,
}

/// A block that is not in a slab.
pub(super) struct LargeBlock {
    pub(super) bytes: u64,
    pub(super) requested: u64,
    pub(super) stream: StreamId,
    pub(super) tag: Tag,
    pub(super) key: KeyId,
    /// The number and `is_made` of its [`Loan`].
    pub(super) number: u64,
    pub(super) is_made: bool,
    /// Other streams that use it.
    users: SmallVec<[StreamId; 1]>,
    pub(super) is_freed: bool,
}

impl LargeBlocks {
    /// Adds a block for `request`; returns it.
    pub(super) fn insert(&mut self, request: Request, loan: Loan) -> &LargeBlock {
        let Request { bytes: requested, stream, tag, key } = request;
        let Loan { address, bytes, number, is_made, .. } = loan;
        let users = SmallVec::new();
        self.made += 1;
        let block = LargeBlock { bytes, requested, stream, tag, key, number, is_made, users, is_freed: false };
        self.blocks.entry(address).insert_entry(block).into_mut()
    }

    /// Returns the blocks, including freed ones that other streams may still use.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Address, &LargeBlock)> {
        self.blocks.iter().map(|(&address, block)| (address, block))
    }

    /// Returns the number of blocks so far, which is the index of the next one.
    pub(super) fn next_index(&self) -> u64 {
        self.made
    }

    pub(super) fn get(&self, address: Address) -> Option<&LargeBlock> {
        self.blocks.get(&address)
    }

    /// Returns the bytes of the live block at an address.
    pub(super) fn live_bytes(&self, address: Address) -> Option<u64> {
        self.blocks.get(&address).filter(|block| !block.is_freed).map(|block| block.bytes)
    }

    /// Returns whether a freed block waits for other streams.
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Records that `stream` uses a block too. Returns whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        let Some(block) = self.blocks.get_mut(&address).filter(|block| !block.is_freed) else { return false };
        if block.stream != stream && !block.users.contains(&stream) {
            block.users.push(stream);
        }
        true
    }

    /// Changes a live block's tag and key. Returns the old tag, and the block.
    pub(super) fn retag(&mut self, address: Address, tag: Tag, key: KeyId) -> Option<(Tag, &LargeBlock)> {
        let block = self.blocks.get_mut(&address).filter(|block| !block.is_freed)?;
        block.key = key;
        Some((std::mem::replace(&mut block.tag, tag), block))
    }

    /// Removes a live block and returns it; leaves it and returns `None` if other streams use it.
    #[inline]
    pub(super) fn take(&mut self, address: Address) -> Result<Option<LargeBlock>, AllocError> {
        match self.blocks.entry(address) {
            Entry::Occupied(block) if !block.get().is_freed => {
                Ok(if block.get().users.is_empty() { Some(block.remove()) } else { None })
            }
            _ => Err(AllocError::UnknownAddress(address)),
        }
    }

    /// Marks a block that other streams use as freed. [`complete_frees`](Self::complete_frees) removes it once these
    /// streams have finished the work enqueued so far.
    pub(super) fn free(&mut self, address: Address, progress: &mut DeviceProgress) -> Result<&LargeBlock, AllocError> {
        let block = self.blocks.get_mut(&address).filter(|block| !block.is_freed);
        let block = block.ok_or(AllocError::UnknownAddress(address))?;
        let mut uses = EpochUses::default();
        for &user in &block.users {
            uses.add(progress.mark_now(user)?);
        }
        block.is_freed = true;
        self.pending.push((address, uses));
        Ok(block)
    }

    /// Moves the freed blocks that no stream uses any more to `done`; if `wait`, waits for the streams on the host. If
    /// it fails, `done` has the blocks moved before.
    pub(super) fn complete_frees(
        &mut self,
        progress: &mut DeviceProgress,
        wait: bool,
        done: &mut Vec<(Address, LargeBlock)>,
    ) -> Result<(), BackingError> {
        let mut at = 0;
        while let Some((address, uses)) = self.pending.get_mut(at) {
            let address = *address;
            if wait {
                progress.synchronize(uses)?;
            }
            if progress.is_finished(uses)? {
                self.pending.swap_remove(at);
                done.extend(self.blocks.remove(&address).map(|block| (address, block)));
            } else {
                at += 1;
            }
        }
        Ok(())
    }
}

impl LargeBlock {
    /// Records an event of the block at `address`, which is of `pool`.
    #[cold]
    pub(super) fn record(&self, action: HistoryAction, address: Address, pool: PoolId, history: &History) {
        let Self { requested, stream, tag, key, .. } = *self;
        history.record(|| HistoryEvent::new(action, address, requested, stream).with_purpose(tag, key).in_pool(pool));
    }
}
