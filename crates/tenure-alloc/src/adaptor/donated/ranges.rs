//! The donated ranges and the blocks in them. Free pieces are split to the granule, and merged when they are freed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use smallvec::SmallVec;
use tenure_core::{KeyId, StreamId, Tag};

use super::gate::RangeGate;
use super::placement::{GRANULE, PlacedBlock, RangePlacement, Rule};
use crate::snapshot::{Segment, SnapshotBlock, SnapshotState};
use crate::{Address, AllocError, Backing, BackingError, Block, Mark, PoolId, PoolKind, PoolUse, Request, Statistics};

type SharedFilter = Arc<dyn Fn(StreamId) -> bool + Send + Sync>;

/// The state under the adaptor's lock.
#[derive(Default)]
pub(super) struct Ranges {
    ranges: BTreeMap<Address, DonatedRange>,
    /// Every piece, by address. The pieces cover the ranges without a gap, and none spans two ranges.
    pieces: BTreeMap<Address, RangePiece>,
    /// The free pieces of the best-fit ranges: (stream, bytes, address).
    free: BTreeSet<(StreamId, u64, Address)>,
    /// Freed pieces that other streams may still use.
    pending: Vec<PendingPiece>,
    /// The private pools that allocations go to now.
    pools: Vec<(PoolId, PoolUse, SharedFilter)>,
    statistics: Statistics,
}

/// A range given to the allocator.
struct DonatedRange {
    bytes: u64,
    stream: StreamId,
    rule: Rule,
    gate: Option<Arc<dyn RangeGate>>,
}

/// The place found for a request.
pub(super) struct DonatedPlace {
    /// The free piece that contains the place.
    piece: Address,
    address: Address,
    bytes: u64,
}

/// A part of a range: a block, or free memory.
struct RangePiece {
    bytes: u64,
    state: PieceState,
}

enum PieceState {
    Free,
    /// In use, also by the streams `users` other than its own.
    Live {
        request: Request,
        users: SmallVec<[StreamId; 1]>,
    },
    /// Freed, but other streams may still use it.
    Pending {
        request: Request,
    },
}

/// A freed piece that other streams may still use.
struct PendingPiece {
    address: Address,
    /// Streams that may use it and have no mark yet: a mark can be recorded only outside captures.
    users: SmallVec<[StreamId; 1]>,
    /// The marks after which no stream uses it.
    marks: SmallVec<[Mark; 1]>,
}

impl Ranges {
    /// See [`DonatedRanges::insert`](super::DonatedRanges::insert).
    pub(super) fn insert(
        &mut self,
        address: Address,
        bytes: u64,
        stream: StreamId,
        placement: RangePlacement,
        gate: Option<Arc<dyn RangeGate>>,
    ) -> Result<(), AllocError> {
        let refuse =
            |expected| Err(AllocError::invalid("donated range", format!("{bytes} bytes at {address:#x}"), expected));
        let Some(end) = address.checked_add(bytes).filter(|_| bytes > 0 && address > 0) else {
            return refuse("it must hold memory");
        };
        if !address.is_multiple_of(GRANULE) || !bytes.is_multiple_of(GRANULE) {
            return refuse("it must begin and end at multiples of 512 bytes");
        }
        let before = self.ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.bytes > address) {
            return refuse("it overlaps a range given before: clear that first");
        }
        if let RangePlacement::Recorded(requests) = &placement
            && !are_disjoint_within(requests, bytes)
        {
            return refuse("what is recorded must lie in it, each block apart from the others");
        }
        if placement != RangePlacement::BestFit && self.ranges.values().any(|range| range.takes_all_of(stream)) {
            return refuse("one range of a stream takes every request: close or clear that first");
        }
        self.ranges.insert(address, DonatedRange { bytes, stream, rule: Rule::new(placement), gate });
        self.insert_free(address, bytes);
        for pool in self.statistics.both(PoolKind::Large) {
            pool.reserved_bytes.increase(bytes);
            pool.segment.increase(1);
        }
        Ok(())
    }

    /// Removes a range: see [`DonatedRanges::clear`](super::DonatedRanges::clear).
    pub(super) fn clear(&mut self, address: Address, backing: &dyn Backing) -> Result<(), AllocError> {
        self.complete_frees(backing, Some(address))?;
        let range = self.ranges.get(&address).ok_or(AllocError::UnknownAddress(address))?;
        let bytes = range.bytes;
        let stream = range.stream;
        let used = self.pieces.range(address..address + bytes).filter(|(_, piece)| !piece.is_free());
        let (used, blocks) = used.fold((0, 0), |(bytes, blocks), (_, piece)| (bytes + piece.bytes, blocks + 1));
        if blocks > 0 {
            return Err(AllocError::StillInUse { bytes: used, blocks, stream });
        }
        self.remove_free(address);
        self.ranges.remove(&address);
        for pool in self.statistics.both(PoolKind::Large) {
            pool.reserved_bytes.decrease(bytes);
            pool.segment.decrease(1);
        }
        Ok(())
    }

    /// Returns whether an address lies in a range.
    pub(super) fn contains(&self, address: Address) -> bool {
        self.range_of(address).is_some()
    }

    /// Returns the bytes of the live block at an address.
    pub(super) fn live_bytes(&self, address: Address) -> Option<u64> {
        let piece = self.pieces.get(&address)?;
        matches!(piece.state, PieceState::Live { .. }).then_some(piece.bytes)
    }

    /// Returns the smallest request in bytes that any range serves.
    pub(super) fn least(&self) -> u64 {
        self.ranges.values().map(|range| range.rule.least()).min().unwrap_or(u64::MAX)
    }

    /// Ends allocation in a range that is filled in order; returns its live blocks.
    pub(super) fn close(&mut self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        let range = self.ranges.get_mut(&address).ok_or(AllocError::UnknownAddress(address))?;
        let Rule::InOrder { is_open, .. } = &mut range.rule else { return Err(AllocError::UnknownAddress(address)) };
        *is_open = false;
        self.live(address)
    }

    /// Returns the live blocks of a range that is filled in order.
    pub(super) fn live(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        let mut placed = self.placed(address)?;
        placed.retain(|placed| self.live_bytes(address + placed.offset).is_some());
        Ok(placed)
    }

    /// Returns the live blocks of a range that is filled in order, and the freed ones that no later one overlaps.
    pub(super) fn placed(&self, address: Address) -> Result<Vec<PlacedBlock>, AllocError> {
        match self.ranges.get(&address).map(|range| &range.rule) {
            Some(Rule::InOrder { placed, .. }) => {
                Ok(placed.iter().map(|&(at, bytes)| PlacedBlock { offset: at - address, bytes }).collect())
            }
            _ => Err(AllocError::UnknownAddress(address)),
        }
    }

    /// Returns how many recorded requests the range at an address has yet to serve.
    pub(super) fn outstanding(&self, address: Address) -> usize {
        self.ranges.get(&address).map_or(0, |range| range.rule.outstanding())
    }

    /// Returns the place for the request, if a range of its stream serves it. The place is valid until the ranges
    /// change.
    pub(super) fn find(&mut self, request: Request, backing: &dyn Backing) -> Result<Option<DonatedPlace>, AllocError> {
        let stream = request.stream;
        if self.pools.iter().any(|(.., filter)| filter(stream)) {
            return Ok(None);
        }
        self.complete_frees(backing, None)?;
        let Some(bytes) = request.bytes.checked_next_multiple_of(GRANULE) else { return Ok(None) };
        let exclusive = self.ranges.iter().find(|(_, range)| range.takes_all_of(stream)).map(|(&start, _)| start);
        let found = match exclusive {
            Some(start) => Some(self.place_in_range(start, request.bytes, bytes)?),
            None if request.bytes < Rule::BestFit.least() => None,
            None => self.best_fit(stream, bytes),
        };
        Ok(found.map(|(piece, address)| DonatedPlace { piece, address, bytes }))
    }

    /// Returns the gate that must be entered before a block is placed there.
    pub(super) fn gate(&self, place: &DonatedPlace) -> Option<Arc<dyn RangeGate>> {
        self.range_of(place.address)?.1.gate.clone()
    }

    /// Places the request's block where [`find`](Self::find) has just found room.
    pub(super) fn place_block(
        &mut self,
        request: Request,
        DonatedPlace { piece, address, bytes }: DonatedPlace,
    ) -> Block {
        let whole = self.remove_free(piece);
        let after = piece + whole - (address + bytes);
        for (address, bytes) in [(piece, address - piece), (address + bytes, after)] {
            if bytes > 0 {
                self.insert_free(address, bytes);
            }
        }
        let state = PieceState::Live { request, users: SmallVec::new() };
        self.pieces.insert(address, RangePiece { bytes, state });
        if let Some((_, range)) = self.ranges.range_mut(..=address).next_back() {
            range.rule.note_allocated(address, request.bytes);
        }
        self.statistics.block_allocated(PoolKind::Large, request.tag, request.bytes, bytes);
        Block { address, bytes }
    }

    /// Returns the smallest free piece of a stream that fits, and its start.
    fn best_fit(&self, stream: StreamId, bytes: u64) -> Option<(Address, Address)> {
        let &(owner, _, address) = self.free.range((stream, bytes, 0)..).next()?;
        (owner == stream).then_some((address, address))
    }

    /// Returns the place for a request in the range at `start`, which is filled in order or by a record: the free piece
    /// that contains the place, and its first address.
    fn place_in_range(&self, start: Address, requested: u64, bytes: u64) -> Result<(Address, Address), AllocError> {
        let range = &self.ranges[&start];
        let recorded = range.rule.recorded(requested)?.map(|offset| start + offset);
        let free = self.pieces.range(start..start + range.bytes).filter(|(_, piece)| piece.is_free());
        for (&at, piece) in free.clone() {
            let from = recorded.unwrap_or(at);
            if at <= from && from + bytes <= at + piece.bytes {
                return Ok((at, from));
            }
        }
        let free = free.map(|(_, piece)| piece.bytes).sum();
        Err(AllocError::RangeFull { requested, bytes: range.bytes, free })
    }

    /// Frees a block. Returns its range's gate, which the caller must leave once it holds no lock.
    pub(super) fn free(
        &mut self,
        address: Address,
        backing: &dyn Backing,
    ) -> Result<Option<Arc<dyn RangeGate>>, AllocError> {
        let can_mark = !self.is_capturing();
        let piece = self.pieces.get_mut(&address).ok_or(AllocError::UnknownAddress(address))?;
        let PieceState::Live { request, users } = &piece.state else { return Err(AllocError::UnknownAddress(address)) };
        let request = *request;
        let mut pending = PendingPiece { address, users: users.clone(), marks: SmallVec::new() };
        if can_mark {
            pending.record(backing)?;
        }
        let is_used_elsewhere = !pending.users.is_empty() || !pending.marks.is_empty();
        piece.state = PieceState::Pending { request };
        self.statistics.block_freed(PoolKind::Large, request.tag, piece.bytes);
        let gate = self.range_of(address).and_then(|(_, range)| range.gate.clone());
        if is_used_elsewhere {
            self.pending.push(pending);
        } else {
            self.complete(address);
        }
        Ok(gate)
    }

    pub(super) fn record_stream(&mut self, address: Address, stream: StreamId) -> Result<(), AllocError> {
        match self.pieces.get_mut(&address).map(|piece| &mut piece.state) {
            Some(PieceState::Live { request, users }) => {
                if request.stream != stream && !users.contains(&stream) {
                    users.push(stream);
                }
                Ok(())
            }
            _ => Err(AllocError::UnknownAddress(address)),
        }
    }

    pub(super) fn retag(&mut self, address: Address, tag: Tag, key: KeyId) -> Result<(), AllocError> {
        let piece = self.pieces.get_mut(&address).ok_or(AllocError::UnknownAddress(address))?;
        let PieceState::Live { request, .. } = &mut piece.state else {
            return Err(AllocError::UnknownAddress(address));
        };
        let from = std::mem::replace(&mut request.tag, tag);
        request.key = key;
        self.statistics.block_retagged(from, tag, request.bytes, piece.bytes);
        Ok(())
    }

    pub(super) fn begin_pool(&mut self, pool: PoolId, purpose: PoolUse, filter: SharedFilter) {
        self.pools.push((pool, purpose, filter));
    }

    /// Ends allocation to a pool. Returns the gates that the caller must tell, once it holds no lock, that no stream is
    /// captured any more.
    pub(super) fn end_pool(&mut self, pool: PoolId) -> Vec<Arc<dyn RangeGate>> {
        let was_capturing = self.is_capturing();
        if let Some(at) = self.pools.iter().rposition(|(id, ..)| *id == pool) {
            self.pools.remove(at);
        }
        self.gates_after_captures(was_capturing)
    }

    /// Changes the use of a pool. Returns the same gates as [`end_pool`](Self::end_pool).
    pub(super) fn set_pool_use(&mut self, pool: PoolId, purpose: PoolUse) -> Vec<Arc<dyn RangeGate>> {
        let was_capturing = self.is_capturing();
        if let Some((_, current, _)) = self.pools.iter_mut().rfind(|(id, ..)| *id == pool) {
            *current = purpose;
        }
        self.gates_after_captures(was_capturing)
    }

    /// Returns the gates of all ranges if the last capture has just ended, else none.
    fn gates_after_captures(&self, was_capturing: bool) -> Vec<Arc<dyn RangeGate>> {
        let is_over = was_capturing && !self.is_capturing();
        self.ranges.values().filter(|_| is_over).filter_map(|range| range.gate.clone()).collect()
    }

    /// Returns whether a stream is captured, so that the device cannot be waited for.
    pub(super) fn is_capturing(&self) -> bool {
        self.pools.iter().any(|(_, purpose, _)| *purpose == PoolUse::Capture)
    }

    /// Returns the range that a live block lies in: first byte and bytes.
    pub(super) fn extent(&self, address: Address) -> Option<(Address, u64)> {
        self.pieces.get(&address).filter(|piece| matches!(piece.state, PieceState::Live { .. }))?;
        self.range_of(address).map(|(&first, range)| (first, range.bytes))
    }

    pub(super) fn statistics(&self) -> &Statistics {
        &self.statistics
    }

    pub(super) fn reset_peak_statistics(&mut self) {
        self.statistics.reset_peak();
    }

    pub(super) fn reset_accumulated_statistics(&mut self) {
        self.statistics.reset_accumulated();
    }

    /// Returns each range as a segment.
    pub(super) fn segments(&self, device: u32) -> impl Iterator<Item = Segment> {
        self.ranges.iter().map(move |(&address, range)| Segment {
            device,
            address,
            stream: range.stream,
            kind: PoolKind::Large,
            pool: PoolId::default(),
            made: 0,
            is_expandable: false,
            is_external: true,
            context: None,
            blocks: self.pieces.range(address..address + range.bytes).map(|(&at, piece)| piece.describe(at)).collect(),
        })
    }

    /// Makes the freed pieces free that no stream uses any more. For pieces in the range at `awaited`, if given, waits
    /// for the streams on the host. Does nothing during a capture. A piece that is not waited for and whose marks
    /// cannot be queried stays pending: that failure is no reason to refuse another request.
    ///
    /// # Errors
    /// The backing fails for a piece that is waited for.
    fn complete_frees(&mut self, backing: &dyn Backing, awaited: Option<Address>) -> Result<(), BackingError> {
        if self.is_capturing() {
            return Ok(());
        }
        let mut at = 0;
        while at < self.pending.len() {
            let address = self.pending[at].address;
            let waits = awaited.is_some() && self.range_of(address).map(|(&start, _)| start) == awaited;
            match self.pending[at].is_passed(backing, waits) {
                Ok(true) => {
                    self.pending.swap_remove(at);
                    self.complete(address);
                }
                Err(error) if waits => return Err(error),
                Ok(false) | Err(_) => at += 1,
            }
        }
        Ok(())
    }

    /// Makes a freed piece free, merged with its free neighbours in the range.
    fn complete(&mut self, address: Address) {
        let Some((&start, range)) = self.range_of(address) else { return };
        let end = start + range.bytes;
        let Some(piece) = self.pieces.remove(&address) else { return };
        if let PieceState::Pending { request } = piece.state {
            self.statistics.block_completed(PoolKind::Large, request.tag, request.bytes, piece.bytes);
        }
        let mut address = address;
        let mut bytes = piece.bytes;
        let after = address + bytes;
        if after < end && self.pieces.get(&after).is_some_and(RangePiece::is_free) {
            bytes += self.remove_free(after);
        }
        let before = self.pieces.range(start..address).next_back();
        if let Some(before) = before.filter(|(_, piece)| piece.is_free()).map(|(&before, _)| before) {
            bytes += self.remove_free(before);
            address = before;
        }
        self.insert_free(address, bytes);
    }

    fn insert_free(&mut self, address: Address, bytes: u64) {
        self.pieces.insert(address, RangePiece { bytes, state: PieceState::Free });
        self.free.extend(self.best_fit_stream(address).map(|stream| (stream, bytes, address)));
    }

    /// Removes a free piece; returns its bytes.
    fn remove_free(&mut self, address: Address) -> u64 {
        let bytes = self.pieces.remove(&address).map_or(0, |piece| piece.bytes);
        if let Some(stream) = self.best_fit_stream(address) {
            self.free.remove(&(stream, bytes, address));
        }
        bytes
    }

    /// Returns the stream of the best-fit range that an address lies in, if it lies in one.
    fn best_fit_stream(&self, address: Address) -> Option<StreamId> {
        let (_, range) = self.range_of(address)?;
        matches!(range.rule, Rule::BestFit).then_some(range.stream)
    }

    /// Returns the range that an address lies in, and its first address.
    fn range_of(&self, address: Address) -> Option<(&Address, &DonatedRange)> {
        self.ranges.range(..=address).next_back().filter(|(start, range)| address < **start + range.bytes)
    }
}

impl DonatedRange {
    /// Returns whether each request of `stream` is served here or refused.
    fn takes_all_of(&self, stream: StreamId) -> bool {
        self.stream == stream && self.rule.takes_all()
    }
}

/// Returns whether the blocks lie in a range of `bytes` bytes and do not overlap.
fn are_disjoint_within(blocks: &[PlacedBlock], bytes: u64) -> bool {
    let mut sorted: Vec<&PlacedBlock> = blocks.iter().collect();
    sorted.sort_unstable_by_key(|block| block.offset);
    let are_inside = sorted.iter().all(|block| {
        block.bytes > 0 && block.offset.is_multiple_of(GRANULE) && block.end().is_some_and(|end| end <= bytes)
    });
    are_inside && sorted.windows(2).all(|pair| pair[0].end().is_some_and(|end| end <= pair[1].offset))
}

impl RangePiece {
    fn is_free(&self) -> bool {
        matches!(self.state, PieceState::Free)
    }

    fn describe(&self, address: Address) -> SnapshotBlock {
        let bytes = self.bytes;
        let (state, request) = match &self.state {
            PieceState::Free => (SnapshotState::Inactive, None),
            PieceState::Live { request, .. } => (SnapshotState::Allocated, Some(request)),
            PieceState::Pending { request } => (SnapshotState::PendingFree, Some(request)),
        };
        let (requested, tag, key) =
            request.map_or((0, Tag::Unknown, KeyId::NONE), |request| (request.bytes, request.tag, request.key));
        SnapshotBlock { address, bytes, requested, state, tag, key, context: None }
    }
}

impl PendingPiece {
    /// Records a mark on every stream that may use the piece and has none.
    fn record(&mut self, backing: &dyn Backing) -> Result<(), BackingError> {
        while let Some(&user) = self.users.last() {
            self.marks.push(backing.record(user)?);
            self.users.pop();
        }
        Ok(())
    }

    /// Returns whether no stream uses the piece any more; if `waits`, waits for the streams on the host.
    fn is_passed(&mut self, backing: &dyn Backing, waits: bool) -> Result<bool, BackingError> {
        self.record(backing)?;
        while let Some(&mark) = self.marks.last() {
            if waits {
                backing.synchronize(mark)?;
            } else if !backing.completed(mark)? {
                return Ok(false);
            }
            self.marks.pop();
        }
        Ok(true)
    }
}
