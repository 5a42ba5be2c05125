//! The search for a free range in one piece.

use tenure_core::StreamId;

use super::progress::DeviceProgress;
use super::space::Space;
use super::windows::MappedAddress;
use crate::{Address, BackingError};

impl Space {
    /// Returns the first place, by address, where a free range of at least `least` bytes begins and `stream` may use
    /// the first `bytes` bytes without waiting. A range may begin after memory that the stream would have to wait for.
    pub(super) fn first_fit(
        &mut self,
        bytes: u64,
        least: u64,
        stream: StreamId,
        progress: &mut DeviceProgress,
    ) -> Result<Option<MappedAddress>, BackingError> {
        let mut from = 0;
        while let Some(mut place) = self.first_range(least, from) {
            let mut unready = self.end_of_unready_chunk(place, bytes, stream, progress)?;
            if unready.is_none() {
                return Ok(Some(place));
            }
            from = self.free_range_end(place);
            while let Some(after) = unready.filter(|after| after + least <= from) {
                place = self.windows.locate(after);
                unready = self.end_of_unready_chunk(place, bytes, stream, progress)?;
                if unready.is_none() {
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

    /// Returns the range after the block placed last, if it is free, has at least `bytes` bytes and `stream` may use
    /// these without waiting.
    pub(super) fn range_after_last_block(
        &mut self,
        bytes: u64,
        stream: StreamId,
        progress: &mut DeviceProgress,
    ) -> Result<Option<MappedAddress>, BackingError> {
        let Some(place) = self.windows.free_range_at(self.end_of_last, &self.chunks) else { return Ok(None) };
        let fits = self.free_range_end(place) - place.address >= bytes;
        Ok((fits && self.end_of_unready_chunk(place, bytes, stream, progress)?.is_none()).then_some(place))
    }

    /// Returns the place at an address, if the range from there is mapped and free.
    pub(super) fn free_place(&self, address: Address, bytes: u64) -> Option<MappedAddress> {
        let place = self.windows.find(address)?;
        let free =
            self.pieces(place, bytes).take_while(|piece| self.chunks[piece.chunk].is_free(piece.offset, piece.bytes));
        (free.map(|piece| piece.bytes).sum::<u64>() == bytes).then_some(place)
    }

    /// Returns the end of the first chunk in a range that `stream` may not use without waiting.
    pub(super) fn end_of_unready_chunk(
        &mut self,
        place: MappedAddress,
        bytes: u64,
        stream: StreamId,
        progress: &mut DeviceProgress,
    ) -> Result<Option<Address>, BackingError> {
        let end = place.address + bytes;
        for &(start, index) in &self.windows.get(place.window).chunks[place.slot..] {
            if start >= end {
                break;
            }
            let chunk = &mut self.chunks[index];
            if !progress.is_ready_for(stream, &mut chunk.uses)? {
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
