//! Small blocks in slabs. A request gets the smallest free block that fits, and the rest is split off; a block is
//! merged with its free neighbours as soon as it is freed.

use slab::Slab as Slots;
use tenure_core::{KeyId, Tag};

use super::bins::{Bins, NONE};
use super::config::{GRANULE, SLAB_BYTES};
use super::parked::Loan;
use crate::{Address, Request};

/// The number of granules in a slab.
const SLAB_GRANULES: u16 = (SLAB_BYTES / GRANULE) as u16;

/// The slabs of a heap, and the blocks in them, by number.
pub(super) struct Slabs {
    slabs: Slots<Slab>,
    /// The blocks, in use and free. An entry without a block has no granules.
    table: Vec<SlabBlock>,
    /// The first entry without a block; `next` links the others.
    unused: u32,
    bins: Bins,
    /// The number of slabs with no block in use.
    empty: usize,
}

struct Slab {
    loan: Loan,
    /// Granules in use.
    used: u32,
}

/// A block of a slab, free or in use.
pub(super) struct SlabBlock {
    pub(super) address: Address,
    pub(super) requested: u32,
    granules: u16,
    pub(super) tag: Tag,
    pub(super) state: SlabBlockState,
    pub(super) key: KeyId,
    slab: u32,
    /// The blocks just before and after it in the slab, or [`NONE`].
    before: u32,
    after: u32,
    /// The neighbours in the list of free blocks of the same size. `next` also links entries without a block.
    previous: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlabBlockState {
    /// In use.
    Live,
    /// Freed, but other streams may still use it.
    Pending,
    Free,
}

impl Default for Slabs {
    fn default() -> Self {
        Self { slabs: Slots::new(), table: Vec::new(), unused: NONE, bins: Bins::default(), empty: 0 }
    }
}

impl Slabs {
    /// Adds a slab, all free.
    pub(super) fn add(&mut self, loan: Loan) {
        let slab = self.slabs.insert(Slab { loan, used: 0 }) as u32;
        let block = self.add_entry(loan.address, SLAB_GRANULES, slab);
        self.link(block);
        self.empty += 1;
    }

    /// Allocates the smallest free block that fits, cut to `bytes` bytes: the request, rounded.
    #[inline]
    pub(super) fn allocate(&mut self, request: Request, bytes: u64) -> Option<u32> {
        let granules = (bytes / GRANULE) as u16;
        let index = self.bins.best(usize::from(granules))?;
        self.unlink(index);
        let entry = &mut self.table[index as usize];
        let slab = entry.slab as usize;
        let rest = entry.granules - granules;
        entry.granules = granules;
        entry.requested = request.bytes as u32;
        entry.tag = request.tag;
        entry.key = request.key;
        entry.state = SlabBlockState::Live;
        if rest > 0 {
            self.split(index, rest);
        }
        let slab = &mut self.slabs[slab];
        self.empty -= usize::from(slab.used == 0);
        slab.used += u32::from(granules);
        Some(index)
    }

    /// Makes a block free, merged with its neighbours. Returns whether its slab is empty now.
    #[inline]
    pub(super) fn free(&mut self, index: u32) -> bool {
        let entry = &mut self.table[index as usize];
        entry.state = SlabBlockState::Free;
        let SlabBlock { granules, slab, before, after, .. } = *entry;
        let mut index = index;
        if self.is_free(after) {
            self.unlink(after);
            self.absorb(index, after);
        }
        if self.is_free(before) {
            self.unlink(before);
            self.absorb(before, index);
            index = before;
        }
        self.link(index);
        let slab = &mut self.slabs[slab as usize];
        slab.used -= u32::from(granules);
        let is_empty = slab.used == 0;
        self.empty += usize::from(is_empty);
        is_empty
    }

    #[inline]
    pub(super) fn entry(&self, index: u32) -> &SlabBlock {
        &self.table[index as usize]
    }

    pub(super) fn entry_mut(&mut self, index: u32) -> &mut SlabBlock {
        &mut self.table[index as usize]
    }

    /// Returns the number of slabs with no block in use.
    #[inline]
    pub(super) fn empty(&self) -> usize {
        self.empty
    }

    /// Returns the number of slabs with a block in use.
    #[inline]
    pub(super) fn in_use(&self) -> usize {
        self.slabs.len() - self.empty
    }

    /// Returns the slab that became empty last, if one is empty.
    pub(super) fn first_empty(&self) -> Option<Loan> {
        let block = Some(self.bins.first(usize::from(SLAB_GRANULES))).filter(|block| *block != NONE)?;
        Some(self.slabs[self.table[block as usize].slab as usize].loan)
    }

    /// Removes the slab that became empty last, and returns it.
    pub(super) fn take_empty(&mut self) -> Option<Loan> {
        let block = Some(self.bins.first(usize::from(SLAB_GRANULES))).filter(|block| *block != NONE)?;
        let slab = self.table[block as usize].slab;
        self.unlink(block);
        self.remove_entry(block);
        self.empty -= 1;
        Some(self.slabs.remove(slab as usize).loan)
    }

    /// Returns the blocks of the slab at `slab`, by address.
    pub(super) fn blocks_of(&self, slab: Address) -> Vec<&SlabBlock> {
        let number = self.slabs.iter().find(|(_, candidate)| candidate.loan.address == slab).map(|(number, _)| number);
        let mut blocks: Vec<&SlabBlock> =
            self.table.iter().filter(|entry| entry.granules > 0 && Some(entry.slab as usize) == number).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }

    /// Returns the free blocks of slabs in use: their number and their bytes.
    pub(super) fn inactive_split(&self) -> (u64, u64) {
        self.table
            .iter()
            .filter(|entry| entry.state == SlabBlockState::Free && (1..SLAB_GRANULES).contains(&entry.granules))
            .fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.bytes()))
    }

    fn is_free(&self, index: u32) -> bool {
        index != NONE && self.table[index as usize].state == SlabBlockState::Free
    }

    /// Cuts the last `rest` granules off the range that a block had, as a free block after it.
    #[inline]
    fn split(&mut self, index: u32, rest: u16) {
        let entry = &self.table[index as usize];
        let address = entry.address + entry.bytes();
        let slab = entry.slab;
        let after = entry.after;
        let new = self.add_entry(address, rest, slab);
        let entry = &mut self.table[new as usize];
        (entry.before, entry.after) = (index, after);
        self.table[index as usize].after = new;
        if after != NONE {
            self.table[after as usize].before = new;
        }
        self.link(new);
    }

    /// Makes the block after `index` a part of `index`.
    #[inline]
    fn absorb(&mut self, index: u32, after: u32) {
        let granules = self.table[after as usize].granules;
        let next = self.table[after as usize].after;
        let entry = &mut self.table[index as usize];
        entry.granules += granules;
        entry.after = next;
        if next != NONE {
            self.table[next as usize].before = index;
        }
        self.remove_entry(after);
    }

    /// Adds a free block to the table, not linked to neighbours yet; returns its number.
    #[inline]
    fn add_entry(&mut self, address: Address, granules: u16, slab: u32) -> u32 {
        let entry = SlabBlock {
            address,
            requested: 0,
            granules,
            tag: Tag::Unknown,
            state: SlabBlockState::Free,
            key: KeyId::NONE,
            slab,
            before: NONE,
            after: NONE,
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

    /// Removes a block from the table.
    fn remove_entry(&mut self, index: u32) {
        let entry = &mut self.table[index as usize];
        // An entry without granules is not a block.
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

    /// Removes a free block from the list of its size.
    #[inline]
    fn unlink(&mut self, index: u32) {
        let SlabBlock { granules, previous, next, .. } = self.table[index as usize];
        if next != NONE {
            self.table[next as usize].previous = previous;
        }
        if previous == NONE {
            self.bins.set_first(usize::from(granules), next);
        } else {
            self.table[previous as usize].next = next;
        }
    }
}

impl SlabBlock {
    #[inline]
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.granules) * GRANULE
    }
}
