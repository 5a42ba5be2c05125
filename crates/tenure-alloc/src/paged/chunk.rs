//! Physical chunks, and the free ranges in them.

use std::collections::VecDeque;
use std::ops::Range;

use smallvec::SmallVec;

use super::progress::EpochUses;
use super::tree::FreeSummary;
use crate::{Address, ChunkId};

/// A chunk of physical memory.
pub(super) struct Chunk {
    pub(super) id: ChunkId,
    pub(super) bytes: u64,
    /// Its free ranges, by offset; merged where they touch.
    pub(super) free: SmallVec<[Extent; 2]>,
    /// The summary of `free`.
    pub(super) summary: FreeSummary,
    /// The places where it is mapped, in the order of mapping. The first is its *home*.
    pub(super) mapped_at: SmallVec<[Mapping; 4]>,
    /// Work that may still touch its free bytes.
    pub(super) uses: EpochUses,
    /// Whether bytes of it were freed that the bounds of some windows do not include yet: see Note [Windows].
    pub(super) is_stale: bool,
    /// Past blocks in it, oldest first: the number of each one's placement, and its range. See Note [Forecast].
    past: VecDeque<(u64, Extent)>,
}

/// A range of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// A place where a chunk is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mapping {
    pub(super) address: Address,
    /// The window, by index.
    pub(super) window: usize,
    /// The chunk's position among the window's chunks.
    pub(super) slot: usize,
}

impl Extent {
    pub(super) fn end(&self) -> u64 {
        self.offset + self.bytes
    }
}

impl Chunk {
    /// Makes a chunk that is all free and not mapped anywhere.
    pub(super) fn new(id: ChunkId, bytes: u64) -> Self {
        let free = SmallVec::from_slice(&[Extent { offset: 0, bytes }]);
        let summary = FreeSummary { total: bytes, prefix: bytes, suffix: bytes, longest: bytes };
        let (mapped_at, uses, past) = (SmallVec::new(), EpochUses::default(), VecDeque::new());
        Self { id, bytes, free, summary, mapped_at, uses, is_stale: false, past }
    }

    /// Returns whether all its bytes are free.
    pub(super) fn is_whole(&self) -> bool {
        self.summary.is_whole()
    }

    /// Returns the free bytes at the start of a chunk that is in use further on; 0 for a whole chunk.
    pub(super) fn free_prefix(&self) -> u64 {
        if self.is_whole() { 0 } else { self.summary.prefix }
    }

    /// Returns the free bytes at the end of a chunk that is in use before them; 0 for a whole chunk.
    pub(super) fn free_suffix(&self) -> u64 {
        if self.is_whole() { 0 } else { self.summary.suffix }
    }

    /// Returns whether a range is free.
    pub(super) fn is_free(&self, offset: u64, bytes: u64) -> bool {
        let before = self.free.partition_point(|extent| extent.offset <= offset).checked_sub(1);
        before.is_some_and(|at| self.free[at].end() >= offset + bytes)
    }

    /// Notes that the block in `extent` is the placement of a number. Those before `first` are forgotten.
    pub(super) fn note_past(&mut self, number: u64, extent: Extent, first: u64) {
        while self.past.front().is_some_and(|(number, _)| *number < first) {
            self.past.pop_front();
        }
        self.past.push_back((number, extent));
    }

    /// Returns whether a block whose placement has one of these numbers was in `extent`.
    pub(super) fn was_used(&self, extent: Extent, numbers: &Range<u64>) -> bool {
        if numbers.is_empty() {
            return false;
        }
        let begin = self.past.partition_point(|(number, _)| *number < numbers.start);
        let mut past = self.past.range(begin..).take_while(|(number, _)| *number < numbers.end);
        past.any(|(_, used)| used.offset < extent.end() && extent.offset < used.end())
    }

    /// Takes a free range into use.
    ///
    /// # Panics
    /// The range is not free.
    pub(super) fn occupy(&mut self, offset: u64, bytes: u64) {
        let at = self.free.partition_point(|extent| extent.offset <= offset) - 1;
        let extent = self.free[at];
        assert!(extent.end() >= offset + bytes, "{bytes} bytes at {offset} are not free in {extent:?}");
        let head = Extent { offset: extent.offset, bytes: offset - extent.offset };
        let tail = Extent { offset: offset + bytes, bytes: extent.end() - offset - bytes };
        match (head.bytes > 0, tail.bytes > 0) {
            (false, false) => {
                self.free.remove(at);
            }
            (false, true) => self.free[at] = tail,
            (true, false) => self.free[at] = head,
            (true, true) => {
                self.free[at] = head;
                self.free.insert(at + 1, tail);
            }
        }
        self.summarize();
    }

    /// Frees a range in use, and merges it with the free ranges that it touches.
    pub(super) fn vacate(&mut self, offset: u64, bytes: u64) {
        let at = self.free.partition_point(|extent| extent.offset < offset);
        let joins_next = self.free.get(at).is_some_and(|next| next.offset == offset + bytes);
        let joins_previous = at > 0 && self.free[at - 1].end() == offset;
        match (joins_previous, joins_next) {
            (false, false) => self.free.insert(at, Extent { offset, bytes }),
            (false, true) => self.free[at] = Extent { offset, bytes: bytes + self.free[at].bytes },
            (true, false) => self.free[at - 1].bytes += bytes,
            (true, true) => self.free[at - 1].bytes += bytes + self.free.remove(at).bytes,
        }
        self.summarize();
    }

    /// Computes the summary of the free ranges.
    fn summarize(&mut self) {
        self.summary.prefix = self.free.first().filter(|extent| extent.offset == 0).map_or(0, |extent| extent.bytes);
        let last = self.free.last().filter(|extent| extent.end() == self.bytes);
        self.summary.suffix = last.map_or(0, |extent| extent.bytes);
        self.summary.longest = self.free.iter().map(|extent| extent.bytes).max().unwrap_or(0);
    }
}
