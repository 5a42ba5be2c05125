//! Orders: the sequences in which greedy packing takes buffers.

use std::cmp::Reverse;

use super::{Buffer, PackingProblem};
use Key::{Area, Fullness, Given, Lifetime, Size, Start};

/// The order in which buffers are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// The largest first.
    Size,
    /// The largest product of size and lifetime first.
    Area,
    /// The longest lifetime first.
    Lifetime,
    /// The earliest start first, like an allocator that does not know the future.
    Start,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 4] = [Self::Size, Self::Area, Self::Lifetime, Self::Start];

    /// Returns the keys by which the order sorts.
    pub(super) fn keys(self) -> SortKeys {
        match self {
            Self::Size => [Size, Lifetime],
            Self::Area => [Area, Size],
            Self::Lifetime => [Lifetime, Size],
            Self::Start => [Start, Size],
        }
    }
}

/// A key by which buffers are sorted. The highest comes first, unless the key says otherwise.
#[derive(Clone, Copy)]
pub(super) enum Key {
    /// The size.
    Size,
    /// The length of the lifetime.
    Lifetime,
    /// The product of both.
    Area,
    /// The bytes in the fullest section of the lifetime.
    Fullness,
    /// The start, the earliest first.
    Start,
    /// The place in the problem, the first first.
    Given,
}

/// Keys that sort buffers: by the first, where that is equal by the second, then by the start.
pub(super) type SortKeys = [Key; 2];

/// The orders that begin with the largest. Equal sizes are common, so what decides between them matters: with a model of
/// 18,692 buffers, the height is 0.8 % above the bound if it is the start, and 3.3 % if it is the lifetime.
pub(super) const LARGEST_FIRST: [SortKeys; 3] = [[Size, Start], [Size, Lifetime], [Size, Given]];

/// The other orders in which a problem is packed: with [`LARGEST_FIRST`], every one of [`Order::ALL`] is among them.
pub(super) const OTHER_ORDERS: [SortKeys; 6] =
    [[Fullness, Lifetime], [Fullness, Size], [Lifetime, Size], [Area, Size], [Fullness, Area], [Start, Size]];

/// Sorts buffers of a problem.
pub(super) struct Sorter<'a> {
    problem: &'a PackingProblem,
    /// For each buffer: the bytes in its fullest section.
    fullness: Vec<u64>,
}

impl<'a> Sorter<'a> {
    pub(super) fn new(problem: &'a PackingProblem) -> Self {
        Self { problem, fullness: problem.sections.fullness(&problem.buffers) }
    }

    /// Returns those of `buffers` that have bytes and no fixed offset, sorted by `keys`.
    pub(super) fn sequence(&self, buffers: &[usize], keys: SortKeys) -> Vec<usize> {
        let all = &self.problem.buffers;
        let mut sequence = buffers.to_vec();
        sequence.retain(|&index| all[index].size_bytes > 0 && all[index].offset.is_none());
        sequence.sort_by_cached_key(|&index| {
            (keys.map(|key| Reverse(self.value(index, &all[index], key))), all[index].start, index)
        });
        sequence
    }

    fn value(&self, index: usize, buffer: &Buffer, key: Key) -> u128 {
        let size = u128::from(buffer.size_bytes);
        let lifetime = u128::from(buffer.end - buffer.start);
        match key {
            Size => size,
            Lifetime => lifetime,
            Area => size * lifetime,
            Fullness => u128::from(self.fullness[index]),
            Start => u128::MAX - u128::from(buffer.start),
            Given => u128::MAX - index as u128,
        }
    }
}
