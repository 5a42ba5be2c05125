//! A map of the handles that the driver created or adopted.

use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// The number of shards.
const SHARDS: usize = 16;

/// A map from handles to values, split into shards because every call on a stream or event looks one up.
pub(super) struct Handles<V> {
    shards: [RwLock<FxHashMap<u64, V>>; SHARDS],
}

impl<V: Copy> Handles<V> {
    pub(super) fn new() -> Self {
        Self { shards: std::array::from_fn(|_| RwLock::default()) }
    }

    pub(super) fn get(&self, handle: u64) -> Option<V> {
        self.shard(handle).read().get(&handle).copied()
    }

    pub(super) fn insert(&self, handle: u64, value: V) {
        self.shard(handle).write().insert(handle, value);
    }

    /// Inserts `handle`, unless the map has it already.
    pub(super) fn adopt(&self, handle: u64, value: V) {
        self.shard(handle).write().entry(handle).or_insert(value);
    }

    pub(super) fn remove(&self, handle: u64) -> Option<V> {
        self.shard(handle).write().remove(&handle)
    }

    /// Returns the shard of a handle. Handles are addresses with equal low bits, so the shard comes from the high bits
    /// of a product, which depend on every bit.
    fn shard(&self, handle: u64) -> &RwLock<FxHashMap<u64, V>> {
        &self.shards[(handle.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_handle_is_known_from_its_insertion_to_its_removal() {
        let handles = Handles::new();
        assert_eq!(handles.get(7), None);
        handles.insert(7, 'a');
        handles.adopt(7, 'b');
        assert_eq!((handles.get(7), handles.get(8)), (Some('a'), None));
        assert_eq!((handles.remove(7), handles.remove(7)), (Some('a'), None));
    }

    #[test]
    fn handles_of_allocations_side_by_side_use_every_shard() {
        let handles = Handles::<()>::new();
        for stride in [64, 512, 4096] {
            let shards: HashSet<_> =
                (0..200).map(|i| std::ptr::from_ref(handles.shard(0x7f00_0000_0000 + i * stride))).collect();
            assert_eq!(shards.len(), SHARDS);
        }
    }
}
