//! Wall-clock latencies of calls.

use std::time::Instant;

/// The wall-clock times of one kind of call, in ns.
pub(super) struct Latencies {
    samples: Vec<u32>,
    /// The time in ns that reading the clock adds to a sample. It is subtracted.
    clock_ns: u32,
}

impl Latencies {
    /// Makes room for `capacity` samples, so that taking one allocates nothing.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self { samples: Vec::with_capacity(capacity), clock_ns: clock_ns() }
    }

    /// Calls `action` and records the time that it took.
    #[inline]
    pub(super) fn time<T>(&mut self, action: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = action();
        self.samples.push(since(start).saturating_sub(self.clock_ns));
        result
    }

    /// Returns the time at `quantile`, 0 to 1; 0 without samples.
    pub(super) fn quantile(&mut self, quantile: f64) -> u32 {
        quantile_of(&mut self.samples, quantile)
    }
}

/// Measures the time in ns between two readings of the clock with nothing in between: the median of 1001 tries. Each
/// sample is that much too long.
fn clock_ns() -> u32 {
    let mut samples: Vec<u32> = (0..1001).map(|_| since(Instant::now())).collect();
    quantile_of(&mut samples, 0.5)
}

/// Returns the time in ns since `start`, at most `u32::MAX`.
fn since(start: Instant) -> u32 {
    u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

/// Returns the sample at a quantile, 0 to 1; 0 without samples. It reorders the samples.
fn quantile_of(samples: &mut [u32], quantile: f64) -> u32 {
    let Some(last) = samples.len().checked_sub(1) else { return 0 };
    let rank = (last as f64 * quantile).round() as usize;
    *samples.select_nth_unstable(rank).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let mut latencies = Latencies { samples: (0..=100).rev().collect(), clock_ns: 0 };
        assert_eq!([0.0, 0.5, 0.99, 1.0].map(|quantile| latencies.quantile(quantile)), [0, 50, 99, 100]);
        assert_eq!(Latencies::with_capacity(0).quantile(0.5), 0);
    }

    #[test]
    fn a_call_takes_its_time() {
        let mut latencies = Latencies::with_capacity(1);
        latencies.time(|| std::thread::sleep(std::time::Duration::from_millis(2)));
        assert!(latencies.quantile(0.5) > 1_900_000);
    }
}
