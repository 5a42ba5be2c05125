//! The driver calls of a CUDA device: [`CudaDriver`]'s implementation of [`Driver`].

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUevent_wait_flags, CUgraphExec, CUipcEventHandle, CUipcMem_flags, CUipcMemHandle,
    CUmemAllocationHandleType, CUresult, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use tenure_alloc::{Address, ChunkId, MemoryInfo};
use tenure_core::{Device, StreamId};

use super::CudaDriver;
use super::capture::{RelaxedCapture, is_captured, kernels};
use super::driver::{EVENTS, StreamOwner, chunk_properties};
use super::error::{check, completed, system_failure};
use super::nvml;
use crate::deferred::InHostFunction;
use crate::{
    AccessMode, Call, CallError, DeviceProcess, Driver, ErrorKind, EventHandle, EventId, EventKind, GraphId,
    HostFunction, MemoryHandle, Priority,
};

impl Driver for CudaDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn uuid(&self) -> [u8; 16] {
        self.properties.uuid
    }

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

    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.in_context(Call::RegisterHost, || {
            let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
            let flags = match access {
                AccessMode::Read => flags | sys::CU_MEMHOSTREGISTER_READ_ONLY,
                AccessMode::ReadWrite => flags,
            };
            let _relaxed = RelaxedCapture::enter()?;
            // SAFETY: the caller keeps the range mapped.
            check(unsafe { sys::cuMemHostRegister_v2(address.cast(), bytes as usize, flags) })
        })
    }

    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError> {
        self.in_context(Call::HostOnDevice, || {
            let mut found = 0;
            // SAFETY: the driver looks the address up, and writes only to `found`.
            check(unsafe { sys::cuMemHostGetDevicePointer_v2(&mut found, address.cast_mut().cast(), 0) })?;
            Ok(found)
        })
    }

    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError> {
        self.in_context(Call::UnregisterHost, || {
            // SAFETY: the driver looks the address up, and refuses one that was not registered.
            let code = unsafe { sys::cuMemHostUnregister(address.cast()) };
            if code == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED {
                return Err(ErrorKind::HostNotRegistered(address as u64));
            }
            check(code)
        })
    }

    fn processes(&self) -> Option<Vec<DeviceProcess>> {
        nvml::processes(&self.properties)
    }

    fn create_stream(&self, priority: Priority) -> Result<StreamId, CallError> {
        self.in_context(Call::CreateStream, || {
            let flags = CUstream_flags::CU_STREAM_NON_BLOCKING;
            let priority = self.priorities[priority as usize];
            let mut stream = ptr::null_mut();
            // SAFETY: `stream` is writable, and the thread has the context.
            check(unsafe { sys::cuStreamCreateWithPriority(&mut stream, flags as c_uint, priority) })?;
            let stream = StreamId(stream as u64);
            self.streams.insert(stream.0, StreamOwner::This);
            Ok(stream)
        })
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::DestroyStream, || {
            let unknown = ErrorKind::UnknownHandle { what: "stream", handle: stream.0 };
            match self.streams.remove(stream.0).ok_or(unknown)? {
                StreamOwner::Other => Ok(()),
                // SAFETY: this driver made the stream, and no other thread destroys it.
                StreamOwner::This => check(unsafe { sys::cuStreamDestroy_v2(stream.0 as CUstream) }),
            }
        })
    }

    fn query_stream(&self, stream: StreamId) -> Result<bool, CallError> {
        self.in_context(Call::QueryStream, || {
            let stream = self.stream(stream)?;
            // SAFETY: the stream is known.
            completed(unsafe { sys::cuStreamQuery(stream) })
        })
    }

    fn check_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::QueryStream, || {
            let stream = self.stream(stream)?;
            if is_captured(stream)? {
                return Ok(());
            }
            // A query counts as unsafe while any thread captures, and would invalidate that capture.
            let _relaxed = RelaxedCapture::enter()?;
            // SAFETY: the stream is known.
            completed(unsafe { sys::cuStreamQuery(stream) }).map(drop)
        })
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::SynchronizeStream, || {
            let stream = self.stream(stream)?;
            // SAFETY: the stream is known.
            self.timings.time(Call::SynchronizeStream, 1, 0, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    fn synchronize(&self) -> Result<(), CallError> {
        self.in_context(Call::Synchronize, || {
            // SAFETY: the thread has the context.
            self.timings.time(Call::Synchronize, 1, 0, || unsafe { sys::cuCtxSynchronize() })
        })
    }

    fn create_event(&self, kind: EventKind) -> Result<EventId, CallError> {
        self.in_context(Call::CreateEvent, || {
            let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;
            let flags = match kind {
                EventKind::Order => untimed,
                EventKind::Timing => CUevent_flags::CU_EVENT_DEFAULT as c_uint,
                EventKind::Interprocess => untimed | CUevent_flags::CU_EVENT_INTERPROCESS as c_uint,
            };
            let mut event = ptr::null_mut();
            // SAFETY: `event` is writable, and the thread has the context.
            check(unsafe { sys::cuEventCreate(&mut event, flags) })?;
            EVENTS.insert(event as u64, kind);
            Ok(EventId(event as u64))
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

    fn destroy_event(&self, event: EventId) -> Result<(), CallError> {
        self.in_context(Call::DestroyEvent, || {
            let unknown = ErrorKind::UnknownHandle { what: "event", handle: event.0 };
            EVENTS.remove(event.0).ok_or(unknown)?;
            // SAFETY: the event was known, and no other thread destroys it.
            check(unsafe { sys::cuEventDestroy_v2(event.0 as CUevent) })
        })
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::RecordEvent, || {
            let (stream, (event, _)) = (self.stream(stream)?, self.event(event)?);
            // SAFETY: both are known.
            check(unsafe { sys::cuEventRecord(event, stream) })
        })
    }

    fn query_event(&self, event: EventId) -> Result<bool, CallError> {
        self.in_context(Call::QueryEvent, || {
            let (event, _) = self.event(event)?;
            // SAFETY: the event is known.
            completed(unsafe { sys::cuEventQuery(event) })
        })
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), CallError> {
        self.in_context(Call::WaitEvent, || {
            let (stream, (event, _)) = (self.stream(stream)?, self.event(event)?);
            // SAFETY: both are known.
            check(unsafe { sys::cuStreamWaitEvent(stream, event, 0) })
        })
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), CallError> {
        self.in_context(Call::SynchronizeEvent, || {
            let (event, _) = self.event(event)?;
            // SAFETY: the event is known.
            self.timings.time(Call::SynchronizeEvent, 1, 0, || unsafe { sys::cuEventSynchronize(event) })
        })
    }

    fn elapsed_us(&self, start: EventId, end: EventId) -> Result<f64, CallError> {
        self.in_context(Call::Elapsed, || {
            let [from, to] = [start, end].map(|event| self.event_of_kind(event, EventKind::Timing));
            let from = from?;
            let to = to?;
            match elapsed_ms(from, to) {
                // For the driver, an event that was never recorded is an invalid handle.
                Err(kind) if matches!(kind.code(), 400 | 600) => {
                    let unpassed = if elapsed_ms(to, to).is_err() { end } else { start };
                    Err(ErrorKind::NotPassed(unpassed.0))
                }
                elapsed => elapsed.map(|ms| f64::from(ms) * 1000.0),
            }
        })
    }

    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyToDevice, || {
            let stream = self.submit(Call::CopyToDevice, stream, source.len() as u64, |stream| {
                // SAFETY: `source` outlives the copy, because this function waits for it below; the driver checks the
                // address.
                unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.as_ptr().cast(), source.len(), stream) }
            })?;
            // SAFETY: the stream is known.
            self.timings
                .time(Call::CopyToDevice, 1, source.len() as u64, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyFromDevice, || {
            let stream = self.submit(Call::CopyFromDevice, stream, target.len() as u64, |stream| {
                // SAFETY: `target` outlives the copy, because this function waits for it below; the driver checks the
                // address.
                unsafe { sys::cuMemcpyDtoHAsync_v2(target.as_mut_ptr().cast(), source, target.len(), stream) }
            })?;
            // SAFETY: the stream is known.
            self.timings
                .time(Call::CopyFromDevice, 1, target.len() as u64, || unsafe { sys::cuStreamSynchronize(stream) })
        })
    }

    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.in_context(Call::CopyToDeviceAsync, || {
            self.submit(Call::CopyToDeviceAsync, stream, bytes, |stream| {
                // SAFETY: the caller keeps the source until the stream has completed the copy.
                unsafe { sys::cuMemcpyHtoDAsync_v2(target, source.cast(), bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.in_context(Call::CopyFromDeviceAsync, || {
            self.submit(Call::CopyFromDeviceAsync, stream, bytes, |stream| {
                // SAFETY: the caller does not touch the target until the stream has completed the copy.
                unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::CopyOnDevice, || {
            self.submit(Call::CopyOnDevice, stream, bytes, |stream| {
                // SAFETY: both are device addresses, which the driver checks.
                unsafe { sys::cuMemcpyDtoDAsync_v2(target, source, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::Memset, || {
            self.submit(Call::Memset, stream, bytes, |stream| {
                // SAFETY: the target is a device address, which the driver checks.
                unsafe { sys::cuMemsetD8Async(target, value, bytes as usize, stream) }
            })
            .map(drop)
        })
    }

    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), CallError> {
        self.in_context(Call::HostFunction, || {
            let stream = self.stream(stream)?;
            if is_captured(stream)? {
                // A graph would call the function at each launch, but it can be called only once.
                return Err(ErrorKind::Capture { reason: "a function of the host was put on a captured stream" });
            }
            let function = Box::into_raw(Box::new(function));
            // SAFETY: the driver calls `run_host_function` once, with this pointer.
            check(unsafe { sys::cuLaunchHostFunc(stream, Some(run_host_function), function.cast()) }).inspect_err(
                |_| {
                    // SAFETY: a refused function is not called, so this function still owns the box.
                    drop(unsafe { Box::from_raw(function) });
                },
            )
        })
    }

    fn begin_capture(&self, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::BeginCapture, || {
            let stream = self.stream(stream)?;
            let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            // SAFETY: the stream is known.
            check(unsafe { sys::cuStreamBeginCapture_v2(stream, mode) })
        })
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId, CallError> {
        self.in_context(Call::EndCapture, || {
            let stream = self.stream(stream)?;
            let mut graph = ptr::null_mut();
            // SAFETY: the stream is known, and `graph` is writable.
            check(unsafe { sys::cuStreamEndCapture(stream, &mut graph) })?;
            let mut executable = ptr::null_mut();
            // SAFETY: `executable` is writable, and the graph was just captured.
            let made = check(unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) });
            let kernels = kernels(graph);
            // SAFETY: the graph was just captured; the executable does not need it.
            check(unsafe { sys::cuGraphDestroy(graph) }).and(made)?;
            self.graphs.insert(executable as u64, kernels?);
            Ok(GraphId(executable as u64))
        })
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, CallError> {
        self.in_context(Call::IsCapturing, || is_captured(self.stream(stream)?))
    }

    fn wait_event_outside(&self, stream: StreamId, event: EventId) -> Result<(), CallError> {
        self.in_context(Call::WaitEvent, || {
            let (stream, (event, _)) = (self.stream(stream)?, self.event(event)?);
            let flags = match is_captured(stream)? {
                true => CUevent_wait_flags::CU_EVENT_WAIT_EXTERNAL as c_uint,
                false => 0,
            };
            // SAFETY: both are known.
            check(unsafe { sys::cuStreamWaitEvent(stream, event, flags) })
        })
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), CallError> {
        self.in_context(Call::LaunchGraph, || {
            let unknown = ErrorKind::UnknownHandle { what: "graph", handle: graph.0 };
            let stream = self.stream(stream)?;
            self.graphs.get(graph.0).ok_or(unknown)?;
            // SAFETY: both are known.
            check(unsafe { sys::cuGraphLaunch(graph.0 as CUgraphExec, stream) })
        })
    }

    fn destroy_graph(&self, graph: GraphId) -> Result<(), CallError> {
        self.in_context(Call::DestroyGraph, || {
            let unknown = ErrorKind::UnknownHandle { what: "graph", handle: graph.0 };
            self.graphs.remove(graph.0).ok_or(unknown)?;
            // SAFETY: the graph was known, and no other thread destroys it.
            check(unsafe { sys::cuGraphExecDestroy(graph.0 as CUgraphExec) })
        })
    }
}

/// Runs and drops a host function, which may not call the driver. A panic in it ends the process.
unsafe extern "C" fn run_host_function(function: *mut c_void) {
    // SAFETY: the pointer comes from `host_function`, and is passed here only once.
    let function = unsafe { Box::from_raw(function.cast::<HostFunction>()) };
    let _in_function = InHostFunction::enter();
    function();
}

/// Returns the time between two known events, in ms.
fn elapsed_ms(start: CUevent, end: CUevent) -> Result<f32, ErrorKind> {
    let mut ms = 0.0;
    // SAFETY: `ms` is writable, and the callers have looked up both events.
    check(unsafe { sys::cuEventElapsedTime_v2(&mut ms, start, end) })?;
    Ok(ms)
}
