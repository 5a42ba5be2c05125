//! The simulated driver's calls for device memory, and for what processes share.

use std::os::fd::{BorrowedFd, OwnedFd};

use tenure_alloc::{Address, ChunkId, MemoryInfo};

use crate::driver::{MemoryCalls, SharingCalls};
use crate::sim::SimDriver;
use crate::{AccessMode, Call, CallError, ErrorKind, EventHandle, EventId, MemoryHandle, cost};

impl MemoryCalls for SimDriver {
    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn memory_info(&self) -> Result<MemoryInfo, CallError> {
        self.call(Call::MemoryInfo, |state| Ok(state.memory.physical.info()))
    }

    fn malloc(&self, bytes: u64) -> Result<Address, CallError> {
        self.call(Call::Malloc, |state| {
            let address = state.memory.malloc(bytes)?;
            state.counters.malloc += 1;
            state.counters.created_bytes += bytes;
            state.counters.driver_us += cost::MALLOC.us(bytes);
            Ok(address)
        })
        .map_err(|error| as_out_of_memory(error, bytes))
    }

    fn free(&self, address: Address) -> Result<(), CallError> {
        self.block(
            Call::Free,
            |state| {
                state.memory.check_segment(address)?;
                Ok(state.device_goal())
            },
            |state| {
                let bytes = state.memory.free(address)?;
                state.counters.free += 1;
                state.counters.driver_us += cost::FREE.us(bytes);
                Ok(())
            },
        )
    }

    fn reserve(&self, bytes: u64) -> Result<Address, CallError> {
        self.call(Call::Reserve, |state| state.memory.reserve(bytes))
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), CallError> {
        self.call(Call::Unreserve, |state| state.memory.unreserve(address, bytes))
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, CallError> {
        self.call(Call::Create, |state| {
            let chunk = state.memory.create(bytes)?;
            state.counters.create += 1;
            state.counters.created_bytes += bytes;
            state.counters.driver_us += cost::CREATE.us(bytes);
            Ok(chunk)
        })
        .map_err(|error| as_out_of_memory(error, bytes))
    }

    fn release(&self, chunk: ChunkId) -> Result<(), CallError> {
        self.call(Call::Release, |state| {
            let bytes = state.memory.physical.release(chunk)?;
            state.counters.release += 1;
            state.counters.driver_us += cost::RELEASE.us(bytes);
            Ok(())
        })
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), CallError> {
        self.call(Call::Map, |state| {
            let bytes = state.memory.map(address, chunk)?;
            state.counters.map += 1;
            state.counters.driver_us += cost::MAP.us(bytes);
            Ok(())
        })
    }

    fn set_access(&self, address: Address, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.call(Call::SetAccess, |state| {
            for bytes in state.memory.set_access(address, bytes, access)? {
                state.counters.set_access += 1;
                state.counters.driver_us += cost::SET_ACCESS.us(bytes);
            }
            Ok(())
        })
    }

    fn enable_peer(&self, peer: u8) -> Result<(), CallError> {
        self.call(Call::EnablePeer, |state| {
            let device = self.device.index();
            if peer == device {
                return Err(ErrorKind::PeerOfItself(peer));
            }
            if !self.possible_peers.contains(&peer) {
                return Err(ErrorKind::NoPeerAccess { device, peer });
            }
            state.memory.enable_peer(peer);
            Ok(())
        })
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), CallError> {
        self.call(Call::Unmap, |state| {
            for bytes in state.memory.unmap(address, bytes, state.order.host())? {
                state.counters.unmap += 1;
                state.counters.driver_us += cost::UNMAP.us(bytes);
            }
            Ok(())
        })
    }
}

impl SharingCalls for SimDriver {
    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, CallError> {
        self.call(Call::Export, |state| state.memory.physical.export(chunk))
    }

    fn import(&self, chunk: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, CallError> {
        self.call(Call::Import, |state| state.memory.physical.import(chunk, bytes))
    }

    fn export_memory(&self, address: Address) -> Result<MemoryHandle, CallError> {
        self.call(Call::ExportMemory, |state| state.memory.export(address))
    }

    fn open_memory(&self, handle: &MemoryHandle) -> Result<(Address, u64), CallError> {
        self.call(Call::OpenMemory, |state| state.memory.open(handle))
    }

    fn close_memory(&self, address: Address) -> Result<(), CallError> {
        self.call(Call::CloseMemory, |state| state.memory.close(address, state.order.host()))
    }

    fn export_event(&self, event: EventId) -> Result<EventHandle, CallError> {
        self.call(Call::ExportEvent, |state| state.timeline.events.export(event))
    }

    fn open_event(&self, handle: &EventHandle) -> Result<EventId, CallError> {
        self.call(Call::OpenEvent, |state| state.timeline.events.open(handle))
    }
}

/// Turns an injected failure of an allocating call into the out-of-memory error that its callers must expect.
fn as_out_of_memory(error: CallError, requested: u64) -> CallError {
    match error.kind {
        ErrorKind::Injected => CallError { kind: ErrorKind::OutOfMemory { requested, free: 0 }, ..error },
        _ => error,
    }
}
