//! The measured costs of a model.

use std::collections::BTreeMap;
use std::time::Duration;

/// The weight of the latest measurement in the moving average.
const SMOOTHING: f64 = 0.2;

/// The number of measurements after which the minimum is trusted. The first ones are slow: a minimum of these would
/// refuse requests that could be answered, and refused requests are never measured.
const TRUSTED_AFTER: u32 = 8;

/// The measured costs of a model.
#[derive(Debug)]
pub(super) struct Cost {
    /// The time to copy all weights to a device: assumed, then measured.
    reload_seconds: f64,
    is_reload_measured: bool,
    /// The compute times by the number of rows: see [`bucket`].
    compute: BTreeMap<u32, MeasuredTime>,
    /// The compute time that is assumed until a batch was measured.
    assumed_compute: Duration,
}

/// The compute times of batches of similar size.
#[derive(Debug)]
struct MeasuredTime {
    mean_seconds: f64,
    least: Duration,
    count: u32,
}

impl Cost {
    /// Starts with guesses, which hold until something is measured.
    pub(super) fn new(reload: Duration, compute: Duration) -> Self {
        let reload_seconds = reload.as_secs_f64();
        Self { reload_seconds, is_reload_measured: false, compute: BTreeMap::new(), assumed_compute: compute }
    }

    /// Returns the time to copy all weights.
    pub(super) fn reload_time(&self) -> Duration {
        duration(self.reload_seconds)
    }

    /// Returns the time to compute this many rows, from the nearest measured number of rows.
    pub(super) fn compute_time(&self, rows: u32) -> Duration {
        let mut below = self.compute.range(..=bucket(rows));
        let mut above = self.compute.range(bucket(rows)..);
        let nearest = below.next_back().or_else(|| above.next());
        nearest.map_or(self.assumed_compute, |(_, measured)| duration(measured.mean_seconds))
    }

    /// Returns the least time that this many rows or more ever took; zero until enough was measured.
    pub(super) fn least_compute_time(&self, rows: u32) -> Duration {
        let measurements = self.compute.range(bucket(rows)..).map(|(_, measured)| measured);
        let (least, count) = measurements.fold((Duration::MAX, 0_u32), |(least, count), measured| {
            (least.min(measured.least), count.saturating_add(measured.count))
        });
        if count < TRUSTED_AFTER { Duration::ZERO } else { least }
    }

    /// Records that a batch of this many rows computed for `took`.
    pub(super) fn record_compute(&mut self, rows: u32, took: Duration) {
        let seconds = took.as_secs_f64();
        let new = MeasuredTime { mean_seconds: seconds, least: took, count: 0 };
        let measured = self.compute.entry(bucket(rows)).or_insert(new);
        measured.mean_seconds += SMOOTHING * (seconds - measured.mean_seconds);
        measured.least = measured.least.min(took);
        measured.count = measured.count.saturating_add(1);
    }

    /// Records that a fraction of the weights, from 0 to 1, was copied in `took`.
    pub(super) fn record_copy(&mut self, fraction: f64, took: Duration) {
        let seconds = took.as_secs_f64() / fraction;
        let smoothing = if self.is_reload_measured { SMOOTHING } else { 1.0 };
        self.reload_seconds += smoothing * (seconds - self.reload_seconds);
        self.is_reload_measured = true;
    }
}

/// Returns the key of a number of rows: its logarithm to base 2, rounded up.
fn bucket(rows: u32) -> u32 {
    rows.max(1).next_power_of_two().trailing_zeros()
}

/// Converts seconds to a duration; the largest duration if they do not fit.
pub(super) fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_guess_holds_until_something_is_measured() {
        let mut cost = Cost::new(ms(100), ms(10));
        assert_eq!((cost.reload_time(), cost.compute_time(4), cost.least_compute_time(4)), (ms(100), ms(10), ms(0)));
        cost.record_copy(0.5, ms(20));
        cost.record_compute(4, ms(3));
        assert_eq!(
            (cost.reload_time(), cost.compute_time(3), cost.compute_time(64), cost.compute_time(1)),
            (ms(40), ms(3), ms(3), ms(3))
        );
    }

    #[test]
    fn one_slow_batch_changes_little_and_never_the_least() {
        let mut cost = Cost::new(ms(0), ms(0));
        cost.record_compute(4, ms(10));
        cost.record_compute(4, ms(20));
        assert_eq!((cost.compute_time(4), cost.least_compute_time(4)), (ms(12), ms(0)));
        (2..TRUSTED_AFTER).for_each(|_| cost.record_compute(4, ms(20)));
        assert_eq!(
            (cost.least_compute_time(4), cost.least_compute_time(2), cost.least_compute_time(5)),
            (ms(10), ms(10), ms(0))
        );
    }
}
