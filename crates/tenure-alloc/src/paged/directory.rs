//! The directory: finds the heap to which an address is lent, on any thread and without a lock.

#[cfg(not(loom))]
use std::alloc::{Layout, alloc_zeroed};
#[cfg(not(loom))]
use std::ptr;

use crate::sync::{AtomicU64, Ordering};
use crate::{Address, AllocError};

use super::config::{GRANULE, SLAB_BYTES, SMALL_LIMIT};

/// A map from address to heap for memory lent to heaps: slabs, and ranges of larger blocks.
///
/// Addresses are divided into pages. Every loan is at least as long as a page. So at most one loan starts in a page,
/// after the end of at most one slab that started before. An entry packs the two: the heap of the slab before (16 bits)
/// and its end (12), the heap of the loan that starts here (16), its start (11), and a bit that tells whether it is a
/// slab. Heaps count from 1, and 0 means none; places are granules of the page. A thread that looks up an address holds
/// a live block there, so that part of its entry does not change meanwhile. The other part may change, which is why
/// each word is changed by an atomic update.
pub(super) struct Directory {
    first: Address,
    pages: Box<[AtomicU64]>,
}

/// The kind of a loan at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoanKind {
    /// A slab, which the address lies in.
    Slab,
    /// A larger block's range, whose first byte is at the address.
    Range,
}

/// The size of a page in bytes.
const PAGE: u64 = SMALL_LIMIT;
/// The number of pages, after the one where a slab starts, in which it may lie or end.
const SLAB_PAGES: u64 = SLAB_BYTES / PAGE;
/// The number of bits for each of the two parts of an entry.
const HALF_BITS: u32 = 28;
/// The bits of the slab that started before the page.
const BEFORE_MASK: u64 = (1 << HALF_BITS) - 1;
/// The bits of the loan that starts in the page.
const START_MASK: u64 = BEFORE_MASK << HALF_BITS;

impl Directory {
    /// Makes a directory for the `bytes` addresses from `first` on.
    pub(super) fn new(first: Address, bytes: u64) -> Result<Self, AllocError> {
        Ok(Self { first, pages: empty_pages((bytes.div_ceil(PAGE) + SLAB_PAGES) as usize)? })
    }

    /// Returns the heap that the memory at `address` is lent to, and the kind of the loan.
    #[inline]
    pub(super) fn owner(&self, address: Address) -> Option<(u16, LoanKind)> {
        let (page, offset) = self.position(address)?;
        let entry = self.pages.get(page)?.load(Ordering::Acquire);
        let before = EntryHalf(entry & BEFORE_MASK);
        let start = EntryHalf(entry >> HALF_BITS);
        let (heap, kind) = if start.heap() > 0 && start.start() <= offset {
            match start.kind() {
                LoanKind::Range if start.start() < offset => return None,
                kind => (start.heap(), kind),
            }
        } else if offset < before.end() {
            (before.heap(), LoanKind::Slab)
        } else {
            return None;
        };
        Some((heap as u16 - 1, kind))
    }

    /// Enters a loan to `heap`.
    pub(super) fn insert(&self, address: Address, heap: u16, kind: LoanKind) {
        self.set(address, kind, |place| EntryHalf::new(heap, place, kind));
    }

    /// Removes a loan.
    pub(super) fn remove(&self, address: Address, kind: LoanKind) {
        self.set(address, kind, |_| EntryHalf(0));
    }

    /// Sets the halves of the entries of every page that a loan lies in. `half` makes a half from a place.
    fn set(&self, address: Address, kind: LoanKind, half: impl Fn(u64) -> EntryHalf) {
        let Some((page, start)) = self.position(address) else { return };
        self.update(page, START_MASK, half(start).0 << HALF_BITS);
        if kind == LoanKind::Slab {
            let page_count = if start > 0 { SLAB_PAGES + 1 } else { SLAB_PAGES };
            for step in 1..page_count {
                let end = if step < SLAB_PAGES { PAGE / GRANULE } else { start };
                self.update(page + step as usize, BEFORE_MASK, half(end).0);
            }
        }
    }

    /// Returns the page of an address, and its place there in granules.
    #[inline]
    fn position(&self, address: Address) -> Option<(usize, u64)> {
        let offset = address.checked_sub(self.first)?;
        Some(((offset / PAGE) as usize, offset % PAGE / GRANULE))
    }

    /// Replaces the bits of `mask` in the entry of a page.
    fn update(&self, page: usize, mask: u64, bits: u64) {
        if let Some(entry) = self.pages.get(page) {
            // The closure never refuses.
            let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, |old| Some(old & !mask | bits));
        }
    }
}

/// One of the two parts of an entry: a heap's number plus 1, and a start or an end.
struct EntryHalf(u64);

const HEAP_BITS: u32 = 16;
/// The bit that is set if the loan that starts is not a slab.
const RANGE: u64 = 1 << (HALF_BITS - 1);

impl EntryHalf {
    fn new(heap: u16, place: u64, kind: LoanKind) -> Self {
        let kind = if kind == LoanKind::Range { RANGE } else { 0 };
        Self(kind | place << HEAP_BITS | (u64::from(heap) + 1))
    }

    /// Returns the heap's number plus 1, or 0 for none.
    fn heap(&self) -> u64 {
        self.0 & ((1 << HEAP_BITS) - 1)
    }

    /// Returns the end of the slab before: at most a page's granules.
    fn end(&self) -> u64 {
        self.0 >> HEAP_BITS
    }

    /// Returns the start of the loan: less than a page's granules, so that a bit is left for its kind.
    fn start(&self) -> u64 {
        (self.0 & !RANGE) >> HEAP_BITS
    }

    fn kind(&self) -> LoanKind {
        if self.0 & RANGE == 0 { LoanKind::Slab } else { LoanKind::Range }
    }
}

/// Returns zeros. The operating system provides memory only for those that are touched, but may refuse the addresses.
#[cfg(not(loom))]
fn empty_pages(count: usize) -> Result<Box<[AtomicU64]>, AllocError> {
    let bytes = count.saturating_mul(size_of::<AtomicU64>());
    let layout = Layout::array::<AtomicU64>(count).map_err(|_| AllocError::HostMemory { bytes: bytes as u64 })?;
    // SAFETY: the layout has a size, since there are at least `SLAB_PAGES` pages.
    let pages = unsafe { alloc_zeroed(layout) }.cast::<AtomicU64>();
    if pages.is_null() {
        return Err(AllocError::HostMemory { bytes: bytes as u64 });
    }
    // SAFETY: the global allocator made this memory with the layout of `count` words, which nothing else owns, and an
    // AtomicU64 of all zero bytes is a valid zero.
    Ok(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(pages, count)) })
}

#[cfg(loom)]
fn empty_pages(count: usize) -> Result<Box<[AtomicU64]>, AllocError> {
    Ok((0..count).map(|_| AtomicU64::new(0)).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const FIRST: Address = 7 << 40;
    const SLAB: LoanKind = LoanKind::Slab;
    const RANGE: LoanKind = LoanKind::Range;

    #[test]
    fn a_directory_that_the_host_has_no_memory_for_is_an_error() {
        let refused = Directory::new(0, 1 << 63).map(drop);
        assert_eq!(refused, Err(AllocError::HostMemory { bytes: ((1 << 63) / PAGE + SLAB_PAGES) * 8 }));
    }

    #[test]
    fn finds_slabs_that_share_pages() {
        let directory = Directory::new(FIRST, 64 << 20).unwrap();
        let one = FIRST + 512;
        let two = FIRST + 512 + SLAB_BYTES;
        let three = FIRST + 3 * SLAB_BYTES;
        for (slab, heap) in [(one, 3), (two, 0), (three, 9)] {
            directory.insert(slab, heap, SLAB);
        }
        assert_eq!(directory.owner(FIRST), None);
        assert_eq!(directory.owner(one), Some((3, SLAB)));
        assert_eq!(directory.owner(one + PAGE), Some((3, SLAB)));
        assert_eq!(directory.owner(two - 512), Some((3, SLAB)));
        assert_eq!(directory.owner(two), Some((0, SLAB)));
        assert_eq!(directory.owner(two + SLAB_BYTES - 1), Some((0, SLAB)));
        assert_eq!(directory.owner(three), Some((9, SLAB)));
        assert_eq!(directory.owner(three + SLAB_BYTES - 1), Some((9, SLAB)));
        assert_eq!(directory.owner(three + SLAB_BYTES), None);
        assert_eq!(directory.owner(two + SLAB_BYTES), None, "the rest of a page behind a slab's end");
        directory.remove(one, SLAB);
        assert_eq!(directory.owner(one + PAGE), None);
        assert_eq!(directory.owner(two - 512), None);
        assert_eq!(directory.owner(two), Some((0, SLAB)));
        assert_eq!(directory.owner(FIRST - 1), None);
        assert_eq!(directory.owner(u64::MAX), None);
    }

    #[test]
    fn finds_a_range_only_where_it_begins() {
        let directory = Directory::new(FIRST, 64 << 20).unwrap();
        let slab = FIRST + 1024;
        let range = FIRST + 1024 + SLAB_BYTES;
        let last = FIRST + 4 * PAGE - 512;
        directory.insert(slab, 3, SLAB);
        directory.insert(range, 4, RANGE);
        directory.insert(last, 5, RANGE);
        assert_eq!(directory.owner(range - 512), Some((3, SLAB)));
        assert_eq!(directory.owner(range), Some((4, RANGE)));
        assert_eq!(directory.owner(range + 512), None);
        assert_eq!(directory.owner(range + PAGE), None);
        assert_eq!(directory.owner(last), Some((5, RANGE)));
        directory.remove(range, RANGE);
        assert_eq!(directory.owner(range), None);
        assert_eq!(directory.owner(range - 512), Some((3, SLAB)));
    }
}

#[cfg(all(test, loom))]
mod model {
    use std::sync::Arc;

    use super::*;

    /// Checks that two heaps can enter and remove slabs that share a page, while each looks up its own.
    #[test]
    fn neighbours_do_not_disturb_each_other() {
        loom::model(|| {
            let directory = Arc::new(Directory::new(0, 2 * SLAB_BYTES).unwrap());
            let one = 512;
            let two = 512 + SLAB_BYTES;
            let other = Arc::clone(&directory);
            let thread = loom::thread::spawn(move || {
                other.insert(one, 1, LoanKind::Slab);
                assert_eq!(other.owner(one), Some((1, LoanKind::Slab)));
                assert_eq!(other.owner(two - 512), Some((1, LoanKind::Slab)));
                other.remove(one, LoanKind::Slab);
                assert_eq!(other.owner(two - 512), None);
            });
            directory.insert(two, 2, LoanKind::Slab);
            assert_eq!(directory.owner(two), Some((2, LoanKind::Slab)));
            directory.remove(two, LoanKind::Slab);
            assert_eq!(directory.owner(two), None);
            thread.join().unwrap();
        });
    }

    /// Checks that a block handed to another thread is found there.
    #[test]
    fn an_entry_is_seen_by_the_thread_that_got_the_address() {
        loom::model(|| {
            let directory = Arc::new(Directory::new(0, 2 * SLAB_BYTES).unwrap());
            let address = Arc::new(AtomicU64::new(0));
            let there = Arc::clone(&directory);
            let sent = Arc::clone(&address);
            let thread = loom::thread::spawn(move || match sent.load(Ordering::Acquire) {
                0 => {}
                address => assert_eq!(there.owner(address), Some((4, LoanKind::Slab))),
            });
            directory.insert(SLAB_BYTES, 4, LoanKind::Slab);
            address.store(SLAB_BYTES, Ordering::Release);
            thread.join().unwrap();
        });
    }
}
