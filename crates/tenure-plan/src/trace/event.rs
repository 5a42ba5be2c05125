//! The events of a trace, and their actions.

use std::fmt;

use tenure_alloc::HistoryAction;
use tenure_core::StreamId;

/// One action of an allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceEvent {
    /// The time, in microseconds of the recorder's clock (PyTorch: since 1970). Zero if the recorder had no clock.
    pub time_us: u64,
    /// The first byte of the block or segment. For a [`TraceAction::Oom`]: the bytes that were free on the device.
    pub address: u64,
    /// The bytes of the block, as requested and not yet rounded, or of the segment.
    pub bytes: u64,
    /// The stream that the block belongs to.
    pub stream: StreamId,
    /// The action.
    pub action: TraceAction,
}

impl TraceEvent {
    /// Returns the first byte after the block or segment; `None` past the end of the address space.
    pub fn end(&self) -> Option<u64> {
        self.address.checked_add(self.bytes)
    }
}

/// An allocator's action: PyTorch's `TraceEntry::Action` (`c10/cuda/CUDACachingAllocator.h`), with its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum TraceAction {
    /// A block was allocated.
    Alloc = 0,
    /// The program freed a block. Other streams may still be using it.
    FreeRequested = 1,
    /// The block is reusable, in the order of its own stream. In a trace it stops being live here.
    FreeCompleted = 2,
    /// A segment was allocated from the driver.
    SegmentAlloc = 3,
    /// A segment was returned to the driver.
    SegmentFree = 4,
    /// Memory was mapped into an expandable segment.
    SegmentMap = 5,
    /// Memory was unmapped from an expandable segment.
    SegmentUnmap = 6,
    /// A snapshot was taken.
    Snapshot = 7,
    /// An allocation failed.
    Oom = 8,
    /// The program set a mark.
    UserDefined = 9,
    /// The program named a live block (PyTorch 2.15 and later).
    Annotate = 10,
}

impl TraceAction {
    /// Every action, in declaration order: `TraceAction::ALL[action as usize] == action`.
    pub const ALL: [Self; 11] = [
        Self::Alloc,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::SegmentAlloc,
        Self::SegmentFree,
        Self::SegmentMap,
        Self::SegmentUnmap,
        Self::Snapshot,
        Self::Oom,
        Self::UserDefined,
        Self::Annotate,
    ];

    /// Returns PyTorch's name, which actions of Tenure's own [`History`](tenure_alloc::History) have too.
    pub fn name(self) -> &'static str {
        match self {
            Self::UserDefined => "user_defined",
            Self::Annotate => HistoryAction::Annotate.name(),
            _ => HistoryAction::ALL[self as usize].name(),
        }
    }

    /// Returns the action that PyTorch calls `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Returns whether the event is about a segment.
    pub fn is_of_segment(self) -> bool {
        matches!(self, Self::SegmentAlloc | Self::SegmentFree | Self::SegmentMap | Self::SegmentUnmap)
    }

    /// Returns whether the event is about a range of addresses: a block's or a segment's.
    pub fn has_range(self) -> bool {
        !matches!(self, Self::Snapshot | Self::Oom | Self::UserDefined)
    }
}

impl fmt::Display for TraceAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
