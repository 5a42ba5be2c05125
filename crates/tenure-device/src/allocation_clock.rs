//! A clock that ticks at each large allocation of a library, such as PyTorch.
//!
//! A program that repeats a step allocates in the same order each time. So the number of its large allocations says
//! where in the step it is, at the price of a comparison for each.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tenure_core::{Device, Unforked};

use crate::platform::MAX_DEVICES;

/// The clocks: that of the CPU, then those of the devices by index.
static CLOCKS: [AllocationClock; 1 + MAX_DEVICES] = [const { AllocationClock::new() }; 1 + MAX_DEVICES];

/// The value of [`AllocationClock::alarm_at`] while no alarm is set.
const NEVER: u64 = u64::MAX;

thread_local! {
    /// The number of [`StoppedClock`]s of the thread.
    static STOPPED: Cell<usize> = const { Cell::new(0) };
}

/// The clock of a device's allocations, or of the CPU's.
#[derive(Debug)]
pub struct AllocationClock {
    /// The size in bytes from which an allocation is a tick. `usize::MAX` while the clock stands still.
    least_bytes: AtomicUsize,
    ticks: AtomicU64,
    /// A hash of the sizes of all allocations so far.
    sizes: AtomicU64,
    /// The tick at which the alarm rings.
    alarm_at: AtomicU64,
    alarm: Unforked<Option<Alarm>>,
}

#[derive(Clone)]
struct Alarm(Arc<dyn Fn(u64) + Send + Sync>);

impl fmt::Debug for Alarm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Alarm")
    }
}

impl AllocationClock {
    const fn new() -> Self {
        Self {
            least_bytes: AtomicUsize::new(usize::MAX),
            ticks: AtomicU64::new(0),
            sizes: AtomicU64::new(0),
            alarm_at: AtomicU64::new(NEVER),
            alarm: Unforked::new(None),
        }
    }

    /// Returns the clock of a device.
    pub fn of(device: Device) -> &'static Self {
        let place = if device.is_cpu() { 0 } else { 1 + usize::from(device.index()) };
        &CLOCKS[place.min(MAX_DEVICES)]
    }

    /// Sets the function that the alarm calls, with the number of the tick, in the thread that allocates and before it
    /// gets its memory. The caller holds no lock then. None ends the clock.
    pub fn on_alarm(&self, alarm: Option<Arc<dyn Fn(u64) + Send + Sync>>) {
        if alarm.is_none() {
            self.stop();
        }
        let former = std::mem::replace(&mut *self.alarm.lock(), alarm.map(Alarm));
        drop(former);
    }

    /// Starts the clock at tick 0. From now on it ticks at each allocation of `least_bytes` or more.
    pub fn start(&self, least_bytes: usize) {
        self.alarm_at.store(NEVER, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
        self.sizes.store(0, Ordering::Relaxed);
        self.least_bytes.store(least_bytes, Ordering::Relaxed);
    }

    /// Stops the clock.
    pub fn stop(&self) {
        self.least_bytes.store(usize::MAX, Ordering::Relaxed);
        self.alarm_at.store(NEVER, Ordering::Relaxed);
    }

    /// Sets the alarm to a tick, or to the next one if that is over. None turns it off.
    pub fn set_alarm(&self, tick: Option<u64>) {
        self.alarm_at.store(tick.unwrap_or(NEVER), Ordering::Relaxed);
    }

    /// Returns the number of ticks since the clock was started.
    pub fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
    }

    /// Returns a number that depends on the sizes of all ticks so far, and on their order. If two runs of a program have
    /// the same number, they have almost surely allocated the same.
    pub fn sizes(&self) -> u64 {
        self.sizes.load(Ordering::Relaxed)
    }

    /// Counts an allocation that the library makes now.
    #[inline]
    pub fn allocate(&self, bytes: usize) {
        if bytes >= self.least_bytes.load(Ordering::Relaxed) {
            self.tick(bytes);
        }
    }

    fn tick(&self, bytes: usize) {
        if STOPPED.get() > 0 {
            return;
        }
        let tick = self.ticks.fetch_add(1, Ordering::Relaxed);
        if tick >= self.alarm_at.load(Ordering::Relaxed) {
            self.ring(tick);
        }
        // If two threads allocate at once, one size may be lost. Then the order is not that of another run anyway.
        let sizes = self.sizes.load(Ordering::Relaxed);
        self.sizes.store(sizes.rotate_left(5) ^ (bytes as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15), Ordering::Relaxed);
    }

    #[cold]
    fn ring(&self, tick: u64) {
        self.alarm_at.store(NEVER, Ordering::Relaxed);
        let _stopped = StoppedClock::enter();
        let alarm = self.alarm.lock().clone();
        if let Some(Alarm(alarm)) = alarm {
            alarm(tick);
        }
    }
}

/// While it lives, the thread's allocations are no ticks: they are not the program's own.
#[derive(Debug)]
#[must_use = "the thread's allocations are not counted until this is dropped"]
pub struct StoppedClock {
    /// Keeps it on the thread.
    _thread: PhantomData<*const ()>,
}

impl StoppedClock {
    /// Stops all clocks for this thread.
    pub fn enter() -> Self {
        STOPPED.set(STOPPED.get() + 1);
        Self { _thread: PhantomData }
    }
}

impl Drop for StoppedClock {
    fn drop(&mut self) {
        STOPPED.set(STOPPED.get() - 1);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn clock() -> &'static AllocationClock {
        static CLOCK: AllocationClock = AllocationClock::new();
        &CLOCK
    }

    #[test]
    fn a_clock_ticks_at_large_allocations_and_rings_before_the_one_that_was_asked_for() {
        let clock = clock();
        clock.allocate(1 << 30);
        assert_eq!(clock.now(), 0);
        let rung = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&rung);
        clock.on_alarm(Some(Arc::new(move |tick| {
            // Allocations of the alarm are not the program's.
            super::tests::clock().allocate(100);
            noted.lock().unwrap().push((tick, super::tests::clock().sizes()));
        })));
        let run = |sizes: &[usize], alarm| {
            clock.start(100);
            clock.set_alarm(alarm);
            sizes.iter().for_each(|bytes| clock.allocate(*bytes));
            (clock.now(), clock.sizes())
        };
        let (ticks, sizes) = run(&[100, 99, 200, 300], Some(1));
        let rings = rung.lock().unwrap().clone();
        let [(tick, sizes_then)] = rings[..] else { panic!("{rings:?}") };
        assert_eq!((ticks, tick), (3, 1));
        // What is small does not count, and the order of the rest does.
        assert_eq!(run(&[100, 200, 1, 300], None), (3, sizes));
        assert_ne!(run(&[100, 300, 200], None), (3, sizes));
        assert_eq!(run(&[100], None).1, sizes_then);
        {
            let _stopped = StoppedClock::enter();
            clock.allocate(1000);
        }
        assert_eq!(clock.now(), 1);
        clock.on_alarm(None);
        clock.allocate(1000);
        assert_eq!((clock.now(), rung.lock().unwrap().len()), (1, 1));
    }
}
