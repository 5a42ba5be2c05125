//! A ring of records that threads write and read without a lock.

// Atomics: the standard library's, or loom's in a model check.
#[cfg(loom)]
use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
};
#[cfg(not(loom))]
use std::{
    hint::spin_loop,
    sync::atomic::{AtomicU64, Ordering, fence},
};

/// The last `SLOTS` records of `WORDS` words each. Any thread writes and reads them without a lock.
///
/// Each slot is a seqlock. A writer may find its slot taken, by a writer that stalled a whole round ago or by one that
/// overtook it. It then skips the slot and takes the next number. So the newest record is always kept, no thread waits,
/// and a skipped number is not shown.
pub(crate) struct Ring<const SLOTS: usize, const WORDS: usize> {
    /// The number of the next record.
    next: AtomicU64,
    slots: Box<[Slot<WORDS>; SLOTS]>,
}

impl<const SLOTS: usize, const WORDS: usize> Ring<SLOTS, WORDS> {
    pub(crate) fn new() -> Self {
        Self { next: AtomicU64::new(0), slots: Box::new(std::array::from_fn(|_| Slot::new())) }
    }

    /// Adds a record, and returns its number: larger than that of every record added before.
    #[inline]
    pub(crate) fn push(&self, words: [u64; WORDS]) -> u64 {
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if self.slot(number).write(number, words) {
                return number;
            }
            spin_loop();
        }
    }

    /// Removes a record: it is no longer shown. Nothing happens if it was overwritten already.
    pub(crate) fn withdraw(&self, number: u64) {
        let state = &self.slot(number).state;
        // Relaxed keeps the writer's release in place, for the next writer to acquire.
        let _ = state.compare_exchange(written(number), EMPTY, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Returns the records and their numbers, the newest first. A record that is being written at the moment may be
    /// missing.
    pub(crate) fn recent(&self) -> impl Iterator<Item = (u64, [u64; WORDS])> {
        let end = self.next.load(Ordering::Relaxed);
        let numbers = end.saturating_sub(SLOTS as u64)..end;
        numbers.rev().filter_map(|number| Some((number, self.slot(number).read(number)?)))
    }

    #[inline]
    fn slot(&self, number: u64) -> &Slot<WORDS> {
        &self.slots[number as usize % SLOTS]
    }
}

/// One record; with seven words, one cache line.
#[repr(align(64))]
struct Slot<const WORDS: usize> {
    /// [`EMPTY`] before the first record; then [`writing`], and later [`written`], of a record's number.
    state: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A slot that any record may take.
const EMPTY: u64 = 0;

const fn writing(number: u64) -> u64 {
    2 * number + 1
}

const fn written(number: u64) -> u64 {
    2 * number + 2
}

impl<const WORDS: usize> Slot<WORDS> {
    fn new() -> Self {
        Self { state: AtomicU64::new(EMPTY), words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Writes record `number` if the slot is free for it. Returns whether it was.
    #[inline]
    fn write(&self, number: u64, words: [u64; WORDS]) -> bool {
        let seen = self.state.load(Ordering::Relaxed);
        let is_free = seen.is_multiple_of(2) && seen < writing(number);
        // Acquire: the words of the previous record are stored before these.
        if !is_free || self.state.compare_exchange(seen, writing(number), Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // A reader of one of these words that then passes the fence of `read` sees that the slot was taken.
        fence(Ordering::Release);
        for (slot, word) in self.words.iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.state.store(written(number), Ordering::Release);
        true
    }

    /// Returns record `number`, if the slot holds it.
    fn read(&self, number: u64) -> Option<[u64; WORDS]> {
        if self.state.load(Ordering::Acquire) != written(number) {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == written(number)).then_some(words)
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use loom::thread;

    use super::*;

    type Small = Ring<2, 2>;

    fn check(ring: &Small) -> Vec<u64> {
        let records: Vec<_> = ring.recent().collect();
        assert!(records.iter().all(|(_, [a, b])| a == b), "torn: {records:?}");
        records.into_iter().map(|(number, _)| number).collect()
    }

    #[test]
    fn a_read_while_the_ring_goes_round_is_whole() {
        loom::model(|| {
            let ring = Arc::new(Small::new());
            ring.push([1, 1]);
            let other = Arc::clone(&ring);
            let writer = thread::spawn(move || {
                other.push([2, 2]);
                other.push([3, 3]);
            });
            check(&ring);
            writer.join().unwrap();
        });
    }

    #[test]
    fn writers_that_collide_leave_the_newest_whole() {
        loom::model(|| {
            let ring = Arc::new(Small::new());
            let other = Arc::clone(&ring);
            let writer = thread::spawn(move || other.push([1, 1]));
            for value in 2..5 {
                ring.push([value; 2]);
            }
            writer.join().unwrap();
            assert!(!check(&ring).is_empty());
        });
    }

    #[test]
    fn a_withdrawn_entry_is_not_shown_and_leaves_the_newer_whole() {
        loom::model(|| {
            let ring = Arc::new(Small::new());
            let withdrawn = ring.push([1, 1]);
            let other = Arc::clone(&ring);
            let writer = thread::spawn(move || {
                other.push([2, 2]);
                other.push([3, 3])
            });
            ring.withdraw(withdrawn);
            assert!(!check(&ring).contains(&withdrawn));
            let newest = writer.join().unwrap();
            assert!(check(&ring).contains(&newest));
        });
    }

    #[test]
    fn earlier_entries_are_seen() {
        loom::model(|| {
            let ring = Arc::new(Small::new());
            let other = Arc::clone(&ring);
            let writer = thread::spawn(move || _ = other.push([1, 1]));
            let mine = ring.push([2, 2]);
            assert!(check(&ring).contains(&mine));
            writer.join().unwrap();
        });
    }
}
