//! Physical memory: how much there is, who holds it, and its bytes.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustc_hash::FxHashMap;
use tenure_alloc::{ChunkId, MemoryInfo};

use super::pages::Pages;
use super::race::Shadow;
use super::shared::{Abandoned, SharedBytes};
use crate::{ErrorKind, MemoryHandle};

/// The memory of a device, and memory of others that it imported.
pub(super) struct PhysicalMemory {
    total_bytes: u64,
    /// What the context and others hold, for good.
    base_bytes: u64,
    /// The base, and every allocation that was made here and that somebody holds.
    used_bytes: u64,
    peak_bytes: u64,
    next: u64,
    allocations: FxHashMap<u64, Allocation>,
    chunks: FxHashMap<ChunkId, Chunk>,
    /// Released here, but maybe held elsewhere, with their sizes.
    abandoned: Vec<(Abandoned, u64)>,
}

/// One segment, or what one or several chunk handles stand for.
struct Allocation {
    bytes: u64,
    /// Made here, so that it is on this device's account.
    own: bool,
    /// How many handles it has.
    handles: usize,
    data: Data,
    shadow: Shadow,
}

enum Data {
    Private(Pages),
    Shared(SharedBytes),
    /// Registered memory of the host, by its first byte's address.
    Host(u64),
}

struct Chunk {
    allocation: u64,
    /// At how many addresses.
    mapped: usize,
}

impl PhysicalMemory {
    /// `base_bytes` of `total_bytes` are in use from the start.
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

    pub(super) fn info(&mut self) -> MemoryInfo {
        self.abandoned.retain(|(bytes, size)| {
            let held = bytes.is_held();
            self.used_bytes -= if held { 0 } else { *size };
            held
        });
        MemoryInfo { free: self.total_bytes.saturating_sub(self.used_bytes), total: self.total_bytes }
    }

    pub(super) fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// What handles of this driver stand for, imports not counted.
    pub(super) fn held_bytes(&self) -> u64 {
        self.used_bytes - self.base_bytes - self.abandoned.iter().map(|(_, size)| size).sum::<u64>()
    }

    pub(super) fn check_room(&mut self, requested: u64) -> Result<(), ErrorKind> {
        let free = self.info().free;
        if requested > free { Err(ErrorKind::OutOfMemory { requested, free }) } else { Ok(()) }
    }

    /// Memory that is no chunk. The caller checked that there is room.
    pub(super) fn add_segment(&mut self, bytes: u64) -> u64 {
        let id = self.name();
        self.used_bytes += bytes;
        self.peak_bytes = self.peak_bytes.max(self.used_bytes);
        self.add(id, bytes, true, Data::Private(Pages::new(id << 32)));
        id
    }

    /// Memory of the host, which is on no account of the device.
    pub(super) fn add_host(&mut self, first: u64, bytes: u64) -> u64 {
        let id = self.name();
        self.add(id, bytes, false, Data::Host(first));
        id
    }

    /// Gives up a handle of an allocation. Returns its size.
    pub(super) fn remove(&mut self, id: u64) -> u64 {
        let Some(allocation) = self.allocations.get_mut(&id) else { return 0 };
        allocation.handles -= 1;
        let bytes = allocation.bytes;
        if allocation.handles == 0
            && let Some(Allocation { own: true, data, .. }) = self.allocations.remove(&id)
        {
            let held = match data {
                // Where the system refuses to look, nobody counts as holding it.
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
        self.chunks.insert(ChunkId(allocation), Chunk { allocation, mapped: 0 });
        Ok(ChunkId(allocation))
    }

    /// Gives up a chunk that is mapped nowhere. Returns its size.
    pub(super) fn release(&mut self, chunk: ChunkId) -> Result<u64, ErrorKind> {
        let &mut Chunk { allocation, mapped } = self.chunk(chunk)?;
        if mapped > 0 {
            return Err(ErrorKind::ChunkMapped { chunk, count: mapped });
        }
        self.chunks.remove(&chunk);
        Ok(self.remove(allocation))
    }

    /// A descriptor of a chunk, whose bytes are shared from now on.
    pub(super) fn export(&mut self, chunk: ChunkId) -> Result<OwnedFd, ErrorKind> {
        let id = self.chunk(chunk)?.allocation;
        self.share(id)?.export()
    }

    /// The name of a segment, whose bytes are shared from now on.
    pub(super) fn export_segment(&mut self, id: u64) -> Result<MemoryHandle, ErrorKind> {
        let bytes = self.allocation_mut(id).bytes;
        Ok(self.share(id)?.handle(bytes))
    }

    /// Memory that another device made. Returns its allocation and size.
    pub(super) fn open(&mut self, handle: &MemoryHandle) -> Result<(u64, u64), ErrorKind> {
        let (shared, bytes) = SharedBytes::open(handle)?;
        let same = |known: &Allocation| matches!(&known.data, Data::Shared(other) if shared.is(other));
        let known = self.allocations.iter().find(|(_, known)| same(known));
        let known = known.map(|(&id, allocation)| (id, allocation.own));
        match known {
            Some((_, true)) => Err(ErrorKind::OwnMemory),
            Some((id, false)) => {
                self.allocation_mut(id).handles += 1;
                Ok((id, bytes))
            }
            None => {
                let id = self.name();
                self.add(id, bytes, false, Data::Shared(shared));
                Ok((id, bytes))
            }
        }
    }

    /// The bytes of an allocation of the device, which are shared from now on.
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

    /// Another handle of an allocation that was made here, or a handle of one that was made elsewhere.
    pub(super) fn import(&mut self, descriptor: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, ErrorKind> {
        let shared = SharedBytes::import(descriptor, bytes)?;
        let same = |known: &Allocation| matches!(&known.data, Data::Shared(other) if shared.is(other));
        let known = self.allocations.iter().find(|(_, known)| same(known)).map(|(&id, _)| id);
        let chunk = ChunkId(self.name());
        match known {
            Some(id) => self.allocation_mut(id).handles += 1,
            None => self.add(chunk.0, bytes, false, Data::Shared(shared)),
        }
        self.chunks.insert(chunk, Chunk { allocation: known.unwrap_or(chunk.0), mapped: 0 });
        Ok(chunk)
    }

    /// Which allocation a chunk stands for, and its size.
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
                // SAFETY: within what is registered, which its owner keeps mapped until it is unregistered; that takes this away.
                unsafe { source.copy_to_nonoverlapping(target.as_mut_ptr(), target.len()) }
            }
        }
    }

    pub(super) fn write(&mut self, id: u64, offset: u64, source: &[u8]) {
        match &mut self.allocation_mut(id).data {
            Data::Private(pages) => pages.write(offset, source),
            Data::Shared(shared) => shared.write(offset, source),
            Data::Host(_) => unreachable!("kernels only read it"),
        }
    }

    pub(super) fn shadow(&self, id: u64) -> &Shadow {
        &self.allocations[&id].shadow
    }

    pub(super) fn shadow_mut(&mut self, id: u64) -> &mut Shadow {
        &mut self.allocation_mut(id).shadow
    }

    fn chunk(&mut self, chunk: ChunkId) -> Result<&mut Chunk, ErrorKind> {
        self.chunks.get_mut(&chunk).ok_or(ErrorKind::UnknownHandle { what: "chunk", handle: chunk.0 })
    }

    fn allocation_mut(&mut self, id: u64) -> &mut Allocation {
        self.allocations.get_mut(&id).expect("what is mapped or has a handle is there")
    }

    fn name(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn add(&mut self, id: u64, bytes: u64, own: bool, data: Data) {
        self.allocations.insert(id, Allocation { bytes, own, handles: 1, data, shadow: Shadow::default() });
    }
}
