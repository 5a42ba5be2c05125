//! The simulated device's physical memory: its size, its holders, and its bytes.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustc_hash::FxHashMap;
use tenure_alloc::{ChunkId, MemoryInfo};

use super::pages::Pages;
use super::race::Shadow;
use super::shared::{Abandoned, SharedBytes};
use crate::{ErrorKind, MemoryHandle};

/// The memory of a device, and memory of other devices that it imported.
pub(super) struct PhysicalMemory {
    total_bytes: u64,
    /// The bytes that the context and other processes hold all the time.
    base_bytes: u64,
    /// The size of all used memory: `base_bytes`, and every allocation created here that any process still holds.
    used_bytes: u64,
    peak_bytes: u64,
    /// The id of the next allocation or chunk.
    next: u64,
    allocations: FxHashMap<u64, Allocation>,
    chunks: FxHashMap<ChunkId, SimChunk>,
    /// Allocations released here that other processes may still hold, with their sizes.
    abandoned: Vec<(Abandoned, u64)>,
}

/// A segment, or the memory of one or several chunk handles.
struct Allocation {
    bytes: u64,
    /// Whether this device created it, so that it counts as used memory of this device.
    created_here: bool,
    /// The number of its handles.
    handles: usize,
    data: Data,
    /// The last accesses to its bytes.
    shadow: Shadow,
}

/// The place of an allocation's bytes.
enum Data {
    /// In this process.
    Private(Pages),
    /// In a file that several devices or processes share.
    Shared(SharedBytes),
    /// Registered host memory, by the address of its first byte.
    Host(u64),
}

/// A handle of an allocation.
struct SimChunk {
    allocation: u64,
    /// The number of addresses at which it is mapped.
    mapped: usize,
}

impl PhysicalMemory {
    /// Creates memory of `total_bytes`, of which `base_bytes` are in use from the start.
    pub(super) fn new(total_bytes: u64, base_bytes: u64) -> Self {
        Self {
            total_bytes,
            base_bytes,
            used_bytes: base_bytes,
            peak_bytes: base_bytes,
            next: 1,
            allocations: FxHashMap::default(),
            chunks: FxHashMap::default(),
            abandoned: Vec::new(),
        }
    }

    /// Returns the free and the total memory, after it looks which released allocations are no longer held.
    pub(super) fn info(&mut self) -> MemoryInfo {
        self.abandoned.retain(|(bytes, size)| {
            let is_held = bytes.is_held();
            if !is_held {
                self.used_bytes -= *size;
            }
            is_held
        });
        MemoryInfo { free: self.total_bytes.saturating_sub(self.used_bytes), total: self.total_bytes }
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Returns the bytes that this driver's handles hold, without imports.
    pub(super) fn held_bytes(&self) -> u64 {
        self.used_bytes - self.base_bytes - self.abandoned.iter().map(|(_, size)| size).sum::<u64>()
    }

    /// Checks that so many bytes are free.
    pub(super) fn check_room(&mut self, requested: u64) -> Result<(), ErrorKind> {
        let free = self.info().free;
        if requested > free { Err(ErrorKind::OutOfMemory { requested, free }) } else { Ok(()) }
    }

    /// Adds an allocation, without a chunk. The caller checked that there is room.
    pub(super) fn add_segment(&mut self, bytes: u64) -> u64 {
        let id = self.new_id();
        self.used_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        self.add(id, bytes, true, Data::Private(Pages::new(id << 32)));
        id
    }

    /// Adds host memory, which does not count as used memory of the device.
    pub(super) fn add_host(&mut self, first: u64, bytes: u64) -> u64 {
        let id = self.new_id();
        self.add(id, bytes, false, Data::Host(first));
        id
    }

    /// Gives up a handle of an allocation. Returns the allocation's size.
    pub(super) fn remove(&mut self, id: u64) -> u64 {
        let Some(allocation) = self.allocations.get_mut(&id) else { return 0 };
        allocation.handles -= 1;
        let bytes = allocation.bytes;
        if allocation.handles == 0
            && let Some(Allocation { created_here: true, data, .. }) = self.allocations.remove(&id)
        {
            let held = match data {
                // Where the system refuses to check, no other process counts as a holder.
                Data::Shared(shared) => shared.abandon().ok().filter(Abandoned::is_held),
                Data::Private(_) | Data::Host(_) => None,
            };
            match held {
                Some(abandoned) => self.abandoned.push((abandoned, bytes)),
                None => self.used_bytes -= bytes,
            }
        }
        bytes
    }

    pub(super) fn create(&mut self, bytes: u64) -> Result<ChunkId, ErrorKind> {
        self.check_room(bytes)?;
        let allocation = self.add_segment(bytes);
        self.chunks.insert(ChunkId(allocation), SimChunk { allocation, mapped: 0 });
        Ok(ChunkId(allocation))
    }

    /// Releases a chunk that is mapped nowhere. Returns its size.
    pub(super) fn release(&mut self, chunk: ChunkId) -> Result<u64, ErrorKind> {
        let &mut SimChunk { allocation, mapped } = self.chunk(chunk)?;
        if mapped > 0 {
            return Err(ErrorKind::ChunkMapped { chunk, count: mapped });
        }
        self.chunks.remove(&chunk);
        Ok(self.remove(allocation))
    }

    /// Returns a descriptor of a chunk. Its bytes are shared from now on.
    pub(super) fn export(&mut self, chunk: ChunkId) -> Result<OwnedFd, ErrorKind> {
        let id = self.chunk(chunk)?.allocation;
        self.share(id)?.export()
    }

    /// Returns a handle of a segment for other processes. Its bytes are shared from now on.
    pub(super) fn export_segment(&mut self, id: u64) -> Result<MemoryHandle, ErrorKind> {
        let bytes = self.allocation_mut(id).bytes;
        Ok(self.share(id)?.handle(bytes))
    }

    /// Opens memory that another device made. Returns its allocation and size.
    pub(super) fn open(&mut self, handle: &MemoryHandle) -> Result<(u64, u64), ErrorKind> {
        let (shared, bytes) = SharedBytes::open(handle)?;
        match self.find(&shared).map(|id| (id, self.allocations[&id].created_here)) {
            Some((_, true)) => Err(ErrorKind::OwnMemory),
            Some((id, false)) => {
                self.allocation_mut(id).handles += 1;
                Ok((id, bytes))
            }
            None => {
                let id = self.new_id();
                self.add(id, bytes, false, Data::Shared(shared));
                Ok((id, bytes))
            }
        }
    }

    /// Returns the bytes of an allocation of this device, which are shared from now on.
    fn share(&mut self, id: u64) -> Result<&SharedBytes, ErrorKind> {
        let allocation = self.allocation_mut(id);
        if let Data::Private(pages) = &allocation.data {
            let shared = SharedBytes::new(allocation.bytes)?;
            pages.written().for_each(|(offset, page)| {
                let len = page.len().min((allocation.bytes - offset) as usize);
                shared.write(offset, &page[..len]);
            });
            allocation.data = Data::Shared(shared);
        }
        match &allocation.data {
            Data::Shared(shared) => Ok(shared),
            Data::Private(_) | Data::Host(_) => unreachable!("it is memory of the device, and was shared"),
        }
    }

    /// Imports a descriptor, as another handle of an allocation that this device has already, or as a new allocation.
    pub(super) fn import(&mut self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, ErrorKind> {
        let shared = SharedBytes::import(descriptor, bytes)?;
        let existing = self.find(&shared);
        let chunk = ChunkId(self.new_id());
        match existing {
            Some(id) => self.allocation_mut(id).handles += 1,
            None => self.add(chunk.0, bytes, false, Data::Shared(shared)),
        }
        self.chunks.insert(chunk, SimChunk { allocation: existing.unwrap_or(chunk.0), mapped: 0 });
        Ok(chunk)
    }

    /// Returns the allocation that already has these bytes, if there is one.
    fn find(&self, shared: &SharedBytes) -> Option<u64> {
        let mut allocations = self.allocations.iter();
        allocations
            .find(|(_, existing)| matches!(&existing.data, Data::Shared(other) if shared.is(other)))
            .map(|(&id, _)| id)
    }

    /// Returns the allocation of a chunk, and its size.
    pub(super) fn resolve(&mut self, chunk: ChunkId) -> Result<(u64, u64), ErrorKind> {
        let id = self.chunk(chunk)?.allocation;
        Ok((id, self.allocations[&id].bytes))
    }

    pub(super) fn note_mapped(&mut self, chunk: ChunkId) -> Result<(), ErrorKind> {
        self.chunk(chunk)?.mapped += 1;
        Ok(())
    }

    pub(super) fn note_unmapped(&mut self, chunk: ChunkId) -> Result<(), ErrorKind> {
        self.chunk(chunk)?.mapped -= 1;
        Ok(())
    }

    pub(super) fn read(&self, id: u64, offset: u64, target: &mut [u8]) {
        match &self.allocations[&id].data {
            Data::Private(pages) => pages.read(offset, target),
            Data::Shared(shared) => shared.read(offset, target),
            Data::Host(first) => {
                let source = std::ptr::with_exposed_provenance::<u8>((first + offset) as usize);
                // SAFETY: within registered memory, which its owner keeps mapped until it is unregistered; that removes
                // this allocation.
                unsafe { source.copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) }
            }
        }
    }

    pub(super) fn write(&mut self, id: u64, offset: u64, source: &[u8]) {
        match &mut self.allocation_mut(id).data {
            Data::Private(pages) => pages.write(offset, source),
            Data::Shared(shared) => shared.write(offset, source),
            Data::Host(first) => {
                let target = std::ptr::with_exposed_provenance_mut::<u8>((*first + offset) as usize);
                // SAFETY: as in `read`; and it was registered for writing, so that only the device uses these bytes.
                unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) }
            }
        }
    }

    pub(super) fn shadow(&self, id: u64) -> &Shadow {
        &self.allocations[&id].shadow
    }

    pub(super) fn shadow_mut(&mut self, id: u64) -> &mut Shadow {
        &mut self.allocation_mut(id).shadow
    }

    fn chunk(&mut self, chunk: ChunkId) -> Result<&mut SimChunk, ErrorKind> {
        self.chunks.get_mut(&chunk).ok_or(ErrorKind::UnknownHandle { what: "chunk", handle: chunk.0 })
    }

    fn allocation_mut(&mut self, id: u64) -> &mut Allocation {
        self.allocations.get_mut(&id).expect("what is mapped or has a handle is there")
    }

    /// Returns an id that no allocation and no chunk had before.
    fn new_id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn add(&mut self, id: u64, bytes: u64, created_here: bool, data: Data) {
        self.allocations.insert(id, Allocation { bytes, created_here, handles: 1, data, shadow: Shadow::default() });
    }
}
