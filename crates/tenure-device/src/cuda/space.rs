//! The record of all chunks, reservations and mappings, for the checks that CUDA does not make.

use std::collections::BTreeMap;
use std::ops::Range;

use cudarc::driver::sys::CUdevice;
use rustc_hash::FxHashMap;
use tenure_alloc::{Address, ChunkId};

use crate::{AccessMode, ErrorKind};

/// Chunks, reserved address space, and the address at which each chunk is mapped.
///
/// An operation has two halves, before and after the driver's call: a check, which changes nothing, and a record that
/// the call succeeded. If the call takes a handle, all three happen under one lock, so that no other thread removes the
/// handle meanwhile. A handle that the driver returns is recorded after the call, because it is not known before.
pub(super) struct AddressSpace {
    granularity: u64,
    /// Reserved ranges: first byte and end.
    reservations: BTreeMap<Address, Address>,
    /// Mapped chunks, by address.
    mappings: BTreeMap<Address, ChunkMapping>,
    chunks: FxHashMap<ChunkId, CudaChunk>,
    /// The other devices that have the same access as this one.
    peers: Vec<CUdevice>,
}

/// A chunk that is mapped at an address.
struct ChunkMapping {
    end: Address,
    chunk: ChunkId,
    /// The access that was granted; `None` before it is set.
    access: Option<AccessMode>,
}

/// A chunk that the driver created or imported.
struct CudaChunk {
    bytes: u64,
    /// The number of addresses at which the chunk is mapped.
    mapped: usize,
    /// The number of times that the driver returned this handle and it was not released: a chunk may be imported in the
    /// process that created it, or imported twice.
    handles: usize,
}

impl AddressSpace {
    pub(super) fn new(granularity: u64) -> Self {
        Self {
            granularity,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            chunks: FxHashMap::default(),
            peers: Vec::new(),
        }
    }

    /// Checks the size of a chunk or reservation.
    pub(super) fn check_size(&self, bytes: u64) -> Result<(), ErrorKind> {
        self.check_aligned("size", bytes)
    }

    pub(super) fn add_reservation(&mut self, address: Address, bytes: u64) {
        self.reservations.insert(address, address + bytes);
    }

    pub(super) fn check_unreserve(&self, address: Address, bytes: u64) -> Result<(), ErrorKind> {
        let range = address..address.saturating_add(bytes);
        if self.reservations.get(&address) != Some(&range.end) {
            return Err(ErrorKind::UnknownHandle { what: "reservation", handle: address });
        }
        match self.mappings.range(range).next() {
            Some((&start, mapping)) => Err(ErrorKind::RangeMapped(start..mapping.end)),
            None => Ok(()),
        }
    }

    pub(super) fn remove_reservation(&mut self, address: Address) {
        self.reservations.remove(&address);
    }

    pub(super) fn add_chunk(&mut self, chunk: ChunkId, bytes: u64) {
        self.chunks.entry(chunk).or_insert(CudaChunk { bytes, mapped: 0, handles: 0 }).handles += 1;
    }

    /// Returns the size of a chunk, in bytes.
    pub(super) fn chunk_bytes(&self, chunk: ChunkId) -> Result<u64, ErrorKind> {
        self.chunk(chunk).map(|chunk| chunk.bytes)
    }

    /// Returns the size of a chunk, in bytes, if it may be released.
    pub(super) fn check_release(&self, chunk: ChunkId) -> Result<u64, ErrorKind> {
        match *self.chunk(chunk)? {
            CudaChunk { mapped: count, handles: 1, .. } if count > 0 => Err(ErrorKind::ChunkMapped { chunk, count }),
            CudaChunk { bytes, .. } => Ok(bytes),
        }
    }

    pub(super) fn remove_chunk(&mut self, chunk: ChunkId) {
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.handles -= 1;
            if found.handles == 0 {
                self.chunks.remove(&chunk);
            }
        }
    }

    /// Returns the size of a chunk, in bytes, if it may be mapped at `address`.
    pub(super) fn check_map(&self, address: Address, chunk: ChunkId) -> Result<u64, ErrorKind> {
        self.check_aligned("address", address)?;
        let bytes = self.chunk_bytes(chunk)?;
        let range = address..address.saturating_add(bytes);
        let reservation = self.reservations.range(..=address).next_back();
        if reservation.is_none_or(|(_, &end)| range.end > end) {
            return Err(ErrorKind::NotReserved(range));
        }
        let below = self.mappings.range(..range.end).next_back();
        if let Some((&start, mapping)) = below.filter(|(_, mapping)| mapping.end > range.start) {
            return Err(ErrorKind::Overlap { range, existing: start..mapping.end });
        }
        Ok(bytes)
    }

    pub(super) fn add_mapping(&mut self, address: Address, chunk: ChunkId) {
        if let Some(found) = self.chunks.get_mut(&chunk) {
            found.mapped += 1;
            self.mappings.insert(address, ChunkMapping { end: address + found.bytes, chunk, access: None });
        }
    }

    /// Returns how many chunks are mapped in a range. The range must cover each of them whole and have no gap.
    pub(super) fn whole_chunks(&self, address: Address, bytes: u64) -> Result<u64, ErrorKind> {
        self.check_aligned("address", address)?;
        self.check_aligned("size", bytes)?;
        let range = address..address.saturating_add(bytes);
        let mut at = range.start;
        let mut count = 0;
        while at < range.end {
            let below = self.mappings.range(..=at).next_back();
            let Some((&start, mapping)) = below.filter(|(_, mapping)| mapping.end > at) else {
                return Err(ErrorKind::NotMapped(self.gap(at..range.end)));
            };
            if start < at || mapping.end > range.end {
                return Err(ErrorKind::PartialChunk { range, mapping: start..mapping.end });
            }
            at = mapping.end;
            count += 1;
        }
        Ok(count)
    }

    /// Records the access to a range of [`whole_chunks`](Self::whole_chunks).
    pub(super) fn record_access(&mut self, address: Address, bytes: u64, access: AccessMode) {
        for (_, mapping) in self.mappings.range_mut(address..address + bytes) {
            mapping.access = Some(access);
        }
    }

    /// Returns the first byte, the size in bytes and the access of each accessible mapping.
    pub(super) fn accessible(&self) -> impl Iterator<Item = (Address, u64, AccessMode)> {
        self.mappings.iter().filter_map(|(&start, mapping)| Some((start, mapping.end - start, mapping.access?)))
    }

    pub(super) fn peers(&self) -> &[CUdevice] {
        &self.peers
    }

    pub(super) fn add_peer(&mut self, peer: CUdevice) {
        self.peers.push(peer);
    }

    /// Forgets the mappings in a range of [`whole_chunks`](Self::whole_chunks).
    pub(super) fn remove_mappings(&mut self, address: Address, bytes: u64) {
        for (_, mapping) in self.mappings.extract_if(address..address + bytes, |_, _| true) {
            if let Some(chunk) = self.chunks.get_mut(&mapping.chunk) {
                chunk.mapped -= 1;
            }
        }
    }

    fn chunk(&self, chunk: ChunkId) -> Result<&CudaChunk, ErrorKind> {
        self.chunks.get(&chunk).ok_or(ErrorKind::UnknownHandle { what: "chunk", handle: chunk.0 })
    }

    /// Returns the part of `range` up to the next mapping. Nothing is mapped at the start of `range`.
    fn gap(&self, range: Range<Address>) -> Range<Address> {
        let next = self.mappings.range(range.clone()).next();
        range.start..next.map_or(range.end, |(&start, _)| start)
    }

    fn check_aligned(&self, what: &'static str, value: u64) -> Result<(), ErrorKind> {
        let granularity = self.granularity;
        if value == 0 || !value.is_multiple_of(granularity) {
            return Err(ErrorKind::Misaligned { what, value, granularity });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANULE: u64 = 0x1000;
    const START: Address = 0x10_0000;

    /// An address space of ten granules, and a chunk of two granules, mapped at the third.
    fn space() -> (AddressSpace, ChunkId) {
        let mut space = AddressSpace::new(GRANULE);
        let chunk = ChunkId(7);
        space.add_reservation(START, 10 * GRANULE);
        space.add_chunk(chunk, 2 * GRANULE);
        assert_eq!(space.check_map(at(2), chunk), Ok(2 * GRANULE));
        space.add_mapping(at(2), chunk);
        (space, chunk)
    }

    fn at(granule: u64) -> Address {
        START + granule * GRANULE
    }

    #[test]
    fn a_part_of_a_granule_is_refused() {
        let (space, chunk) = space();
        let misaligned = |what, value| ErrorKind::Misaligned { what, value, granularity: GRANULE };
        assert_eq!(space.check_size(0), Err(misaligned("size", 0)));
        assert_eq!(space.check_size(GRANULE + 1), Err(misaligned("size", GRANULE + 1)));
        assert_eq!(space.check_map(START + 1, chunk), Err(misaligned("address", START + 1)));
        assert_eq!(space.whole_chunks(at(2), 1), Err(misaligned("size", 1)));
    }

    #[test]
    fn a_chunk_is_mapped_in_reserved_space_where_nothing_is() {
        let (space, chunk) = space();
        for outside in [at(9), at(10), START - GRANULE] {
            let range = outside..outside + 2 * GRANULE;
            assert_eq!(space.check_map(outside, chunk), Err(ErrorKind::NotReserved(range)));
        }
        for taken in [at(1), at(2), at(3)] {
            let range = taken..taken + 2 * GRANULE;
            let existing = at(2)..at(4);
            assert_eq!(space.check_map(taken, chunk), Err(ErrorKind::Overlap { range, existing }));
        }
        for free in [at(0), at(4), at(8)] {
            assert_eq!(space.check_map(free, chunk), Ok(2 * GRANULE));
        }
    }

    #[test]
    fn a_range_must_cover_whole_chunks_without_a_gap() {
        let (mut space, chunk) = space();
        space.add_mapping(at(6), chunk);
        assert_eq!(space.whole_chunks(at(2), 2 * GRANULE), Ok(1));
        assert_eq!(space.whole_chunks(at(2), 6 * GRANULE), Err(ErrorKind::NotMapped(at(4)..at(6))));
        assert_eq!(space.whole_chunks(at(8), GRANULE), Err(ErrorKind::NotMapped(at(8)..at(9))));
        for start in [at(2), at(3)] {
            let range = start..start + GRANULE;
            let mapping = at(2)..at(4);
            assert_eq!(space.whole_chunks(start, GRANULE), Err(ErrorKind::PartialChunk { range, mapping }));
        }
        space.add_mapping(at(4), chunk);
        assert_eq!(space.whole_chunks(at(2), 6 * GRANULE), Ok(3));
    }

    #[test]
    fn a_mapping_is_accessible_once_that_was_said_until_it_is_unmapped() {
        let (mut space, chunk) = space();
        space.add_mapping(at(4), chunk);
        assert_eq!(space.accessible().count(), 0);
        space.record_access(at(2), 4 * GRANULE, AccessMode::ReadWrite);
        space.record_access(at(4), 2 * GRANULE, AccessMode::Read);
        let whole = (at(2), 2 * GRANULE, AccessMode::ReadWrite);
        let read = (at(4), 2 * GRANULE, AccessMode::Read);
        assert_eq!(space.accessible().collect::<Vec<_>>(), [whole, read]);
        space.remove_mappings(at(2), 2 * GRANULE);
        assert_eq!(space.accessible().collect::<Vec<_>>(), [read]);
    }

    #[test]
    fn a_chunk_is_released_when_it_is_mapped_nowhere() {
        let (mut space, chunk) = space();
        space.add_mapping(at(6), chunk);
        assert_eq!(space.check_release(chunk), Err(ErrorKind::ChunkMapped { chunk, count: 2 }));
        space.remove_mappings(at(2), 2 * GRANULE);
        assert_eq!(space.check_release(chunk), Err(ErrorKind::ChunkMapped { chunk, count: 1 }));
        space.remove_mappings(at(6), 2 * GRANULE);
        assert_eq!(space.check_release(chunk), Ok(2 * GRANULE));
        space.remove_chunk(chunk);
        assert_eq!(space.check_release(chunk), Err(ErrorKind::UnknownHandle { what: "chunk", handle: 7 }));
    }

    #[test]
    fn a_chunk_with_two_names_keeps_its_mapping_when_one_is_given_back() {
        let (mut space, chunk) = space();
        space.add_chunk(chunk, 2 * GRANULE);
        assert_eq!(space.check_release(chunk), Ok(2 * GRANULE));
        space.remove_chunk(chunk);
        assert_eq!(space.check_release(chunk), Err(ErrorKind::ChunkMapped { chunk, count: 1 }));
    }

    #[test]
    fn a_reservation_is_given_back_whole_and_empty() {
        let (mut space, _) = space();
        let unknown = Err(ErrorKind::UnknownHandle { what: "reservation", handle: START });
        assert_eq!(space.check_unreserve(START, 9 * GRANULE), unknown);
        assert_eq!(space.check_unreserve(START, 10 * GRANULE), Err(ErrorKind::RangeMapped(at(2)..at(4))));
        space.remove_mappings(at(2), 2 * GRANULE);
        assert_eq!(space.check_unreserve(START, 10 * GRANULE), Ok(()));
        space.remove_reservation(START);
        assert_eq!(space.check_unreserve(START, 10 * GRANULE), unknown);
    }
}
