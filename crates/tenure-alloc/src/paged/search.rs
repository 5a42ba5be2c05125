//! The search for a free range in one piece.

use std::ops::Range;

use tenure_core::StreamId;

use super::chunk::Extent;
use super::progress::DeviceProgress;
use super::space::Space;
use super::windows::MappedAddress;
use crate::{Address, BackingError};

/// A block that a place is sought for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sought<'a> {
    pub(super) bytes: u64,
    /// The stream, which shall not have to wait for the memory.
    pub(super) stream: StreamId,
    /// The numbers of the placements that used other memory. See Note [Forecast].
    pub(super) avoid: &'a Range<u64>,
}

impl Space {
    /// Returns the first place for a block, by address, where a free range of at least `least` bytes begins. A range may
    /// begin after memory that the block may not use.
    pub(super) fn first_fit(
        &mut self,
        sought: Sought<'_>,
        least: u64,
        progress: &mut DeviceProgress,
    ) -> Result<Option<MappedAddress>, BackingError> {
        let mut from = 0;
        while let Some(mut place) = self.first_range(least, from) {
            let mut barred = self.end_of_barred_chunk(place, sought, progress)?;
            if barred.is_none() {
                return Ok(Some(place));
            }
            from = self.free_range_end(place);
            while let Some(after) = barred.filter(|after| after + least <= from) {
                place = self.windows.locate(after);
                barred = self.end_of_barred_chunk(place, sought, progress)?;
                if barred.is_none() {
                    return Ok(Some(place));
                }
            }
        }
        Ok(None)
    }

    /// Returns the first free range of at least `bytes` bytes that begins at or after `from`. No free range may lie
    /// across `from`.
    pub(super) fn first_range(&mut self, bytes: u64, from: Address) -> Option<MappedAddress> {
        let found = self.search_windows(bytes, from);
        debug_assert_eq!(found.map(|place| place.address), self.scan_for_range(bytes, from));
        found
    }

    /// Does the work of [`first_range`](Self::first_range): skips windows whose bound says that nothing fits.
    fn search_windows(&mut self, bytes: u64, from: Address) -> Option<MappedAddress> {
        for position in self.windows.position_of(from)..self.windows.len() {
            let window = self.windows.at_position(position);
            if !self.stale.is_empty() && !self.windows.is_maintained(window) {
                self.raise_bounds();
            }
            if self.windows.may_fit(window, bytes) {
                self.summarize(window);
                let found = self.windows.first_fit(window, bytes, from, &self.chunks);
                if found.is_some() {
                    return found;
                }
            }
        }
        None
    }

    /// Finds the same range as [`search_windows`](Self::search_windows) by a scan of all chunks, to check its result.
    fn scan_for_range(&self, bytes: u64, from: Address) -> Option<Address> {
        self.windows.iter().find_map(|(_, window)| {
            let mut range = (0, 0);
            let extents = window.chunks.iter().flat_map(|&(start, chunk)| {
                self.chunks[chunk].free.iter().map(move |extent| (start + extent.offset, extent.bytes))
            });
            extents.into_iter().find_map(|(address, length)| {
                let is_next = range.0 + range.1 == address;
                range = if is_next { (range.0, range.1 + length) } else { (address, length) };
                (range.0 >= from && range.1 >= bytes).then_some(range.0)
            })
        })
    }

    /// Returns the bytes of the longest free range.
    pub(super) fn longest_range(&mut self) -> u64 {
        self.raise_bounds();
        let windows: Vec<usize> = self.windows.iter().map(|(index, _)| index).collect();
        let longest = windows.into_iter().map(|window| {
            self.summarize(window);
            self.windows.longest(window)
        });
        longest.max().unwrap_or(0)
    }

    /// Returns the range after the block placed last, if it is free and the block fits there.
    pub(super) fn range_after_last_block(
        &mut self,
        sought: Sought<'_>,
        progress: &mut DeviceProgress,
    ) -> Result<Option<MappedAddress>, BackingError> {
        let Some(place) = self.windows.free_range_at(self.end_of_last, &self.chunks) else { return Ok(None) };
        let fits = self.free_range_end(place) - place.address >= sought.bytes;
        Ok((fits && self.end_of_barred_chunk(place, sought, progress)?.is_none()).then_some(place))
    }

    /// Returns the place at an address, if the range from there is mapped and free.
    pub(super) fn free_place(&self, address: Address, bytes: u64) -> Option<MappedAddress> {
        let place = self.windows.find(address)?;
        let free =
            self.pieces(place, bytes).take_while(|piece| self.chunks[piece.chunk].is_free(piece.offset, piece.bytes));
        (free.map(|piece| piece.bytes).sum::<u64>() == bytes).then_some(place)
    }

    /// Returns the end of the first chunk, from a place on, that a block may not use there.
    pub(super) fn end_of_barred_chunk(
        &mut self,
        place: MappedAddress,
        sought: Sought<'_>,
        progress: &mut DeviceProgress,
    ) -> Result<Option<Address>, BackingError> {
        let end = place.address + sought.bytes;
        for &(start, index) in &self.windows.get(place.window).chunks[place.slot..] {
            if start >= end {
                break;
            }
            let chunk = &mut self.chunks[index];
            let first = place.address.max(start);
            let extent = Extent { offset: first - start, bytes: end.min(start + chunk.bytes) - first };
            if chunk.was_used(extent, sought.avoid) || !progress.is_ready_for(sought.stream, &mut chunk.uses)? {
                return Ok(Some(start + chunk.bytes));
            }
        }
        Ok(None)
    }

    /// Raises the bounds of all windows where memory was freed in stale chunks: see Note [Windows].
    fn raise_bounds(&mut self) {
        for index in self.stale.drain(..) {
            // The chunk may have been released meanwhile.
            let Some(chunk) = self.chunks.get_mut(index) else { continue };
            chunk.is_stale = false;
            for mapping in &self.chunks[index].mapped_at {
                if !self.windows.is_maintained(mapping.window) {
                    self.windows.raise_bound(mapping.window, mapping.slot, &self.chunks);
                }
            }
        }
    }

    /// Computes the summaries of a window anew, if they are not kept up to date.
    #[inline]
    fn summarize(&mut self, window: usize) {
        if !self.windows.is_maintained(window) {
            self.windows.summarize(window, &self.chunks);
        }
    }

    /// Returns the end of the free range that begins at `place`.
    fn free_range_end(&mut self, place: MappedAddress) -> Address {
        self.summarize(place.window);
        self.windows.free_range_end(place, &self.chunks)
    }
}
