//! The driver's calls, on the simulated device.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use tenure_alloc::{Address, ChunkId, MemoryInfo};
use tenure_core::{Device, StreamId};

use super::SimDriver;
use super::kernel::Touches;
use super::memory::SimMemory;
use super::platform::uuid;
use super::state::SimState;
use crate::{
    AccessMode, Call, CallError, DeviceProcess, Driver, ErrorKind, EventHandle, EventId, EventKind, GraphId,
    HostFunction, Launch, MemoryHandle, Priority, cost,
};

impl Driver for SimDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn uuid(&self) -> [u8; 16] {
        uuid(self.device.index())
    }

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
        let start = |state: &mut SimState| {
            state.memory.check_segment(address)?;
            Ok(state.device_goal())
        };
        self.block(Call::Free, start, |state| {
            let bytes = state.memory.free(address)?;
            state.counters.free += 1;
            state.counters.driver_us += cost::FREE.us(bytes);
            Ok(())
        })
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

    unsafe fn register_host(&self, address: *mut u8, bytes: u64, access: AccessMode) -> Result<(), CallError> {
        self.call(Call::RegisterHost, |state| {
            state.host.register(address as u64, bytes, access)?;
            state.counters.register_host += 1;
            state.counters.driver_us += cost::REGISTER_HOST.us(bytes);
            Ok(())
        })
    }

    fn host_on_device(&self, address: *const u8) -> Result<Address, CallError> {
        self.call(Call::HostOnDevice, |state| state.host.on_device(address as u64, &mut state.memory))
    }

    fn unregister_host(&self, address: *mut u8) -> Result<(), CallError> {
        let range = self.call(Call::UnregisterHost, |state| {
            state.host.unregister(address as u64, &mut state.memory, state.order.host())
        })?;
        for device in self.registrations.devices() {
            let mut state = device.state.lock();
            if state.fault().is_some() {
                // The device's work is over.
                continue;
            }
            let SimState { host, memory, order, .. } = &mut *state;
            let ended = host.end_use(&range, memory, order.host());
            drop(state);
            self.resume(Call::UnregisterHost, |_| ended)?;
        }
        Ok(())
    }

    fn processes(&self) -> Option<Vec<DeviceProcess>> {
        self.state.try_enter()?.processes()
    }

    fn create_stream(&self, priority: Priority) -> Result<StreamId, CallError> {
        self.call(Call::CreateStream, |state| Ok(state.timeline.create_stream(priority)))
    }

    fn destroy_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::DestroyStream, |state| state.timeline.destroy_stream(stream))
    }

    fn query_stream(&self, stream: StreamId) -> Result<bool, CallError> {
        self.call(Call::QueryStream, |state| {
            let stream = state.timeline.stream(stream)?;
            state.forbid_in_capture_of(stream)?;
            state.query(state.timeline.tail(stream), &state.order.stamp(stream))
        })
    }

    fn check_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::QueryStream, |state| state.timeline.stream(stream).map(drop))
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<(), CallError> {
        self.synchronize_with(Call::SynchronizeStream, |state| state.stream_goal(stream))
    }

    fn synchronize(&self) -> Result<(), CallError> {
        self.synchronize_with(Call::Synchronize, |state| {
            state.forbid_while_capturing()?;
            Ok(state.device_goal())
        })
    }

    fn create_event(&self, kind: EventKind) -> Result<EventId, CallError> {
        self.call(Call::CreateEvent, |state| state.timeline.events.create(kind))
    }

    fn export_event(&self, event: EventId) -> Result<EventHandle, CallError> {
        self.call(Call::ExportEvent, |state| state.timeline.events.export(event))
    }

    fn open_event(&self, handle: &EventHandle) -> Result<EventId, CallError> {
        self.call(Call::OpenEvent, |state| state.timeline.events.open(handle))
    }

    fn destroy_event(&self, event: EventId) -> Result<(), CallError> {
        self.call(Call::DestroyEvent, |state| state.timeline.events.destroy(event))
    }

    fn record_event(&self, event: EventId, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::RecordEvent, |state| state.record_event(event, stream))
    }

    fn query_event(&self, event: EventId) -> Result<bool, CallError> {
        self.call(Call::QueryEvent, |state| state.query_event(event))
    }

    fn wait_event(&self, stream: StreamId, event: EventId) -> Result<(), CallError> {
        self.call(Call::WaitEvent, |state| state.wait_event(stream, event))
    }

    fn synchronize_event(&self, event: EventId) -> Result<(), CallError> {
        self.synchronize_with(Call::SynchronizeEvent, |state| state.event_goal(event))
    }

    fn elapsed_us(&self, start: EventId, end: EventId) -> Result<f64, CallError> {
        self.call(Call::Elapsed, |state| {
            Ok(state.timeline.passed_us(end)? as f64 - state.timeline.passed_us(start)? as f64)
        })
    }

    fn copy_to_device(&self, target: Address, source: &[u8], stream: StreamId) -> Result<(), CallError> {
        let source = source.to_vec();
        self.synchronize_with(Call::CopyToDevice, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(source.len() as u64)));
            state.submit_call(Call::CopyToDevice, stream, touches, move |memory, launch| {
                memory.write(target, &source, launch)
            })?;
            state.stream_goal(stream)
        })
    }

    fn copy_from_device(&self, target: &mut [u8], source: Address, stream: StreamId) -> Result<(), CallError> {
        let len = target.len();
        // The work owns its buffer: it may outlive this call, if other work panics on the way.
        let copy = Arc::new(Mutex::new(Vec::new()));
        let copied = Arc::clone(&copy);
        self.synchronize_with(Call::CopyFromDevice, |state| {
            let touches = Touches::new(Some(source..source.saturating_add(len as u64)), None);
            state.submit_call(Call::CopyFromDevice, stream, touches, move |memory, launch| {
                let mut copied = copied.lock();
                copied.resize(len, 0);
                memory.read(source, &mut copied, launch)
            })?;
            state.stream_goal(stream)
        })?;
        target.copy_from_slice(&copy.lock());
        Ok(())
    }

    unsafe fn copy_to_device_async(
        &self,
        target: Address,
        source: *const u8,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.call(Call::CopyToDeviceAsync, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(bytes)));
            let touches = touches.and_host(source, bytes, false);
            let source = HostSource(source, bytes as usize);
            state.submit_call(Call::CopyToDeviceAsync, stream, touches, move |memory, launch| {
                // SAFETY: the caller keeps the bytes readable and unwritten until the stream has passed this copy.
                let source = unsafe { source.bytes() };
                memory.write(target, source, launch)
            })
        })
    }

    unsafe fn copy_from_device_async(
        &self,
        target: *mut u8,
        source: Address,
        bytes: u64,
        stream: StreamId,
    ) -> Result<(), CallError> {
        self.call(Call::CopyFromDeviceAsync, |state| {
            let touches = Touches::new(Some(source..source.saturating_add(bytes)), None);
            let touches = touches.and_host(target, bytes, true);
            let target = HostTarget(target, bytes as usize);
            state.submit_call(Call::CopyFromDeviceAsync, stream, touches, move |memory, launch| {
                // SAFETY: the caller leaves the bytes to this copy until the stream has passed it.
                let target = unsafe { target.bytes() };
                memory.read(source, target, launch)
            })
        })
    }

    fn copy_on_device(&self, target: Address, source: Address, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::CopyOnDevice, |state| {
            let reads = source..source.saturating_add(bytes);
            let touches = Touches::new(Some(reads), Some(target..target.saturating_add(bytes)));
            state.submit_call(Call::CopyOnDevice, stream, touches, move |memory, launch| {
                copy(memory, target, source, bytes, launch)
            })
        })
    }

    fn memset(&self, target: Address, value: u8, bytes: u64, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::Memset, |state| {
            let touches = Touches::new(None, Some(target..target.saturating_add(bytes)));
            state.submit_call(Call::Memset, stream, touches, move |memory, launch| {
                for (offset, len) in blocks(bytes) {
                    memory.write(target + offset, &vec![value; len], launch)?;
                }
                Ok(())
            })
        })
    }

    fn host_function(&self, stream: StreamId, function: HostFunction) -> Result<(), CallError> {
        self.call(Call::HostFunction, |state| {
            let index = state.timeline.stream(stream)?;
            if let Some(capture) = state.capture_of(index) {
                return capture.break_by("a function of the host was put on a captured stream");
            }
            let function = Mutex::new(Some(function));
            state.submit_call(Call::HostFunction, stream, Touches::default(), move |_, _| {
                let function = function.lock().take();
                function.map_or(Ok(()), |function| {
                    function();
                    Ok(())
                })
            })
        })
    }

    fn begin_capture(&self, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::BeginCapture, |state| state.begin_capture(stream))
    }

    fn end_capture(&self, stream: StreamId) -> Result<GraphId, CallError> {
        self.call(Call::EndCapture, |state| state.end_capture(stream))
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool, CallError> {
        self.call(Call::IsCapturing, |state| {
            let stream = state.timeline.stream(stream)?;
            Ok(state.capture_of(stream).is_some())
        })
    }

    fn wait_event_outside(&self, stream: StreamId, event: EventId) -> Result<(), CallError> {
        self.call(Call::WaitEvent, |state| state.wait_event_outside(stream, event))
    }

    fn launch_graph(&self, graph: GraphId, stream: StreamId) -> Result<(), CallError> {
        self.call(Call::LaunchGraph, |state| state.launch_graph(graph, stream))
    }

    fn destroy_graph(&self, graph: GraphId) -> Result<(), CallError> {
        self.call(Call::DestroyGraph, |state| state.destroy_graph(graph))
    }
}

/// Turns an injected failure of an allocating call into the out-of-memory error that its callers must expect.
fn as_out_of_memory(error: CallError, requested: u64) -> CallError {
    match error.kind {
        ErrorKind::Injected => CallError { kind: ErrorKind::OutOfMemory { requested, free: 0 }, ..error },
        _ => error,
    }
}

/// Host memory that a queued copy reads.
struct HostSource(*const u8, usize);

// SAFETY: the caller leaves the memory to the copy, on any thread that runs it.
unsafe impl Send for HostSource {}
// SAFETY: the same.
unsafe impl Sync for HostSource {}

impl HostSource {
    /// # Safety
    /// The memory is readable, and no other code writes it, until the slice is dropped.
    unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the caller promises it. An empty copy may have a null pointer.
        if self.1 == 0 { &[] } else { unsafe { std::slice::from_raw_parts(self.0, self.1) } }
    }
}

/// Host memory that a queued copy writes.
struct HostTarget(*mut u8, usize);

// SAFETY: the caller leaves the memory to the copy, on any thread that runs it.
unsafe impl Send for HostTarget {}
// SAFETY: the same.
unsafe impl Sync for HostTarget {}

impl HostTarget {
    /// # Safety
    /// The memory is writable, and no other code touches it, until the slice is dropped.
    #[expect(clippy::mut_from_ref, reason = "it stands for memory that is not its own")]
    unsafe fn bytes(&self) -> &mut [u8] {
        // SAFETY: the caller promises it. An empty copy may have a null pointer.
        if self.1 == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(self.0, self.1) } }
    }
}

fn copy(
    memory: &mut SimMemory,
    target: Address,
    source: Address,
    bytes: u64,
    launch: &Arc<Launch>,
) -> Result<(), ErrorKind> {
    let mut block = Vec::new();
    for (offset, len) in blocks(bytes) {
        block.resize(len, 0);
        memory.read(source + offset, &mut block, launch)?;
        memory.write(target + offset, &block, launch)?;
    }
    Ok(())
}

/// Cuts `bytes` into pieces that fit into a buffer. Returns the offset and length of each.
fn blocks(bytes: u64) -> impl Iterator<Item = (u64, usize)> {
    const BLOCK: usize = 1 << 20;
    (0..bytes).step_by(BLOCK).map(move |offset| (offset, (bytes - offset).min(BLOCK as u64) as usize))
}
