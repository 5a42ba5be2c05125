//! Best fit: places buffers one after the other, each into the smallest hole that holds it.

use std::cmp::Reverse;

use super::{Buffer, align_up};

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

    /// Returns the sort key; the buffer that comes first has the lowest.
    fn key(self, buffer: &Buffer) -> (Reverse<u128>, Reverse<u128>, u64) {
        let [size, lifetime] = [buffer.size_bytes, buffer.end - buffer.start].map(u128::from);
        let (first, second) = match self {
            Self::Size => (size, lifetime),
            Self::Area => (size * lifetime, size),
            Self::Lifetime => (lifetime, size),
            Self::Start => (u128::MAX - u128::from(buffer.start), size),
        };
        (Reverse(first), Reverse(second), buffer.start)
    }
}

/// A range of bytes that is taken until a time.
struct Taken {
    bottom: u64,
    top: u64,
    start: u64,
    end: u64,
}

/// Returns the offset of every buffer. Calls `go_on` with the number of buffers that it is about to examine; returns
/// `None` if `go_on` returns `false`.
pub(super) fn place(buffers: &[Buffer], order: Order, mut go_on: impl FnMut(usize) -> bool) -> Option<Vec<u64>> {
    let mut sequence: Vec<usize> =
        (0..buffers.len()).filter(|&index| buffers[index].size_bytes > 0 && buffers[index].offset.is_none()).collect();
    sequence.sort_by_key(|&index| order.key(&buffers[index]));
    let mut offsets: Vec<u64> = buffers.iter().map(|buffer| buffer.offset.unwrap_or(0)).collect();
    let mut taken: Vec<Taken> = buffers
        .iter()
        .filter_map(|buffer| {
            let bytes = buffer.fixed()?;
            Some(Taken { bottom: bytes.start, top: bytes.end, start: buffer.start, end: buffer.end })
        })
        .collect();
    taken.sort_by_key(|other| other.bottom);
    for index in sequence {
        let buffer = &buffers[index];
        if order == Order::Start {
            // No later buffer overlaps these in time.
            taken.retain(|other| other.end > buffer.start);
        }
        if !go_on(taken.len()) {
            return None;
        }
        let bottom = best_offset(&taken, buffer);
        offsets[index] = bottom;
        let at = taken.partition_point(|other| other.bottom < bottom);
        let top = bottom + buffer.size_bytes;
        taken.insert(at, Taken { bottom, top, start: buffer.start, end: buffer.end });
    }
    Some(offsets)
}

/// Returns the offset of the smallest hole that fits, or the first above all of `taken`, which is sorted by the lower
/// ends.
fn best_offset(taken: &[Taken], buffer: &Buffer) -> u64 {
    let mut top = 0;
    let mut best: Option<(u64, u64)> = None;
    for other in taken.iter().filter(|other| other.start < buffer.end && buffer.start < other.end) {
        let offset = align_up(top, buffer.alignment);
        let hole = other.bottom.saturating_sub(top);
        if offset + buffer.size_bytes <= other.bottom && best.is_none_or(|(smallest, _)| hole < smallest) {
            best = Some((hole, offset));
        }
        top = top.max(other.top);
    }
    best.map_or_else(|| align_up(top, buffer.alignment), |(_, offset)| offset)
}
