//! The forecast: what a program that repeats itself will ask for, and where it had its memory.
//!
//! # Note [Forecast]
//!
//! A program that repeats itself asks for the same blocks in the same order, step after step. If each block goes where
//! the same block was a period ago, nothing is in its way, and a step maps nothing that the step before did not.
//!
//! Sometimes a block cannot go there: a slab outlives its step, or the device is not as far as it was. Elsewhere it may
//! be in the way of a later block, which is then in the way of another, without end. So it goes where no block was, a
//! period ago, during its lifetime. Then no other block has to move.
//!
//! Nobody tells where a period begins. The blocks of each stream are a sequence of sizes. If the last [`GRAM`] sizes
//! came before, and as many bytes were requested then in all, the distance is the stream's period, until a size
//! differs. The bytes tell a step after a step from a layer after a layer, whose blocks must not go where those of the
//! layer before are or were.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::iter;
use std::ops::Range;

use rustc_hash::{FxHashMap, FxHasher};
use tenure_core::StreamId;

use crate::Address;

/// The number of placements that are remembered. A longer period is not found.
const REMEMBERED: usize = 1 << 15;
/// The number of sizes by which a period is found.
const GRAM: usize = 16;
/// A period ends with as many bytes requested in all as it began with, but for these.
const ALIKE_BYTES: u64 = 4 << 20;
/// The most earlier blocks that are looked at for the beginning of a period.
const LOOKED_AT: usize = 32;

/// The last placements of all streams, in the order of their numbers, and what follows from them.
#[derive(Default)]
pub(super) struct Forecast {
    placements: VecDeque<Placement>,
    /// The number of the oldest placement.
    first: u64,
    sequences: FxHashMap<StreamId, Sequence>,
    /// The numbers of the placements of blocks in use, by address.
    in_use: FxHashMap<Address, u64>,
}

/// The placement of a block.
struct Placement {
    stream: StreamId,
    /// The block's index in the sequence of its stream.
    index: u64,
    bytes: u64,
    address: Address,
    /// The bytes requested in all, with this block.
    requested: u64,
    /// The hash of the last sizes of the stream.
    gram: Option<u64>,
    /// The index of the last block before it that came after the same sizes.
    alike: Option<u64>,
    /// The number of the first placement after the block's memory was free again.
    end: Option<u64>,
}

/// The sequence of a stream's blocks.
#[derive(Default)]
struct Sequence {
    /// The numbers of the placements, by the block's index. A block that got [parked](super::parked) memory has an
    /// index and no placement.
    numbers: FxHashMap<u64, u64>,
    /// The sizes of the last blocks that were placed.
    sizes: VecDeque<u64>,
    /// The index of the last block after certain sizes, by their hash.
    grams: FxHashMap<u64, u64>,
    /// The number of blocks after which the sequence repeats itself.
    period: Option<u64>,
    /// The number of the placement, a period ago, of the last block; None if it is another one.
    repeated: Option<u64>,
}

/// The places and the lifetime that a block is expected to have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Expected {
    /// Where the same block was, a period ago and two periods ago. If a block is made before its forerunner is freed,
    /// as with a batch of data, the two take turns.
    pub(super) places: [Option<Address>; 2],
    /// The numbers of the placements that fell, a period ago, into the block's lifetime. Empty if nothing is known.
    pub(super) lifetime: Range<u64>,
}

impl Forecast {
    /// Returns the number of the next placement.
    pub(super) fn next_number(&self) -> u64 {
        self.first + self.placements.len() as u64
    }

    /// Returns the number of the oldest placement that is remembered.
    pub(super) fn first_number(&self) -> u64 {
        self.first
    }

    /// Returns what is expected of the next block of a stream, of `bytes` bytes. `index` is its index in the stream's
    /// sequence; None if it is in none, as the number of slabs differs from period to period.
    pub(super) fn expected(&self, stream: StreamId, index: Option<u64>, bytes: u64) -> Expected {
        let now = self.next_number();
        let Some(index) = index else {
            // Such a block may outlive the period.
            let latest = self.sequences.values().filter_map(|sequence| sequence.repeated).max();
            return Expected { lifetime: latest.map_or(0..0, |number| number..now), ..Expected::default() };
        };
        let Some(sequence) = self.sequences.get(&stream) else { return Expected::default() };
        let Some(period) = sequence.period else { return Expected::default() };
        let before = |periods| {
            let number = *sequence.numbers.get(&index.checked_sub(periods * period)?)?;
            Some((number, self.placement(number).filter(|placement| placement.bytes == bytes)?))
        };
        let last = before(1);
        let lifetime = match last {
            Some((number, placement)) => number + 1..placement.end.unwrap_or(now),
            None => sequence.repeated.map_or(0..0, |number| number..now),
        };
        Expected { places: [last, before(2)].map(|found| Some(found?.1.address)), lifetime }
    }

    /// Notes the placement of the next block of a stream's sequence. `requested` bytes are requested in all, with it.
    pub(super) fn note(&mut self, stream: StreamId, index: u64, bytes: u64, address: Address, requested: u64) {
        let number = self.next_number();
        self.in_use.insert(address, number);
        let sequence = self.sequences.entry(stream).or_default();
        let gram = sequence.push(index, number, bytes);
        let alike = gram.and_then(|gram| sequence.grams.insert(gram, index)).filter(|before| *before < index);
        self.placements.push_back(Placement { stream, index, bytes, address, requested, gram, alike, end: None });
        let follows = self.follow(stream, number);
        if let Some(sequence) = self.sequences.get_mut(&stream) {
            sequence.repeated = follows.map(|(_, repeated)| repeated);
            // A block that differs may be an exception.
            sequence.period = follows.map(|(period, _)| period).or(sequence.period);
        }
        if self.placements.len() > REMEMBERED {
            self.forget_oldest();
        }
    }

    /// Notes that the memory of the block at an address is free.
    pub(super) fn note_free(&mut self, address: Address) {
        let Some(number) = self.in_use.remove(&address) else { return };
        let now = self.next_number();
        if let Some(placement) = number.checked_sub(self.first).and_then(|at| self.placements.get_mut(at as usize)) {
            placement.end = Some(now);
        }
    }

    /// Returns the period of a stream whose last placement has a number, and the number of the placement that it
    /// repeats.
    fn follow(&self, stream: StreamId, number: u64) -> Option<(u64, u64)> {
        let sequence = self.sequences.get(&stream)?;
        let last = self.placement(number)?;
        let repeats = |period: u64| {
            let before = *sequence.numbers.get(&last.index.checked_sub(period)?)?;
            let placement = self.placement(before)?;
            let is_alike = placement.requested.abs_diff(last.requested) <= ALIKE_BYTES;
            (placement.bytes == last.bytes && is_alike).then_some((period, before))
        };
        let before = |index: &u64| self.placement(*sequence.numbers.get(index)?)?.alike;
        let alike = iter::successors(last.alike, before).take(LOOKED_AT);
        sequence.period.and_then(repeats).or_else(|| alike.map(|index| last.index - index).find_map(repeats))
    }

    fn placement(&self, number: u64) -> Option<&Placement> {
        self.placements.get(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn forget_oldest(&mut self) {
        let Some(oldest) = self.placements.pop_front() else { return };
        self.first += 1;
        let Some(sequence) = self.sequences.get_mut(&oldest.stream) else { return };
        sequence.numbers.remove(&oldest.index);
        if let Some(gram) = oldest.gram.filter(|gram| sequence.grams.get(gram) == Some(&oldest.index)) {
            sequence.grams.remove(&gram);
        }
    }
}

impl Sequence {
    /// Adds a block. Returns the hash of the last sizes, if there are enough.
    fn push(&mut self, index: u64, number: u64, bytes: u64) -> Option<u64> {
        self.numbers.insert(index, number);
        self.sizes.push_back(bytes);
        if self.sizes.len() <= GRAM {
            return None;
        }
        self.sizes.pop_front();
        let mut hasher = FxHasher::default();
        self.sizes.hash(&mut hasher);
        Some(hasher.finish())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: StreamId = StreamId(7);
    const MIB: u64 = 1 << 20;

    /// A program of one stream.
    #[derive(Default)]
    struct Program {
        forecast: Forecast,
        index: u64,
    }

    impl Program {
        /// Notes a block of `mib` MiB at an address, while `live` MiB are requested.
        fn note(&mut self, mib: u64, address: Address, live: u64) {
            self.forecast.note(STREAM, self.index, mib * MIB, address, live * MIB);
            self.index += 1;
        }

        /// Makes and frees 20 blocks of different sizes: the one number `n`, of `n + 2` MiB, at `first + n`.
        fn step(&mut self, first: Address) {
            for n in 0..20 {
                self.note(n + 2, first + n, 100 + n);
                self.forecast.note_free(first + n);
            }
        }

        fn expected(&self, mib: u64) -> Expected {
            self.forecast.expected(STREAM, Some(self.index), mib * MIB)
        }
    }

    #[test]
    fn a_repeated_block_is_expected_where_it_was() {
        let mut program = Program::default();
        program.step(1000);
        assert_eq!(program.expected(2), Expected::default(), "nothing has repeated itself");
        program.step(2000);
        program.step(3000);
        assert_eq!(program.expected(2).places, [Some(3000), Some(2000)]);
        assert_eq!(program.expected(3).places, [None, None], "another size");
    }

    #[test]
    fn a_lifetime_covers_the_placements_of_a_period_ago() {
        let mut program = Program::default();
        program.step(1000);
        program.step(2000);
        // The last step has the numbers from 20 on, and each block is freed before the next is made.
        assert_eq!(program.expected(2).lifetime, 21..21);
        program.note(2, 3000, 100);
        assert_eq!(program.expected(9).lifetime, 20..41, "from the last block that was expected");
        assert_eq!(program.forecast.expected(STREAM, None, 2 * MIB).lifetime, 20..41, "a slab may outlive the period");
        program.forecast.note_free(3000);
    }

    #[test]
    fn layers_are_no_periods() {
        let mut program = Program::default();
        for layer in 0..20 {
            for n in 0..20 {
                program.note(n + 2, layer * 1000 + n, 50 * layer + n);
            }
        }
        assert_eq!(program.expected(2), Expected::default());
    }

    #[test]
    fn a_block_more_shifts_the_sequence() {
        let mut program = Program::default();
        program.step(1000);
        program.step(2000);
        program.note(99, 5000, 100);
        (3..6).for_each(|step| program.step(1000 * step));
        assert_eq!(program.expected(2).places[0], Some(5000));
    }

    #[test]
    fn the_oldest_placements_are_forgotten() {
        let mut program = Program::default();
        for n in 0..2 * REMEMBERED as u64 {
            program.note(n, n, n);
        }
        assert_eq!(program.forecast.placements.len(), REMEMBERED);
        let sequence = &program.forecast.sequences[&STREAM];
        assert_eq!(sequence.numbers.len(), REMEMBERED);
        assert_eq!(sequence.grams.len(), REMEMBERED);
    }
}
