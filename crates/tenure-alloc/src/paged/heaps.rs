//! The heaps of all streams, found without a lock.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tenure_core::StreamId;

use super::heap::Heap;
use crate::sync::AtomicU64;

/// The number of streams that can have a heap of their own; a power of two. All requests of further streams, also
/// small ones, are served as blocks outside slabs.
const STREAMS: usize = 1024;

/// The table of heaps. Heaps are never removed, and a heap keeps its number.
pub(super) struct Heaps {
    table: Box<[OnceLock<Box<Heap>>]>,
    /// The numbers of the existing heaps, so that iteration need not go through the table.
    existing: Box<Mutex<Vec<u16>>>,
    clock: Arc<AtomicU64>,
}

impl Heaps {
    /// Makes a table without heaps. `clock` is the number of the state's last placement or return: see Note [Parking].
    pub(super) fn new(clock: Arc<AtomicU64>) -> Self {
        Self { table: (0..STREAMS).map(|_| OnceLock::new()).collect(), existing: Box::default(), clock }
    }

    /// Returns the heap of a stream and its number; makes the heap at its first use.
    #[inline]
    pub(super) fn for_stream(&self, stream: StreamId) -> Option<(u16, &Heap)> {
        // Handles of streams are addresses or small numbers; a multiplication spreads both.
        let start = (stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 54) as usize;
        for step in 0..STREAMS {
            let at = (start + step) % STREAMS;
            let number = at as u16;
            let heap = self.table[at].get_or_init(|| {
                self.existing.lock().push(number);
                Box::new(Heap::new(stream, Arc::clone(&self.clock)))
            });
            if heap.stream == stream {
                return Some((number, heap));
            }
        }
        None
    }

    /// Returns a heap by its number.
    #[inline]
    pub(super) fn by_number(&self, number: u16) -> Option<&Heap> {
        self.table.get(usize::from(number))?.get().map(|heap| &**heap)
    }

    /// Returns every heap, in the order in which they were made.
    pub(super) fn all(&self) -> impl Iterator<Item = &Heap> {
        let existing = self.existing.lock().clone();
        existing.into_iter().filter_map(|number| self.by_number(number))
    }

    /// Returns the bytes requested from all heaps and not freed.
    pub(super) fn requested(&self) -> u64 {
        self.existing.lock().iter().filter_map(|&number| self.by_number(number)).map(Heap::requested).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_keeps_its_heap_until_there_are_too_many() {
        let heaps = Heaps::new(Arc::default());
        let numbers: Vec<u16> = (0..1024).map(|stream| heaps.for_stream(StreamId(stream * 64)).unwrap().0).collect();
        for (stream, &number) in numbers.iter().enumerate() {
            let stream = StreamId(stream as u64 * 64);
            assert_eq!(heaps.for_stream(stream).unwrap().0, number);
            assert_eq!(heaps.by_number(number).unwrap().stream, stream);
        }
        assert!(heaps.for_stream(StreamId(1)).is_none());
        assert_eq!(heaps.all().count(), 1024);
    }
}
