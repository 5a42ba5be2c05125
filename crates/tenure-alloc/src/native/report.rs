//! Snapshots.

use super::blocks::{Block, State};
use super::engine::Engine;
use crate::PoolId;
use crate::snapshot::{Segment, Snapshot, SnapshotBlock, SnapshotState};

impl Engine {
    pub(super) fn snapshot(&self, pool: Option<PoolId>, traces: bool) -> Snapshot {
        let heads = self.blocks.iter().filter(|block| self.is_segment_head(block));
        let segments = heads.map(|head| self.describe(head)).collect();
        Snapshot::take(segments, self.config.device, self.config.describe(), &self.history, pool, traces)
    }

    /// Whether a mapped run of blocks starts with `block`.
    fn is_segment_head(&self, block: &Block) -> bool {
        let follows = block.prev.is_some_and(|prev| self.blocks[prev].state != State::Unmapped);
        block.state != State::Unmapped && !follows
    }

    /// The mapped run of blocks from `head` on.
    fn describe(&self, head: &Block) -> Segment {
        let run = std::iter::successors(Some(head), |block| block.next.map(|next| &self.blocks[next]));
        let blocks = run.map_while(|block| {
            let state = match block.state {
                State::Unmapped => return None,
                State::Free => SnapshotState::Inactive,
                State::Allocated => SnapshotState::Allocated,
                State::Pending(_) => SnapshotState::PendingFree,
            };
            let Block { address, bytes, requested, tag, key, .. } = *block;
            Some(SnapshotBlock { address, bytes, requested, state, tag, key, context: None })
        });
        Segment {
            device: self.config.device,
            address: head.address,
            stream: head.stream,
            kind: head.pool.kind,
            pool: self.pools.pair(head.pool.owner).id,
            is_expandable: head.segment.is_some(),
            is_external: false,
            context: None,
            blocks: blocks.collect(),
        }
    }
}
