//! Segments and blocks at the moment of a snapshot.

use std::collections::BTreeMap;

use tenure_core::StreamId;

use super::labels::{DEFAULT_POOL, MemoryPool};
use super::ranges::Ranges;
use super::{TraceAction, TraceEvent};

/// Device memory that an allocator held when a snapshot was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSegment {
    /// The device.
    pub device: u64,
    /// The first byte.
    pub address: u64,
    /// The size.
    pub bytes: u64,
    /// The stream that it belongs to.
    pub stream: StreamId,
    /// Whether it serves small requests.
    pub is_small: bool,
    /// Whether it grows in place.
    pub is_expandable: bool,
    /// The pool that it belongs to; the default pool if the snapshot does not say.
    pub pool: MemoryPool,
    /// The number of the stack that allocated it, in the trace's [`Stacks`](super::Stacks); 0 if there is none.
    pub stack: u32,
    /// Its blocks, ascending.
    pub blocks: Vec<SnapshotBlock>,
}

/// A part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotBlock {
    /// The first byte.
    pub address: u64,
    /// The size that the allocator gave it.
    pub bytes: u64,
    /// The size that the program asked for.
    pub requested_bytes: u64,
    /// Its state.
    pub state: BlockState,
    /// The number of the stack that allocated it, as in [`SnapshotSegment::stack`].
    pub stack: u32,
    /// The number of the program's tag, in the trace that [`block_tag`](super::Trace::block_tag) reads; 0 if there is
    /// none.
    pub tag: u32,
}

/// The state of a block in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// The program holds it.
    Allocated,
    /// The program freed it, and other streams may still use it.
    PendingFree,
    /// The allocator can hand it out.
    Inactive,
}

impl BlockState {
    /// Returns PyTorch's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allocated => "active_allocated",
            Self::PendingFree => "active_pending_free",
            Self::Inactive => "inactive",
        }
    }

    /// Returns the state that PyTorch calls `name`; a state of another name is not live.
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "active_allocated" => Self::Allocated,
            // The C++ writer of snapshots has a name of its own.
            "active_pending_free" | "active_awaiting_free" => Self::PendingFree,
            _ => Self::Inactive,
        }
    }

    /// Returns whether the block holds memory of the program.
    pub fn is_live(self) -> bool {
        self != Self::Inactive
    }
}

/// Totals of a device's segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentTotals {
    /// The number of segments.
    pub segments: usize,
    /// The number of live blocks.
    pub live_blocks: usize,
    /// Bytes in segments.
    pub reserved_bytes: u64,
    /// Bytes that the program asked for in live blocks.
    pub live_bytes: u64,
    /// Bytes of blocks that the allocator can hand out.
    pub free_bytes: u64,
    /// The size of the largest such block.
    pub largest_free_bytes: u64,
}

impl SegmentTotals {
    /// Returns the totals of `segments`.
    pub fn of<'a>(segments: impl IntoIterator<Item = &'a SnapshotSegment>) -> Self {
        let mut totals = Self::default();
        for segment in segments {
            totals.segments += 1;
            totals.reserved_bytes = totals.reserved_bytes.saturating_add(segment.bytes);
            for block in &segment.blocks {
                if block.state.is_live() {
                    totals.live_blocks += 1;
                    totals.live_bytes = totals.live_bytes.saturating_add(block.requested_bytes);
                } else {
                    totals.free_bytes = totals.free_bytes.saturating_add(block.bytes);
                    totals.largest_free_bytes = totals.largest_free_bytes.max(block.bytes);
                }
            }
        }
        totals
    }

    /// Returns the share of the free bytes that are not in the largest free block, 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        match self.free_bytes {
            0 => 0.0,
            free => 1.0 - self.largest_free_bytes as f64 / free as f64,
        }
    }
}

/// The segments and blocks at one moment of a history.
#[derive(Default)]
pub(super) struct SegmentState {
    segments: BTreeMap<u64, (u64, StreamId)>,
    mapped: Ranges,
    /// The streams of mapped ranges, by their first bytes.
    streams: BTreeMap<u64, StreamId>,
    blocks: BTreeMap<u64, (TraceEvent, BlockState)>,
}

impl SegmentState {
    /// Returns the state after `events`.
    pub(super) fn after(events: &[TraceEvent]) -> Self {
        let mut state = Self::default();
        events.iter().for_each(|event| state.apply(event));
        state
    }

    /// Applies the next event.
    pub(super) fn apply(&mut self, event: &TraceEvent) {
        match event.action {
            TraceAction::SegmentAlloc => drop(self.segments.insert(event.address, (event.bytes, event.stream))),
            TraceAction::SegmentFree => drop(self.segments.remove(&event.address)),
            TraceAction::SegmentMap => {
                self.mapped.claim(event);
                self.streams.insert(event.address, event.stream);
            }
            TraceAction::SegmentUnmap => self.mapped.remove(event),
            TraceAction::Alloc => drop(self.blocks.insert(event.address, (*event, BlockState::Allocated))),
            TraceAction::FreeRequested => {
                self.blocks.entry(event.address).and_modify(|block| block.1 = BlockState::PendingFree);
            }
            TraceAction::FreeCompleted => drop(self.blocks.remove(&event.address)),
            _ => {}
        }
    }

    /// Returns the bytes in live blocks, also of those outside of all segments.
    pub(super) fn live_bytes(&self) -> u64 {
        self.blocks.values().map(|(block, _)| block.bytes).sum()
    }

    /// Returns the segments. Block sizes, which events do not have, are the requested ones rounded up to PyTorch's 512
    /// bytes.
    pub(super) fn segments(&self, device: u64) -> Vec<SnapshotSegment> {
        let fixed = self.segments.iter().map(|(&address, &(bytes, stream))| (address, (bytes, stream, false)));
        let mut segments: BTreeMap<u64, (u64, StreamId, bool)> = fixed.collect();
        for (address, end) in self.mapped.iter() {
            let stream = self.streams.range(..end).next_back().map_or(StreamId::NULL, |(_, &stream)| stream);
            segments.entry(address).or_insert((end - address, stream, true));
        }
        let segments = segments.into_iter().map(|(address, (bytes, stream, is_expandable))| SnapshotSegment {
            device,
            address,
            bytes,
            stream,
            is_small: is_small(bytes),
            is_expandable,
            pool: DEFAULT_POOL,
            stack: 0,
            blocks: self.parts(address, address.saturating_add(bytes)),
        });
        segments.collect()
    }

    /// Returns the blocks and the free parts between two addresses, ascending.
    fn parts(&self, address: u64, end: u64) -> Vec<SnapshotBlock> {
        const ROUNDING: u64 = 512;
        let mut parts = Vec::new();
        let mut next = address;
        let mut inside = self.blocks.range(address..end).peekable();
        while let Some((&start, &(block, state))) = inside.next() {
            let limit = inside.peek().map_or(end, |(start, _)| **start);
            add_free(&mut parts, next, start);
            let rounded = block.bytes.max(1).checked_next_multiple_of(ROUNDING).unwrap_or(u64::MAX);
            let bytes = rounded.min(limit - start);
            parts.push(SnapshotBlock { address: start, bytes, requested_bytes: block.bytes, state, stack: 0, tag: 0 });
            next = start + bytes;
        }
        add_free(&mut parts, next, end);
        parts
    }
}

fn add_free(blocks: &mut Vec<SnapshotBlock>, start: u64, end: u64) {
    if end > start {
        let bytes = end - start;
        let state = BlockState::Inactive;
        blocks.push(SnapshotBlock { address: start, bytes, requested_bytes: 0, state, stack: 0, tag: 0 });
    }
}

/// Returns whether a segment of this size serves small requests in PyTorch, which gives those 2 MiB.
pub(super) fn is_small(bytes: u64) -> bool {
    bytes <= 2 << 20
}
