//! The settings and the state of a simulated device, and the calls that change it.

use std::sync::Arc;
use std::{slice, thread};

use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use tenure_core::{Device, StreamId};

use super::capture::{SimCapture, SimGraph, WorkAction, capture_error};
use super::events::{LastRecord, Point};
use super::fault::Failures;
use super::host::{Registrations, SimHostMemory};
use super::kernel::{KernelMemory, SimKernel};
use super::memory::SimMemory;
use super::physical::PhysicalMemory;
use super::race::{Stamp, StreamOrder, Touches};
use super::signal::Signal;
use super::timeline::Timeline;
use crate::activity_log::{self, Activity, ActivityKind};
use crate::deferred::{InHostFunction, in_host_function};
use crate::{Call, CallError, Counters, DeviceProcess, ErrorKind, EventId, GraphId, Launch};

/// Settings of a simulated device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Physical memory, in bytes.
    pub capacity_bytes: u64,
    /// The part of the capacity that other processes hold, in bytes.
    pub other_bytes: u64,
    /// The part of the capacity that this process's context holds, in bytes.
    pub context_bytes: u64,
    /// Smallest physical chunk, in bytes; a power of two.
    pub granularity_bytes: u64,
    /// The seed that chooses the order in which streams run.
    pub seed: u64,
}

impl Default for SimConfig {
    /// Returns the settings of an NVIDIA H200 without other processes: 143771 MiB, in chunks of 2 MiB.
    fn default() -> Self {
        Self { capacity_bytes: 143_771 << 20, other_bytes: 0, context_bytes: 0, granularity_bytes: 2 << 20, seed: 0 }
    }
}

/// The end of a wait of the host: the points of streams, or the record of an event, that must be passed.
pub(super) enum Goal {
    Nothing,
    /// A point, and the work that the host knows to be complete once it is passed.
    Point(Point, Stamp),
    Points(Vec<Point>, Stamp),
    /// A record of an event by another process.
    Elsewhere(Arc<Signal>, u64),
}

/// The whole state of a device.
pub(super) struct SimState {
    pub(super) device: Device,
    pub(super) memory: SimMemory,
    pub(super) host: SimHostMemory,
    pub(super) timeline: Timeline,
    pub(super) order: StreamOrder,
    pub(super) failures: Failures,
    pub(super) counters: Counters,
    /// The scripted list of processes, if there is one.
    pub(super) processes: Option<Option<Vec<DeviceProcess>>>,
    pub(super) captures: Vec<SimCapture>,
    pub(super) graphs: FxHashMap<GraphId, Arc<SimGraph>>,
    pub(super) last_graph: u64,
    context_bytes: u64,
    /// The number of pieces of work submitted so far.
    pub(super) launches: u64,
    /// The error that lost the context.
    pub(super) context_fault: Option<Arc<CallError>>,
}

impl SimState {
    pub(super) fn new(config: SimConfig, device: Device, registrations: Arc<Registrations>) -> Self {
        let physical = PhysicalMemory::new(config.capacity_bytes, config.other_bytes + config.context_bytes);
        Self {
            device,
            memory: SimMemory::new(device.index(), config.granularity_bytes, physical),
            host: SimHostMemory::new(registrations),
            timeline: Timeline::new(device, config.seed),
            order: StreamOrder::default(),
            failures: Failures::default(),
            counters: Counters::default(),
            processes: None,
            captures: Vec::new(),
            graphs: FxHashMap::default(),
            last_graph: 0,
            context_bytes: config.context_bytes,
            launches: 0,
            context_fault: None,
        }
    }

    /// Returns the error that lost the context, if one did.
    pub(super) fn fault(&self) -> Option<Arc<CallError>> {
        self.context_fault.clone()
    }

    /// Returns the processes that hold memory of the device: the scripted list, or this process.
    pub(super) fn processes(&self) -> Option<Vec<DeviceProcess>> {
        self.processes.clone().unwrap_or_else(|| {
            let bytes = Some(self.context_bytes + self.memory.physical.held_bytes());
            Some(vec![DeviceProcess { pid: std::process::id(), bytes }])
        })
    }

    pub(super) fn launch(&mut self, kernel: SimKernel) -> Result<Launch, ErrorKind> {
        let SimKernel { name, stream, at, touches, body } = kernel;
        let launch = Launch { name, stream, number: self.launches, grid: None, block: None, at: Some(at) };
        let action: WorkAction = Arc::new(move |memory, launch, touches| match &body {
            Some(body) => KernelMemory::run(memory, launch, touches, body),
            None => Ok(()),
        });
        self.submit(launch, touches, action)?;
        Ok(launch)
    }

    /// Puts the work of a driver call on a stream.
    pub(super) fn submit_call(
        &mut self,
        call: Call,
        stream: StreamId,
        touches: Touches,
        work: impl Fn(&mut SimMemory, &Arc<Launch>) -> Result<(), ErrorKind> + Send + Sync + 'static,
    ) -> Result<(), ErrorKind> {
        let launch = Launch { name: call.name(), stream, number: self.launches, grid: None, block: None, at: None };
        let index = self.timeline.stream(stream)?;
        // A driver does not know what a kernel touches, so only calls are checked.
        if self.capture_of(index).is_some()
            && self.memory.check(&touches, &Arc::new(launch)).is_err()
            && let Some(capture) = self.capture_of(index)
        {
            return capture.break_by("a copy is captured from or to where nothing is mapped");
        }
        self.submit(launch, touches, Arc::new(move |memory, launch, _| work(memory, launch)))
    }

    /// Checks a piece of work and puts it on its stream, or captures it if the stream is captured.
    pub(super) fn submit(&mut self, launch: Launch, mut touches: Touches, action: WorkAction) -> Result<(), ErrorKind> {
        let stream = self.timeline.stream(launch.stream)?;
        if let Some(capture) = self.capture_of(stream) {
            capture.work(stream, launch, touches, action);
            self.launches += 1;
            return Ok(());
        }
        let launch = Arc::new(launch);
        touches.reads.retain(|range| !range.is_empty());
        touches.writes.retain(|range| !range.is_empty());
        let (access, clock) = self.order.launch(stream, Arc::clone(&launch));
        if let Some(used) = &touches.host {
            self.host.check_writable(used, &access.launch)?;
        }
        self.memory.touch(&touches, &access, &clock)?;
        if let Some(used) = &touches.host {
            self.host.record_copy(used, &access);
        }
        self.launches += 1;
        let activity = activity_log::is_on().then(|| recorded(self.device, &launch, &touches)).flatten();
        self.timeline.push_work(
            stream,
            Box::new(move |memory, now_us| {
                if let Some(activity) = activity {
                    activity_log::simulated(now_us, now_us, activity);
                }
                action(memory, &launch, &touches)
            }),
        );
        Ok(())
    }

    /// Runs one item that may run now. Returns whether there was one.
    pub(super) fn step(&mut self) -> Result<bool, ErrorKind> {
        match self.timeline.step() {
            None => Ok(false),
            Some(None) => Ok(true),
            Some(Some(work)) => {
                let _in_work = InHostFunction::enter();
                work(&mut self.memory, self.timeline.now_us()).map(|()| true)
            }
        }
    }

    /// Returns whether `point` is passed, after it lets the device run for a random while. If it is passed, records
    /// that the host has seen the work of `stamp` complete.
    pub(super) fn query(&mut self, point: Point, stamp: &Stamp) -> Result<bool, ErrorKind> {
        while !self.timeline.has_passed(point) && !self.timeline.is_idle() && self.timeline.draw_bool() {
            self.step()?;
        }
        let passed = self.timeline.has_passed(point);
        if passed {
            self.order.observe(stamp);
        }
        Ok(passed)
    }

    /// Records `event` at the end of `stream`. Work that other processes may wait for runs at once: nothing else would
    /// run it while this process waits for them.
    pub(super) fn record_event(&mut self, event: EventId, stream: StreamId) -> Result<(), ErrorKind> {
        let stream = self.timeline.stream(stream)?;
        self.timeline.events.get(event)?;
        if let Some(capture) = self.capture_of(stream) {
            capture.record(stream, event);
            return Ok(());
        }
        self.captures.iter_mut().for_each(|capture| capture.forget(event));
        if let Some(point) = self.timeline.record_event(event, stream, self.order.stamp(stream))? {
            while !self.timeline.has_passed(point) && self.step()? {}
        }
        Ok(())
    }

    pub(super) fn query_event(&mut self, event: EventId) -> Result<bool, ErrorKind> {
        self.forbid_while_capturing()?;
        match self.timeline.events.last_record(event)? {
            LastRecord::Never => Ok(true),
            LastRecord::Here(point, stamp) => {
                let stamp = stamp.clone();
                self.query(point, &stamp)
            }
            LastRecord::Elsewhere(signal, record) => Ok(signal.has_passed(record)),
        }
    }

    pub(super) fn wait_event(&mut self, stream: StreamId, event: EventId) -> Result<(), ErrorKind> {
        let is_null = stream == StreamId::NULL;
        let stream = self.timeline.stream(stream)?;
        self.timeline.events.check_device(event)?;
        if let Some(capture) = self.captures.iter_mut().find(|capture| capture.has_recorded(event)) {
            if is_null {
                return capture.break_by("the null stream, which cannot be captured, waits for captured work");
            }
            capture.wait(stream, event);
            return Ok(());
        }
        if self.capture_of(stream).is_some() {
            return Err(capture_error("a captured stream waits for work that is not captured"));
        }
        match self.timeline.events.last_record(event)? {
            LastRecord::Never => return Ok(()),
            LastRecord::Here(point, _) if point.stream == stream => return Ok(()),
            LastRecord::Here(point, stamp) => {
                self.order.wait(stream, stamp);
                self.timeline.push_wait(stream, point);
            }
            LastRecord::Elsewhere(signal, record) => self.timeline.push_wait_elsewhere(stream, signal, record),
        }
        self.counters.stream_waits += 1;
        Ok(())
    }

    /// Makes `stream`, captured or not, wait for an event recorded outside any capture.
    pub(super) fn wait_event_outside(&mut self, stream: StreamId, event: EventId) -> Result<(), ErrorKind> {
        let index = self.timeline.stream(stream)?;
        self.timeline.events.get(event)?;
        match self.capture_of(index) {
            Some(capture) => {
                capture.wait_outside(index, event);
                Ok(())
            }
            None => self.wait_event(stream, event),
        }
    }

    /// Returns the goal of a wait for everything on `stream`.
    pub(super) fn stream_goal(&mut self, stream: StreamId) -> Result<Goal, ErrorKind> {
        let stream = self.timeline.stream(stream)?;
        self.forbid_in_capture_of(stream)?;
        Ok(Goal::Point(self.timeline.tail(stream), self.order.stamp(stream)))
    }

    /// Returns the goal of a wait for the last record of `event`.
    pub(super) fn event_goal(&mut self, event: EventId) -> Result<Goal, ErrorKind> {
        self.forbid_while_capturing()?;
        Ok(match self.timeline.events.last_record(event)? {
            LastRecord::Never => Goal::Nothing,
            LastRecord::Here(point, stamp) => Goal::Point(point, stamp.clone()),
            LastRecord::Elsewhere(signal, record) => Goal::Elsewhere(signal, record),
        })
    }

    /// Returns the goal of a wait for everything on the device.
    pub(super) fn device_goal(&self) -> Goal {
        Goal::Points(self.timeline.tails(), self.order.stamp_of_all())
    }

    /// Runs work until `goal` is passed, and records that the host has seen the work before it complete. Returns false
    /// if another process must act first.
    pub(super) fn reach(&mut self, goal: &Goal) -> Result<bool, ErrorKind> {
        let (points, stamp) = match goal {
            Goal::Nothing => return Ok(true),
            Goal::Elsewhere(signal, record) => return Ok(signal.has_passed(*record)),
            Goal::Point(point, stamp) => (slice::from_ref(point), stamp),
            Goal::Points(points, stamp) => (points.as_slice(), stamp),
        };
        for &point in points {
            while !self.timeline.has_passed(point) {
                if !self.step()? && !self.timeline.skip_ahead(point) {
                    return Ok(false);
                }
            }
        }
        self.order.observe(stamp);
        Ok(true)
    }

    /// Returns the capture that a stream belongs to.
    pub(super) fn capture_of(&mut self, stream: usize) -> Option<&mut SimCapture> {
        self.captures.iter_mut().find(|capture| capture.has(stream))
    }

    /// Refuses a wait for a captured stream, or a query of one; that ends the capture.
    pub(super) fn forbid_in_capture_of(&mut self, stream: usize) -> Result<(), ErrorKind> {
        let capture = self.capture_of(stream);
        capture.map_or(Ok(()), |capture| capture.break_by("a captured stream was waited for, or asked about"))
    }

    /// Refuses a call that a thread must not make while it captures; that ends the capture.
    pub(super) fn forbid_while_capturing(&mut self) -> Result<(), ErrorKind> {
        let thread = thread::current().id();
        let capture = self.captures.iter_mut().find(|capture| capture.thread == thread);
        capture.map_or(Ok(()), |capture| capture.break_by("the device was waited for, or asked about, in a capture"))
    }

    /// Converts a fault to the error of `call`. Some faults also lose the context, which drops all queued work.
    pub(super) fn fail(&mut self, call: Call, kind: ErrorKind) -> CallError {
        let error = CallError { call, kind };
        if error.kind.loses_context() {
            self.context_fault = Some(Arc::new(error.clone()));
            let _in_work = InHostFunction::enter();
            self.timeline.abandon();
        }
        error
    }
}

/// Returns the activity that work is recorded as. `None` for functions of the host.
fn recorded(device: Device, launch: &Launch, touches: &Touches) -> Option<Activity> {
    let kind = if launch.at.is_some() { ActivityKind::Kernel } else { ActivityKind::of_call(launch.name)? };
    let bytes = match kind {
        ActivityKind::Kernel => 0,
        ActivityKind::CopyFromDevice => touches.reads.iter().map(|range| range.end - range.start).sum(),
        _ => touches.writes.iter().map(|range| range.end - range.start).sum(),
    };
    Some(Activity::untimed(device, launch.stream, kind, launch.name, bytes))
}

/// A device's state and its lock. Work runs under the lock, so a call that work makes must not take the lock again.
pub(super) struct LockedState(Mutex<SimState>);

impl LockedState {
    pub(super) fn new(state: SimState) -> Self {
        Self(Mutex::new(state))
    }

    /// Locks the state. Returns `None` when a kernel or host function calls this.
    pub(super) fn try_enter(&self) -> Option<MutexGuard<'_, SimState>> {
        (!in_host_function()).then(|| self.0.lock())
    }

    /// Locks the state, or returns `None` while another call uses the device, perhaps of this thread.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, SimState>> {
        self.0.try_lock()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SimState> {
        self.try_enter().expect("host functions and kernels do not call the driver")
    }
}
