//! Freed blocks that other streams may still use.

use tenure_core::StreamId;

use super::blocks::{BlockId, BlockState, StreamUse};
use super::engine::Engine;
use crate::accounts::Accounts;
use crate::{AllocError, BackingError, Mark};

impl Engine {
    /// Returns to their pools the freed blocks that no stream uses any more. Does nothing while a stream may be
    /// captured, because a query would break the capture.
    #[inline]
    pub(crate) fn finish_completed(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        let nothing = self.pending.awaited.is_empty() && self.pending.deferred.is_empty();
        if nothing || self.captures.any() {
            return Ok(());
        }
        self.finish(accounts, false)
    }

    /// Waits on the host until no stream uses a freed block any more, and returns the blocks to their pools.
    pub(super) fn finish_all(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
        accounts.statistics.num_sync_all_streams += 1;
        self.finish(accounts, true)
    }

    /// Does the same for the blocks of one pool, given by index.
    pub(super) fn finish_all_of(&mut self, accounts: &mut Accounts, owner: usize) -> Result<(), AllocError> {
        accounts.statistics.num_sync_all_streams += 1;
        self.start_deferred_waits(accounts)?;
        for stream in self.awaited_streams() {
            let mut at = 0;
            while let Some((mark, id)) = self.awaited(stream, at) {
                if self.blocks[id].pool.owner == owner {
                    self.backing.synchronize(mark)?;
                    self.remove_mark(accounts, stream, at);
                } else {
                    at += 1;
                }
            }
        }
        Ok(())
    }

    /// Returns freed blocks to their pools: all, after waiting for their streams on the host if `wait`, or else those
    /// that no stream uses any more.
    pub(crate) fn finish(&mut self, accounts: &mut Accounts, wait: bool) -> Result<(), AllocError> {
        self.start_deferred_waits(accounts)?;
        for stream in self.awaited_streams() {
            while let Some((mark, _)) = self.awaited(stream, 0) {
                if wait {
                    self.backing.synchronize(mark)?;
                } else if !self.backing.completed(mark)? {
                    break;
                }
                self.remove_mark(accounts, stream, 0);
            }
        }
        Ok(())
    }

    /// Records a mark on every stream that used the block and that `filter` accepts, so that the block waits for them.
    /// Returns the number of marks. If it fails, nothing has changed.
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
    fn start_deferred_waits(&mut self, accounts: &mut Accounts) -> Result<(), AllocError> {
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

    /// Returns the streams with marks that freed blocks wait for.
    fn awaited_streams(&self) -> Vec<StreamId> {
        self.pending.awaited.keys().copied().collect()
    }

    /// Returns a mark awaited on `stream` and its block, by the position in the stream's queue.
    fn awaited(&self, stream: StreamId, at: usize) -> Option<(Mark, BlockId)> {
        self.pending.awaited.get(&stream)?.get(at).copied()
    }

    /// Removes a mark that `stream` has passed, by its position in the stream's queue. Makes the block free if it was
    /// the block's last mark.
    fn remove_mark(&mut self, accounts: &mut Accounts, stream: StreamId, at: usize) {
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
