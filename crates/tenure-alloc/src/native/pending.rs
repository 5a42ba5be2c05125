//! Freed blocks that other streams may still use.

use std::collections::{BTreeMap, VecDeque};

use tenure_core::StreamId;

use super::blocks::{BlockId, BlockState, StreamUse};
use super::engine::Engine;
use crate::accounts::Accounts;
use crate::{AllocError, BackingError, Mark};

/// Freed blocks that wait for streams.
#[derive(Debug, Default)]
pub(super) struct PendingBlocks {
    /// Marks by stream, in the order in which they were recorded, so that a slow stream delays only its own blocks.
    awaited: BTreeMap<StreamId, VecDeque<(Mark, BlockId)>>,
    /// Blocks freed during a capture, when recording and querying marks would break the capture.
    pub(super) deferred: VecDeque<BlockId>,
}

impl Engine {
    /// Returns to their pools the freed blocks that every stream has passed. Queries nothing while a capture may be
    /// underway.
    #[inline]
    pub(crate) fn finish_completed(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        let nothing = self.pending.awaited.is_empty() && self.pending.deferred.is_empty();
        if nothing || self.captures.any() {
            return Ok(());
        }
        self.finish(accounts, false)
    }

    /// Waits until every stream has passed every freed block, and returns the blocks to their pools.
    pub(super) fn finish_all(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        accounts.statistics.num_sync_all_streams += 1;
        self.finish(accounts, true)
    }

    /// Waits in the same way for the blocks of one pool.
    pub(super) fn finish_all_of(&mut self, accounts: &mut Accounts, owner: usize) -> Result<(), AllocError> {
        accounts.statistics.num_sync_all_streams += 1;
        self.settle_deferred(accounts)?;
        for stream in self.awaited_streams() {
            let mut at = 0;
            while let Some((mark, id)) = self.awaited(stream, at) {
                if self.blocks[id].pool.owner == owner {
                    self.backing.synchronize(mark)?;
                    self.passed(accounts, stream, at);
                } else {
                    at += 1;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn finish(&mut self, accounts: &mut Accounts, wait: bool) -> Result<(), AllocError> {
        self.settle_deferred(accounts)?;
        for stream in self.awaited_streams() {
            while let Some((mark, _)) = self.awaited(stream, 0) {
                if wait {
                    self.backing.synchronize(mark)?;
                } else if !self.backing.completed(mark)? {
                    break;
                }
                self.passed(accounts, stream, 0);
            }
        }
        Ok(())
    }

    /// Makes `id` wait for every stream that used it and passes `filter`; returns how many. If it fails, nothing has
    /// changed.
    pub(super) fn await_streams(&mut self, id: BlockId, filter: fn(&StreamUse) -> bool) -> Result<u32, BackingError> {
        let uses = self.blocks[id].uses.iter().filter(|used| filter(used));
        let marks: Vec<Mark> = uses.map(|used| self.backing.record(used.stream)).collect::<Result<_, _>>()?;
        self.blocks[id].uses.clear();
        for &mark in &marks {
            self.pending.awaited.entry(mark.stream).or_default().push_back((mark, id));
        }
        Ok(marks.len() as u32)
    }

    /// Records the marks of blocks freed during a capture. Work put on a stream during the capture has not run, and the
    /// captured graph orders it by itself. So only streams recorded outside a capture are awaited. (PyTorch forgets
    /// streams that are recorded in both, and streams that are not captured while another is.)
    fn settle_deferred(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        while let Some(&id) = self.pending.deferred.front() {
            let marks = self.await_streams(id, |used| !used.only_in_capture)?;
            self.pending.deferred.pop_front();
            self.blocks[id].state = BlockState::Pending(marks);
            if marks == 0 {
                self.complete(accounts, id);
            }
        }
        Ok(())
    }

    fn awaited_streams(&self) -> Vec<StreamId> {
        self.pending.awaited.keys().copied().collect()
    }

    fn awaited(&self, stream: StreamId, at: usize) -> Option<(Mark, BlockId)> {
        self.pending.awaited.get(&stream)?.get(at).copied()
    }

    /// Notes that `stream` has passed a mark awaited on it; completes the block if that was its last mark.
    fn passed(&mut self, accounts: &mut Accounts, stream: StreamId, at: usize) {
        let Some(queue) = self.pending.awaited.get_mut(&stream) else { return };
        let Some((_, id)) = queue.remove(at) else { return };
        if queue.is_empty() {
            self.pending.awaited.remove(&stream);
        }
        let BlockState::Pending(marks) = self.blocks[id].state else { unreachable!("an awaited block is pending") };
        self.blocks[id].state = BlockState::Pending(marks - 1);
        if marks == 1 {
            self.complete(accounts, id);
        }
    }
}
