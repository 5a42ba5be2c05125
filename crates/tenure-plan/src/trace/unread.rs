//! Entries of a snapshot that its reader does not keep.

use std::collections::BTreeMap;

use super::pickle::{Dict, excerpt};

/// A key that marks the snapshots written by [`snapshot_writer`](super::snapshot_writer), which are complete.
pub(super) const EARLIER_EVENTS: &str = "tenure_earlier_events";

/// A kind of dict in a snapshot.
#[derive(Clone, Copy)]
pub(super) enum DictKind {
    Event,
    Frame,
    Segment,
    Block,
    Annotation,
    Settings,
    Snapshot,
}

impl DictKind {
    const ALL: [Self; 7] =
        [Self::Event, Self::Frame, Self::Segment, Self::Block, Self::Annotation, Self::Settings, Self::Snapshot];

    /// Returns the name of the dicts of this kind.
    fn plural(self) -> &'static str {
        match self {
            Self::Event => "events",
            Self::Frame => "frames",
            Self::Segment => "segments",
            Self::Block => "blocks",
            Self::Annotation => "annotations",
            Self::Settings => "allocator_settings",
            Self::Snapshot => "the snapshot",
        }
    }

    /// Returns the keys that are read, or that the writer computes. All settings are read, or counted one by one.
    fn known(self) -> &'static [&'static str] {
        match self {
            Self::Event => &[
                "action",
                "addr",
                "size",
                "stream",
                "time_us",
                "compile_context",
                "user_metadata",
                "frames",
                "pool_id",
                "device_free",
            ],
            Self::Frame => &["name", "filename", "line"],
            Self::Segment => &[
                "device",
                "address",
                "total_size",
                "allocated_size",
                "active_size",
                "requested_size",
                "stream",
                "segment_type",
                "segment_pool_id",
                "is_expandable",
                "frames",
                "blocks",
            ],
            Self::Block => &["address", "size", "requested_size", "state", "frames", "user_metadata"],
            Self::Annotation => &["stage", "name", "device", "time_us"],
            Self::Settings => &[],
            Self::Snapshot => {
                &["segments", "device_traces", "allocator_settings", "external_annotations", EARLIER_EVENTS]
            }
        }
    }
}

/// The entries that are not kept, counted by the kind of their dict and by their key.
#[derive(Default)]
pub(super) struct UnreadEntries([UnreadKeys; DictKind::ALL.len()]);

/// Counts of keys. Only so many keys are told apart, so that a hostile file cannot fill the memory.
#[derive(Default)]
struct UnreadKeys {
    named: BTreeMap<String, u64>,
    others: u64,
}

impl UnreadKeys {
    const NAMED: usize = 8;
    const KEY_BYTES: usize = 64;

    fn count(&mut self, key: &str) {
        if let Some(count) = self.named.get_mut(key) {
            *count += 1;
        } else if self.named.len() < Self::NAMED && key.len() <= Self::KEY_BYTES {
            self.named.insert(key.to_owned(), 1);
        } else {
            self.others += 1;
        }
    }
}

impl UnreadEntries {
    /// Counts the entries of `dict` that are not read and that say anything.
    pub(super) fn add<R: Copy>(&mut self, kind: DictKind, dict: &Dict<'_, R>) {
        for (key, value) in dict.iter() {
            if !kind.known().contains(&key) && !dict.is_void(value) {
                self.count(kind, key);
            }
        }
    }

    /// Counts an entry that is not read.
    pub(super) fn count(&mut self, kind: DictKind, key: &str) {
        self.0[kind as usize].count(key);
    }

    /// Returns a line for each kind of dict with such entries.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        DictKind::ALL.into_iter().zip(&self.0).filter_map(|(kind, keys)| {
            let named = keys.named.iter().map(|(key, count)| format!("{count} \"{}\"", excerpt(key)));
            let others = (keys.others > 0).then(|| format!("{} others", keys.others));
            let entries: Vec<_> = named.chain(others).collect();
            (!entries.is_empty()).then(|| format!("entries of {}: {}", kind.plural(), entries.join(", ")))
        })
    }
}
