//! Who holds what.

use std::cmp::Reverse;

use rustc_hash::FxHashMap;
use tenure_core::{KeyId, Tag};

use super::{Snapshot, SnapshotState};

/// The live blocks of one tag and key together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What the blocks are for.
    pub tag: Tag,
    /// Which block they are; [`KeyId::NONE`] if nobody said.
    pub key: KeyId,
    /// Bytes set aside for them.
    pub bytes: u64,
    /// How many they are.
    pub blocks: usize,
}

impl Snapshot {
    /// The `limit` holders of the most bytes, largest first. Blocks that were freed and wait for other streams count
    /// too: they hold their memory still.
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
        // The rest of the order only makes the report the same each time.
        holders.sort_unstable_by_key(|holder| (Reverse(holder.bytes), holder.tag as usize, holder.key));
        holders.truncate(limit);
        holders
    }
}
