//! The small blocks of one stream: best fit in slabs, behind a lock that only this stream's users take.

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use slab::Slab as Slots;
use smallvec::SmallVec;
use tenure_core::{KeyId, StreamId, Tag};

use super::bins::{Bins, NONE};
use super::config::{GRANULE, SLAB_BYTES};
use super::progress::{Progress, Uses};
use super::state::State;
use crate::sync::{AtomicU64, Ordering};
use crate::{
    Action, Address, AllocError, BackingError, Block, Event, History, PoolStatistics, Request, Statistics,
    TagStatistics,
};

/// A heap. Its own cache lines: heaps of different streams must not slow each other down.
#[repr(align(128))]
pub(super) struct Heap {
    pub(super) stream: StreamId,
    /// Bytes requested from this heap and not freed. Exact when read with the heap locked.
    requested: AtomicU64,
    blocks: Mutex<Blocks>,
}

/// What the heap's lock guards.
pub(super) struct Blocks {
    stream: StreamId,
    slabs: Slots<Slab>,
    /// Live and free blocks; the rest of the table is a list of unused places.
    table: Vec<Entry>,
    unused: u32,
    bins: Bins,
    /// Live blocks.
    by_address: FxHashMap<Address, u32>,
    /// Other streams that use a block.
    users: FxHashMap<u32, SmallVec<[StreamId; 1]>>,
    /// Freed blocks that other streams may still use.
    pending: Vec<(u32, Uses)>,
    /// Slabs with a block in use. While there is one, an empty slab is kept beside it, so that one block coming and
    /// going asks for no slab each time.
    slabs_in_use: usize,
    pool: PoolStatistics,
    tags: [TagStatistics; Tag::ALL.len()],
}

struct Slab {
    address: Address,
    /// Granules in use.
    used: u32,
}

/// A block of a slab, free or in use.
struct Entry {
    address: Address,
    requested: u32,
    granules: u16,
    tag: Tag,
    state: EntryState,
    key: KeyId,
    slab: u32,
    /// The neighbours in the slab.
    before: u32,
    behind: u32,
    /// The neighbours in the list of free blocks of its size. `next` also links unused places.
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Live,
    Pending,
    Free,
}

impl Heap {
    pub(super) fn new(stream: StreamId) -> Self {
        let blocks = Blocks {
            stream,
            slabs: Slots::new(),
            table: Vec::new(),
            unused: NONE,
            bins: Bins::default(),
            by_address: FxHashMap::default(),
            users: FxHashMap::default(),
            pending: Vec::new(),
            slabs_in_use: 0,
            pool: PoolStatistics::default(),
            tags: Default::default(),
        };
        Self { stream, requested: AtomicU64::new(0), blocks: Mutex::new(blocks) }
    }

    /// Bytes requested, as last published.
    pub(super) fn requested(&self) -> u64 {
        self.requested.load(Ordering::Relaxed)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock()
    }

    /// A block of a slab that is there.
    #[inline]
    pub(super) fn allocate(&self, blocks: &mut Blocks, request: Request, history: &History) -> Option<Block> {
        let block = blocks.allocate(request, history)?;
        self.publish(blocks);
        Some(block)
    }

    /// Ends the tenure of a block that no other stream uses.
    #[inline]
    pub(super) fn free(&self, address: Address, history: &History) -> Result<Freed, AllocError> {
        let blocks = &mut *self.blocks.lock();
        let index = *blocks.by_address.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        if !blocks.users.is_empty() && blocks.users.contains_key(&index) {
            return Ok(Freed::InUse);
        }
        blocks.by_address.remove(&address);
        blocks.note_freed(index, history);
        let empty = blocks.complete(index, history);
        self.publish(blocks);
        Ok(if empty.is_empty() { Freed::Done } else { Freed::Emptied(empty) })
    }

    /// Ends the tenure of a block that other streams use: it becomes free when they have passed what they run now.
    pub(super) fn free_in_use(
        &self,
        address: Address,
        state: &Mutex<State>,
        history: &History,
    ) -> Result<(), AllocError> {
        let blocks = &mut *self.blocks.lock();
        let index = *blocks.by_address.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        let (mut uses, progress) = (Uses::default(), &mut state.lock().progress);
        for &user in blocks.users.get(&index).into_iter().flatten() {
            uses.add(progress.mark_now(user)?);
        }
        blocks.users.remove(&index);
        blocks.by_address.remove(&address);
        blocks.table[index as usize].state = EntryState::Pending;
        blocks.pending.push((index, uses));
        blocks.note_freed(index, history);
        self.publish(blocks);
        Ok(())
    }

    fn publish(&self, blocks: &Blocks) {
        self.requested.store(blocks.pool.requested_bytes.current, Ordering::Relaxed);
    }
}

/// Addresses of slabs given up: usually none, or the one that a free emptied.
pub(super) type EmptySlabs = SmallVec<[Address; 2]>;

/// What became of a freed block.
pub(super) enum Freed {
    Done,
    /// Slabs at these addresses are empty and no longer the heap's.
    Emptied(EmptySlabs),
    /// Nothing yet: other streams use it.
    InUse,
}

impl Blocks {
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Adds a slab, all free.
    pub(super) fn add_slab(&mut self, address: Address) {
        let slab = self.slabs.insert(Slab { address, used: 0 }) as u32;
        let block = self.place(address, (SLAB_BYTES / GRANULE) as u16, slab);
        self.link(block);
    }

    /// Lets `stream` use a block too. Whether the block is here.
    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> bool {
        let Some(&index) = self.by_address.get(&address) else { return false };
        if stream != self.stream {
            let users = self.users.entry(index).or_default();
            if !users.contains(&stream) {
                users.push(stream);
            }
        }
        true
    }

    /// Completes the frees that every stream has passed, waiting for them on the host if `wait`; adds the slabs that
    /// became empty to `empty`, also before an error.
    pub(super) fn settle(
        &mut self,
        progress: &mut Progress,
        wait: bool,
        history: &History,
        empty: &mut Vec<Address>,
    ) -> Result<(), BackingError> {
        let mut at = 0;
        while let Some((index, uses)) = self.pending.get_mut(at) {
            let index = *index;
            if wait {
                progress.synchronize(uses)?;
            }
            if progress.is_finished(uses)? {
                self.pending.swap_remove(at);
                empty.extend(self.complete(index, history));
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Gives up every empty slab.
    pub(super) fn take_empty(&mut self) -> EmptySlabs {
        let empty: Vec<usize> = self.slabs.iter().filter(|(_, slab)| slab.used == 0).map(|(index, _)| index).collect();
        empty.into_iter().map(|slab| self.remove_slab(slab)).collect()
    }

    /// The blocks of the slab at `slab`, by address: (address, bytes, requested, state, tag, key).
    pub(super) fn blocks_of(&self, slab: Address) -> Vec<(Address, u64, u64, EntryState, Tag, KeyId)> {
        let Some((number, _)) = self.slabs.iter().find(|(_, candidate)| candidate.address == slab) else {
            return Vec::new();
        };
        let mut blocks: Vec<_> = (self.table.iter())
            .filter(|entry| entry.granules > 0 && entry.slab as usize == number)
            .map(|entry| (entry.address, entry.bytes(), u64::from(entry.requested), entry.state, entry.tag, entry.key))
            .collect();
        blocks.sort_unstable_by_key(|block| block.0);
        blocks
    }

    /// Adds this heap's counters to an allocator's.
    pub(super) fn add_statistics(&self, statistics: &mut Statistics) {
        let mut small_pool = self.pool.clone();
        let whole = (SLAB_BYTES / GRANULE) as u16;
        let split = |entry: &&Entry| entry.state == EntryState::Free && (1..whole).contains(&entry.granules);
        small_pool.inactive_split.set(self.table.iter().filter(split).count() as u64);
        small_pool.inactive_split_bytes.set(self.table.iter().filter(split).map(Entry::bytes).sum());
        statistics.merge(&Statistics { all: small_pool.clone(), small_pool, tags: self.tags, ..Statistics::default() });
    }

    pub(super) fn reset_peaks(&mut self) {
        self.reset(|statistics| statistics.reset_peak());
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.reset(|statistics| statistics.reset_accumulated());
    }

    fn reset(&mut self, how: impl Fn(&mut Statistics)) {
        let mut statistics =
            Statistics { small_pool: std::mem::take(&mut self.pool), tags: self.tags, ..Default::default() };
        how(&mut statistics);
        (self.pool, self.tags) = (statistics.small_pool, statistics.tags);
    }

    #[inline]
    fn allocate(&mut self, request: Request, history: &History) -> Option<Block> {
        let granules = request.bytes.div_ceil(GRANULE) as u16;
        let index = self.bins.best(usize::from(granules))?;
        self.unlink(index);
        let entry = &mut self.table[index as usize];
        let (address, slab, rest) = (entry.address, entry.slab as usize, entry.granules - granules);
        entry.granules = granules;
        entry.requested = request.bytes as u32;
        entry.tag = request.tag;
        entry.key = request.key;
        entry.state = EntryState::Live;
        if rest > 0 {
            self.split(index, rest);
        }
        let slab_entry = &mut self.slabs[slab];
        if slab_entry.used == 0 {
            self.slabs_in_use += 1;
        }
        slab_entry.used += u32::from(granules);
        self.by_address.insert(address, index);

        let bytes = u64::from(granules) * GRANULE;
        self.pool.allocation.increase(1);
        self.pool.active.increase(1);
        self.pool.requested_bytes.increase(request.bytes);
        self.pool.allocated_bytes.increase(bytes);
        self.pool.active_bytes.increase(bytes);
        let tag = &mut self.tags[request.tag as usize];
        tag.requested_bytes.increase(request.bytes);
        tag.allocated_bytes.increase(bytes);
        tag.active_bytes.increase(bytes);
        if history.is_on() {
            self.record(Action::Alloc, index, history);
        }
        Some(Block { address, bytes })
    }

    /// Counts the end of a block's tenure.
    #[inline]
    fn note_freed(&mut self, index: u32, history: &History) {
        let entry = &self.table[index as usize];
        let (requested, bytes) = (u64::from(entry.requested), entry.bytes());
        let tag = &mut self.tags[entry.tag as usize];
        tag.requested_bytes.decrease(requested);
        tag.allocated_bytes.decrease(bytes);
        self.pool.allocation.decrease(1);
        self.pool.requested_bytes.decrease(requested);
        self.pool.allocated_bytes.decrease(bytes);
        if history.is_on() {
            self.record(Action::FreeRequested, index, history);
        }
    }

    /// Makes a block free, merged with its neighbours; returns the slabs that are empty and not kept.
    #[inline]
    fn complete(&mut self, index: u32, history: &History) -> EmptySlabs {
        if history.is_on() {
            self.record(Action::FreeCompleted, index, history);
        }
        let entry = &mut self.table[index as usize];
        entry.state = EntryState::Free;
        let (bytes, granules, slab) = (entry.bytes(), entry.granules, entry.slab as usize);
        let (before, behind) = (entry.before, entry.behind);
        self.pool.active.decrease(1);
        self.pool.active_bytes.decrease(bytes);
        self.tags[entry.tag as usize].active_bytes.decrease(bytes);

        let mut index = index;
        if self.is_free(behind) {
            self.unlink(behind);
            self.absorb(index, behind);
        }
        if self.is_free(before) {
            self.unlink(before);
            self.absorb(before, index);
            index = before;
        }
        self.link(index);
        let slab_entry = &mut self.slabs[slab];
        slab_entry.used -= u32::from(granules);
        if slab_entry.used > 0 { EmptySlabs::new() } else { self.empty(slab) }
    }

    /// A slab has no block in use any more.
    #[cold]
    fn empty(&mut self, slab: usize) -> EmptySlabs {
        self.slabs_in_use -= 1;
        if self.slabs_in_use == 0 {
            // An idle heap holds nothing.
            return self.take_empty();
        }
        if self.slabs.len() - self.slabs_in_use == 1 {
            return EmptySlabs::new();
        }
        EmptySlabs::from_slice(&[self.remove_slab(slab)])
    }

    /// Forgets an empty slab; returns its address.
    fn remove_slab(&mut self, slab: usize) -> Address {
        let address = self.slabs.remove(slab).address;
        let whole = (SLAB_BYTES / GRANULE) as usize;
        let mut block = self.bins.first(whole);
        while block != NONE && self.table[block as usize].address != address {
            block = self.table[block as usize].next;
        }
        if block != NONE {
            self.unlink(block);
            self.give_up(block);
        }
        address
    }

    fn is_free(&self, index: u32) -> bool {
        index != NONE && self.table[index as usize].state == EntryState::Free
    }

    /// Cuts the last `rest` granules off the range that a block had, as a free block behind it.
    #[inline]
    fn split(&mut self, index: u32, rest: u16) {
        let entry = &self.table[index as usize];
        let (address, slab, behind) = (entry.address + entry.bytes(), entry.slab, entry.behind);
        let new = self.place(address, rest, slab);
        let entry = &mut self.table[new as usize];
        (entry.before, entry.behind) = (index, behind);
        self.table[index as usize].behind = new;
        if behind != NONE {
            self.table[behind as usize].before = new;
        }
        self.link(new);
    }

    /// Makes the block behind `index` a part of it.
    #[inline]
    fn absorb(&mut self, index: u32, behind: u32) {
        let (granules, next) = (self.table[behind as usize].granules, self.table[behind as usize].behind);
        let entry = &mut self.table[index as usize];
        entry.granules += granules;
        entry.behind = next;
        if next != NONE {
            self.table[next as usize].before = index;
        }
        self.give_up(behind);
    }

    /// A place in the table for a free block without neighbours.
    #[inline]
    fn place(&mut self, address: Address, granules: u16, slab: u32) -> u32 {
        let entry = Entry {
            address,
            requested: 0,
            granules,
            tag: Tag::Unknown,
            state: EntryState::Free,
            key: KeyId::NONE,
            slab,
            before: NONE,
            behind: NONE,
            previous: NONE,
            next: NONE,
        };
        if self.unused == NONE {
            self.table.push(entry);
            return (self.table.len() - 1) as u32;
        }
        let index = self.unused;
        self.unused = self.table[index as usize].next;
        self.table[index as usize] = entry;
        index
    }

    fn give_up(&mut self, index: u32) {
        let entry = &mut self.table[index as usize];
        // No granules: not a block.
        entry.granules = 0;
        entry.next = self.unused;
        self.unused = index;
    }

    /// Puts a free block into the list of its size.
    #[inline]
    fn link(&mut self, index: u32) {
        let size = usize::from(self.table[index as usize].granules);
        let first = self.bins.first(size);
        let entry = &mut self.table[index as usize];
        (entry.previous, entry.next) = (NONE, first);
        if first != NONE {
            self.table[first as usize].previous = index;
        }
        self.bins.set_first(size, index);
    }

    #[inline]
    fn unlink(&mut self, index: u32) {
        let Entry { granules, previous, next, .. } = self.table[index as usize];
        if next != NONE {
            self.table[next as usize].previous = previous;
        }
        if previous == NONE {
            self.bins.set_first(usize::from(granules), next);
        } else {
            self.table[previous as usize].next = next;
        }
    }

    #[cold]
    fn record(&self, action: Action, index: u32, history: &History) {
        let Entry { address, requested, tag, key, .. } = self.table[index as usize];
        let (bytes, stream) = (u64::from(requested), self.stream);
        history.record(|time_us| Event { action, address, bytes, stream, time_us, tag, key });
    }
}

impl Entry {
    fn bytes(&self) -> u64 {
        u64::from(self.granules) * GRANULE
    }
}
