//! The time that the driver spends in memory calls and waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cudarc::driver::sys::CUresult;

use super::error::check;
use crate::{Call, ErrorKind};

/// The calls that are timed.
const TIMED: [Call; 14] = [
    Call::Malloc,
    Call::Free,
    Call::Reserve,
    Call::Unreserve,
    Call::Create,
    Call::Release,
    Call::Map,
    Call::SetAccess,
    Call::Unmap,
    Call::Synchronize,
    Call::SynchronizeStream,
    Call::SynchronizeEvent,
    Call::CopyToDevice,
    Call::CopyFromDevice,
];

/// The time that the driver spent in all successful calls of one kind, to compare with the model in
/// [`cost`](crate::cost).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// The kind of call.
    pub call: Call,
    /// The number of chunks, segments or reservations in these calls: a call that maps, unmaps or makes accessible
    /// several chunks counts as many, as in [`Counters`](crate::Counters).
    pub count: u64,
    /// The size of all of them together, in bytes.
    pub bytes: u64,
    /// The time spent in the driver, in µs.
    pub elapsed_us: f64,
}

/// The timings of a driver.
#[derive(Default)]
pub(super) struct Timings([Total; TIMED.len()]);

/// The sums over the calls of one kind.
#[derive(Default)]
struct Total {
    count: AtomicU64,
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Timings {
    /// Makes a driver call, and adds its time if it succeeds.
    pub(super) fn time(
        &self,
        call: Call,
        count: u64,
        bytes: u64,
        action: impl FnOnce() -> CUresult,
    ) -> Result<(), ErrorKind> {
        let start = Instant::now();
        let code = action();
        let elapsed = start.elapsed();
        check(code)?;
        if let Some(index) = TIMED.iter().position(|&timed| timed == call) {
            let total = &self.0[index];
            total.count.fetch_add(count, Ordering::Relaxed);
            total.bytes.fetch_add(bytes, Ordering::Relaxed);
            total.nanoseconds.fetch_add(elapsed.as_nanos() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns one timing for each kind of call that was made.
    pub(super) fn all(&self) -> Vec<Timing> {
        let timing = |(&call, total): (&Call, &Total)| Timing {
            call,
            count: total.count.load(Ordering::Relaxed),
            bytes: total.bytes.load(Ordering::Relaxed),
            elapsed_us: total.nanoseconds.load(Ordering::Relaxed) as f64 / 1000.0,
        };
        TIMED.iter().zip(&self.0).map(timing).filter(|timing| timing.count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_call_adds_what_it_was_for_and_what_it_took() {
        let timings = Timings::default();
        for count in [1, 3] {
            timings
                .time(Call::Unmap, count, count * 100, || {
                    sleep(Duration::from_millis(1));
                    CUresult::CUDA_SUCCESS
                })
                .unwrap();
        }
        let [unmap] = timings.all()[..] else { panic!("{:?}", timings.all()) };
        assert_eq!((unmap.call, unmap.count, unmap.bytes), (Call::Unmap, 4, 400));
        assert!(unmap.elapsed_us >= 2000.0, "{unmap:?}");
    }
}
