//! [`HistoryEvent`]: one entry of a history, and the [`HistoryAction`]s that entries record; and the buffer that keeps
//! the last ones.

use std::collections::VecDeque;

use tenure_core::{KeyId, StreamId, Tag};

use super::HistoryContext;
use crate::{Address, PoolId};

/// The kind of an event. PyTorch's `TraceEntry::Action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HistoryAction {
    /// A block was allocated.
    Alloc,
    /// A block's owner freed it.
    FreeRequested,
    /// A freed block can be reused on its stream.
    FreeCompleted,
    /// A segment was taken from the backing.
    SegmentAlloc,
    /// A segment was given back to the backing.
    SegmentFree,
    /// Chunks were mapped.
    SegmentMap,
    /// Chunks were unmapped.
    SegmentUnmap,
    /// A snapshot was taken; `bytes` is the active bytes in it.
    Snapshot,
    /// No memory was found; `address` is the number of bytes that the device had free.
    OutOfMemory,
    /// The program annotated a live block.
    Annotate,
}

impl HistoryAction {
    /// Every action.
    pub const ALL: [Self; 10] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::OutOfMemory,
        Self::Annotate,
    ];

    /// Returns whether it ends a block or a part of a segment.
    pub(super) fn gives_back(self) -> bool {
        matches!(self, Self::FreeCompleted | Self::SegmentFree | Self::SegmentUnmap)
    }

    /// Returns the name in PyTorch's snapshots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::Snapshot => "snapshot",
            Self::OutOfMemory => "oom",
            Self::Annotate => "annotate",
        }
    }
}

/// An event of an allocator's history. PyTorch's `TraceEntry`.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryEvent {
    /// The kind of the event.
    pub action: HistoryAction,
    /// The first address of the block or segment; see [`HistoryAction`] for exceptions.
    pub address: Address,
    /// Bytes; for a block, the bytes requested.
    pub bytes: u64,
    /// The block's or segment's stream.
    pub stream: StreamId,
    /// The pool of the block or segment; (0, 0) is the common one.
    pub pool: PoolId,
    /// The time by the history's clock, in µs.
    pub time_us: u64,
    /// The block's tag.
    pub tag: Tag,
    /// The block's key.
    pub key: KeyId,
    /// The context in which the program caused it, if that is kept: see [`KeepContexts`](super::KeepContexts).
    pub context: Option<HistoryContext>,
    /// The note of the thread that caused it: see [`HistoryContext::set_note`].
    pub note: Option<HistoryContext>,
}

impl HistoryEvent {
    /// Makes an event of the common pool. [`History::record`](super::History::record) adds the time, context and note.
    pub fn new(action: HistoryAction, address: Address, bytes: u64, stream: StreamId) -> Self {
        let pool = PoolId::default();
        let tag = Tag::Unknown;
        let key = KeyId::NONE;
        Self { action, address, bytes, stream, pool, time_us: 0, tag, key, context: None, note: None }
    }

    /// Returns the event with a block's `tag` and `key`.
    pub fn with_purpose(self, tag: Tag, key: KeyId) -> Self {
        Self { tag, key, ..self }
    }

    /// Returns the event with `pool` as its pool.
    pub fn in_pool(self, pool: PoolId) -> Self {
        Self { pool, ..self }
    }
}

/// A buffer that keeps the last entries pushed, up to its limit, which is 0 at first.
pub(super) struct Ring<T> {
    limit: usize,
    entries: VecDeque<T>,
}

impl<T> Ring<T> {
    /// Changes the limit; removes the oldest entries beyond it.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        let excess = self.entries.len().saturating_sub(limit);
        self.entries.drain(..excess);
    }

    /// Adds an entry; removes the oldest if the limit is exceeded.
    pub(super) fn push(&mut self, entry: T) {
        if self.limit == 0 {
            return;
        }
        if self.entries.len() == self.limit {
            self.entries.pop_front();
        }
        self.entries.push_back(entry);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

impl<T: Clone> Ring<T> {
    /// Returns the entries, oldest first.
    pub(super) fn to_vec(&self) -> Vec<T> {
        self.entries.iter().cloned().collect()
    }
}

impl<T> Default for Ring<T> {
    fn default() -> Self {
        Self { limit: 0, entries: VecDeque::new() }
    }
}
