//! The use of segments.

use std::cmp::Reverse;

use serde::Serialize;
use tenure_alloc::Snapshot;
use tenure_alloc::snapshot::{Segment, SnapshotState};
use tenure_core::Tag;

/// The number of places in a strip from left to right.
const PLACES: u64 = 400;

/// A segment, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SegmentUse {
    /// The address of its first byte.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes of live blocks.
    pub allocated_bytes: u64,
    /// Bytes of freed blocks that other streams may still use.
    pub awaited_bytes: u64,
    /// Bytes of the largest free range.
    pub largest_free_bytes: u64,
    /// The stream that it was allocated for.
    pub stream: u64,
    /// The private pool that it belongs to; (0, 0) is the default pool.
    pub pool: (u64, u64),
    /// The contents from left to right, for the picture.
    #[serde(skip)]
    pub(super) runs: Vec<ContentRun>,
}

/// A stretch of a segment with one kind of content in most bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ContentRun {
    pub(super) content: Content,
    /// Its place and its length, in [`PLACES`] of the segment.
    pub(super) start: u64,
    pub(super) places: u64,
}

/// The state of a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Live(Tag),
    Awaited,
    Free,
}

/// Returns the segments of `snapshot`, the largest first.
pub(super) fn of(snapshot: &Snapshot) -> Vec<SegmentUse> {
    let mut segments: Vec<SegmentUse> = snapshot.segments.iter().map(SegmentUse::new).collect();
    segments.sort_by_key(|segment| (Reverse(segment.bytes), segment.address));
    segments
}

impl SegmentUse {
    fn new(segment: &Segment) -> Self {
        let bytes_in = |state| segment.blocks.iter().filter(move |block| block.state == state).map(|block| block.bytes);
        Self {
            address: segment.address,
            bytes: segment.bytes(),
            allocated_bytes: bytes_in(SnapshotState::Allocated).sum(),
            awaited_bytes: bytes_in(SnapshotState::PendingFree).sum(),
            largest_free_bytes: bytes_in(SnapshotState::Inactive).max().unwrap_or(0),
            stream: segment.stream.0,
            pool: (segment.pool.0, segment.pool.1),
            runs: runs(segment),
        }
    }

    /// Returns the bytes that are in no block.
    pub fn free_bytes(&self) -> u64 {
        self.bytes - self.allocated_bytes - self.awaited_bytes
    }

    /// Returns the share of the segment's length from its start to `place`.
    pub(super) fn share(place: u64) -> f64 {
        place as f64 / PLACES as f64
    }
}

/// Returns the blocks as stretches of whole places; a place is of the kind of most of its bytes.
fn runs(segment: &Segment) -> Vec<ContentRun> {
    let mut runs: Vec<ContentRun> = Vec::new();
    let total = u128::from(segment.bytes());
    let mut blocks = segment.blocks.iter().peekable();
    // The remaining bytes of the first block.
    let mut left = blocks.peek().map_or(0, |block| block.bytes);
    for place in 0..PLACES {
        let edge = |place: u64| (total * u128::from(place) / u128::from(PLACES)) as u64;
        let mut wanted = edge(place + 1) - edge(place);
        let mut most = (0, Content::Free);
        while wanted > 0
            && let Some(block) = blocks.peek()
        {
            let part = left.min(wanted);
            if part > most.0 {
                most = (part, content(block.state, block.tag));
            }
            wanted -= part;
            left -= part;
            if left == 0 {
                blocks.next();
                left = blocks.peek().map_or(0, |block| block.bytes);
            }
        }
        match runs.last_mut().filter(|run| run.content == most.1) {
            Some(run) => run.places += 1,
            None => runs.push(ContentRun { content: most.1, start: place, places: 1 }),
        }
    }
    runs
}

fn content(state: SnapshotState, tag: Tag) -> Content {
    match state {
        SnapshotState::Allocated => Content::Live(tag),
        SnapshotState::PendingFree => Content::Awaited,
        SnapshotState::Inactive => Content::Free,
    }
}
