//! The device memory that the libraries of this process hold.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use serde::Serialize;
use tenure_alloc::Address;

/// The memory of one device that one library of this process holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LibraryUse {
    /// The library: a file name such as `libnccl.so.2`, or the Python package of an extension module.
    pub library: String,
    /// The bytes that it holds.
    pub bytes: u64,
    /// The most bytes that it has held.
    pub peak_bytes: u64,
    /// How many times it has allocated.
    pub allocations: u64,
}

/// The allocations of libraries, by what names them: a segment by its address; a chunk by its handles, and by the
/// addresses where it is mapped. A chunk lives as long as either.
///
/// The driver may give a name anew as soon as a call that ends it has begun. So a name is taken out before the call, and
/// put back if the call fails.
#[derive(Default)]
pub(super) struct Ledger {
    holders: Vec<Holder>,
    segments: FxHashMap<Address, Holding>,
    chunks: FxHashMap<ChunkKey, Chunk>,
    handles: FxHashMap<u64, Handle>,
    mappings: BTreeMap<Address, Mapping>,
    /// The libraries and devices of pools for allocation in stream order, by handle.
    pools: FxHashMap<u64, (String, i32)>,
    last_key: ChunkKey,
}

type ChunkKey = u64;

/// A library on a device.
struct Holder {
    device: i32,
    held: LibraryUse,
}

/// Bytes that a holder has.
#[derive(Clone, Copy)]
pub(super) struct Holding {
    holder: usize,
    bytes: u64,
}

/// A name of a chunk, and the references under it.
struct Handle {
    chunk: ChunkKey,
    references: usize,
}

struct Chunk {
    holding: Holding,
    /// The references under all its handles.
    references: usize,
    mappings: usize,
}

/// A mapped range that shows a chunk.
#[derive(Clone, Copy)]
struct Mapping {
    bytes: u64,
    chunk: ChunkKey,
}

/// Ranges that are about to be unmapped.
pub(super) struct Unmapping(Vec<(Address, Mapping)>);

/// A handle that is about to be released.
#[derive(Clone, Copy)]
pub(super) struct Releasing {
    handle: u64,
    chunk: ChunkKey,
}

impl Ledger {
    /// Returns what each library holds of a device, the most first, without those that hold nothing.
    pub(super) fn uses(&self, device: i32) -> Vec<LibraryUse> {
        let held = self.holders.iter().filter(|holder| holder.device == device && holder.held.bytes > 0);
        let mut uses: Vec<LibraryUse> = held.map(|holder| holder.held.clone()).collect();
        uses.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.library.cmp(&b.library)));
        uses
    }

    pub(super) fn add_pool(&mut self, library: &str, device: i32, pool: u64) {
        self.pools.insert(pool, (library.to_owned(), device));
    }

    pub(super) fn remove_pool(&mut self, pool: u64) {
        self.pools.remove(&pool);
    }

    /// Returns the library and the handle of each pool of a device.
    pub(super) fn pools(&self, device: i32) -> impl Iterator<Item = (&str, u64)> {
        let pools = self.pools.iter().filter(move |(_, (_, owner))| *owner == device);
        pools.map(|(&pool, (library, _))| (library.as_str(), pool))
    }

    pub(super) fn add_segment(&mut self, library: &str, device: i32, address: Address, bytes: u64) {
        // The end of an earlier one there was not seen.
        self.take_segment(address);
        let holding = self.hold(library, device, bytes);
        self.segments.insert(address, holding);
    }

    /// Takes out a segment that is about to be freed. Returns `None` if it is not a library's.
    pub(super) fn take_segment(&mut self, address: Address) -> Option<Holding> {
        let holding = self.segments.remove(&address)?;
        self.holders[holding.holder].held.bytes -= holding.bytes;
        Some(holding)
    }

    /// Puts back a segment that was not freed.
    pub(super) fn put_back_segment(&mut self, address: Address, holding: Holding) {
        self.holders[holding.holder].held.bytes += holding.bytes;
        self.segments.insert(address, holding);
    }

    pub(super) fn add_chunk(&mut self, library: &str, device: i32, handle: u64, bytes: u64) {
        let holding = self.hold(library, device, bytes);
        self.last_key += 1;
        self.chunks.insert(self.last_key, Chunk { holding, references: 0, mappings: 0 });
        self.refer(handle, self.last_key);
    }

    /// Notes one more reference to the chunk that is mapped at an address, under a handle that may be a new one.
    pub(super) fn retain(&mut self, handle: u64, address: Address) {
        let below = self.mappings.range(..=address).next_back();
        let Some((_, mapping)) = below.filter(|(start, mapping)| address - **start < mapping.bytes) else { return };
        self.refer(handle, mapping.chunk);
    }

    /// Adds a reference to a chunk under a handle.
    fn refer(&mut self, handle: u64, key: ChunkKey) {
        let entry = self.handles.entry(handle).or_insert(Handle { chunk: key, references: 0 });
        if entry.chunk != key {
            // The end of an earlier chunk of this name was not seen.
            let gone = std::mem::replace(entry, Handle { chunk: key, references: 0 });
            if let Some(chunk) = self.chunks.get_mut(&gone.chunk) {
                chunk.references -= gone.references;
            }
            self.end_if_unused(gone.chunk);
        }
        if let (Some(entry), Some(chunk)) = (self.handles.get_mut(&handle), self.chunks.get_mut(&key)) {
            entry.references += 1;
            chunk.references += 1;
        }
    }

    /// Takes out a reference that is about to be released. Returns `None` if the chunk is not a library's.
    pub(super) fn take_handle(&mut self, handle: u64) -> Option<Releasing> {
        let entry = self.handles.get_mut(&handle)?;
        let key = entry.chunk;
        entry.references -= 1;
        if entry.references == 0 {
            self.handles.remove(&handle);
        }
        self.chunks.get_mut(&key)?.references -= 1;
        Some(Releasing { handle, chunk: key })
    }

    /// Puts back a reference that was not released.
    pub(super) fn put_back_handle(&mut self, Releasing { handle, chunk: key }: Releasing) {
        self.refer(handle, key);
    }

    /// Notes that a reference was released.
    pub(super) fn released(&mut self, releasing: Releasing) {
        self.end_if_unused(releasing.chunk);
    }

    /// Notes that the chunk of a handle was mapped, if it is a library's.
    pub(super) fn map(&mut self, address: Address, bytes: u64, handle: u64) {
        let Some(&Handle { chunk: key, .. }) = self.handles.get(&handle) else { return };
        // The end of an earlier mapping there was not seen.
        let gone = self.take_mappings(address, bytes);
        self.unmapped(gone);
        if let Some(chunk) = self.chunks.get_mut(&key) {
            chunk.mappings += 1;
            self.mappings.insert(address, Mapping { bytes, chunk: key });
        }
    }

    /// Takes out the mappings in a range that is about to be unmapped.
    pub(super) fn take_mappings(&mut self, address: Address, bytes: u64) -> Unmapping {
        Unmapping(self.mappings.extract_if(address..address.saturating_add(bytes), |_, _| true).collect())
    }

    /// Puts back mappings that were not unmapped.
    pub(super) fn put_back_mappings(&mut self, unmapping: Unmapping) {
        self.mappings.extend(unmapping.0);
    }

    /// Notes that mappings were unmapped.
    pub(super) fn unmapped(&mut self, unmapping: Unmapping) {
        for (_, mapping) in unmapping.0 {
            if let Some(chunk) = self.chunks.get_mut(&mapping.chunk) {
                chunk.mappings -= 1;
            }
            self.end_if_unused(mapping.chunk);
        }
    }

    fn end_if_unused(&mut self, key: ChunkKey) {
        if let Some(&Chunk { holding, references: 0, mappings: 0 }) = self.chunks.get(&key) {
            self.chunks.remove(&key);
            self.holders[holding.holder].held.bytes -= holding.bytes;
        }
    }

    /// Counts an allocation of a library.
    fn hold(&mut self, library: &str, device: i32, bytes: u64) -> Holding {
        let known = self.holders.iter().position(|it| it.device == device && it.held.library == library);
        let holder = known.unwrap_or_else(|| {
            let held = LibraryUse { library: library.to_owned(), bytes: 0, peak_bytes: 0, allocations: 0 };
            self.holders.push(Holder { device, held });
            self.holders.len() - 1
        });
        let held = &mut self.holders[holder].held;
        held.allocations += 1;
        held.bytes += bytes;
        held.peak_bytes = held.peak_bytes.max(held.bytes);
        Holding { holder, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(ledger: &Ledger) -> u64 {
        ledger.uses(0).iter().map(|held| held.bytes).sum()
    }

    #[test]
    fn a_library_holds_its_segments_until_they_are_freed() {
        let mut ledger = Ledger::default();
        ledger.add_segment("a", 0, 10, 3);
        ledger.add_segment("b", 0, 20, 5);
        ledger.add_segment("a", 1, 30, 7);
        let held =
            |library: &str, bytes| LibraryUse { library: library.to_owned(), bytes, peak_bytes: bytes, allocations: 1 };
        assert_eq!(ledger.uses(0), [held("b", 5), held("a", 3)]);
        assert_eq!(ledger.uses(1), [held("a", 7)]);
        let freed = ledger.take_segment(20).unwrap();
        assert_eq!(ledger.uses(0), [held("a", 3)]);
        ledger.put_back_segment(20, freed);
        assert_eq!(ledger.uses(0), [held("b", 5), held("a", 3)]);
        assert!(ledger.take_segment(21).is_none());
    }

    #[test]
    fn a_chunk_is_held_while_it_has_a_handle_or_a_mapping() {
        let mut ledger = Ledger::default();
        ledger.add_chunk("a", 0, 1, 8);
        ledger.map(100, 8, 1);
        let releasing = ledger.take_handle(1).unwrap();
        ledger.released(releasing);
        assert_eq!(bytes(&ledger), 8);
        // The driver gives the handle to another chunk.
        ledger.add_chunk("a", 0, 1, 4);
        assert_eq!(bytes(&ledger), 12);
        ledger.retain(2, 107);
        let unmapping = ledger.take_mappings(100, 8);
        ledger.unmapped(unmapping);
        assert_eq!(bytes(&ledger), 12);
        let releasing = ledger.take_handle(2).unwrap();
        ledger.released(releasing);
        assert_eq!(bytes(&ledger), 4);
        let releasing = ledger.take_handle(1).unwrap();
        ledger.released(releasing);
        assert_eq!(bytes(&ledger), 0);
    }

    #[test]
    fn a_call_that_fails_leaves_the_chunk_as_it_was() {
        let mut ledger = Ledger::default();
        ledger.add_chunk("a", 0, 1, 8);
        ledger.map(100, 8, 1);
        let releasing = ledger.take_handle(1).unwrap();
        ledger.put_back_handle(releasing);
        let unmapping = ledger.take_mappings(100, 8);
        ledger.put_back_mappings(unmapping);
        let unmapping = ledger.take_mappings(100, 8);
        ledger.unmapped(unmapping);
        assert_eq!(bytes(&ledger), 8);
        let releasing = ledger.take_handle(1).unwrap();
        ledger.released(releasing);
        assert_eq!(bytes(&ledger), 0);
    }

    #[test]
    fn each_handle_of_a_chunk_has_references_of_its_own() {
        let mut ledger = Ledger::default();
        ledger.add_chunk("a", 0, 1, 8);
        ledger.map(100, 8, 1);
        ledger.retain(2, 100);
        for handle in [1, 2] {
            let releasing = ledger.take_handle(handle).unwrap();
            ledger.released(releasing);
        }
        assert!(ledger.take_handle(1).is_none());
        assert_eq!(bytes(&ledger), 8);
        let unmapping = ledger.take_mappings(100, 8);
        ledger.unmapped(unmapping);
        assert_eq!(bytes(&ledger), 0);
    }

    #[test]
    fn a_name_that_is_given_anew_ends_what_had_it() {
        let mut ledger = Ledger::default();
        ledger.add_segment("a", 0, 10, 3);
        ledger.add_segment("b", 0, 10, 5);
        ledger.add_chunk("a", 0, 1, 16);
        ledger.add_chunk("a", 0, 1, 32);
        assert_eq!(bytes(&ledger), 37);
        ledger.map(100, 32, 1);
        ledger.add_chunk("a", 0, 2, 64);
        ledger.map(100, 64, 2);
        assert_eq!(bytes(&ledger), 101);
    }

    #[test]
    fn memory_of_other_owners_is_not_counted() {
        let mut ledger = Ledger::default();
        ledger.map(100, 8, 1);
        ledger.retain(1, 100);
        assert!(ledger.take_handle(1).is_none());
        let unmapping = ledger.take_mappings(0, 1000);
        ledger.unmapped(unmapping);
        assert_eq!(bytes(&ledger), 0);
    }
}
