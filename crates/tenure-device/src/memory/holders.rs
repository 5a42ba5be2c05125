use rustc_hash::FxHashMap;
use tenure_alloc::Snapshot;
use tenure_alloc::snapshot::SnapshotState;
use tenure_core::{KeyId, Tag};

/// Blocks that somebody holds, added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What they are for.
    pub tag: Tag,
    /// Which ones they are; none where they are added up by tag, or nobody said.
    pub key: KeyId,
    /// Bytes of them.
    pub bytes: u64,
    /// How many they are.
    pub blocks: u64,
}

/// Who holds the live blocks of `snapshot`: by tag, and by key as far as there are keys, the largest first.
pub(super) fn holders(snapshot: &Snapshot) -> (Vec<Holder>, Vec<Holder>) {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let live: Vec<_> = blocks.filter(|block| block.state == SnapshotState::Allocated).collect();
    let by_tag = add_up(live.iter().map(|block| (block.tag, KeyId::NONE, block.bytes)));
    let keyed = live.iter().filter(|block| block.key != KeyId::NONE);
    (by_tag, add_up(keyed.map(|block| (block.tag, block.key, block.bytes))))
}

fn add_up(blocks: impl Iterator<Item = (Tag, KeyId, u64)>) -> Vec<Holder> {
    let mut holders: FxHashMap<(Tag, KeyId), Holder> = FxHashMap::default();
    for (tag, key, bytes) in blocks {
        let holder = holders.entry((tag, key)).or_insert(Holder { tag, key, bytes: 0, blocks: 0 });
        holder.bytes += bytes;
        holder.blocks += 1;
    }
    let mut holders: Vec<_> = holders.into_values().collect();
    holders.sort_by_key(|holder| (std::cmp::Reverse(holder.bytes), holder.tag, holder.key));
    holders
}
