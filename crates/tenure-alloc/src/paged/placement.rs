//! Placement: finds free memory for a block, and makes chunks and mappings where there is none.

use std::sync::Arc;

use tenure_core::StreamId;

use super::compose::{BlockStart, ChunkSource, MappingPlan, Need};
use super::config::{ChunksFor, SLAB_BYTES};
use super::forecast::Expected;
use super::search::Sought;
use super::state::{Effort, NoBlock, PagedState};
use crate::{Address, BackingError, CycleBlock, RepeatedCycle};

/// The number of allocations without a free at which a streak begins.
const STREAK: u32 = 8;
/// The number of blocks of the current size that must fit in the next range in which a streak places blocks.
const STREAK_BLOCKS: u64 = 4;

impl PagedState {
    /// Finds free memory for a block, or makes it: see Note [Where a block goes]. The block has this index in its
    /// stream's sequence, or none if it is a slab. `requested` bytes are requested in all, with this block. Returns the
    /// block's address, and whether its memory had to be made.
    pub(super) fn find(
        &mut self,
        bytes: u64,
        stream: StreamId,
        index: Option<u64>,
        requested: u64,
        effort: Effort,
    ) -> Result<(Address, bool), NoBlock> {
        if bytes > self.accounts.limit.total {
            return Err(NoBlock::Full);
        }
        // Near its limit, a program may run out of memory at every other allocation: this check spares it the search.
        let free = self.space.free_bytes();
        if bytes > free
            && bytes > free.saturating_add(self.accounts.limit.bytes().saturating_sub(self.accounts.reserved()))
        {
            return Err(NoBlock::Full);
        }
        let peak = self.peak_requested.max(requested);
        let found = match self.find_free(bytes, stream, index)? {
            Some(address) => (address, false),
            None if effort == Effort::Free => return Err(NoBlock::Full),
            None => {
                let made = match self.make(bytes, stream, peak, u64::MAX) {
                    // The device may have less than it seemed to have: the request must do with the memory that is
                    // there.
                    Err(NoBlock::Full) => {
                        let free = self.backing.memory_info()?.free;
                        self.make(bytes, stream, peak, free / self.granularity * self.granularity)
                    }
                    made => made,
                };
                (made?, true)
            }
        };
        self.note_placement(bytes, stream, index, requested, found.0);
        self.peak_requested = peak;
        self.count_change();
        self.streak = self.streak.saturating_add(1);
        Ok(found)
    }

    /// Returns whether at least [`STREAK`] blocks were placed since the last free.
    pub(super) fn in_streak(&self) -> bool {
        self.streak >= STREAK
    }

    /// Notes a block's placement for the forecast, or for the cycle.
    fn note_placement(&mut self, bytes: u64, stream: StreamId, index: Option<u64>, requested: u64, address: Address) {
        if self.places.in_cycle() {
            self.places.note(stream, bytes, address);
        } else if let Some(index) = index {
            let Self { forecast, space, .. } = self;
            space.note_past(address, bytes, forecast.next_number(), forecast.first_number());
            forecast.note(stream, index, bytes, address, requested);
        }
    }

    /// Takes a free range in one piece into use, without a wait of the host; returns its address.
    fn find_free(&mut self, bytes: u64, stream: StreamId, index: Option<u64>) -> Result<Option<Address>, BackingError> {
        // Note [Where a block goes]
        //
        // 1. The same block's place a period ago (Note [Forecast]) or in an earlier cycle, if it is free. The stream
        //    waits for a place of a period ago on the device, if it must. Somewhere else the block would be in the way
        //    of others, and the next period would begin differently.
        //    Else the first free range, by address, that fits and that the stream may touch. No driver call. Two
        //    kinds of ranges come before: where the block is in no later block's way, and, in a streak of
        //    allocations without a free, the range after the last block and the first range that holds
        //    several such blocks. Blocks made in a streak (parameters, optimizer state) tend to live long, and
        //    are better kept together than spread over holes between blocks that do not. Slabs are an exception,
        //    because their blocks come and go: a slab fills a hole as soon as there is one.
        // 2. New chunks, while the reserved bytes stay within the slack over the most bytes ever requested.
        // 3. A new window of free memory that the stream may touch, completed by new chunks within the slack.
        // 4. Steps 1 and 3 with memory that other streams may still work on, after a wait on the device.
        // 5. A new window, completed by as few new chunks beyond the slack as possible.
        let keeps_together = self.in_streak() && bytes != SLAB_BYTES;
        let expected = match self.places.in_cycle() {
            true => Expected::default(),
            false => self.forecast.expected(stream, index, bytes),
        };
        let Self { space, progress, places, .. } = self;
        let sought = Sought { bytes, stream, avoid: &(0..0) };
        let mut found = None;
        for address in expected.places.into_iter().flatten().chain(places.expected(stream, bytes)) {
            if let Some(place) = space.free_place(address, bytes)
                && space.end_of_barred_chunk(place, sought, progress)?.is_none()
            {
                found = Some(place);
                break;
            }
        }
        if found.is_none() && !progress.is_capturing() {
            found = expected.places.into_iter().flatten().find_map(|address| space.free_place(address, bytes));
            if let Some(place) = found {
                space.wait(place, bytes, stream, progress)?;
            }
        }
        if found.is_none() && !expected.lifetime.is_empty() {
            found = space.first_fit(Sought { avoid: &expected.lifetime, ..sought }, bytes, progress)?;
        }
        if found.is_none() && keeps_together {
            found = space.range_after_last_block(sought, progress)?;
            if found.is_none() {
                found = space.first_fit(sought, STREAK_BLOCKS.saturating_mul(bytes), progress)?;
            }
        }
        if found.is_none() {
            found = space.first_fit(sought, bytes, progress)?;
        }
        if let Some(place) = found {
            space.occupy(place, bytes);
        }
        Ok(found.map(|place| place.address))
    }

    /// Makes memory for a block that no free range can hold. At most `creatable` bytes can be created; at most `peak`
    /// bytes were ever requested at once.
    fn make(&mut self, bytes: u64, stream: StreamId, peak: u64, creatable: u64) -> Result<Address, NoBlock> {
        let chunks_for = ChunksFor { in_streak: self.in_streak(), is_limited: self.accounts.limit.fraction() < 1.0 };
        let held = self.accounts.held(&*self.backing);
        // The slack is that of the common space.
        let reserved = self.space.reserved;
        let limit = self.accounts.limit.bytes().saturating_sub(held).min(creatable);
        let allowance = self.config.budget(peak).saturating_sub(reserved).min(limit);
        let space = &mut self.space;
        let mut ready = vec![false; space.chunks.capacity()];
        let mut all_ready = true;
        for (index, chunk) in &mut space.chunks {
            ready[index] = self.progress.is_ready_for(stream, &mut chunk.uses)?;
            all_ready &= ready[index];
        }
        let granularity = self.granularity;
        let chunk_bytes = self.config.chunk_bytes(bytes, reserved, chunks_for, granularity);
        let need = Need { bytes, ready: &|index| ready[index], allowance, chunk_bytes, granularity };
        if let Some(plan) = space.plan_growth(&need) {
            return Ok(self.carry_out(plan, bytes)?);
        }
        let space = &self.space;
        if let Some(plan) = space.plan_composition(&need, false) {
            return Ok(self.carry_out(plan, bytes)?);
        }
        // A wait would break a capture.
        if all_ready || self.progress.is_capturing() {
            let plan = space.plan_composition(&need, true).filter(|plan| plan.new_bytes() <= limit);
            return Ok(self.carry_out(plan.ok_or(NoBlock::Full)?, bytes)?);
        }
        let space = &mut self.space;
        if let Some(place) = space.first_range(bytes, 0) {
            space.wait(place, bytes, stream, &mut self.progress)?;
            space.occupy(place, bytes);
            return Ok(place.address);
        }
        let need = Need { ready: &|_| true, ..need };
        let plan = space.plan_composition(&need, true).filter(|plan| plan.new_bytes() <= limit);
        let plan = plan.ok_or(NoBlock::Full)?;
        for index in plan.chunks() {
            self.progress.wait(stream, &space.chunks[index].uses)?;
        }
        if let BlockStart::Open { window, address } = plan.start
            && let open = space.windows.get(window).free_suffix(&space.chunks)
            && open > 0
        {
            space.wait(space.windows.locate(address), open, stream, &mut self.progress)?;
        }
        Ok(self.carry_out(plan, bytes)?)
    }

    /// Makes the chunks and the window of a plan, and takes the block's bytes into use.
    ///
    /// # Errors
    /// The error of the backing. Chunks made so far are released; a chunk that the backing does not release stays as
    /// free memory.
    fn carry_out(&mut self, plan: MappingPlan, bytes: u64) -> Result<Address, BackingError> {
        self.places.note_mapping();
        let backing = Arc::clone(&self.backing);
        let mut made = Vec::new();
        let mut chunks = Vec::with_capacity(plan.sources.len() + 1);
        if let BlockStart::Suffix(index) = plan.start {
            chunks.push(index);
        }
        let result = plan.sources.iter().try_for_each(|source| {
            chunks.push(match *source {
                ChunkSource::Chunk(index) => index,
                ChunkSource::New(bytes) => {
                    let index = self.space.create(bytes, &*backing)?;
                    self.count_created(bytes);
                    made.push(index);
                    index
                }
            });
            Ok(())
        });
        let address = result.and_then(|()| self.map_plan(&plan, &chunks));
        match address {
            Ok(address) => {
                let space = &mut self.space;
                space.occupy(space.windows.locate(address), bytes);
                self.limit_mappings();
                self.count_windows();
            }
            Err(_) => made.into_iter().for_each(|index| self.discard_chunk(index)),
        }
        address
    }

    /// Maps the chunks of a plan into its window; returns the address where the block begins.
    fn map_plan(&mut self, plan: &MappingPlan, chunks: &[usize]) -> Result<Address, BackingError> {
        let backing = Arc::clone(&self.backing);
        if let BlockStart::Open { window, address } = plan.start {
            let first = self.space.windows.get(window).first;
            self.space.map(first, 0, chunks, &*backing)?;
            return Ok(address);
        }
        let bytes = chunks.iter().map(|&index| self.space.chunks[index].bytes).sum();
        let (first, owned) = self.take_addresses(bytes)?;
        self.map_into(first, owned, chunks)?;
        Ok(match plan.start {
            BlockStart::Suffix(index) => {
                let chunk = &self.space.chunks[index];
                first + chunk.bytes - chunk.free_suffix()
            }
            _ => first,
        })
    }

    /// Maps chunks into a new window at `first`, which owns `owned` bytes. If that fails, gives the addresses back.
    fn map_into(&mut self, first: Address, owned: u64, chunks: &[usize]) -> Result<(), BackingError> {
        let Self { space, addresses, backing, .. } = self;
        space.map(first, owned, chunks, &**backing).inspect_err(|_| {
            if !space.is_stuck_from(first) {
                addresses.give_back(first, owned);
            }
        })
    }

    /// Takes address space for a new window, if necessary from windows that hold no block.
    fn take_addresses(&mut self, bytes: u64) -> Result<(Address, u64), BackingError> {
        loop {
            if let Some(taken) = self.addresses.take(bytes) {
                return Ok(taken);
            }
            if !self.retire_window()? {
                let reason = format!("no {bytes} bytes of the reserved address space are left in one piece");
                return Err(BackingError::Failed { call: "reserve", reason });
            }
        }
    }

    /// Unmaps one window that holds no block, if there are more mappings than the settings allow.
    fn limit_mappings(&mut self) {
        let space = &self.space;
        if space.mappings() > space.chunks.len() * self.config.mappings_per_chunk {
            // The block is placed already, so an error is dropped: a window that cannot be unmapped now is tried again
            // later.
            let _ = self.retire_window();
        }
    }

    /// Unmaps the window that is unused for longest: see [`Space::retire_window`](super::space::Space::retire_window).
    fn retire_window(&mut self) -> Result<bool, BackingError> {
        let Self { space, progress, addresses, backing, .. } = self;
        space.retire_window(progress, addresses, &**backing)
    }

    /// See [`Cycles::begin_cycle`](crate::Cycles::begin_cycle).
    pub(super) fn begin_cycle(&mut self, kind: u64) -> Result<(), BackingError> {
        self.places.begin_cycle(kind, self.space.reserved - self.space.free_bytes());
        let Self { space, progress, addresses, backing, .. } = self;
        let begun = space.begin_cycle(progress, addresses, &**backing);
        self.count_windows();
        begun
    }

    /// See [`Cycles::repeated_cycle`](crate::Cycles::repeated_cycle).
    pub(super) fn repeated_cycle(&mut self) -> Option<RepeatedCycle> {
        let blocks = self.places.offer()?;
        let room_bytes = self.free_chunks().iter().map(|(bytes, _)| bytes).sum();
        let growth_bytes = self.accounts.limit.bytes().saturating_sub(self.accounts.held(&*self.backing));
        Some(RepeatedCycle { blocks, room_bytes, growth_bytes })
    }

    /// See [`Cycles::lay_out_cycle`](crate::Cycles::lay_out_cycle).
    pub(super) fn lay_out_cycle(&mut self, blocks: &[CycleBlock], offsets: &[u64]) -> Result<(), BackingError> {
        if self.places.blocks().is_none_or(|own| own != blocks) {
            return Ok(());
        }
        let (sizes, chunks): (Vec<u64>, Vec<usize>) = self.free_chunks().into_iter().unzip();
        if chunks.is_empty() {
            return Ok(());
        }
        let bytes = sizes.iter().sum();
        let taken = self.take_addresses(bytes);
        let mapped = taken.and_then(|(first, owned)| self.map_into(first, owned, &chunks).map(|()| first));
        self.count_windows();
        self.places.lay_out(mapped?, bytes, offsets);
        Ok(())
    }

    /// Returns the chunks, (bytes, index), for the blocks of a cycle that are laid out: those that are all free now,
    /// and in which no other of the cycle's blocks will be.
    fn free_chunks(&self) -> Vec<(u64, usize)> {
        let mut chunks = self.space.whole_chunks();
        for (address, bytes) in self.places.kept() {
            let Some(place) = self.space.windows.find(address) else { continue };
            let taken: Vec<usize> = self.space.pieces(place, bytes).map(|piece| piece.chunk).collect();
            chunks.retain(|(_, index)| !taken.contains(index));
        }
        chunks
    }

    /// Releases a new chunk that is not mapped anywhere. If the backing refuses, the chunk stays, free.
    fn discard_chunk(&mut self, index: usize) {
        let _ = self.release(index, &[]);
    }
}

impl MappingPlan {
    /// Returns the bytes of the chunks to be created.
    fn new_bytes(&self) -> u64 {
        self.sources.iter().map(|source| if let ChunkSource::New(bytes) = source { *bytes } else { 0 }).sum()
    }

    /// Returns the existing chunks that the plan uses.
    fn chunks(&self) -> Vec<usize> {
        let suffix = if let BlockStart::Suffix(index) = self.start { Some(index) } else { None };
        let whole = self.sources.iter().filter_map(|source| match source {
            ChunkSource::Chunk(index) => Some(*index),
            ChunkSource::New(_) => None,
        });
        suffix.into_iter().chain(whole).collect()
    }
}
