//! Checkpoints: setting a private pool back to blocks that lived in it before, for graphs that are captured after
//! others were replayed.

use std::collections::BTreeMap;

use super::blocks::{Block, BlockId, BlockState};
use super::engine::Engine;
use crate::accounts::Accounts;
use crate::private::CheckpointBlock;
use crate::{Address, AllocError, PoolCheckpoint, PoolId, Request, Restored};

impl Engine {
    pub(crate) fn checkpoint(&mut self, accounts: &mut Accounts, id: PoolId) -> Result<PoolCheckpoint, AllocError> {
        let owner = self.find_pool(id)?;
        self.complete_pool_frees(accounts, id, owner)?;
        let live = self.blocks.iter().filter(|block| block.pool.owner == owner && block.state == BlockState::Allocated);
        let mut blocks: Vec<CheckpointBlock> = live
            .map(|block| {
                let Block { address, bytes, requested, stream, pool, tag, key, .. } = *block;
                CheckpointBlock { address, bytes, requested, stream, kind: pool.kind, tag, key }
            })
            .collect();
        blocks.sort_unstable_by_key(|block| block.address);
        Ok(PoolCheckpoint { pool: id, blocks })
    }

    /// Sets a pool back. Every step that can fail comes before the first change that callers see.
    pub(crate) fn restore(
        &mut self,
        accounts: &mut Accounts,
        checkpoint: &PoolCheckpoint,
    ) -> Result<Restored, AllocError> {
        let id = checkpoint.pool;
        let owner = self.find_pool(id)?;
        if self.pools.pair(owner).uses == 0 || !self.can_hold(owner, &checkpoint.blocks) {
            return Err(AllocError::PoolChanged(id));
        }
        self.complete_pool_frees(accounts, id, owner)?;
        let freed = self.live_blocks(id)?;
        self.await_users(id, &freed)?;

        for &address in &freed {
            self.free(accounts, address)?;
        }
        let mut free: BTreeMap<Address, BlockId> = self
            .blocks
            .ids()
            .filter(|&block| self.blocks[block].pool.owner == owner && self.blocks[block].state == BlockState::Free)
            .map(|block| (self.blocks[block].address, block))
            .collect();
        for block in &checkpoint.blocks {
            let Some((_, &found)) = free.range(..=block.address).next_back() else { continue };
            let (carved, rest) = self.carve(accounts, found, block.address, block.bytes);
            free.extend(rest.map(|rest| (self.blocks[rest].address, rest)));
            let CheckpointBlock { requested, stream, tag, key, .. } = *block;
            self.occupy(accounts, carved, Request { bytes: requested, stream, tag, key });
        }
        Ok(Restored { freed, allocated: checkpoint.addresses().collect() })
    }

    /// Returns whether each block lies in one mapped run of the pool, of its stream and kind.
    fn can_hold(&self, owner: usize, blocks: &[CheckpointBlock]) -> bool {
        let heads = self.blocks.iter().filter(|block| block.pool.owner == owner && self.is_segment_head(block));
        let runs: BTreeMap<Address, (Address, &Block)> = heads
            .map(|head| (head.address, (head.address + self.run_of(head).map(|b| b.bytes).sum::<u64>(), head)))
            .collect();
        blocks.iter().all(|block| {
            let run = runs.range(..=block.address).next_back();
            run.is_some_and(|(_, &(end, head))| {
                block.address + block.bytes <= end && head.stream == block.stream && head.pool.kind == block.kind
            })
        })
    }

    /// Makes every freed block of a pool free; waits on the host for the streams that use them.
    fn complete_pool_frees(&mut self, accounts: &mut Accounts, id: PoolId, owner: usize) -> Result<(), AllocError> {
        self.finish_completed(accounts)?;
        if !self.blocks.iter().any(|block| block.pool.owner == owner && matches!(block.state, BlockState::Pending(_))) {
            return Ok(());
        }
        if self.captures.any() {
            return Err(AllocError::PoolBusy(id));
        }
        self.finish_all(accounts)
    }

    /// Waits on the host for the other streams that use live blocks.
    fn await_users(&mut self, id: PoolId, live: &[Address]) -> Result<(), AllocError> {
        let used: Vec<BlockId> = live
            .iter()
            .map(|address| self.live[address])
            .filter(|&block| !self.blocks[block].uses.is_empty())
            .collect();
        if !used.is_empty() && self.captures.any() {
            return Err(AllocError::PoolBusy(id));
        }
        for &block in &used {
            for used in &self.blocks[block].uses {
                let mark = self.backing.record(used.stream)?;
                self.backing.synchronize(mark)?;
            }
        }
        used.into_iter().for_each(|block| self.blocks[block].uses.clear());
        Ok(())
    }

    /// Cuts `bytes` bytes at `address` out of a free block. Returns them, in no set, and the free block after them, if
    /// any.
    fn carve(
        &mut self,
        accounts: &mut Accounts,
        id: BlockId,
        address: Address,
        bytes: u64,
    ) -> (BlockId, Option<BlockId>) {
        let Block { address: first, bytes: whole, pool, segment, .. } = self.blocks[id];
        let before = if self.blocks[id].is_split() { (1, whole) } else { (0, 0) };
        self.remove_free(id);
        let mut carved = id;
        let mut inactive = (0, 0);
        if first < address {
            carved = self.blocks.cut(id, address - first);
            self.insert_free(id);
            inactive = (1, address - first);
        }
        let rest = (bytes < self.blocks[carved].bytes).then(|| self.blocks.cut(carved, bytes));
        if let Some(rest) = rest {
            self.insert_free(rest);
            inactive = (inactive.0 + 1, inactive.1 + self.blocks[rest].bytes);
        }
        if segment.is_none() {
            accounts.count_inactive(pool.kind, before, inactive);
        }
        (carved, rest)
    }
}
