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
    /// The expected sizes of the ticks, if they are compared.
    expected: Unforked<Option<Vec<usize>>>,
    /// The tick at which the alarm rings.
    alarm_at: AtomicU64,
    alarm: Unforked<Option<Alarm>>,
}

/// An allocation that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The number of ticks before it.
    pub number: u64,
    /// The size of the allocation in bytes.
    pub bytes: usize,
    /// Whether it has the expected size, if sizes are [compared](AllocationClock::start).
    pub is_expected: bool,
}

#[derive(Clone)]
struct Alarm(Arc<dyn Fn(Tick) + Send + Sync>);

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
            expected: Unforked::new(None),
            alarm_at: AtomicU64::new(NEVER),
            alarm: Unforked::new(None),
        }
    }

    /// Returns the clock of a device.
    pub fn of(device: Device) -> &'static Self {
        let place = if device.is_cpu() { 0 } else { 1 + usize::from(device.index()) };
        &CLOCKS[place.min(MAX_DEVICES)]
    }

    /// Sets the function that the alarm calls, in the thread that allocates and before it gets its memory. The caller
    /// holds no lock then.
    pub fn on_alarm(&self, alarm: impl Fn(Tick) + Send + Sync + 'static) {
        let former = self.alarm.lock().replace(Alarm(Arc::new(alarm)));
        drop(former);
    }

    /// Starts the clock at tick 0. From now on it ticks at each allocation of `least_bytes` or more. If there are
    /// `expected` sizes, the alarm also rings at each tick that has another one, until the caller
    /// [compares no more](Self::compare_no_more). Ticks beyond them are not compared, and some may change places, as
    /// those of two threads do.
    pub fn start(&self, least_bytes: usize, expected: Option<&[usize]>) {
        self.alarm_at.store(NEVER, Ordering::Relaxed);
        self.ticks.store(0, Ordering::Relaxed);
        let former = std::mem::replace(&mut *self.expected.lock(), expected.map(Into::into));
        drop(former);
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

    /// Makes the next tick that of this number. An alarm calls it where the program has skipped ticks, or made more.
    pub fn go_on_at(&self, number: u64) {
        self.ticks.store(number, Ordering::Relaxed);
    }

    /// Compares sizes no more.
    pub fn compare_no_more(&self) {
        let former = self.expected.lock().take();
        drop(former);
    }

    /// Returns the number of ticks since the clock was started.
    pub fn now(&self) -> u64 {
        self.ticks.load(Ordering::Relaxed)
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
        let number = self.ticks.fetch_add(1, Ordering::Relaxed);
        let is_expected = match &mut *self.expected.lock() {
            None => true,
            Some(sizes) if number as usize >= sizes.len() => true,
            Some(sizes) => is_near(sizes, number as usize, bytes),
        };
        if !is_expected || number >= self.alarm_at.load(Ordering::Relaxed) {
            self.ring(Tick { number, bytes, is_expected });
        }
    }

    #[cold]
    fn ring(&self, tick: Tick) {
        self.alarm_at.store(NEVER, Ordering::Relaxed);
        let _stopped = StoppedClock::enter();
        let alarm = self.alarm.lock().clone();
        if let Some(Alarm(alarm)) = alarm {
            alarm(tick);
        }
    }
}

/// The number of ticks by which one may come too early.
const MOST_EARLY: usize = 16;

/// Returns whether a tick of this size is expected now, or among the next ticks: then the two change places.
fn is_near(sizes: &mut [usize], now: usize, bytes: usize) -> bool {
    let end = sizes.len().min(now + 1 + MOST_EARLY);
    let found = sizes[now..end].iter().position(|size| *size == bytes);
    found.inspect(|found| sizes.swap(now, now + found)).is_some()
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
        clock.on_alarm(move |tick| {
            // Allocations of the alarm are not the program's.
            clock.allocate(100);
            noted.lock().unwrap().push(tick);
        });
        let run = |sizes: &[usize], alarm, expected: Option<&[usize]>| {
            clock.start(100, expected);
            clock.set_alarm(alarm);
            sizes.iter().for_each(|bytes| clock.allocate(*bytes));
            (clock.now(), std::mem::take(&mut *rung.lock().unwrap()))
        };
        let tick = |number, bytes, is_expected| vec![Tick { number, bytes, is_expected }];
        // What is small does not count.
        assert_eq!(run(&[100, 99, 200, 300], Some(1), None), (3, tick(1, 200, true)));
        assert_eq!(run(&[100, 200, 1], None, Some(&[100, 200])), (2, vec![]));
        // Two threads may change places.
        assert_eq!(run(&[200, 300, 100], None, Some(&[100, 200, 300])), (3, vec![]));
        let differing =
            [Tick { number: 1, bytes: 201, is_expected: false }, Tick { number: 2, bytes: 202, is_expected: false }];
        assert_eq!(run(&[100, 201, 202], None, Some(&[100, 200, 300])), (3, differing.to_vec()));
        assert_eq!(run(&[100, 200, 200], None, Some(&[100, 200])), (3, vec![]));
        {
            let _stopped = StoppedClock::enter();
            clock.allocate(1000);
        }
        assert_eq!(clock.now(), 3);
        clock.start(100, Some(&[100, 200, 300, 400]));
        clock.go_on_at(2);
        clock.allocate(300);
        assert_eq!((clock.now(), rung.lock().unwrap().len()), (3, 0));
        clock.compare_no_more();
        clock.allocate(500);
        assert_eq!((clock.now(), rung.lock().unwrap().len()), (4, 0));
        clock.stop();
        clock.allocate(1000);
        assert_eq!(clock.now(), 4);
    }
}
