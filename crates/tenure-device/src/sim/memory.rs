//! The simulated device's address space, and the physical memory mapped in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use tenure_alloc::{Address, ChunkId};

use super::physical::PhysicalMemory;
use super::race::{Access, Clock, Touches};
use crate::{AccessMode, ErrorKind, Launch, MemoryHandle};

/// The first address of device 0. Each further device begins one `ADDRESSES` higher.
const FIRST_ADDRESS: Address = 0x10_0000_0000;
/// The number of addresses of each device.
const ADDRESSES: Address = 1 << 50;

/// The address space of a device, with its physical memory.
pub(super) struct SimMemory {
    granularity: u64,
    pub(super) physical: PhysicalMemory,
    /// The addresses for the next segments.
    scripted_addresses: VecDeque<Address>,
    /// The next address. Addresses are never reused, so that a stale one is always caught.
    next_address: Address,
    /// Reserved ranges: their first byte, and their end.
    reservations: BTreeMap<Address, Address>,
    /// Mapped chunks in reservations, and segments outside of them, by address.
    mappings: BTreeMap<Address, SimMapping>,
    /// The addresses at which memory of other processes is mapped.
    opened: BTreeSet<Address>,
    /// Other devices with the same access as this one.
    peers: BTreeSet<u8>,
}

/// A chunk, a segment, or memory of the host or of another process, mapped at an address.
struct SimMapping {
    bytes: u64,
    /// The id of the physical allocation.
    physical: u64,
    /// The chunk that is mapped, if it is one.
    chunk: Option<ChunkId>,
    /// The access that work has; `None` before it was set.
    access: Option<AccessMode>,
    /// The last work of each stream through this address.
    uses: Vec<Access>,
}

/// A part of an accessed range that lies on one physical allocation.
struct AccessedPart {
    address: Range<Address>,
    mapping: Address,
    physical: u64,
    offset: u64,
}

impl AccessedPart {
    /// Returns the range in the physical allocation.
    fn bytes(&self) -> Range<u64> {
        self.offset..self.offset + (self.address.end - self.address.start)
    }
}

impl SimMemory {
    pub(super) fn new(device: u8, granularity: u64, physical: PhysicalMemory) -> Self {
        Self {
            granularity,
            physical,
            scripted_addresses: VecDeque::new(),
            next_address: FIRST_ADDRESS + Address::from(device) * ADDRESSES,
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            opened: BTreeSet::new(),
            peers: BTreeSet::new(),
        }
    }

    /// Makes the next segments begin at these addresses.
    pub(super) fn script_addresses(&mut self, addresses: impl IntoIterator<Item = Address>) {
        self.scripted_addresses.extend(addresses);
    }

    pub(super) fn malloc(&mut self, bytes: u64) -> Result<Address, ErrorKind> {
        if bytes == 0 {
            return Err(ErrorKind::Misaligned { what: "size", value: 0, granularity: 1 });
        }
        self.physical.check_room(bytes)?;
        let address = match self.scripted_addresses.front() {
            Some(&address) => {
                let range = address..address.saturating_add(bytes);
                if let Some(existing) = self.existing_range(&range) {
                    return Err(ErrorKind::Overlap { range, existing });
                }
                self.scripted_addresses.pop_front();
                address
            }
            None => self.fresh_range(bytes)?,
        };
        let physical = self.physical.add_segment(bytes);
        let access = Some(AccessMode::ReadWrite);
        self.mappings.insert(address, SimMapping { bytes, physical, chunk: None, access, uses: Vec::new() });
        Ok(address)
    }

    /// Frees the segment at `address`, which no unfinished work uses. Returns its size.
    pub(super) fn free(&mut self, address: Address) -> Result<u64, ErrorKind> {
        self.check_segment(address)?;
        let mapping = self.mappings.remove(&address);
        Ok(mapping.map_or(0, |mapping| self.physical.remove(mapping.physical)))
    }

    /// Checks that a segment of this process begins at `address`.
    pub(super) fn check_segment(&self, address: Address) -> Result<(), ErrorKind> {
        match self.mappings.get(&address) {
            Some(mapping) if mapping.chunk.is_none() && !self.opened.contains(&address) => Ok(()),
            _ => Err(ErrorKind::UnknownHandle { what: "segment", handle: address }),
        }
    }

    /// Returns a handle of a segment for other processes. Its bytes are shared from now on.
    pub(super) fn export(&mut self, address: Address) -> Result<MemoryHandle, ErrorKind> {
        self.check_segment(address)?;
        self.physical.export_segment(self.mappings[&address].physical)
    }

    /// Maps memory of another process. Returns its address and its size in bytes.
    pub(super) fn open(&mut self, handle: &MemoryHandle) -> Result<(Address, u64), ErrorKind> {
        let (physical, bytes) = self.physical.open(handle)?;
        let address = self.fresh_range(bytes)?;
        let access = Some(AccessMode::ReadWrite);
        self.mappings.insert(address, SimMapping { bytes, physical, chunk: None, access, uses: Vec::new() });
        self.opened.insert(address);
        Ok((address, bytes))
    }

    /// Undoes [`open`](Self::open). `host` is the work that the host knows to be complete.
    pub(super) fn close(&mut self, address: Address, host: &Clock) -> Result<(), ErrorKind> {
        let mapping = self.mappings.get(&address).filter(|_| self.opened.contains(&address));
        let mapping = mapping.ok_or(ErrorKind::UnknownHandle { what: "opened memory", handle: address })?;
        if let Some(used) = mapping.uses.iter().find(|used| !host.covers(used)) {
            let range = address..address + mapping.bytes;
            return Err(ErrorKind::UnmappedInUse { range, launch: Arc::clone(&used.launch) });
        }
        let physical = mapping.physical;
        self.mappings.remove(&address);
        self.opened.remove(&address);
        self.physical.remove(physical);
        Ok(())
    }

    pub(super) fn reserve(&mut self, bytes: u64) -> Result<Address, ErrorKind> {
        self.check_aligned("size", bytes)?;
        let address = self.fresh_range(bytes)?;
        self.reservations.insert(address, address + bytes);
        Ok(address)
    }

    pub(super) fn unreserve(&mut self, address: Address, bytes: u64) -> Result<(), ErrorKind> {
        let range = address..address.saturating_add(bytes);
        if self.reservations.get(&address) != Some(&range.end) {
            return Err(ErrorKind::UnknownHandle { what: "reservation", handle: address });
        }
        if let Some((&start, mapping)) = self.mappings.range(range).next() {
            return Err(ErrorKind::RangeMapped(start..start + mapping.bytes));
        }
        self.reservations.remove(&address);
        Ok(())
    }

    pub(super) fn create(&mut self, bytes: u64) -> Result<ChunkId, ErrorKind> {
        self.check_aligned("size", bytes)?;
        self.physical.create(bytes)
    }

    /// Maps a chunk. Returns its size in bytes.
    pub(super) fn map(&mut self, address: Address, chunk: ChunkId) -> Result<u64, ErrorKind> {
        self.check_aligned("address", address)?;
        let (physical, bytes) = self.physical.resolve(chunk)?;
        let range = address..address.saturating_add(bytes);
        let reservation = self.reservations.range(..=address).next_back();
        if reservation.is_none_or(|(_, &end)| range.end > end) {
            return Err(ErrorKind::NotReserved(range));
        }
        if let Some(existing) = self.mapping_in(&range) {
            return Err(ErrorKind::Overlap { range, existing });
        }
        self.physical.note_mapped(chunk)?;
        self.mappings
            .insert(address, SimMapping { bytes, physical, chunk: Some(chunk), access: None, uses: Vec::new() });
        Ok(bytes)
    }

    /// Maps host memory so that kernels can use it in place.
    pub(super) fn map_host(&mut self, start: u64, bytes: u64, access: AccessMode) -> Result<Address, ErrorKind> {
        let address = self.fresh_range(bytes)?;
        let physical = self.physical.add_host(start, bytes);
        let access = Some(access);
        self.mappings.insert(address, SimMapping { bytes, physical, chunk: None, access, uses: Vec::new() });
        Ok(address)
    }

    /// Undoes [`map_host`](Self::map_host), unless a kernel may still use the memory.
    pub(super) fn unmap_host(&mut self, address: Address, host: &Clock) -> Result<(), Arc<Launch>> {
        let mapping = self.mappings.get(&address);
        if let Some(used) = mapping.and_then(|mapping| mapping.uses.iter().find(|used| !host.covers(used))) {
            return Err(Arc::clone(&used.launch));
        }
        if let Some(mapping) = self.mappings.remove(&address) {
            self.physical.remove(mapping.physical);
        }
        Ok(())
    }

    /// Makes the chunks mapped in a range accessible. Returns their sizes in bytes.
    pub(super) fn set_access(
        &mut self,
        address: Address,
        bytes: u64,
        access: AccessMode,
    ) -> Result<Vec<u64>, ErrorKind> {
        let mappings = self.whole_chunks(address, bytes)?;
        let mut bytes = Vec::with_capacity(mappings.len());
        for start in mappings {
            if let Some(mapping) = self.mappings.get_mut(&start) {
                mapping.access = Some(access);
                bytes.push(mapping.bytes);
            }
        }
        Ok(bytes)
    }

    pub(super) fn enable_peer(&mut self, peer: u8) {
        self.peers.insert(peer);
    }

    /// Returns whether a peer has `access` to a whole range.
    pub(super) fn lets(&self, peer: u8, access: AccessMode, range: Range<Address>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let Some((start, mapping)) = self.mappings.range(..=at).next_back() else { return false };
            let is_allowed = mapping.access == Some(AccessMode::ReadWrite) || mapping.access == Some(access);
            if !is_allowed || at >= start + mapping.bytes {
                return false;
            }
            at = start + mapping.bytes;
        }
        self.peers.contains(&peer)
    }

    /// Unmaps the chunks in a range. `host` is the work that the host knows to be complete. Returns their sizes in
    /// bytes.
    pub(super) fn unmap(&mut self, address: Address, bytes: u64, host: &Clock) -> Result<Vec<u64>, ErrorKind> {
        let mappings = self.whole_chunks(address, bytes)?;
        for start in &mappings {
            let mapping = &self.mappings[start];
            if let Some(used) = mapping.uses.iter().find(|used| !host.covers(used)) {
                let range = *start..start + mapping.bytes;
                return Err(ErrorKind::UnmappedInUse { range, launch: Arc::clone(&used.launch) });
            }
        }
        let mut sizes = Vec::with_capacity(mappings.len());
        for start in mappings {
            if let Some(SimMapping { bytes, chunk: Some(chunk), .. }) = self.mappings.remove(&start) {
                self.physical.note_unmapped(chunk)?;
                sizes.push(bytes);
            }
        }
        Ok(sizes)
    }

    /// Checks that memory is mapped, with the needed access, in all device ranges of a declaration.
    pub(super) fn check(&self, touches: &Touches, launch: &Arc<Launch>) -> Result<(), ErrorKind> {
        let reads = touches.reads.iter().map(|range| (range, false));
        let mut ranges = reads.chain(touches.writes.iter().map(|range| (range, true)));
        ranges.try_for_each(|(range, write)| self.resolve(range, write, launch).map(|_| ()))
    }

    /// Checks that a piece of work may touch the device ranges that it declares and races with no other work, and
    /// records its accesses. `clock` is the work that comes before it.
    pub(super) fn touch(&mut self, touches: &Touches, access: &Access, clock: &Clock) -> Result<(), ErrorKind> {
        let reads = touches.reads.iter().map(|range| (range, false));
        let ranges = reads.chain(touches.writes.iter().map(|range| (range, true)));
        for (range, write) in ranges.clone() {
            for part in self.resolve(range, write, &access.launch)? {
                let shadow = self.physical.shadow(part.physical);
                if let Some((first, bytes)) = shadow.conflict(&part.bytes(), write, clock) {
                    let at = |offset: u64| part.address.start + (offset - part.offset);
                    let second = Arc::clone(&access.launch);
                    let range = at(bytes.start)..at(bytes.end);
                    return Err(ErrorKind::Race { first, second, range });
                }
            }
        }
        for (range, write) in ranges {
            for part in self.resolve(range, write, &access.launch)? {
                self.physical.shadow_mut(part.physical).record(&part.bytes(), write, access);
                if let Some(mapping) = self.mappings.get_mut(&part.mapping) {
                    mapping.uses.retain(|earlier| !earlier.is_superseded_by(access));
                    mapping.uses.push(access.clone());
                }
            }
        }
        Ok(())
    }

    pub(super) fn read(&self, address: Address, target: &mut [u8], launch: &Arc<Launch>) -> Result<(), ErrorKind> {
        for part in self.resolve(&(address..address + target.len() as u64), false, launch)? {
            let within = (part.address.start - address) as usize..(part.address.end - address) as usize;
            self.physical.read(part.physical, part.offset, &mut target[within]);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, address: Address, source: &[u8], launch: &Arc<Launch>) -> Result<(), ErrorKind> {
        for part in self.resolve(&(address..address + source.len() as u64), true, launch)? {
            let within = (part.address.start - address) as usize..(part.address.end - address) as usize;
            self.physical.write(part.physical, part.offset, &source[within]);
        }
        Ok(())
    }

    /// Divides `range` into parts that each lie on one physical allocation, in order. Fails if a part is not mapped or
    /// may not be read, or may not be written if `write` is set.
    fn resolve(
        &self,
        range: &Range<Address>,
        write: bool,
        launch: &Arc<Launch>,
    ) -> Result<Vec<AccessedPart>, ErrorKind> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let below = self.mappings.range(..=at).next_back();
            let Some((&start, mapping)) = below.filter(|(start, mapping)| at < *start + mapping.bytes) else {
                let end = self.mappings.range(at..range.end).next().map_or(range.end, |(&start, _)| start);
                return Err(ErrorKind::IllegalAddress { launch: Arc::clone(launch), range: at..end });
            };
            let end = start + mapping.bytes;
            match mapping.access {
                None => return Err(ErrorKind::NoAccess { launch: Arc::clone(launch), range: start..end }),
                Some(AccessMode::Read) if write => {
                    return Err(ErrorKind::ReadOnly { launch: Arc::clone(launch), range: start..end });
                }
                Some(_) => {}
            }
            let address = at..end.min(range.end);
            at = address.end;
            let offset = address.start - start;
            parts.push(AccessedPart { address, mapping: start, physical: mapping.physical, offset });
        }
        Ok(parts)
    }

    /// Returns the addresses of the chunks mapped in a range, which must cover each of them whole and have no gap.
    fn whole_chunks(&self, address: Address, bytes: u64) -> Result<Vec<Address>, ErrorKind> {
        self.check_aligned("address", address)?;
        self.check_aligned("size", bytes)?;
        let range = address..address.saturating_add(bytes);
        let mut starts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let below = self.mappings.range(..=at).next_back();
            let chunk = below.filter(|(start, mapping)| at < *start + mapping.bytes && mapping.chunk.is_some());
            let Some((&start, mapping)) = chunk else {
                let end = self.mappings.range(at..range.end).next().map_or(range.end, |(&start, _)| start);
                return Err(ErrorKind::NotMapped(at..end.max(at + self.granularity)));
            };
            let mapping = start..start + mapping.bytes;
            if mapping.start < at || mapping.end > range.end {
                return Err(ErrorKind::PartialChunk { range, mapping });
            }
            starts.push(start);
            at = mapping.end;
        }
        Ok(starts)
    }

    fn check_aligned(&self, what: &'static str, value: u64) -> Result<(), ErrorKind> {
        let granularity = self.granularity;
        if value == 0 || !value.is_multiple_of(granularity) {
            return Err(ErrorKind::Misaligned { what, value, granularity });
        }
        Ok(())
    }

    /// Returns unused addresses with a gap after them, so that an access beyond their end hits nothing.
    fn fresh_range(&mut self, bytes: u64) -> Result<Address, ErrorKind> {
        let gap = self.granularity;
        loop {
            let start = self.next_address;
            let next = bytes.checked_next_multiple_of(gap).and_then(|bytes| start.checked_add(bytes)?.checked_add(gap));
            let next = next.ok_or(ErrorKind::OutOfMemory { requested: bytes, free: Address::MAX - start })?;
            let Some(existing_range) = self.existing_range(&(start..next - gap)) else {
                self.next_address = next;
                return Ok(start);
            };
            self.next_address = existing_range.end.next_multiple_of(gap) + gap;
        }
    }

    /// Returns a reservation or mapping that overlaps `range`.
    fn existing_range(&self, range: &Range<Address>) -> Option<Range<Address>> {
        let reservation = self.reservations.range(..range.end).next_back().map(|(&start, &end)| start..end);
        reservation.filter(|reservation| reservation.end > range.start).or_else(|| self.mapping_in(range))
    }

    /// Returns a mapping that overlaps `range`.
    fn mapping_in(&self, range: &Range<Address>) -> Option<Range<Address>> {
        let (&start, mapping) = self.mappings.range(..range.end).next_back()?;
        let end = start + mapping.bytes;
        (end > range.start).then_some(start..end)
    }
}
