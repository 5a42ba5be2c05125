//! Preemption: threads that allocate wait while a program of higher priority uses the device.
//!
//! A *mark* is a host function on a stream, which runs when the device reaches it. A stream's marks are some 5 ms
//! of device time apart, and at most 20 ms of them are outstanding: beyond that, the thread that allocates waits for
//! the device. So the device never lags far behind the host, and is soon idle when the host stops. A mark needs no
//! query: a query from one thread would break a capture that another thread makes.

use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tenure_core::{Clock, StreamId};

use crate::Driver;

/// The device time by which the device may lag after the host. A single launch that takes longer cannot be divided, and
/// two such launches may be outstanding.
const MAX_LAG: Duration = Duration::from_millis(20);
/// The device time between two marks of a stream, and the shortest measurement.
const MARK_INTERVAL: Duration = Duration::from_millis(5);
/// The number of allocations between two marks until the device time of an allocation was measured.
const FIRST_STRIDE: u32 = 4;
/// The most allocations between two marks.
const MAX_STRIDE: u32 = 4096;
/// The number of lanes to which streams are mapped, a power of two. Streams that share a lane are treated as one.
const LANES: usize = 16;
/// The time that [`Preemption::yield_now`] leaves a program to launch work that it has begun to prepare. A program that
/// allocates nothing for this long launches nothing that takes long.
const GRACE: Duration = Duration::from_millis(10);
/// The longest wait for the device to become idle.
const PATIENCE: Duration = Duration::from_secs(1);
/// The interval at which a waiting thread checks whether the device has failed: a failed device reaches no mark.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// The interval at which [`Preemption::yield_now`] reads the clock while it waits for the device.
const TICK_INTERVAL: Duration = Duration::from_millis(1);

/// A function that runs the closure it is given, which waits. It must call the closure.
pub type AroundWait = fn(&mut (dyn FnMut() + Send));

/// A switch that stops a process at its next allocation or launch of a graph, on all of its devices, until it may run
/// again.
///
/// [`preempt`](super::preempt) installs it. Work that is captured into a graph never waits.
#[derive(Debug)]
pub struct Preemption {
    /// A copy of [`PreemptionState::is_stopped`] that every allocation reads without a lock.
    is_stopped: AtomicBool,
    inner: Arc<PreemptionInner>,
    around_wait: AroundWait,
}

/// The state that marks share.
#[derive(Debug)]
struct PreemptionInner {
    lanes: [Lane; LANES],
    state: Mutex<PreemptionState>,
    changed: Condvar,
    clock: Clock,
}

/// A count of allocations, for the streams that are mapped to one lane.
#[derive(Debug)]
struct Lane {
    /// Allocations since the last mark.
    allocations: AtomicU32,
    /// Allocations between two marks.
    stride: AtomicU32,
}

#[derive(Debug, Default)]
struct PreemptionState {
    is_stopped: bool,
    /// The number of threads that wait because the process is stopped.
    stopped: usize,
    paces: [LanePace; LANES],
}

/// The speed of the device on a lane.
#[derive(Debug)]
struct LanePace {
    /// The number of marks that the device has not reached.
    outstanding: usize,
    /// The most marks that may be outstanding.
    limit: usize,
    /// The time at which the last mark was made.
    last_mark: Duration,
    /// The start of the measurement. `allocations` counts those that the device has passed since then.
    since: Duration,
    allocations: u32,
    /// The device time of an allocation, smoothed; `None` before it was measured.
    allocation: Option<Duration>,
}

impl Default for LanePace {
    fn default() -> Self {
        let (last_mark, since) = Default::default();
        Self { outstanding: 0, limit: 1, last_mark, since, allocations: 0, allocation: None }
    }
}

impl Default for Preemption {
    fn default() -> Self {
        Self::new(|wait| wait(), Clock::default())
    }
}

impl Preemption {
    /// Creates the preemption of a process that may run. Threads wait within `around_wait`, which can release a lock of
    /// the program's, such as Python's. `clock` gives the times.
    pub fn new(around_wait: AroundWait, clock: Clock) -> Self {
        let lanes = array::from_fn(|_| Lane { allocations: AtomicU32::new(0), stride: AtomicU32::new(FIRST_STRIDE) });
        let inner = PreemptionInner { lanes, state: Mutex::default(), changed: Condvar::new(), clock };
        let preemption = Self { is_stopped: AtomicBool::new(false), inner: Arc::new(inner), around_wait };
        preemption.resume();
        preemption
    }

    /// Stops threads at their next allocation, and waits until the devices have reached all marks. Returns whether they
    /// have: not if they take longer than a second, or if the process may [run](Self::resume) again before. A program
    /// that does not allocate meanwhile, such as one that reads data, has 10 ms to launch work that it has begun to
    /// prepare.
    pub fn yield_now(&self) -> bool {
        let begun = self.inner.clock.now();
        let mut state = self.inner.state.lock();
        self.set_stopped(&mut state, true);
        loop {
            let waited = self.inner.clock.now().saturating_sub(begun);
            let is_idle = state.paces.iter().all(|pace| pace.outstanding == 0);
            if is_idle && (state.stopped > 0 || waited >= GRACE) {
                return true;
            }
            if !state.is_stopped || waited >= PATIENCE {
                return false;
            }
            self.inner.changed.wait_for(&mut state, TICK_INTERVAL);
        }
    }

    /// Lets threads run again.
    pub fn resume(&self) {
        let now = self.inner.clock.now();
        let mut state = self.inner.state.lock();
        state.paces.iter_mut().for_each(|pace| pace.restart(now));
        self.set_stopped(&mut state, false);
    }

    /// Returns whether threads stop at their next allocation.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn set_stopped(&self, state: &mut PreemptionState, is_stopped: bool) {
        state.is_stopped = is_stopped;
        self.is_stopped.store(is_stopped, Ordering::Relaxed);
        self.inner.changed.notify_all();
    }

    /// Counts an allocation on `stream`, and pauses the thread if a mark is due or the process is stopped.
    #[inline]
    pub(super) fn at_allocation(&self, driver: &Arc<dyn Driver>, stream: StreamId) {
        let lane = &self.inner.lanes[lane_of(stream)];
        let allocations = lane.allocations.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if allocations >= lane.stride.load(Ordering::Relaxed) || self.is_stopped() {
            self.pause(driver, stream);
        }
    }

    /// Counts a graph launch on `stream` and pauses the thread in any case: a graph may take as long as any number of
    /// allocations.
    pub(super) fn at_launch(&self, driver: &Arc<dyn Driver>, stream: StreamId) {
        self.inner.lanes[lane_of(stream)].allocations.fetch_add(1, Ordering::Relaxed);
        self.pause(driver, stream);
    }

    /// Makes a mark, and waits until the device does not lag too far and the process may run.
    #[cold]
    fn pause(&self, driver: &Arc<dyn Driver>, stream: StreamId) {
        // Captured work does not run now, and no thread may wait for it.
        if driver.is_capturing(stream).unwrap_or(true) {
            return;
        }
        self.inner.mark(driver, stream);
        let may_run = self.inner.state.lock().may_run(lane_of(stream));
        if !may_run {
            (self.around_wait)(&mut || self.inner.wait(driver, stream));
        }
    }
}

impl PreemptionInner {
    /// Puts a mark on `stream`, if there were allocations since the last one.
    fn mark(self: &Arc<Self>, driver: &Arc<dyn Driver>, stream: StreamId) {
        let lane = lane_of(stream);
        let allocations = self.lanes[lane].allocations.swap(0, Ordering::Relaxed);
        if allocations == 0 {
            return;
        }
        let mut state = self.state.lock();
        let pace = &mut state.paces[lane];
        pace.outstanding += 1;
        let begun = pace.last_mark;
        pace.last_mark = self.clock.now();
        // The driver may wait for earlier host functions, which take the lock.
        drop(state);
        let inner = Arc::clone(self);
        let reached = Box::new(move || inner.mark_reached(lane, allocations, begun));
        if driver.host_function(stream, reached).is_err() {
            let pace = &mut self.state.lock().paces[lane];
            pace.outstanding = pace.outstanding.saturating_sub(1);
        }
    }

    /// Waits until threads of the stream may run, or the device has failed.
    fn wait(&self, driver: &Arc<dyn Driver>, stream: StreamId) {
        let mut state = self.state.lock();
        let mut is_counted = false;
        while !state.may_run(lane_of(stream)) {
            if state.is_stopped && !is_counted {
                is_counted = true;
                state.stopped += 1;
                self.changed.notify_all();
            }
            let is_due = self.changed.wait_for(&mut state, CHECK_INTERVAL).timed_out();
            // A lost context runs no host function. The program's next call reports the loss.
            if is_due && MutexGuard::unlocked(&mut state, || driver.check_stream(stream)).is_err() {
                state.paces.iter_mut().for_each(|pace| pace.outstanding = 0);
                self.changed.notify_all();
                break;
            }
        }
        state.stopped -= usize::from(is_counted);
    }

    /// Handles that the device has reached a mark after `allocations` allocations, the first of them after `begun`.
    /// Adapts the distance of marks to the measured time.
    fn mark_reached(&self, lane: usize, allocations: u32, begun: Duration) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let pace = &mut state.paces[lane];
        pace.outstanding = pace.outstanding.saturating_sub(1);
        if let Some(allocation) = pace.measure(allocations, begun, now) {
            let nanoseconds = allocation.as_nanos().max(1);
            let stride = (MARK_INTERVAL.as_nanos() / nanoseconds).clamp(1, MAX_STRIDE.into());
            pace.limit = (MAX_LAG.as_nanos() / (nanoseconds * stride)).clamp(1, 4) as usize;
            self.lanes[lane].stride.store(stride as u32, Ordering::Relaxed);
        }
        self.changed.notify_all();
    }
}

impl PreemptionState {
    /// Returns whether threads of a lane may run: the process is not stopped, and the device does not lag too far.
    fn may_run(&self, lane: usize) -> bool {
        let pace = &self.paces[lane];
        !self.is_stopped && pace.outstanding <= pace.limit
    }
}

impl LanePace {
    /// Starts a new measurement at `now`: nothing ran before.
    fn restart(&mut self, now: Duration) {
        (self.last_mark, self.since, self.allocations) = (now, now, 0);
    }

    /// Returns the device time of an allocation, once it was measured for long enough.
    fn measure(&mut self, allocations: u32, begun: Duration, now: Duration) -> Option<Duration> {
        if self.allocations == 0 {
            self.since = self.since.max(begun);
        }
        self.allocations += allocations;
        let took = now.saturating_sub(self.since);
        if took < MARK_INTERVAL {
            return None;
        }
        let took = took / self.allocations;
        let allocation = self.allocation.map_or(took, |before| (before * 3 + took) / 4);
        (self.since, self.allocations, self.allocation) = (now, 0, Some(allocation));
        Some(allocation)
    }
}

/// Returns the lane of a stream.
fn lane_of(stream: StreamId) -> usize {
    // Handles are addresses or small numbers: the high bits of a product depend on every bit.
    let hash = stream.0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (hash >> (u64::BITS - LANES.trailing_zeros())) as usize
}
