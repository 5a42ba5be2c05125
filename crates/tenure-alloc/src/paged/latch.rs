//! A lock that is held for nanoseconds, and that almost always only one thread wants.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::lock_api::{self, GuardSend};

/// A [`lock_api::Mutex`] that a plain store releases. A lock and its release take one atomic operation, where a mutex
/// that wakes threads up takes two; those two are nearly half of an allocation's cost. Waiting threads are not woken
/// up: a thread that finds the latch taken spins for a moment, then lets other threads run, then sleeps a little at a
/// time.
pub(super) type Latch<T> = lock_api::Mutex<RawLatch, T>;
pub(super) type LatchGuard<'a, T> = lock_api::MutexGuard<'a, RawLatch, T>;

pub(super) struct RawLatch(AtomicBool);

/// The looks at a taken latch before the thread lets others run; they take longer than a running holder keeps the
/// latch.
const SPINS: u32 = 64;
/// The times that the thread lets others run before it sleeps: the holder waits for the device, or is not running.
const YIELDS: u32 = 64;
const NAP: Duration = Duration::from_micros(20);

// SAFETY: only one of the threads that see the flag unset exchanges it, with acquire ordering, and only the holder
// unsets it, with release ordering.
unsafe impl lock_api::RawMutex for RawLatch {
    const INIT: Self = Self(AtomicBool::new(false));

    type GuardMarker = GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl RawLatch {
    #[cold]
    fn wait(&self) {
        for turn in 0u32.. {
            match turn {
                0..SPINS => std::hint::spin_loop(),
                _ if turn < SPINS + YIELDS => thread::yield_now(),
                _ => nap(),
            }
            if !self.0.load(Ordering::Relaxed) && lock_api::RawMutex::try_lock(self) {
                return;
            }
        }
    }
}

fn nap() {
    #[cfg(test)]
    tests::NAPS.with(|naps| naps.fetch_add(1, Ordering::Relaxed));
    thread::sleep(NAP);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::sync::mpsc;

    use super::*;

    thread_local! {
        /// The naps of this thread, for another thread to watch.
        pub(super) static NAPS: Arc<AtomicU64> = Arc::default();
    }

    #[test]
    fn one_thread_at_a_time_holds_it() {
        const ROUNDS: u64 = 20_000;
        let latch = Latch::new((0u64, 0u64));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut both = latch.lock();
                        both.0 += 1;
                        both.1 += 1;
                        assert_eq!(both.0, both.1);
                    }
                });
            }
        });
        assert_eq!(latch.into_inner(), (4 * ROUNDS, 4 * ROUNDS));
    }

    #[test]
    fn a_holder_that_sleeps_is_waited_for() {
        let latch = Latch::new(0);
        thread::scope(|scope| {
            let mut held = latch.lock();
            let (sender, receiver) = mpsc::channel();
            let latch = &latch;
            let waiter = scope.spawn(move || {
                sender.send(NAPS.with(Arc::clone)).unwrap();
                *latch.lock()
            });
            let naps = receiver.recv().unwrap();
            while naps.load(Ordering::Relaxed) < 3 {
                assert!(!waiter.is_finished());
                thread::yield_now();
            }
            assert!(!waiter.is_finished());
            *held = 7;
            drop(held);
            assert_eq!(waiter.join().unwrap(), 7);
        });
    }

    #[test]
    fn a_panic_of_the_holder_releases_it() {
        let latch = Latch::new(0);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _held = latch.lock();
            panic!("on purpose");
        }));
        assert!(result.is_err() && latch.try_lock().is_some());
    }
}
