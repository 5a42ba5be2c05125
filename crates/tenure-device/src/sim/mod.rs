//! A device in software that is stricter than a real one.
//!
//! **Time.** What is put on a stream is queued, and runs when something needs it: a synchronisation, a query, or
//! [`SimDriver::step`]. Which stream goes next is chosen by [`SimConfig::seed`] among all that their events allow, so
//! a few seeds try a few hostile schedules, each the same every time. Work takes no time. A virtual clock in µs moves
//! only when told to ([`SimDriver::set_time`]), and when the host synchronises with work that ends later
//! ([`SimDriver::busy_until`]). The null stream is a stream like any other: the implicit waits of CUDA's legacy
//! default stream are not modelled.
//!
//! **Memory.** Bytes are real, kept where they were written, and shared by all addresses of a chunk. Memory that was
//! never written reads as junk. An address is never given twice, unless [`SimDriver::script_addresses`] says so.
//!
//! **Sharing.** A descriptor of an exported chunk can be imported by any number of simulated devices, in this process
//! and in others: each stands for the one device as a process sees it. They share the bytes, and from its first export
//! what was never written reads as 0. A chunk is on the account of the device that made it, until it is released there
//! and no descriptor and no import is left anywhere, whether they were given up or their processes died; on the account
//! of a device that imports it, it never is. Each device looks for races in its own work only.
//!
//! An [interprocess](crate::EventKind::Interprocess) event is passed for other devices when the one that recorded it
//! has run what comes before. It does so within the call that records, since nothing else would while its host waits
//! for another process; but its clock does not move for that, so [`SimDriver::busy_until`] before a record, and
//! [`SimDriver::run`] once the time has come, choose when others see it passed. They never do if the recording process
//! dies or loses its context before.
//!
//! Streams of one simulated device do not wait for events of another that stands for a device of its own
//! ([`OtherDevice`](crate::ErrorKind::OtherDevice)): each has its own clock. CUDA's do.
//!
//! **Peers.** Devices of a [`SimPlatform`] have no address in common. Work of a device touches its own memory only: what
//! another may reach ([`Driver::enable_peer`](crate::Driver::enable_peer)) is kept and told ([`SimDriver::lets`]), and
//! that is all. Memory of the host that one of them registers is registered for all of them, as CUDA does with
//! `CU_MEMHOSTREGISTER_PORTABLE`.
//!
//! **Checks.** Work declares what it reads and writes. That is checked when it is put on its stream, against what is
//! *known* to come before it, never against what happens to have run; so what is found is found with every seed. Two
//! accesses of the same physical bytes, one of them a write, that neither stream order nor events nor the host put in
//! an order are a [`Race`](crate::ErrorKind::Race): a forgotten `record_stream` ends there. Unmapping what the host
//! has not seen completed is an [`UnmappedInUse`](crate::ErrorKind::UnmappedInUse). Such faults lose the context.
//! A mapped chunk cannot be released, where CUDA would keep it for its mappings, and host memory cannot be unregistered
//! under a copy, where CUDA would not notice. Races in memory of the host are not looked for, and the threads of the
//! host count as one. [`SimDriver::busy_until`] declares nothing, so it is not checked, and costs
//! next to nothing: a replay that only tells the time needs no more.

mod capture;
mod driver;
mod events;
mod fault;
mod host;
mod kernel;
mod memory;
mod pages;
mod peers;
mod physical;
mod platform;
mod race;
mod random;
mod shared;
mod signal;
mod state;
mod timeline;

use std::sync::Arc;

use tenure_alloc::Address;
use tenure_core::{Device, StreamId};

pub use self::fault::Failure;
use self::host::Registrations;
pub use self::kernel::{Kernel, KernelMemory};
pub(crate) use self::peers::Source;
pub use self::platform::SimPlatform;
use self::state::{Guarded, State};
use self::timeline::Condition;
use crate::{Access, Call, CallError, Counters, Launch, Priority, ProcessMemory};

/// What device to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Physical memory, in bytes.
    pub capacity_bytes: u64,
    /// How much of it other processes hold, in bytes.
    pub other_bytes: u64,
    /// How much of it this process's context holds, in bytes.
    pub context_bytes: u64,
    /// Smallest physical chunk, in bytes; a power of two.
    pub granularity_bytes: u64,
    /// Chooses the order in which streams run.
    pub seed: u64,
}

impl Default for SimConfig {
    /// An NVIDIA H200 with nobody on it: 143771 MiB, in chunks of 2 MiB.
    fn default() -> Self {
        Self { capacity_bytes: 143_771 << 20, other_bytes: 0, context_bytes: 0, granularity_bytes: 2 << 20, seed: 0 }
    }
}

/// The simulated driver.
///
/// Beside [`Driver`](crate::Driver) it runs [`Kernel`]s, keeps a clock, counts what it was asked for, and fails on
/// demand.
///
/// # Panics
/// The methods of this type that return no error panic when a [`HostFunction`](crate::HostFunction) or kernel calls
/// them.
pub struct SimDriver {
    state: Guarded,
    device: Device,
    granularity: u64,
    /// Memory of the host that is registered.
    registrations: Arc<Registrations>,
    /// Devices of the platform that can reach this one's memory, if they may.
    possible_peers: Vec<u8>,
}

impl SimDriver {
    /// A new device, number 0, at time 0.
    ///
    /// # Panics
    /// If the granularity is not a power of two.
    pub fn new(config: SimConfig) -> Self {
        Self::numbered(config, 0, Vec::new(), Arc::default())
    }

    fn numbered(config: SimConfig, device: u8, possible_peers: Vec<u8>, registrations: Arc<Registrations>) -> Self {
        let granularity = config.granularity_bytes;
        assert!(granularity.is_power_of_two(), "a granularity of {granularity} bytes is not a power of two");
        let device = Device::cuda(device);
        let state = Guarded::new(State::new(config, device, Arc::clone(&registrations)));
        Self { state, device, granularity, registrations, possible_peers }
    }

    /// Puts `kernel` on its stream. [`check_launch`](crate::check_launch) takes what it returns.
    ///
    /// # Errors
    /// The stream does not exist, or what the kernel declares is not accessible, or it races with work before it.
    pub fn launch(&self, kernel: Kernel) -> Result<Launch, CallError> {
        self.call(Call::Launch, |state| state.launch(kernel))
    }

    /// Makes later work of `stream` wait until `condition` holds, which is asked for again and again.
    pub(crate) fn wait_outside(&self, stream: StreamId, condition: Condition) -> Result<(), CallError> {
        self.call(Call::WaitEvent, |state| {
            let stream = state.timeline.stream(stream)?;
            state.forbid_in_capture_of(stream)?;
            state.timeline.push_wait_outside(stream, condition);
            Ok(())
        })
    }

    /// Runs one thing that may run now, on a stream that the seed chooses. Returns whether there was one.
    ///
    /// # Errors
    /// What the work did wrong, as an error of `cuLaunchKernel`.
    pub fn step(&self) -> Result<bool, CallError> {
        self.resume(Call::Launch, |state| state.step())
    }

    /// Runs everything that may run now. The host knows no more than before of what has completed.
    ///
    /// # Errors
    /// What the work did wrong, as an error of `cuLaunchKernel`.
    pub fn run(&self) -> Result<(), CallError> {
        self.resume(Call::Launch, |state| {
            while state.step()? {}
            Ok(())
        })
    }

    /// The error that lost the context, if one did.
    pub fn fault(&self) -> Option<Arc<CallError>> {
        self.state.lock().fault()
    }

    /// Makes an external stream known under the name it has elsewhere, with the default priority. Nothing happens if
    /// there is one of that name.
    pub fn adopt_stream(&self, stream: StreamId) {
        self.state.lock().timeline.adopt_stream(stream, Priority::Default);
    }

    /// The clock, in µs.
    pub fn now_us(&self) -> u64 {
        self.state.lock().timeline.now_us()
    }

    /// Moves the clock to `us`, unless it is past that already.
    pub fn set_time(&self, us: u64) {
        self.state.lock().timeline.set_time(us);
    }

    /// Moves the clock on by `us`.
    pub fn advance(&self, us: u64) {
        let mut state = self.state.lock();
        let now_us = state.timeline.now_us();
        state.timeline.set_time(now_us + us);
    }

    /// Puts work on `stream` that touches no memory and ends when the clock comes to `us`. On a stream without queued
    /// work that allocates nothing and takes nanoseconds, as do events after it. A synchronisation waits from the time
    /// that the clock shows: set it before it matters.
    ///
    /// # Errors
    /// The stream does not exist.
    pub fn busy_until(&self, stream: StreamId, us: u64) -> Result<(), CallError> {
        self.call(Call::Launch, |state| {
            let stream = state.timeline.stream(stream)?;
            state.timeline.push_busy(stream, us);
            Ok(())
        })
    }

    /// Makes the next `malloc`s return these addresses, one each, after those given before. A call whose address
    /// overlaps something live fails, and leaves it for the next.
    pub fn script_addresses(&self, addresses: impl IntoIterator<Item = Address>) {
        self.state.lock().memory.script(addresses);
    }

    /// Whether device number `peer` may access all of `address..address + bytes` so.
    pub fn lets(&self, peer: u8, access: Access, address: Address, bytes: u64) -> bool {
        self.state.lock().memory.lets(peer, access, address..address.saturating_add(bytes))
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.state.lock().counters
    }

    /// The most physical memory in use at once, what the context and other processes hold included.
    pub fn peak_bytes(&self) -> u64 {
        self.state.lock().memory.physical.peak_bytes()
    }

    /// Makes [`processes`](crate::Driver::processes) answer this. Before, it tells of this process alone: what the
    /// driver and the context hold.
    pub fn set_processes(&self, processes: Option<Vec<ProcessMemory>>) {
        self.state.lock().processes = Some(processes);
    }

    /// The priority that a stream was created with, if it exists.
    pub fn priority(&self, stream: StreamId) -> Option<Priority> {
        self.state.lock().timeline.priority(stream)
    }

    /// Plans a failure, beside those planned before.
    pub fn inject(&self, failure: Failure) {
        self.state.lock().failures.plan(failure);
    }

    /// Forgets all planned failures.
    pub fn clear_failures(&self) {
        self.state.lock().failures.clear();
    }

    /// How many calls were made so far, failed ones included: of any kind, or of one.
    pub fn calls(&self, call: Option<Call>) -> u64 {
        self.state.lock().failures.made(call)
    }
}
