//! A heap over memory whose pages exist from their first touch until they are given back, such as a host's.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use crate::hooks::Hooks;
use crate::runs::Runs;
use crate::{Address, AllocError, BackingError, Block, FreeMemoryCallback, PoolKind, Request, Resource, Statistics};

/// The unit of blocks in bytes: the smallest page.
const PAGE_BYTES: u64 = 4096;
/// The unit in bytes in which pages are given back first: the system's huge pages, which it would otherwise have to
/// split.
const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Address space whose pages exist from their first touch until they are discarded.
pub trait Pages: Send + Sync {
    /// Returns the address space, which belongs to the heap alone.
    fn addresses(&self) -> Range<Address>;

    /// Gives back the pages of a range. Their contents are lost; the pages exist again when they are touched.
    ///
    /// # Errors
    /// The system refuses; the pages are as they were.
    fn discard(&self, address: Address, bytes: u64) -> Result<(), BackingError>;
}

/// Settings of a [`PageHeap`].
#[derive(Clone, Debug, PartialEq)]
pub struct PageHeapConfig {
    /// The memory that may be held beyond the most bytes that were ever allocated at once, as a fraction of these, but
    /// at least [`slack_bytes`](Self::slack_bytes).
    pub slack: f64,
    /// The least slack, in bytes: see [`slack`](Self::slack).
    pub slack_bytes: u64,
    /// The most bytes that may be held at a time.
    pub limit_bytes: u64,
}

impl Default for PageHeapConfig {
    fn default() -> Self {
        Self { slack: 0.01, slack_bytes: 16 << 20, limit_bytes: u64::MAX }
    }
}

/// A heap that hands out blocks of address space, and keeps the pages of freed blocks for the next ones. The system
/// need not fault in and clear pages that are reused. Address space costs nothing, and pages do: where free pages fit
/// no request, new ones are touched, and free ones are given back so that no more are held than [`PageHeapConfig`]
/// allows.
///
/// It is for large blocks: each is a multiple of 4 KiB.
pub struct PageHeap<P> {
    pages: P,
    config: PageHeapConfig,
    state: Mutex<PageHeapState>,
    live_bytes: AtomicU64,
    hooks: Hooks,
}

#[derive(Default)]
struct PageHeapState {
    /// Free ranges with pages.
    held: Runs,
    /// Free ranges without pages.
    untouched: Runs,
    /// The live blocks, by address: the request, and the size in bytes.
    live: FxHashMap<Address, (Request, u64)>,
    /// The most bytes of live blocks at once.
    peak: u64,
    /// The most bytes that may be held.
    limit: u64,
    statistics: Statistics,
}

impl<P: Pages> PageHeap<P> {
    /// Makes a heap that holds no page yet.
    pub fn new(pages: P, config: PageHeapConfig) -> Self {
        let mut state = PageHeapState { limit: config.limit_bytes, ..PageHeapState::default() };
        let Range { start, end } = pages.addresses();
        let start = start.next_multiple_of(HUGE_PAGE_BYTES);
        let end = end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        if start < end {
            state.untouched.insert(start, end - start);
        }
        Self { pages, config, state: Mutex::new(state), live_bytes: AtomicU64::new(0), hooks: Hooks::default() }
    }

    /// Returns the pages that its blocks are made of.
    pub fn pages(&self) -> &P {
        &self.pages
    }

    /// Returns the address space of its blocks.
    pub fn addresses(&self) -> Range<Address> {
        self.pages.addresses()
    }

    /// Limits the bytes held at a time, in place of the previous limit. Memory held beyond the new limit is not taken
    /// away; until enough of it is free, no new pages are taken.
    pub fn set_limit(&self, bytes: u64) {
        self.state.lock().limit = bytes;
    }

    /// Gives back free pages until at most `most` bytes are held. Returns whether that was reached.
    ///
    /// # Errors
    /// The system refuses.
    pub fn shrink(&self, most: u64) -> Result<bool, AllocError> {
        let mut state = self.state.lock();
        if state.reserved() > most {
            // Gives back 1 MiB more than needed, so that a caller that shrinks in small steps seldom calls the system.
            self.discard(&mut state, most.saturating_sub(HUGE_PAGE_BYTES / 2))?;
        }
        Ok(state.reserved() <= most)
    }

    /// Calls the callbacks; returns whether any of them may have freed a block.
    pub fn free_memory(&self) -> bool {
        self.hooks.free_memory()
    }

    /// Returns the bytes of all blocks that were ever freed.
    pub fn freed_bytes(&self) -> u64 {
        self.state.lock().freed_bytes()
    }

    /// Returns the bytes of live blocks.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the live block at `address`, if there is one.
    pub fn block_bytes(&self, address: Address) -> Option<u64> {
        self.state.lock().live.get(&address).map(|(_, bytes)| *bytes)
    }

    /// Adds a callback to try when the limit leaves no room. It is called with no lock held.
    pub fn add_free_memory_callback(&self, callback: FreeMemoryCallback) {
        self.hooks.add_callback(callback);
    }

    /// Returns the counters. Reserved bytes are those whose pages are held.
    pub fn statistics(&self) -> Statistics {
        self.state.lock().statistics.clone()
    }

    /// Sets every peak to the current value.
    pub fn reset_peak_statistics(&self) {
        self.state.lock().statistics.reset_peak();
    }

    /// Gives back the pages of all free ranges.
    ///
    /// # Errors
    /// The system refuses.
    pub fn release_cached(&self) -> Result<(), AllocError> {
        Ok(self.discard(&mut self.state.lock(), 0)?)
    }

    /// Gives back pages of free ranges, the longest first, until at most `most` bytes are held or no free page is left.
    fn discard(&self, state: &mut PageHeapState, most: u64) -> Result<(), BackingError> {
        for unit in [HUGE_PAGE_BYTES, PAGE_BYTES] {
            let mut free: Vec<_> = state.held.iter().collect();
            free.sort_unstable_by_key(|run| std::cmp::Reverse(run.bytes));
            for run in free {
                let excess = state.reserved().saturating_sub(most).next_multiple_of(unit);
                let start = run.address.next_multiple_of(unit);
                let bytes = (run.end() / unit * unit).saturating_sub(start).min(excess);
                if bytes == 0 {
                    continue;
                }
                // Pages go from the end of the range, so that those that stay are low and together.
                let from = run.end() / unit * unit - bytes;
                self.pages.discard(from, bytes)?;
                state.held.remove(from, bytes);
                state.untouched.insert(from, bytes);
                state.change_reserved(|reserved| reserved.decrease(bytes));
                state.statistics.num_device_free += 1;
            }
        }
        Ok(())
    }

    /// Takes a range for a block of `bytes` bytes: free pages in one piece if there are any, else new ones, for which
    /// free pages are given back if necessary. Returns `None` if the limit leaves no room.
    fn find_pages(&self, state: &mut PageHeapState, bytes: u64) -> Result<Option<Address>, BackingError> {
        if let Some(run) = state.held.first_fit(bytes, 0) {
            state.held.remove(run.address, bytes);
            return Ok(Some(run.address));
        }
        let live = state.statistics.all.allocated_bytes.current;
        let peak = state.peak.max(live + bytes);
        let slack = ((peak as f64 * self.config.slack) as u64).max(self.config.slack_bytes);
        let most = peak.saturating_add(slack).min(state.limit);
        if state.reserved() + bytes > most {
            self.discard(state, most.saturating_sub(bytes))?;
        }
        if state.reserved() + bytes > state.limit {
            return Ok(None);
        }
        let Some(run) = state.untouched.first_fit(bytes, 0) else { return Ok(None) };
        // A touch brings in a whole huge page, so the rest of the last one is held too, if the limit permits.
        let end = (run.address + bytes).next_multiple_of(HUGE_PAGE_BYTES).min(run.end());
        let more =
            (end - run.address - bytes).min(most.saturating_sub(state.reserved() + bytes) / PAGE_BYTES * PAGE_BYTES);
        state.untouched.remove(run.address, bytes + more);
        if more > 0 {
            state.held.insert(run.address + bytes, more);
        }
        state.change_reserved(|reserved| reserved.increase(bytes + more));
        state.statistics.num_device_alloc += 1;
        Ok(Some(run.address))
    }
}

impl<P: Pages> Resource for PageHeap<P> {
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let Some(bytes) = request.bytes.checked_next_multiple_of(PAGE_BYTES) else {
            return Err(AllocError::TooLarge(request.bytes));
        };
        let mut locked = self.state.lock();
        let address = loop {
            if let Some(address) = self.find_pages(&mut locked, bytes)? {
                break address;
            }
            let freed = locked.freed_bytes();
            drop(locked);
            let may_go_on = self.hooks.free_memory();
            locked = self.state.lock();
            // Meanwhile another thread may have freed what this one lacks.
            if !may_go_on && locked.freed_bytes() == freed {
                locked.statistics.num_ooms += 1;
                return Err(out_of_memory(&locked, request));
            }
        };
        let state = &mut *locked;
        state.live.insert(address, (request, bytes));
        state.statistics.block_allocated(PoolKind::Large, request.tag, request.bytes, bytes);
        state.peak = state.peak.max(state.statistics.all.allocated_bytes.current);
        self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Block { address, bytes })
    }

    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let state = &mut *self.state.lock();
        let (request, bytes) = state.live.remove(&address).ok_or(AllocError::UnknownAddress(address))?;
        state.held.insert(address, bytes);
        self.live_bytes.fetch_sub(bytes, Ordering::Relaxed);
        state.statistics.block_freed(PoolKind::Large, request.tag, bytes);
        state.statistics.block_completed(PoolKind::Large, request.tag, request.bytes, bytes);
        Ok(())
    }
}

/// Makes the error for a request that the limit leaves no room for.
#[cold]
fn out_of_memory(state: &PageHeapState, request: Request) -> AllocError {
    let allocated = state.statistics.all.allocated_bytes.current;
    let reserved = state.reserved();
    let limit = state.limit;
    AllocError::OutOfMemory {
        requested: request.bytes,
        stream: request.stream,
        allocated,
        reserved,
        inactive: reserved - allocated,
        overhead: 0,
        free: limit.saturating_sub(reserved),
        total: limit,
        allowed: limit,
    }
}

impl PageHeapState {
    /// Returns the bytes whose pages are held.
    fn reserved(&self) -> u64 {
        self.statistics.all.reserved_bytes.current
    }

    /// Returns the bytes of all blocks that were ever freed.
    fn freed_bytes(&self) -> u64 {
        self.statistics.all.allocated_bytes.freed
    }

    /// Changes the counts of reserved bytes.
    fn change_reserved(&mut self, change: impl Fn(&mut crate::Stat)) {
        self.statistics.both(PoolKind::Large).into_iter().for_each(|pool| change(&mut pool.reserved_bytes));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tenure_core::StreamId;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// Pages that exist if they were touched.
    #[derive(Default)]
    struct Fake {
        refuses: std::sync::atomic::AtomicBool,
        discarded: Mutex<Vec<(Address, u64)>>,
    }

    impl Pages for &Fake {
        fn addresses(&self) -> Range<Address> {
            1 << 40..(1 << 40) + (1 << 36)
        }

        fn discard(&self, address: Address, bytes: u64) -> Result<(), BackingError> {
            if self.refuses.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(BackingError::Failed { call: "madvise", reason: "refused".into() });
            }
            self.discarded.lock().push((address, bytes));
            Ok(())
        }
    }

    fn request(bytes: u64) -> Request {
        Request::new(bytes, StreamId::NULL)
    }

    #[test]
    fn freed_pages_are_used_again() {
        let fake = Fake::default();
        let heap = PageHeap::new(&fake, PageHeapConfig::default());
        let first = heap.allocate(request(5 * MIB)).unwrap();
        // A huge page exists as a whole once it is touched.
        assert_eq!(heap.statistics().all.reserved_bytes.current, 6 * MIB);
        heap.free(first.address).unwrap();
        assert_eq!(heap.allocate(request(3 * MIB)).unwrap().address, first.address);
        assert_eq!(heap.allocate(request(3 * MIB)).unwrap().address, first.address + 3 * MIB);
        assert_eq!(heap.statistics().all.reserved_bytes.current, 6 * MIB);
    }

    #[test]
    fn free_pages_that_fit_nothing_are_given_back_for_new_ones() {
        let fake = Fake::default();
        let heap = PageHeap::new(&fake, PageHeapConfig { slack: 0.0, slack_bytes: 0, ..PageHeapConfig::default() });
        let blocks: Vec<_> = (0..8).map(|_| heap.allocate(request(4 * MIB)).unwrap().address).collect();
        blocks.iter().step_by(2).for_each(|address| heap.free(*address).unwrap());
        heap.allocate(request(16 * MIB)).unwrap();
        let all = heap.statistics().all;
        assert_eq!((all.allocated_bytes.current, all.reserved_bytes.current), (32 * MIB, 32 * MIB));
        assert_eq!(fake.discarded.lock().iter().map(|(_, bytes)| bytes).sum::<u64>(), 16 * MIB);
    }

    #[test]
    fn a_refused_request_changes_nothing() {
        let fake = Fake::default();
        let heap = PageHeap::new(&fake, PageHeapConfig { limit_bytes: 8 * MIB, ..PageHeapConfig::default() });
        let block = heap.allocate(request(6 * MIB)).unwrap();
        assert!(
            matches!(heap.allocate(request(4 * MIB)), Err(AllocError::OutOfMemory { allocated, .. }) if allocated == 6 * MIB)
        );
        heap.free(block.address).unwrap();
        fake.refuses.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(heap.allocate(request(8 * MIB)).is_err());
        assert_eq!(heap.statistics().all.reserved_bytes.current, 6 * MIB);
        fake.refuses.store(false, std::sync::atomic::Ordering::Relaxed);
        assert!(heap.allocate(request(8 * MIB)).is_ok());
        assert!(matches!(heap.free(block.address + 4096), Err(AllocError::UnknownAddress(_))));
    }

    #[test]
    fn callbacks_make_room_below_the_limit() {
        let fake: &'static Fake = Box::leak(Box::default());
        let heap = std::sync::Arc::new(PageHeap::new(fake, PageHeapConfig::default()));
        let blocks = Mutex::new(vec![heap.allocate(request(6 * MIB)).unwrap().address; 1]);
        let weak = std::sync::Arc::downgrade(&heap);
        heap.add_free_memory_callback(Box::new(move || {
            let (Some(heap), Some(block)) = (weak.upgrade(), blocks.lock().pop()) else { return false };
            heap.free(block).is_ok()
        }));
        heap.set_limit(8 * MIB);
        let block = heap.allocate(request(4 * MIB)).unwrap();
        assert!(
            matches!(heap.allocate(request(6 * MIB)), Err(AllocError::OutOfMemory { allowed, .. }) if allowed == 8 * MIB)
        );
        heap.set_limit(u64::MAX);
        assert_ne!(heap.allocate(request(6 * MIB)).unwrap().address, block.address);
    }

    #[test]
    fn memory_freed_during_callbacks_is_used() {
        let fake: &'static Fake = Box::leak(Box::default());
        let heap = std::sync::Arc::new(PageHeap::new(fake, PageHeapConfig::default()));
        heap.set_limit(8 * MIB);
        let blocks = Mutex::new(vec![heap.allocate(request(6 * MIB)).unwrap().address; 1]);
        let weak = std::sync::Arc::downgrade(&heap);
        heap.add_free_memory_callback(Box::new(move || {
            if let (Some(heap), Some(block)) = (weak.upgrade(), blocks.lock().pop()) {
                std::thread::spawn(move || heap.free(block).unwrap()).join().unwrap();
            }
            false
        }));
        heap.allocate(request(4 * MIB)).unwrap();
        assert!(matches!(heap.allocate(request(6 * MIB)), Err(AllocError::OutOfMemory { .. })));
    }

    proptest! {
        #[test]
        fn blocks_are_apart_and_no_more_is_held_than_allowed(
            steps in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 1u64..40 * MIB), 1..200),
            slack_bytes in 0..16 * MIB,
            limit_bytes in prop_oneof![Just(u64::MAX), 64 * MIB..512 * MIB],
        ) {
            let fake = Fake::default();
            let config = PageHeapConfig { slack_bytes, limit_bytes, ..PageHeapConfig::default() };
            let heap = PageHeap::new(&fake, config.clone());
            let (mut live, mut peak): (Vec<Block>, u64) = (Vec::new(), 0);
            for (frees, which, bytes) in steps {
                if frees && !live.is_empty() {
                    let block = live.swap_remove(which.index(live.len()));
                    heap.free(block.address).unwrap();
                } else {
                    let Ok(block) = heap.allocate(request(bytes)) else {
                        let live: u64 = live.iter().map(|block| block.bytes).sum();
                        prop_assert!(live + bytes.next_multiple_of(PAGE_BYTES) > limit_bytes);
                        continue;
                    };
                    let end = block.address + block.bytes;
                    prop_assert!(block.address % PAGE_BYTES == 0 && block.bytes >= bytes && heap.addresses().contains(&block.address));
                    prop_assert!(live.iter().all(|other| other.address >= end || other.address + other.bytes <= block.address));
                    live.push(block);
                    peak = peak.max(live.iter().map(|block| block.bytes).sum());
                }
                let held = heap.statistics().all.reserved_bytes.current;
                let most = peak + ((peak as f64 * config.slack) as u64).max(config.slack_bytes);
                prop_assert!(held <= most.min(limit_bytes));
            }
            live.iter().for_each(|block| heap.free(block.address).unwrap());
            heap.release_cached().unwrap();
            prop_assert_eq!(heap.statistics().all.reserved_bytes.current, 0);
        }
    }
}
