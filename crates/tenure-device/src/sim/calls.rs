//! The driver's calls, on the simulated device: the device itself, streams, events and graphs.

mod copies;
mod memory;

use parking_lot::Mutex;
use tenure_core::{Device, StreamId};

use super::SimDriver;
use super::platform::uuid;
use super::race::Touches;
use crate::driver::{EventCalls, GraphCalls, StreamCalls};
use crate::{Call, CallError, DeviceProcess, Driver, EventId, EventKind, GraphId, HostFunction, Priority};

impl Driver for SimDriver {
    fn device(&self) -> Device {
        self.device
    }

    fn uuid(&self) -> [u8; 16] {
        uuid(self.device.index())
    }

    fn processes(&self) -> Option<Vec<DeviceProcess>> {
        self.state.try_enter()?.processes()
    }

    fn synchronize(&self) -> Result<(), CallError> {
        self.synchronize_with(Call::Synchronize, |state| {
            state.forbid_while_capturing()?;
            Ok(state.device_goal())
        })
    }
}

impl StreamCalls for SimDriver {
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
}

impl EventCalls for SimDriver {
    fn create_event(&self, kind: EventKind) -> Result<EventId, CallError> {
        self.call(Call::CreateEvent, |state| state.timeline.events.create(kind))
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
}

impl GraphCalls for SimDriver {
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
