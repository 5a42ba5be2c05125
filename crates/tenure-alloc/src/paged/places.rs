//! The places of a cycle's blocks, where later cycles like it put theirs.
//!
//! A program that repeats itself frees its memory in the same order in every cycle. But whether a stream may use free
//! memory without waiting depends on how far the device has got. So the first free range is now here and now there, and
//! where memory is scarce, blocks are pieced together anew in each cycle. If each block goes where the same block of an
//! earlier cycle went, a cycle maps nothing that the earlier one did not.
//!
//! That needs all blocks to be where they were. If one is not, as a block that outlives its cycle is where another one
//! was before, then blocks of the next cycle find it in their way, go elsewhere, and are in the way of others. So a
//! cycle that repeats itself and still maps memory can be laid out anew ([`Cycles`](crate::Cycles)): its blocks are
//! packed into one window, where none is ever in the way of another.

use rustc_hash::FxHashMap;
use tenure_core::StreamId;

use super::config::GRANULE;
use crate::{Address, CycleBlock};

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
/// The most times that one cycle is offered to be laid out.
const MOST_OFFERS: u8 = 3;

/// The places of the blocks of a cycle, and of earlier cycles.
#[derive(Default)]
pub(super) struct Places {
    /// This cycle. Nothing is noted outside of cycles.
    now: Option<Cycle>,
    /// The blocks of cycles that are in use, by address: each with its cycle's number and its index there.
    in_use: FxHashMap<Address, (u64, usize)>,
    /// The number of cycles so far.
    cycles: u64,
    /// The earlier cycle that this one is like.
    like: Option<Cycle>,
    /// The number of places of `like` before the next allocation.
    passed: usize,
    /// Other earlier cycles, the last one last.
    others: Vec<Cycle>,
}

/// A cycle.
struct Cycle {
    number: u64,
    /// See [`Cycles::begin_cycle`](crate::Cycles::begin_cycle).
    kind: u64,
    /// The bytes in use when it began.
    used_bytes: u64,
    /// The places of its blocks, in the order of allocations.
    places: Vec<Place>,
    /// Whether memory was mapped for one of them.
    has_mapped: bool,
    /// How often it was offered to be laid out. None if it does not repeat an earlier one.
    offers: Option<u8>,
}

/// The place of a block.
struct Place {
    stream: StreamId,
    bytes: u64,
    address: Address,
    /// Where it was in the last cycle in which it was not there. If a block is made before its forerunner of the last
    /// cycle is freed, as with a batch of data, the two take turns.
    other: Option<Address>,
    /// The number of the cycle's blocks that were placed before it was freed. None if it is not freed before the next
    /// cycle like this one begins.
    end: Option<usize>,
}

impl Cycle {
    /// Returns whether it has the same blocks as another cycle.
    fn repeats(&self, other: &Self) -> bool {
        let same = |(own, other): (&Place, &Place)| (own.stream, own.bytes) == (other.stream, other.bytes);
        self.places.len() == other.places.len() && self.places.iter().zip(&other.places).all(same)
    }

    /// Returns the stream that the most bytes are for.
    fn main_stream(&self) -> Option<StreamId> {
        let mut of_streams = FxHashMap::<StreamId, u64>::default();
        self.places.iter().for_each(|place| *of_streams.entry(place.stream).or_default() += place.bytes);
        of_streams.into_iter().max_by_key(|(_, bytes)| *bytes).map(|(stream, _)| stream)
    }
}

impl Place {
    /// Returns the end of a block that can be laid out: one of this stream that is not there when the next cycle
    /// begins. Memory of other streams is not reused without waiting.
    fn end_on(&self, stream: StreamId) -> Option<usize> {
        self.end.filter(|_| self.stream == stream)
    }
}

impl Places {
    /// Begins a cycle of this kind, with so many bytes in use.
    pub(super) fn begin_cycle(&mut self, kind: u64, used_bytes: u64) {
        if let Some(mut ended) = self.now.take() {
            let like = self.like.take();
            ended.offers = like.as_ref().filter(|like| ended.repeats(like)).map(|like| like.offers.unwrap_or(0));
            // A cycle takes the place of the one that it was like.
            let is_other = |like: &Cycle| like.used_bytes.abs_diff(ended.used_bytes) >= ALIKE_BYTES;
            self.others.extend(like.filter(is_other));
            self.others.push(ended);
            self.others.drain(..self.others.len().saturating_sub(KEPT));
        }
        let of_kind = self.others.iter().enumerate().rev().filter(|(_, cycle)| cycle.kind == kind);
        let nearest = of_kind.min_by_key(|(_, cycle)| cycle.used_bytes.abs_diff(used_bytes) / ALIKE_BYTES);
        self.like = nearest.map(|(index, _)| index).map(|index| self.others.remove(index));
        self.passed = 0;
        self.cycles += 1;
        let number = self.cycles;
        self.now = Some(Cycle { number, kind, used_bytes, places: Vec::new(), has_mapped: false, offers: None });
    }

    /// Returns whether the program is in a cycle.
    pub(super) fn in_cycle(&self) -> bool {
        self.now.is_some()
    }

    /// Returns where the next block of a stream, of `bytes` bytes, was in the earlier cycle, and where it was before.
    pub(super) fn expected(&self, stream: StreamId, bytes: u64) -> impl Iterator<Item = Address> + use<> {
        let found = self.find(stream, bytes).map(|(_, place)| (place.address, place.other));
        found.into_iter().flat_map(|(address, other)| [Some(address), other]).flatten()
    }

    /// Notes that memory is mapped for the next block.
    pub(super) fn note_mapping(&mut self) {
        self.now.iter_mut().for_each(|now| now.has_mapped = true);
    }

    /// Notes the place of the next block.
    pub(super) fn note(&mut self, stream: StreamId, bytes: u64, address: Address) {
        let found = self.find(stream, bytes);
        let other =
            found.and_then(|(_, place)| if place.address == address { place.other } else { Some(place.address) });
        let passed = found.map(|(index, _)| index + 1);
        let Some(now) = &mut self.now else { return };
        self.in_use.insert(address, (now.number, now.places.len()));
        now.places.push(Place { stream, bytes, address, other, end: None });
        self.passed = passed.unwrap_or(self.passed);
        if now.places.len() > MOST {
            (self.now, self.like) = (None, None);
        }
    }

    /// Notes that the block at an address was freed.
    pub(super) fn note_free(&mut self, address: Address) {
        let Some((number, index)) = self.in_use.remove(&address) else { return };
        let mut cycles = self.now.iter_mut().chain(&mut self.others);
        if let Some(cycle) = cycles.find(|cycle| cycle.number == number) {
            cycle.places[index].end = Some(cycle.places.len());
        }
    }

    /// Returns the [blocks](Self::blocks) of the cycle that this one is like, if that repeated an earlier one and memory
    /// was still mapped in it. Returns None if it did so some times before.
    pub(super) fn offer(&mut self) -> Option<Vec<CycleBlock>> {
        let like = self.like.as_mut().filter(|like| like.has_mapped)?;
        let offers = like.offers.as_mut().filter(|offers| **offers < MOST_OFFERS)?;
        *offers += 1;
        self.blocks()
    }

    /// Returns the blocks that [`lay_out`](Self::lay_out) puts elsewhere, of the cycle that this one is like.
    pub(super) fn blocks(&self) -> Option<Vec<CycleBlock>> {
        let like = self.like.as_ref()?;
        let main = like.main_stream()?;
        let block = |(index, place): (usize, &Place)| {
            Some(CycleBlock { bytes: place.bytes, lifetime: index..place.end_on(main)? })
        };
        let blocks: Vec<CycleBlock> = like.places.iter().enumerate().filter_map(block).collect();
        if blocks.is_empty() { None } else { Some(blocks) }
    }

    /// Returns the places, each with its bytes, of the blocks that are not laid out. No other block is to be there.
    pub(super) fn kept(&self) -> Vec<(Address, u64)> {
        let Some((like, main)) = self.like.as_ref().and_then(|like| Some((like, like.main_stream()?))) else {
            return Vec::new();
        };
        let kept = like.places.iter().filter(|place| place.end_on(main).is_none());
        kept.flat_map(|place| [Some(place.address), place.other].map(|at| Some((at?, place.bytes)))).flatten().collect()
    }

    /// Makes this cycle's [blocks](Self::blocks) go to a window at `first` of `bytes` bytes: each to its offset, unless
    /// it would reach beyond the end.
    pub(super) fn lay_out(&mut self, first: Address, bytes: u64, offsets: &[u64]) {
        let Some(like) = &mut self.like else { return };
        let Some(main) = like.main_stream() else { return };
        let places = like.places.iter_mut().filter(|place| place.end_on(main).is_some());
        for (place, offset) in places.zip(offsets) {
            if offset.is_multiple_of(GRANULE) && offset.saturating_add(place.bytes) <= bytes {
                (place.address, place.other) = (first + offset, None);
            }
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
        assert_eq!(places.expected(stream, 512).next(), Some(4096));
        (0..=MOST).for_each(|_| places.note(stream, 512, 4096));
        assert_eq!(places.expected(stream, 512).next(), None);
        places.begin_cycle(0, 0);
        assert_eq!(places.expected(stream, 512).next(), None);
    }
}
