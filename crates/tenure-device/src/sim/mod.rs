//! A simulated device, in software, that is stricter than a real one.
//!
//! **Time.** Work put on a stream is queued, and runs when a call needs it: a synchronisation, a query, or
//! [`SimDriver::step`]. [`SimConfig::seed`] chooses which stream goes next, among all that their events allow. So a few
//! seeds try a few hostile schedules, and each seed always gives the same one. Work takes no time. A virtual clock in
//! µs moves only when told to ([`SimDriver::set_time`]), and when the host synchronises with work that ends later
//! ([`SimDriver::busy_until`]). The null stream is a stream like any other: the implicit waits of CUDA's legacy default
//! stream are not modelled.
//!
//! **Memory.** Bytes are real, kept where they were written, and shared by all addresses of a chunk. Memory that was
//! never written reads as junk. An address is never given twice, unless [`SimDriver::script_addresses`] says so.
//!
//! **Sharing.** Any number of simulated devices, in this process and in others, can import a descriptor of an exported
//! chunk: each device stands for the one real device as its process sees it. They share the bytes, and from the first
//! export bytes that were never written read as 0. A chunk counts as used memory of the device that created it until it
//! is released there and no descriptor and no import is left anywhere, whether they were given up or their processes
//! died. It never counts as used memory of a device that imports it. Each device looks for races in its own work only.
//!
//! Other devices see an [interprocess](crate::EventKind::Interprocess) event as passed when the device that recorded it
//! has run all work before it. That happens within the call that records the event, since nothing else would run the
//! work while the host waits for another process. But the clock does not move for it. So [`SimDriver::busy_until`]
//! before a record, and [`SimDriver::run`] once the time has come, choose when others see the event passed. They never
//! see it passed if the recording process dies or loses its context first.
//!
//! Streams of one simulated device do not wait for events of a simulated device with another number
//! ([`OtherDevice`](crate::ErrorKind::OtherDevice)): each has its own clock. CUDA's streams do wait.
//!
//! **Peers.** Devices of a [`SimPlatform`] have no address in common. A device's work touches its own memory only. Peer
//! access ([`enable_peer`](crate::MemoryCalls::enable_peer)) is recorded and can be queried ([`SimDriver::lets`]),
//! but has no other effect. Host memory that one device registers is registered for all of them, as CUDA does with
//! `CU_MEMHOSTREGISTER_PORTABLE`.
//!
//! **Checks.** Work declares what it reads and writes. The declaration is checked when the work is put on its stream,
//! against the work that is *known* to come before, never against the order in which work happens to run; so every seed
//! finds the same faults. Two accesses of the same physical bytes, at least one of them a write, are a
//! [`Race`](crate::ErrorKind::Race) if neither stream order nor events nor the host order them: this finds a forgotten
//! `record_stream`. An unmap of memory whose work the host has not seen completed is an
//! [`UnmappedInUse`](crate::ErrorKind::UnmappedInUse). Such faults lose the context. A mapped chunk cannot be released,
//! where CUDA would keep it for its mappings. Host memory cannot be unregistered under a copy, where CUDA would not
//! notice. The device does not look for races in host memory, and the threads of the host count as one.
//! [`SimDriver::busy_until`] declares nothing, so it is not checked and costs next to nothing: a replay that only
//! measures time needs no more.

mod calls;
mod capture;
mod events;
mod fault;
mod graphs;
mod host;
mod kernel;
mod memory;
mod pages;
mod peers;
mod physical;
mod platform;
mod race;
mod shared;
mod signal;
mod state;
mod timeline;

use std::cell::Cell;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_alloc::Address;
use tenure_core::{Device, StreamId};

pub use self::fault::Failure;
use self::host::Registrations;
pub use self::kernel::{KernelMemory, SimKernel};
pub(crate) use self::peers::PeerSource;
pub use self::platform::SimPlatform;
pub use self::state::SimConfig;
use self::state::{Goal, LockedState, SimState};
use self::timeline::Condition;
use crate::activity_log::{self, Activity, ActivityKind};
use crate::cost::HOST_SYNC_US;
use crate::{AccessMode, Call, CallError, Counters, DeviceProcess, ErrorKind, Launch, Priority};

/// The interval at which the host checks whether another process has passed an event that it waits for.
const POLL_INTERVAL: Duration = Duration::from_micros(50);

/// The devices of one platform.
type Siblings = Arc<Mutex<Vec<Weak<SimDriver>>>>;

/// The simulated driver.
///
/// Beside the calls of [`Driver`](crate::Driver) it runs [`SimKernel`]s, keeps a clock, counts calls, and fails on
/// demand.
///
/// # Panics
/// The methods of this type that return no error panic when a [`HostFunction`](crate::HostFunction) or kernel calls
/// them.
pub struct SimDriver {
    state: LockedState,
    device: Device,
    granularity: u64,
    siblings: Siblings,
    /// The platform's devices that can reach this one's memory, once enabled.
    possible_peers: Vec<u8>,
}

impl SimDriver {
    /// Creates a device, number 0, at time 0.
    ///
    /// # Panics
    /// If the granularity is not a power of two.
    pub fn new(config: SimConfig) -> Self {
        Self::numbered(config, 0, Vec::new(), Arc::default(), Siblings::default())
    }

    /// Creates a device of a platform.
    fn numbered(
        config: SimConfig,
        device: u8,
        possible_peers: Vec<u8>,
        registrations: Arc<Registrations>,
        siblings: Siblings,
    ) -> Self {
        let granularity = config.granularity_bytes;
        assert!(granularity.is_power_of_two(), "a granularity of {granularity} bytes is not a power of two");
        let device = Device::cuda(device);
        let state = LockedState::new(SimState::new(config, device, Arc::clone(&registrations)));
        Self { state, device, granularity, siblings, possible_peers }
    }

    /// Puts `kernel` on its stream. [`check_launch`](crate::check_launch) takes the returned value.
    ///
    /// # Errors
    /// The stream does not exist, memory that the kernel declares is not accessible, or it races with work before it.
    pub fn launch(&self, kernel: SimKernel) -> Result<Launch, CallError> {
        self.call(Call::Launch, |state| state.launch(kernel))
    }

    /// Makes later work of `stream` wait until `condition` holds. The condition is evaluated again and again.
    pub(crate) fn wait_outside(&self, stream: StreamId, condition: Condition) -> Result<(), CallError> {
        self.call(Call::WaitEvent, |state| {
            let stream = state.timeline.stream(stream)?;
            state.forbid_in_capture_of(stream)?;
            state.timeline.push_wait_outside(stream, condition);
            Ok(())
        })
    }

    /// Runs one piece of queued work, or passes one wait or event, on a stream that the seed chooses among those whose
    /// next item may run now. Returns whether there was one.
    ///
    /// # Errors
    /// The fault of the work, as an error of `cuLaunchKernel`.
    pub fn step(&self) -> Result<bool, CallError> {
        self.resume(Call::Launch, |state| state.step())
    }

    /// Runs everything that may run now. Race detection does not count this as the host waiting for the work.
    ///
    /// # Errors
    /// The fault of the work, as an error of `cuLaunchKernel`.
    pub fn run(&self) -> Result<(), CallError> {
        self.resume(Call::Launch, |state| {
            while state.step()? {}
            Ok(())
        })
    }

    /// Returns the error that lost the context, if one did.
    pub fn fault(&self) -> Option<Arc<CallError>> {
        self.state.lock().fault()
    }

    /// Creates a stream with the id of an external stream, and the default priority. Nothing happens if a stream with
    /// that id exists.
    pub fn adopt_stream(&self, stream: StreamId) {
        self.state.lock().timeline.adopt_stream(stream, Priority::Default);
    }

    /// Returns the clock's time, in µs.
    pub fn now_us(&self) -> u64 {
        self.state.lock().timeline.now_us()
    }

    /// Moves the clock to `us`, unless it is past that time already.
    pub fn set_time(&self, us: u64) {
        self.state.lock().timeline.set_time(us);
    }

    /// Moves the clock forward by `us`.
    pub fn advance(&self, us: u64) {
        let mut state = self.state.lock();
        let now_us = state.timeline.now_us();
        state.timeline.set_time(now_us + us);
    }

    /// Puts work on `stream` that touches no memory and ends when the clock reaches `us`. If the stream has no queued
    /// work, the call allocates nothing and takes nanoseconds, and so do events after it. A synchronisation counts its
    /// wait from the time that the clock shows: set the clock before it.
    ///
    /// # Errors
    /// The stream does not exist.
    pub fn busy_until(&self, stream: StreamId, us: u64) -> Result<(), CallError> {
        self.call(Call::Launch, |state| {
            let index = state.timeline.stream(stream)?;
            if activity_log::is_on() {
                let begin_us = state.timeline.idle_from_us(index);
                let busy = Activity::untimed(self.device, stream, ActivityKind::Kernel, "busy", 0);
                activity_log::simulated(begin_us, us.max(begin_us), busy);
            }
            state.timeline.push_busy(index, us);
            Ok(())
        })
    }

    /// Makes the next `malloc`s return these addresses, one each, after those given before. If an address overlaps live
    /// memory, the call fails, and leaves the address for the next call.
    pub fn script_addresses(&self, addresses: impl IntoIterator<Item = Address>) {
        self.state.lock().memory.script_addresses(addresses);
    }

    /// Returns whether device number `peer` has `access` to all of `address..address + bytes`.
    pub fn lets(&self, peer: u8, access: AccessMode, address: Address, bytes: u64) -> bool {
        self.state.lock().memory.lets(peer, access, address..address.saturating_add(bytes))
    }

    /// Returns the counts of the calls made so far.
    pub fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// Returns the most physical memory in use at once, in bytes. Memory of the context and of other processes counts
    /// too.
    pub fn peak_bytes(&self) -> u64 {
        self.state.lock().memory.physical.peak_bytes()
    }

    /// Makes [`processes`](crate::Driver::processes) return this list. Without it, the call reports this process alone,
    /// with the memory of the driver and the context.
    pub fn set_processes(&self, processes: Option<Vec<DeviceProcess>>) {
        self.state.lock().processes = Some(processes);
    }

    /// Returns the priority that a stream was created with, if it exists.
    pub fn priority(&self, stream: StreamId) -> Option<Priority> {
        self.state.lock().timeline.priority(stream)
    }

    /// Plans a failure, in addition to those planned before.
    pub fn inject(&self, failure: Failure) {
        self.state.lock().failures.plan(failure);
    }

    /// Forgets all planned failures.
    pub fn clear_failures(&self) {
        self.state.lock().failures.clear();
    }

    /// Returns the number of calls made so far, failed ones included: of `call`, or of all kinds.
    pub fn calls(&self, call: Option<Call>) -> u64 {
        self.state.lock().failures.made(call)
    }
}

impl SimDriver {
    /// Makes a driver call: counts it, refuses it if the context is lost, and fails it if a test asked for that.
    fn call<T>(&self, call: Call, action: impl FnOnce(&mut SimState) -> Result<T, ErrorKind>) -> Result<T, CallError> {
        let Some(mut state) = self.state.try_enter() else {
            return Err(CallError { call, kind: ErrorKind::CalledFromWork });
        };
        let fails = state.failures.count_call(call);
        let result = match &state.context_fault {
            Some(first) => Err(ErrorKind::ContextLost(Arc::clone(first))),
            None if fails => Err(ErrorKind::Injected),
            None => action(&mut state),
        };
        result.map_err(|kind| state.fail(call, kind))
    }

    /// Makes a driver call that blocks the host until the goal of `start` has passed, and counts the wait.
    fn synchronize_with(
        &self,
        call: Call,
        start: impl FnOnce(&mut SimState) -> Result<Goal, ErrorKind>,
    ) -> Result<(), CallError> {
        let started_us = Cell::new(None);
        let start = |state: &mut SimState| {
            let goal = start(state)?;
            if !matches!(goal, Goal::Nothing) {
                started_us.set(Some(state.timeline.now_us()));
            }
            Ok(goal)
        };
        self.block(call, start, |state| {
            if let Some(us) = started_us.get() {
                state.counters.host_syncs += 1;
                state.counters.driver_us += HOST_SYNC_US + (state.timeline.now_us() - us) as f64;
            }
            Ok(())
        })
    }

    /// Makes a driver call that blocks the host until the goal of `start` has passed, and then runs `finish`. Other
    /// threads can use the device while another process must act first.
    fn block<T>(
        &self,
        call: Call,
        start: impl FnOnce(&mut SimState) -> Result<Goal, ErrorKind>,
        mut finish: impl FnMut(&mut SimState) -> Result<T, ErrorKind>,
    ) -> Result<T, CallError> {
        let mut attempt = |state: &mut SimState, goal: Goal| {
            if state.reach(&goal)? { finish(state).map(Ok) } else { Ok(Err(goal)) }
        };
        let mut outcome = self.call(call, |state| {
            let goal = start(state)?;
            attempt(state, goal)
        })?;
        loop {
            match outcome {
                Ok(result) => return Ok(result),
                Err(goal) => {
                    thread::sleep(POLL_INTERVAL);
                    outcome = self.resume(call, |state| attempt(state, goal))?;
                }
            }
        }
    }

    /// Runs a further part of a driver call, or an action that is no driver call but can find errors.
    fn resume<T>(
        &self,
        call: Call,
        action: impl FnOnce(&mut SimState) -> Result<T, ErrorKind>,
    ) -> Result<T, CallError> {
        let mut state = self.state.lock();
        if let Some(first) = state.fault() {
            return Err(CallError { call, kind: ErrorKind::ContextLost(first) });
        }
        action(&mut state).map_err(|kind| state.fail(call, kind))
    }
}
