//! The driver calls of a CUDA device for its memory, and for what processes share.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::sys::{self, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle, CUmemAllocationHandleType};
use tenure_alloc::{Address, ChunkId, MemoryInfo};

use crate::cuda::CudaDriver;
use crate::cuda::capture::RelaxedCapture;
use crate::cuda::driver::{EVENTS, chunk_properties};
use crate::cuda::error::{check, system_failure};
use crate::driver::{MemoryCalls, SharingCalls};
use crate::{AccessMode, Call, CallError, ErrorKind, EventHandle, EventId, EventKind, MemoryHandle};

impl MemoryCalls for CudaDriver {
    fn granularity(&self) -> u64 {
        self.granularity
    }

    fn memory_info(&self) -> Result<MemoryInfo, CallError> {
        self.in_context(Call::MemoryInfo, || self.info())
    }

    fn malloc(&self, bytes: u64) -> Result<Address, CallError> {
        self.in_context(Call::Malloc, || {
            if bytes == 0 {
                return Err(ErrorKind::Misaligned { what: "size", value: 0, granularity: 1 });
            }
            let _relaxed = RelaxedCapture::enter()?;
            let mut address = 0;
            // SAFETY: `address` is writable, and the thread has the context.
            let malloc = || unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) };
            self.timings.time(Call::Malloc, 1, bytes, malloc).map_err(|kind| self.refusal(kind, bytes))?;
            self.segments.insert(address, bytes);
            Ok(address)
        })
    }

    fn free(&self, address: Address) -> Result<(), CallError> {
        self.in_context(Call::Free, || {
            // Remove the segment first: once it is freed, the driver may give the same address to another thread.
            let unknown = ErrorKind::UnknownHandle { what: "segment", handle: address };
            let bytes = self.segments.remove(address).ok_or(unknown)?;
            // SAFETY: the segment came from `malloc`, and no other thread frees it.
            let freed = self.timings.time(Call::Free, 1, bytes, || unsafe { sys::cuMemFree_v2(address) });
            freed.inspect_err(|_| self.segments.insert(address, bytes))
        })
    }

    fn reserve(&self, bytes: u64) -> Result<Address, CallError> {
        self.call(Call::Reserve, || {
            self.space.lock().check_size(bytes)?;
            let mut address = 0;
            // SAFETY: `address` is writable; the call asks for no particular address or alignment.
            let reserve = || unsafe { sys::cuMemAddressReserve(&mut address, bytes as usize, 0, 0, 0) };
            self.timings.time(Call::Reserve, 1, bytes, reserve)?;
            self.space.lock().add_reservation(address, bytes);
            Ok(address)
        })
    }

    fn unreserve(&self, address: Address, bytes: u64) -> Result<(), CallError> {
        self.call(Call::Unreserve, || {
            let mut space = self.space.lock();
            space.check_unreserve(address, bytes)?;
            self.timings.time(Call::Unreserve, 1, bytes, || {
                // SAFETY: the range is a whole reservation, and nothing is mapped in it.
                unsafe { sys::cuMemAddressFree(address, bytes as usize) }
            })?;
            space.remove_reservation(address);
            Ok(())
        })
    }

    fn create(&self, bytes: u64) -> Result<ChunkId, CallError> {
        self.call(Call::Create, || {
            self.space.lock().check_size(bytes)?;
            let properties = chunk_properties(self.ordinal, self.properties.shares_descriptors);
            let mut handle = 0;
            // SAFETY: `handle` is writable, `properties` is fully initialised.
            let create = || unsafe { sys::cuMemCreate(&mut handle, bytes as usize, &properties, 0) };
            self.timings.time(Call::Create, 1, bytes, create).map_err(|kind| self.refusal(kind, bytes))?;
            self.space.lock().add_chunk(ChunkId(handle), bytes);
            Ok(ChunkId(handle))
        })
    }

    fn release(&self, chunk: ChunkId) -> Result<(), CallError> {
        self.call(Call::Release, || {
            let mut space = self.space.lock();
            let bytes = space.check_release(chunk)?;
            // SAFETY: the chunk is known, so its handle is alive.
            self.timings.time(Call::Release, 1, bytes, || unsafe { sys::cuMemRelease(chunk.0) })?;
            space.remove_chunk(chunk);
            Ok(())
        })
    }

    fn map(&self, address: Address, chunk: ChunkId) -> Result<(), CallError> {
        self.call(Call::Map, || {
            let mut space = self.space.lock();
            let bytes = space.check_map(address, chunk)?;
            self.timings.time(Call::Map, 1, bytes, || {
                // SAFETY: the chunk's handle is alive, and the range is reserved and free.
                unsafe { sys::cuMemMap(address, bytes as usize, 0, chunk.0, 0) }
            })?;
            space.add_mapping(address, chunk);
            Ok(())
        })
    }

    fn set_access(&self, address: Address, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.make_accessible(address, bytes, access)
    }

    fn enable_peer(&self, peer: u8) -> Result<(), CallError> {
        self.enable_access_of(peer)
    }

    fn unmap(&self, address: Address, bytes: u64) -> Result<(), CallError> {
        self.call(Call::Unmap, || {
            let mut space = self.space.lock();
            let count = space.whole_chunks(address, bytes)?;
            // SAFETY: the range covers whole mappings. The caller ensures that no work uses them; work that does loses
            // the context, and touches no host memory.
            self.timings.time(Call::Unmap, count, bytes, || unsafe { sys::cuMemUnmap(address, bytes as usize) })?;
            space.remove_mappings(address, bytes);
            Ok(())
        })
    }
}

impl SharingCalls for CudaDriver {
    fn export(&self, chunk: ChunkId) -> Result<OwnedFd, CallError> {
        self.call(Call::Export, || {
            let space = self.space.lock();
            space.chunk_bytes(chunk)?;
            let mut descriptor: c_int = -1;
            let target = ptr::from_mut(&mut descriptor).cast();
            let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            // SAFETY: the chunk's handle is alive, and for this kind the driver writes an `int`.
            check(unsafe { sys::cuMemExportToShareableHandle(target, chunk.0, kind, 0) })?;
            // SAFETY: the driver opened the descriptor for this call.
            let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
            // Return a copy, because copies are closed on `exec`. A child program that inherited the descriptor would
            // keep the memory alive.
            descriptor.try_clone().map_err(|error| system_failure(&error))
        })
    }

    fn import(&self, chunk: BorrowedFd<'_>, bytes: u64) -> Result<ChunkId, CallError> {
        self.call(Call::Import, || {
            self.space.lock().check_size(bytes)?;
            let descriptor = chunk.as_raw_fd() as usize as *mut c_void;
            let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
            let mut handle = 0;
            // SAFETY: `handle` is writable, and for this kind the driver takes the number of an open descriptor
            // in place of a pointer.
            check(unsafe { sys::cuMemImportFromShareableHandle(&mut handle, descriptor, kind) })?;
            self.space.lock().add_chunk(ChunkId(handle), bytes);
            Ok(ChunkId(handle))
        })
    }

    fn export_memory(&self, address: Address) -> Result<MemoryHandle, CallError> {
        self.in_context(Call::ExportMemory, || {
            let unknown = ErrorKind::UnknownHandle { what: "segment", handle: address };
            self.segments.get(address).ok_or(unknown)?;
            let mut handle = CUipcMemHandle { reserved: [0; 64] };
            // SAFETY: `handle` is writable, and the segment is known.
            check(unsafe { sys::cuIpcGetMemHandle(&mut handle, address) })?;
            Ok(MemoryHandle(handle.reserved.map(|byte| byte as u8)))
        })
    }

    fn open_memory(&self, handle: &MemoryHandle) -> Result<(Address, u64), CallError> {
        self.in_context(Call::OpenMemory, || {
            let handle = CUipcMemHandle { reserved: handle.0.map(|byte| byte as _) };
            let flags = CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as c_uint;
            let (mut opened, mut base, mut bytes) = (0, 0, 0);
            let mut counts = self.opened.lock();
            // SAFETY: `opened` is writable, and the driver refuses an invalid handle.
            check(unsafe { sys::cuIpcOpenMemHandle_v2(&mut opened, handle, flags) })?;
            // SAFETY: both are writable, and the memory was just opened.
            let sized = check(unsafe { sys::cuMemGetAddressRange_v2(&mut base, &mut bytes, opened) });
            if let Err(error) = sized {
                // SAFETY: the memory was just opened, and its address has not left this function.
                let _ = check(unsafe { sys::cuIpcCloseMemHandle(opened) });
                return Err(error);
            }
            *counts.entry(opened).or_default() += 1;
            Ok((opened, bytes as u64 - (opened - base)))
        })
    }

    fn close_memory(&self, address: Address) -> Result<(), CallError> {
        self.in_context(Call::CloseMemory, || {
            let mut counts = self.opened.lock();
            let unknown = ErrorKind::UnknownHandle { what: "opened memory", handle: address };
            let count = counts.get_mut(&address).ok_or(unknown)?;
            // SAFETY: the memory is open, and the lock keeps other threads from closing it meanwhile.
            check(unsafe { sys::cuIpcCloseMemHandle(address) })?;
            *count -= 1;
            if *count == 0 {
                counts.remove(&address);
            }
            Ok(())
        })
    }

    fn export_event(&self, event: EventId) -> Result<EventHandle, CallError> {
        self.in_context(Call::ExportEvent, || {
            let event = self.event_of_kind(event, EventKind::Interprocess)?;
            let mut handle = CUipcEventHandle { reserved: [0; 64] };
            // SAFETY: `handle` is writable, and the event is known.
            check(unsafe { sys::cuIpcGetEventHandle(&mut handle, event) })?;
            Ok(EventHandle(handle.reserved.map(|byte| byte as u8)))
        })
    }

    fn open_event(&self, handle: &EventHandle) -> Result<EventId, CallError> {
        self.in_context(Call::OpenEvent, || {
            let handle = CUipcEventHandle { reserved: handle.0.map(|byte| byte as _) };
            let mut event = ptr::null_mut();
            // SAFETY: `event` is writable, and the driver refuses an invalid handle.
            check(unsafe { sys::cuIpcOpenEventHandle(&mut event, handle) })?;
            EVENTS.insert(event as u64, EventKind::Interprocess);
            Ok(EventId(event as u64))
        })
    }
}
