use std::cmp::Reverse;

use super::{Buffer, align_up};

/// Which buffers are placed first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// The largest.
    Size,
    /// Those with the largest product of size and lifetime.
    Area,
    /// Those that live longest.
    Lifetime,
    /// Those that are needed first, as an allocator would that does not know the future.
    Start,
}

impl Order {
    /// Every order.
    pub const ALL: [Self; 4] = [Self::Size, Self::Area, Self::Lifetime, Self::Start];

    /// What comes first has the lowest key.
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

/// Bytes and a time that are taken.
struct Taken {
    bottom: u64,
    top: u64,
    start: u64,
    end: u64,
}

/// Everything's offset. `go_on` is told at how many buffers it takes a look, and may end it with nothing.
pub(super) fn place(buffers: &[Buffer], order: Order, mut go_on: impl FnMut(usize) -> bool) -> Option<Vec<u64>> {
    let is_free = |&index: &usize| buffers[index].size_bytes > 0 && buffers[index].offset.is_none();
    let mut sequence: Vec<usize> = (0..buffers.len()).filter(is_free).collect();
    sequence.sort_by_key(|&index| order.key(&buffers[index]));
    let mut offsets: Vec<u64> = buffers.iter().map(|buffer| buffer.offset.unwrap_or(0)).collect();
    let fixed = |buffer: &Buffer| {
        let bytes = buffer.fixed()?;
        Some(Taken { bottom: bytes.start, top: bytes.end, start: buffer.start, end: buffer.end })
    };
    let mut taken: Vec<Taken> = buffers.iter().filter_map(fixed).collect();
    taken.sort_by_key(|other| other.bottom);
    for index in sequence {
        let buffer = &buffers[index];
        if order == Order::Start {
            // Nothing that comes later meets them.
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

/// In the smallest hole, or above everything. `taken` is sorted by its bottoms.
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
