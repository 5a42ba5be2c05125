//! Tenure's own allocator, for which address space costs nothing and physical pages do.
//!
//! Small requests are placed in slabs of a heap per stream, under that heap's lock alone. Slabs and larger blocks lie
//! in *windows*: ranges of address space under which physical chunks are mapped side by side. Chunks that are free in
//! one window are mapped into another where they are needed, so that the reserved bytes stay close to the requested
//! ones.

mod bins;
mod caching;
mod chunk;
mod compose;
mod config;
mod counters;
mod directory;
mod forecast;
mod heap;
mod heaps;
mod large;
mod latch;
mod mapping_recorder;
mod parked;
mod placement;
mod places;
mod private;
mod progress;
mod report;
mod search;
mod segments;
mod slabs;
mod space;
mod state;
mod tree;
mod windows;

use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

pub use config::PagedConfig;

use crate::accounts::Accounts;
use crate::hooks::Hooks;
use crate::native::give_back;
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Address, AllocError, Backing, Block, CachingAllocator, Divisions, History, MemoryReports, OutOfMemory, PoolId,
    Request, Resource, rounding,
};
use config::{SLAB_BYTES, SMALL_LIMIT, round};
use directory::{Directory, LoanKind};
use heap::{Freed, Heap, HeapBlocks};
use heaps::Heaps;
use latch::LatchGuard;
use parked::Loans;
use private::Private;
use state::{Effort, NoBlock, PagedState};
use windows::AddressSpace;

/// The most times that callbacks are called to make room for one request. It stops a callback that always says it has
/// made some.
const MOST_ROUNDS: usize = 1 << 12;

/// Tenure's allocator of a device.
///
/// A heap's lock is taken before the device lock, never after it. Callbacks, observers and the sources of pools run
/// without any lock.
///
/// If a call of the backing fails, the request that it was made for fails and no other.
pub struct PagedAllocator {
    heaps: Heaps,
    directory: Directory,
    /// The number of private pools to which some stream's allocations go now.
    active_pools: AtomicU64,
    /// Whether requests are rounded by `divisions` and not only to 512 bytes: 0 or 1.
    has_rounding: AtomicU64,
    /// The steps between powers of two to which requests are rounded.
    divisions: RwLock<Divisions>,
    /// It is boxed, so that its lock shares no cache line with data that every allocation reads.
    state: Box<Mutex<PagedState>>,
    history: Arc<History>,
    hooks: Hooks,
    backing: Arc<dyn Backing>,
    addresses: (Address, u64),
    total: u64,
}

impl PagedAllocator {
    /// Makes an allocator over `backing`. It reserves its address space at once, and no memory.
    ///
    /// # Errors
    /// A setting of `config` makes no sense, the backing refuses the address space, or the host has no memory for the
    /// tables.
    pub fn new(backing: Arc<dyn Backing>, config: PagedConfig) -> Result<Self, AllocError> {
        Self::with_history(backing, config, History::default())
    }

    /// Makes an allocator that records in `history`, which has its own clock.
    ///
    /// # Errors
    /// The same as for [`new`](Self::new).
    pub fn with_history(backing: Arc<dyn Backing>, config: PagedConfig, history: History) -> Result<Self, AllocError> {
        config.validate()?;
        let total = backing.memory_info()?.total;
        let granularity = backing.granularity();
        let history = Arc::new(history);
        let private = Private::new(Arc::clone(&backing), config.device, Arc::clone(&history))?;
        let accounts = Accounts::new(total);
        let wanted = config.address_space_bytes.unwrap_or_else(|| total.saturating_mul(64).clamp(1 << 40, 1 << 46));
        let bytes = wanted.next_multiple_of(granularity);
        let first = backing.reserve(bytes)?;
        let directory = Directory::new(first, bytes).inspect_err(|_| {
            // The first error says more.
            let _ = backing.unreserve(first, bytes);
        })?;
        let addresses = AddressSpace::new(first, bytes, granularity);
        let state = PagedState::new(Arc::clone(&backing), config, addresses, private, accounts, Arc::clone(&history));
        Ok(Self {
            heaps: Heaps::new(Arc::clone(&state.clock)),
            directory,
            active_pools: AtomicU64::new(0),
            has_rounding: AtomicU64::new(0),
            divisions: RwLock::default(),
            state: Box::new(Mutex::new(state)),
            history,
            hooks: Hooks::default(),
            backing,
            addresses: (first, bytes),
            total,
        })
    }

    /// Returns the address space that belongs to this allocator alone. Blocks of private pools may lie elsewhere.
    pub fn addresses(&self) -> Range<Address> {
        let (first, bytes) = self.addresses;
        first..first + bytes
    }

    /// Allocates a block in the stream's heap, which has this number. The state lends the heap more memory if
    /// necessary.
    #[inline]
    fn allocate_in(&self, heap: &Heap, number: u16, request: Request) -> Result<Block, AllocError> {
        let rounded = self.round(request.bytes)?;
        let (bytes, kind) =
            if rounded <= SMALL_LIMIT { (SLAB_BYTES, LoanKind::Slab) } else { (rounded, LoanKind::Range) };
        loop {
            let mut blocks = heap.lock();
            if blocks.has_pending() {
                self.complete_frees(&mut blocks, false)?;
            }
            let found = match kind {
                LoanKind::Slab => heap.allocate_small(&mut blocks, request, rounded, &self.history),
                LoanKind::Range => heap.allocate_parked(&mut blocks, request, bytes, &self.history),
            };
            if let Some(block) = found {
                return Ok(block);
            }
            let parked = blocks.take_parked();
            let reuse_peak = blocks.take_reuse_peak();
            let index = (kind == LoanKind::Range).then(|| blocks.large().next_index());
            drop(blocks);
            self.report_heap_changes(heap, parked, reuse_peak);
            let loan = match self.find_memory(request, |state, requested, effort| {
                state.lend(request.stream, bytes, index, requested, effort)
            })? {
                FoundMemory::Borrowed(block) => return Ok(block),
                FoundMemory::Attempted(loan) => loan,
            };
            self.directory.insert(loan.address, number, kind);
            let mut blocks = heap.lock();
            match kind {
                LoanKind::Slab => blocks.add_slab(loan),
                LoanKind::Range => return Ok(heap.add_large(&mut blocks, request, loan, &self.history)),
            }
        }
    }

    /// Gives the parked memory of `heap` back to the state, and reports the peak of the bytes that were requested while
    /// the heap reused parked memory without the state's lock.
    fn report_heap_changes(&self, heap: &Heap, parked: Loans, reuse_peak: Option<u64>) {
        if parked.is_empty() && reuse_peak.is_none() {
            return;
        }
        let state = &mut *self.state.lock();
        self.take_back(state, parked);
        state.streak = 0;
        if let Some(most) = reuse_peak {
            let others = self.heaps.requested().saturating_sub(heap.requested());
            state.peak_requested = state.peak_requested.max(others + most);
        }
    }

    /// Allocates a block in a private pool, or for a stream that has no heap.
    fn allocate_without_heap(&self, request: Request) -> Result<Block, AllocError> {
        let bytes = self.round(request.bytes)?;
        let attempt = |state: &mut MutexGuard<'_, PagedState>, requested, effort| {
            if state.private.engine.captures.diverts(request.stream) {
                return state::allocate_privately(state, request, effort);
            }
            let address = state.allocate(request, bytes, requested, effort)?;
            Ok(Block { address, bytes })
        };
        Ok(match self.find_memory(request, attempt)? {
            FoundMemory::Attempted(block) | FoundMemory::Borrowed(block) => block,
        })
    }

    /// Calls `attempt` until it finds memory, and reclaims more memory before each further call: parked memory, memory
    /// that callbacks free, and at last all cached memory. `attempt` gets the bytes requested from the whole allocator
    /// with this request, and the effort to make.
    #[inline(never)]
    fn find_memory<T>(
        &self,
        request: Request,
        attempt: impl Fn(&mut MutexGuard<'_, PagedState>, u64, Effort) -> Result<T, NoBlock>,
    ) -> Result<FoundMemory<T>, AllocError> {
        let try_once = |state: &mut MutexGuard<'_, PagedState>, effort| match attempt(
            state,
            self.heaps.requested() + state.requested + request.bytes,
            effort,
        ) {
            Ok(found) => Ok(Some(FoundMemory::Attempted(found))),
            Err(NoBlock::Full) => Ok(None),
            Err(NoBlock::Failed(error)) => Err(error),
        };
        if let Some(found) = try_once(&mut self.state.lock(), Effort::Free)? {
            return Ok(found);
        }
        self.return_parked();
        if let Some(found) = try_once(&mut self.state.lock(), Effort::Any)? {
            return Ok(found);
        }
        // A callback need not make all the room at once.
        let mut rounds = 0..MOST_ROUNDS;
        while rounds.next().is_some() && self.hooks.has_callbacks() && self.hooks.free_memory() {
            self.return_parked();
            if let Some(found) = try_once(&mut self.state.lock(), Effort::Any)? {
                return Ok(found);
            }
        }
        self.find_memory_or_fail(request, |state| try_once(state, Effort::Any))
    }

    /// Tries the last resorts: waiting for every stream, then private pools that lend their free memory. Reports and
    /// returns an out-of-memory error if these fail.
    #[cold]
    fn find_memory_or_fail<T>(
        &self,
        request: Request,
        try_once: impl Fn(&mut MutexGuard<'_, PagedState>) -> Result<Option<FoundMemory<T>>, AllocError>,
    ) -> Result<FoundMemory<T>, AllocError> {
        // The host cannot wait for a stream that is being captured.
        if !self.state.lock().progress.is_capturing() {
            self.reclaim_all()?;
            self.release_unused_pools(None)?;
            let mut state = self.state.lock();
            state.accounts.statistics.num_alloc_retries += 1;
            // A private pool's segments are not made of the common space's chunks.
            if state.private.engine.captures.diverts(request.stream) {
                state.release_whole()?;
            }
            if let Some(found) = try_once(&mut state)? {
                return Ok(found);
            }
        }
        let mut state = self.state.lock();
        let bytes = self.round(request.bytes)?;
        let PagedState { private, accounts, .. } = &mut *state;
        if let Some(block) = private.engine.borrow(accounts, request)? {
            return Ok(FoundMemory::Borrowed(block));
        }
        // Libraries and other processes may use the memory that does not serve this request, as in PyTorch.
        if !state.progress.is_capturing() {
            state.release_whole()?;
        }
        let free = self.backing.memory_info()?.free;
        let allowed = state.accounts.limit.bytes();
        let reserved = state.accounts.reserved();
        let total = self.total;
        let overhead = state.accounts.limit.counted_overhead(&*self.backing);
        let rejected = state.accounts.limit.rejects(reserved + overhead + bytes);
        state.note_out_of_memory(Request { bytes, ..request }, free, rejected);
        drop(state);
        let allocated = self.statistics().all.allocated_bytes.current;
        let inactive = reserved.saturating_sub(allocated);
        let requested = bytes;
        let seen = OutOfMemory { requested, allowed, overhead, allocated, inactive, total, free, rejected };
        self.hooks.report_out_of_memory(&seen);
        Err(seen.error(request.bytes, request.stream))
    }

    /// Makes the freed blocks of a heap available whose other streams have finished using them. If `wait`, waits for
    /// these streams on the host.
    fn complete_frees(&self, blocks: &mut LatchGuard<'_, HeapBlocks>, wait: bool) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let result = blocks.complete_frees(&mut state.progress, wait, &self.history);
        self.take_back(&mut state, blocks.take_returns());
        Ok(result?)
    }

    /// Waits on the host for every pending free, and takes back all memory that holds no block.
    fn reclaim_all(&self) -> Result<(), AllocError> {
        for heap in self.heaps.all() {
            let mut blocks = heap.lock();
            self.complete_frees(&mut blocks, true)?;
            let unused = blocks.take_unused();
            self.take_back(&mut self.state.lock(), unused);
        }
        let mut state = self.state.lock();
        state.accounts.statistics.num_sync_all_streams += 1;
        state.complete_frees(true)?;
        let PagedState { private, accounts, .. } = &mut *state;
        private.engine.finish(accounts, true)
    }

    /// Releases the free memory of private pools without uses: of `pool`, or of all if it is `None`.
    fn release_unused_pools(&self, pool: Option<PoolId>) -> Result<(), AllocError> {
        let mut state = self.state.lock();
        let PagedState { private, accounts, .. } = &mut *state;
        let released = private.release_unused_pools(accounts, pool);
        give_back(&mut state);
        released
    }

    /// Takes back the memory that heaps have [parked].
    fn return_parked(&self) {
        for heap in self.heaps.all() {
            let mut blocks = heap.lock();
            let parked = blocks.take_parked();
            if !parked.is_empty() {
                self.take_back(&mut self.state.lock(), parked);
            }
        }
    }

    /// Takes back memory that was lent to a heap and holds no block.
    fn take_back(&self, state: &mut PagedState, loans: Loans) {
        for loan in loans {
            self.directory.remove(loan.address, loan.kind);
            state.take_back(loan);
        }
    }

    /// Returns the bytes of the live block at an address, if a heap has it.
    fn lent_bytes(&self, address: Address) -> Option<u64> {
        self.owner(address)?.0.lock().bytes_of(address)
    }

    /// Returns the size in bytes of the block for a request of `bytes` bytes.
    #[inline]
    fn round(&self, bytes: u64) -> Result<u64, AllocError> {
        let rounded = round(bytes)?;
        let rounds = self.has_rounding.load(Ordering::Acquire) > 0;
        Ok(if rounds { rounding::round(bytes, &self.divisions.read()) } else { rounded })
    }

    /// Returns the heap that the memory at an address is lent to, and the kind of the loan.
    #[inline]
    fn owner(&self, address: Address) -> Option<(&Heap, LoanKind)> {
        let (number, kind) = self.directory.owner(address)?;
        Some((self.heaps.by_number(number)?, kind))
    }
}

/// The memory found for a request.
enum FoundMemory<T> {
    /// The memory that the attempt returned.
    Attempted(T),
    /// A block of a private pool that lends its free memory.
    Borrowed(Block),
}

impl Resource for PagedAllocator {
    #[inline]
    fn allocate(&self, request: Request) -> Result<Block, AllocError> {
        if request.bytes == 0 {
            return Ok(Block { address: 0, bytes: 0 });
        }
        let to_pool = || {
            self.active_pools.load(Ordering::Acquire) > 0
                && self.state.lock().private.engine.captures.diverts(request.stream)
        };
        match self.heaps.for_stream(request.stream) {
            Some((number, heap)) if !to_pool() => self.allocate_in(heap, number, request),
            _ => self.allocate_without_heap(request),
        }
    }

    #[inline]
    fn free(&self, address: Address) -> Result<(), AllocError> {
        if address == 0 {
            return Ok(());
        }
        let Some((heap, kind)) = self.owner(address) else { return self.state.lock().free(address) };
        let freed = match kind {
            LoanKind::Slab => heap.free_small(address, &self.history)?,
            LoanKind::Range => heap.free_large(address, &self.history)?,
        };
        match freed {
            Freed::Done => {}
            Freed::WithReturns => {
                let loans = heap.lock().take_returns();
                self.take_back(&mut self.state.lock(), loans);
            }
            Freed::InUse => heap.free_in_use(address, &self.state, &self.history)?,
        }
        Ok(())
    }
}

impl Drop for PagedAllocator {
    /// Gives back every chunk that holds no block, and the address space if no chunk is left. Errors are dropped,
    /// because no caller can receive them.
    fn drop(&mut self) {
        if self.release_cached().is_ok() && self.state.lock().accounts.reserved() == 0 {
            let _ = self.backing.unreserve(self.addresses.0, self.addresses.1);
        }
    }
}
