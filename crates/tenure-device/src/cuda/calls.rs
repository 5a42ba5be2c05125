//! The driver calls of a CUDA device: the device itself, streams, events and graphs.

mod copies;
mod memory;

use std::ffi::{c_uint, c_void};
use std::ptr;

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUevent_wait_flags, CUgraphExec, CUstream, CUstream_flags, CUstreamCaptureMode,
};
use tenure_core::{Device, StreamId};

use super::CudaDriver;
use super::capture::{RelaxedCapture, is_captured, kernels};
use super::driver::{EVENTS, StreamOwner};
use super::error::{check, completed};
use super::{interposition, nvml};
use crate::deferred::InHostFunction;
use crate::driver::{EventCalls, GraphCalls, StreamCalls};
use crate::{
    Call, CallError, DeviceProcess, Driver, ErrorKind, EventId, EventKind, GraphId, HostFunction, LibraryUse, Priority,
};

impl Driver for CudaDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn uuid(&self) -> [u8; 16] {
        self.properties.uuid
    }

    fn processes(&self) -> Option<Vec<DeviceProcess>> {
        nvml::processes(&self.properties)
    }

    fn library_uses(&self) -> Vec<LibraryUse> {
        interposition::library_uses(self.device.index())
    }

    fn synchronize(&self) -> Result<(), CallError> {
        self.in_context(Call::Synchronize, || {
            // SAFETY: the thread has the context.
            self.timings.time(Call::Synchronize, 1, 0, || unsafe { sys::cuCtxSynchronize() })
        })
    }
}

impl StreamCalls for CudaDriver {
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
}

impl EventCalls for CudaDriver {
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
            // Another stream's capture goes on.
            let _relaxed = RelaxedCapture::enter()?;
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
            let from = self.event_of_kind(start, EventKind::Timing)?;
            let to = self.event_of_kind(end, EventKind::Timing)?;
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
}

impl GraphCalls for CudaDriver {
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
