//! Which heap owns the slab that an address lies in, for any thread, without a lock.

use crate::Address;
use crate::sync::{AtomicU64, Ordering};

use super::config::{GRANULE, SLAB_BYTES};

/// A map from address to heap.
///
/// Addresses are divided into pages of a slab's size. A slab starts anywhere on a granule, so it lies in one or two
/// pages, and a page sees at most the slab that starts in it and the end of the one that starts in the page before. An
/// entry packs the two: the heap of the slab before (16 bits) and where it ends (12), the heap of the slab that starts
/// here (16) and where it starts (12); heaps count from 1 and 0 is none, places are granules of the page. Whoever
/// looks an address up holds a live block there, so the slab's part of its entry does not change meanwhile; the other
/// part may, which is why each word is changed by an atomic update.
pub(super) struct Directory {
    first: Address,
    pages: Box<[AtomicU64]>,
}

const HALF_BITS: u32 = 28;
const BEFORE: u64 = (1 << HALF_BITS) - 1;
const START: u64 = BEFORE << HALF_BITS;

impl Directory {
    /// For the `bytes` addresses from `first` on.
    pub(super) fn new(first: Address, bytes: u64) -> Self {
        Self { first, pages: empty_pages(bytes.div_ceil(SLAB_BYTES) as usize + 1) }
    }

    /// The heap of the slab that `address` lies in, if it lies in one.
    #[inline]
    pub(super) fn owner(&self, address: Address) -> Option<u16> {
        let (page, offset) = self.position(address)?;
        let entry = self.pages.get(page)?.load(Ordering::Acquire);
        let (before, start) = (Half(entry & BEFORE), Half(entry >> HALF_BITS));
        let starts_before_address = start.heap() > 0 && start.place() <= offset;
        let heap = match starts_before_address {
            true => start.heap(),
            false if offset < before.place() => before.heap(),
            false => 0,
        };
        (heap as u16).checked_sub(1)
    }

    /// Enters a slab of `heap`.
    pub(super) fn enter(&self, slab: Address, heap: u16) {
        if let Some((page, offset)) = self.position(slab) {
            let half = Half::new(heap, offset);
            self.update(page, START, half.0 << HALF_BITS);
            if offset > 0 {
                self.update(page + 1, BEFORE, half.0);
            }
        }
    }

    /// Removes a slab.
    pub(super) fn remove(&self, slab: Address) {
        if let Some((page, offset)) = self.position(slab) {
            self.update(page, START, 0);
            if offset > 0 {
                self.update(page + 1, BEFORE, 0);
            }
        }
    }

    /// The page of an address, and its place there in granules.
    #[inline]
    fn position(&self, address: Address) -> Option<(usize, u64)> {
        let offset = address.checked_sub(self.first)?;
        Some(((offset / SLAB_BYTES) as usize, offset % SLAB_BYTES / GRANULE))
    }

    fn update(&self, page: usize, mask: u64, bits: u64) {
        if let Some(entry) = self.pages.get(page) {
            let changed = |old: u64| Some(old & !mask | bits);
            // The closure never refuses.
            let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        }
    }
}

/// A slab in an entry.
struct Half(u64);

impl Half {
    fn new(heap: u16, place: u64) -> Self {
        Self(place << 16 | (u64::from(heap) + 1))
    }

    fn heap(&self) -> u64 {
        self.0 & 0xFFFF
    }

    fn place(&self) -> u64 {
        self.0 >> 16
    }
}

#[cfg(not(loom))]
fn empty_pages(count: usize) -> Box<[AtomicU64]> {
    let pages = Box::<[AtomicU64]>::new_zeroed_slice(count);
    // SAFETY: an AtomicU64 of all zero bytes is a valid zero. (Written so because the operating system then gives the
    // memory only where it is touched.)
    unsafe { pages.assume_init() }
}

#[cfg(loom)]
fn empty_pages(count: usize) -> Box<[AtomicU64]> {
    (0..count).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn finds_slabs_that_share_pages() {
        let first = 7 << 40;
        let directory = Directory::new(first, 64 << 20);
        let (one, two, three) = (first + 512, first + 512 + SLAB_BYTES, first + 3 * SLAB_BYTES);
        for (slab, heap) in [(one, 3), (two, 0), (three, 9)] {
            directory.enter(slab, heap);
        }
        assert_eq!(directory.owner(first), None);
        assert_eq!(directory.owner(one), Some(3));
        assert_eq!(directory.owner(two - 512), Some(3));
        assert_eq!(directory.owner(two), Some(0));
        assert_eq!(directory.owner(two + SLAB_BYTES - 1), Some(0));
        assert_eq!(directory.owner(three), Some(9));
        assert_eq!(directory.owner(three + SLAB_BYTES), None);
        assert_eq!(directory.owner(two + SLAB_BYTES), None, "the rest of a page behind a slab's end");
        directory.remove(one);
        assert_eq!(directory.owner(two - 512), None);
        assert_eq!(directory.owner(two), Some(0));
        assert_eq!(directory.owner(first - 1), None);
        assert_eq!(directory.owner(u64::MAX), None);
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use super::*;

    /// Two heaps enter and remove slabs that share a page, while each looks up its own.
    #[test]
    fn neighbours_do_not_disturb_each_other() {
        loom::model(|| {
            let directory = Arc::new(Directory::new(0, 2 * SLAB_BYTES));
            let (one, two) = (512, 512 + SLAB_BYTES);
            let other = Arc::clone(&directory);
            let thread = loom::thread::spawn(move || {
                other.enter(one, 1);
                assert_eq!(other.owner(one), Some(1));
                assert_eq!(other.owner(two - 512), Some(1));
                other.remove(one);
                assert_eq!(other.owner(two - 512), None);
            });
            directory.enter(two, 2);
            assert_eq!(directory.owner(two), Some(2));
            directory.remove(two);
            assert_eq!(directory.owner(two), None);
            thread.join().unwrap();
        });
    }

    /// A block handed to another thread is found there.
    #[test]
    fn an_entry_is_seen_by_whoever_got_the_address() {
        loom::model(|| {
            let directory = Arc::new(Directory::new(0, 2 * SLAB_BYTES));
            let address = Arc::new(AtomicU64::new(0));
            let (there, sent) = (Arc::clone(&directory), Arc::clone(&address));
            let thread = loom::thread::spawn(move || match sent.load(Ordering::Acquire) {
                0 => {}
                address => assert_eq!(there.owner(address), Some(4)),
            });
            directory.enter(SLAB_BYTES, 4);
            address.store(SLAB_BYTES, Ordering::Release);
            thread.join().unwrap();
        });
    }
}
