//! The places of a cycle's blocks, where later cycles like it put theirs.
//!
//! A program that repeats itself frees its memory in the same order in every cycle. But whether a stream may use free
//! memory without waiting depends on how far the device has got. So the first free range is now here and now there, and
//! where memory is scarce, blocks are pieced together anew in each cycle. If each block goes where the same block of an
//! earlier cycle went, a cycle maps nothing that the earlier one did not.

use tenure_core::StreamId;

use crate::Address;

/// The number of cycles whose places are kept: passes over several batches may have one update in common, and several
/// models may take turns.
const KEPT: usize = 8;
/// Cycles that begin with less difference than this, in bytes in use, are alike.
const ALIKE_BYTES: u64 = 4 << 20;
/// The number of places that are looked at for the one of an allocation, as a cycle may leave out some of the
/// allocations of an earlier one.
const LOOKED_AT: usize = 16;

/// The most blocks of a cycle. One with more may have no end, as when a budget is over.
const MOST: usize = 1 << 16;

/// The places of the blocks of a cycle, and of earlier cycles.
#[derive(Default)]
pub(super) struct Places {
    /// This cycle. Nothing is noted outside of cycles.
    now: Option<Cycle>,
    /// The earlier cycle that this one is like.
    like: Option<Cycle>,
    /// The number of places of `like` before the next allocation.
    passed: usize,
    /// Other earlier cycles, the last one last.
    others: Vec<Cycle>,
}

/// A cycle.
struct Cycle {
    /// See [`CachingAllocator::begin_cycle`](crate::CachingAllocator::begin_cycle).
    kind: u64,
    /// The bytes in use when it began.
    used_bytes: u64,
    /// The places of its blocks, in the order of allocations.
    places: Vec<Place>,
}

/// The place of a block.
struct Place {
    stream: StreamId,
    bytes: u64,
    address: Address,
}

impl Places {
    /// Begins a cycle of this kind, with so many bytes in use.
    pub(super) fn begin_cycle(&mut self, kind: u64, used_bytes: u64) {
        if let Some(ended) = self.now.take() {
            // A cycle takes the place of the one that it was like.
            let is_other = |like: &Cycle| like.used_bytes.abs_diff(ended.used_bytes) >= ALIKE_BYTES;
            self.others.extend(self.like.take().filter(is_other));
            self.others.push(ended);
            self.others.drain(..self.others.len().saturating_sub(KEPT));
        }
        let of_kind = self.others.iter().enumerate().rev().filter(|(_, cycle)| cycle.kind == kind);
        let nearest = of_kind.min_by_key(|(_, cycle)| cycle.used_bytes.abs_diff(used_bytes) / ALIKE_BYTES);
        self.like = nearest.map(|(index, _)| index).map(|index| self.others.remove(index));
        self.passed = 0;
        self.now = Some(Cycle { kind, used_bytes, places: Vec::new() });
    }

    /// Returns where the next block of a stream, of `bytes` bytes, was in the earlier cycle.
    pub(super) fn expected(&self, stream: StreamId, bytes: u64) -> Option<Address> {
        let (_, place) = self.find(stream, bytes)?;
        Some(place.address)
    }

    /// Notes the place of the next block.
    pub(super) fn note(&mut self, stream: StreamId, bytes: u64, address: Address) {
        let found = self.find(stream, bytes).map(|(index, _)| index);
        let Some(now) = &mut self.now else { return };
        now.places.push(Place { stream, bytes, address });
        self.passed = found.map_or(self.passed, |index| index + 1);
        if now.places.len() > MOST {
            (self.now, self.like) = (None, None);
        }
    }

    fn find(&self, stream: StreamId, bytes: u64) -> Option<(usize, &Place)> {
        let places = self.like.as_ref()?.places.iter().enumerate();
        let mut next = places.skip(self.passed).take(LOOKED_AT);
        next.find(|(_, place)| place.bytes == bytes && place.stream == stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cycle_without_end_leaves_no_places() {
        let stream = StreamId(0);
        let mut places = Places::default();
        for _ in 0..2 {
            places.begin_cycle(0, 0);
            places.note(stream, 512, 4096);
        }
        places.begin_cycle(0, 0);
        assert_eq!(places.expected(stream, 512), Some(4096));
        (0..=MOST).for_each(|_| places.note(stream, 512, 4096));
        assert_eq!(places.expected(stream, 512), None);
        places.begin_cycle(0, 0);
        assert_eq!(places.expected(stream, 512), None);
    }
}
