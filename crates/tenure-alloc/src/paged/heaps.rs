//! The heaps of all streams, found without a lock.

use std::sync::OnceLock;

use tenure_core::StreamId;

use super::heap::Heap;

/// Streams that can have a heap of their own; small requests of any more are served as large ones are. A power of two.
const STREAMS: usize = 1024;

/// A table that only grows: a stream's heap stays where it was first put.
pub(super) struct Heaps(Box<[OnceLock<Box<Heap>>]>);

impl Default for Heaps {
    fn default() -> Self {
        Self((0..STREAMS).map(|_| OnceLock::new()).collect())
    }
}

impl Heaps {
    /// The heap of a stream, made at its first use, and its number.
    #[inline]
    pub(super) fn of(&self, stream: StreamId) -> Option<(u16, &Heap)> {
        // Handles of streams are addresses or small numbers: a multiplication spreads both.
        let start = (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize;
        for step in 0..STREAMS {
            let at = (start + step) % STREAMS;
            let heap = self.0[at].get_or_init(|| Box::new(Heap::new(stream)));
            if heap.stream == stream {
                return Some((at as u16, heap));
            }
        }
        None
    }

    /// A heap by its number.
    #[inline]
    pub(super) fn numbered(&self, number: u16) -> Option<&Heap> {
        self.0.get(usize::from(number))?.get().map(|heap| &**heap)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Heap> {
        self.0.iter().filter_map(|heap| heap.get()).map(|heap| &**heap)
    }

    /// Bytes requested from all heaps and not freed.
    pub(super) fn requested(&self) -> u64 {
        self.iter().map(Heap::requested).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_heap_until_there_are_too_many() {
        let heaps = Heaps::default();
        let numbers: Vec<u16> = (0..1024).map(|stream| heaps.of(StreamId(stream * 64)).unwrap().0).collect();
        for (stream, &number) in numbers.iter().enumerate() {
            let stream = StreamId(stream as u64 * 64);
            assert_eq!(heaps.of(stream).unwrap().0, number);
            assert_eq!(heaps.numbered(number).unwrap().stream, stream);
        }
        assert!(heaps.of(StreamId(1)).is_none());
        assert_eq!(heaps.iter().count(), 1024);
    }
}
