//! Holders: the blocks of a snapshot, grouped by tag and key.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use tenure_core::{KeyId, Tag};

use super::{Snapshot, SnapshotState};

/// The live blocks of one tag and key together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The purpose of the blocks.
    pub tag: Tag,
    /// The key of the blocks; [`KeyId::NONE`] if the program gave none.
    pub key: KeyId,
    /// The bytes set aside for them.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: usize,
}

impl Snapshot {
    /// Returns the `limit` holders of the most bytes, largest first. Blocks that were freed and wait for other streams
    /// count too, because they still hold their memory.
    pub fn holders(&self, limit: usize) -> Vec<Holder> {
        let mut held: FxHashMap<(Tag, KeyId), (u64, usize)> = FxHashMap::default();
        let blocks = self.segments.iter().flat_map(|segment| &segment.blocks);
        for block in blocks.filter(|block| block.state != SnapshotState::Inactive) {
            let (bytes, count) = held.entry((block.tag, block.key)).or_default();
            *bytes += block.bytes;
            *count += 1;
        }
        let holder = |((tag, key), (bytes, blocks))| Holder { tag, key, bytes, blocks };
        let mut holders: Vec<Holder> = held.into_iter().map(holder).collect();
        // The rest of the order only keeps the report the same from run to run.
        holders.sort_unstable_by_key(|holder| (Reverse(holder.bytes), holder.tag as usize, holder.key));
        holders.truncate(limit);
        holders
    }
}
