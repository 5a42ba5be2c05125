use tenure_core::{KeyId, StreamId, Tag};

use super::Context;
use crate::{Address, PoolId};

/// What happened. PyTorch's `TraceEntry::Action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A block was handed out.
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
    /// A snapshot was taken; `bytes` is what was active in it.
    Snapshot,
    /// No memory; `address` is what the device had free, in bytes.
    OutOfMemory,
    /// The program noted something about a live block.
    Annotate,
}

impl Action {
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

    /// Whether it ends a block or a part of a segment.
    pub(super) fn gives_back(self) -> bool {
        matches!(self, Self::FreeCompleted | Self::SegmentFree | Self::SegmentUnmap)
    }

    /// The name in PyTorch's snapshots.
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
pub struct Event {
    /// What happened.
    pub action: Action,
    /// Where.
    pub address: Address,
    /// Bytes: asked for, where a block is concerned.
    pub bytes: u64,
    /// The block's or segment's stream.
    pub stream: StreamId,
    /// The pool of the block or segment; (0, 0) is the common one.
    pub pool: PoolId,
    /// When, by the history's clock, in µs.
    pub time_us: u64,
    /// What the block is for.
    pub tag: Tag,
    /// Which block it is.
    pub key: KeyId,
    /// Where in the program it came from, if that is kept: see [`KeepContexts`](super::KeepContexts).
    pub context: Option<Context>,
    /// What the program said beside: see [`Context::set_note`].
    pub note: Option<Context>,
}

impl Event {
    /// An event of the common pool, for [`History::record`](super::History::record), which adds when it was and its
    /// context and note.
    pub fn new(action: Action, address: Address, bytes: u64, stream: StreamId) -> Self {
        let (pool, tag, key) = (PoolId::default(), Tag::Unknown, KeyId::NONE);
        Self { action, address, bytes, stream, pool, time_us: 0, tag, key, context: None, note: None }
    }

    /// The same, of a block for `tag` and `key`.
    pub fn with_purpose(self, tag: Tag, key: KeyId) -> Self {
        Self { tag, key, ..self }
    }

    /// The same, in `pool`.
    pub fn in_pool(self, pool: PoolId) -> Self {
        Self { pool, ..self }
    }
}
