//! Snapshots and other reports of the engine's blocks.

use super::blocks::{Block, BlockState};
use super::engine::Engine;
use crate::snapshot::{Segment, Snapshot, SnapshotBlock, SnapshotState};
use crate::{Address, PoolId};

impl Engine {
    /// Returns every segment.
    pub(crate) fn describe_segments(&self) -> Vec<Segment> {
        self.blocks.iter().filter(|block| self.is_segment_head(block)).map(|head| self.describe(head)).collect()
    }

    pub(super) fn snapshot(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        let segments = self.describe_segments();
        Snapshot::take(segments, self.config.device, self.config.describe(), &self.history, pool, traces)
    }

    /// Returns whether a mapped run of blocks starts with `block`.
    pub(super) fn is_segment_head(&self, block: &Block) -> bool {
        let follows = block.prev.is_some_and(|prev| self.blocks[prev].state != BlockState::Unmapped);
        block.state != BlockState::Unmapped && !follows
    }

    /// Returns the memory that the live block at `address` was allocated or mapped together with: first byte and bytes.
    pub(crate) fn extent(&self, address: Address) -> Option<(Address, u64)> {
        let block = &self.blocks[*self.live.get(&address)?];
        let back = std::iter::successors(Some(block), |block| block.prev.map(|prev| &self.blocks[prev]));
        let head = back.take_while(|block| block.state != BlockState::Unmapped).last()?;
        Some((head.address, self.run_of(head).map(|block| block.bytes).sum()))
    }

    /// Returns the length in bytes of the longest free block.
    pub(crate) fn largest_free(&self) -> u64 {
        self.pools.all_free().map(|id| self.blocks[id].bytes).max().unwrap_or(0)
    }

    /// Returns the mapped run of blocks from `head` on.
    pub(super) fn run_of<'a>(&'a self, head: &'a Block) -> impl Iterator<Item = &'a Block> {
        let run = std::iter::successors(Some(head), |block| block.next.map(|next| &self.blocks[next]));
        run.take_while(|block| block.state != BlockState::Unmapped)
    }

    fn describe(&self, head: &Block) -> Segment {
        let blocks = self.run_of(head).filter_map(|block| {
            let state = match block.state {
                BlockState::Unmapped => return None,
                BlockState::Free => SnapshotState::Inactive,
                BlockState::Allocated => SnapshotState::Allocated,
                BlockState::Pending(_) => SnapshotState::PendingFree,
            };
            let Block { address, bytes, requested, tag, key, .. } = *block;
            Some(SnapshotBlock { address, bytes, requested, state, tag, key, context: None })
        });
        Segment {
            device: self.config.device,
            address: head.address,
            stream: head.stream,
            kind: head.pool.kind,
            made: head.made,
            pool: self.pools.pair(head.pool.owner).id,
            is_expandable: head.segment.is_some(),
            is_external: false,
            context: None,
            blocks: blocks.collect(),
        }
    }
}
