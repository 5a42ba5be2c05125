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
    /// The compute times by the size of the inputs: see [`bucket`].
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

    /// Returns the time to compute inputs of this size, from the nearest measured size. Larger inputs than any that was
    /// measured take proportionally longer.
    pub(super) fn compute_time(&self, size: u64) -> Duration {
        if let Some((_, measured)) = self.compute.range(bucket(size)..).next() {
            let below = self.compute.range(..=bucket(size)).next_back();
            return duration(below.map_or(measured, |(_, below)| below).mean_seconds);
        }
        self.compute.last_key_value().map_or(self.assumed_compute, |(largest, measured)| {
            duration(measured.mean_seconds * size as f64 / largest_size(*largest))
        })
    }

    /// Returns the largest size that takes at most this long, and no less than 1. Until something was measured, every
    /// size does.
    pub(super) fn size_within(&self, longest: Duration) -> u64 {
        let Some((smallest, first)) = self.compute.first_key_value() else { return u64::MAX };
        let longest = longest.as_secs_f64();
        let fits = self.compute.iter().take_while(|(_, measured)| measured.mean_seconds <= longest).last();
        let (bucket, measured) = fits.unwrap_or((smallest, first));
        let most = largest_size(*bucket) * longest / measured.mean_seconds.max(1e-9);
        // The next larger size that was measured takes too long.
        let above =
            self.compute.range(bucket + 1..).next().map_or(f64::INFINITY, |(above, _)| largest_size(*above) / 2.0);
        (most.min(above) as u64).max(1)
    }

    /// Returns the least time that inputs of this size or larger ever took; zero until enough was measured.
    pub(super) fn least_compute_time(&self, size: u64) -> Duration {
        let measurements = self.compute.range(bucket(size)..).map(|(_, measured)| measured);
        let (least, count) = measurements.fold((Duration::MAX, 0_u32), |(least, count), measured| {
            (least.min(measured.least), count.saturating_add(measured.count))
        });
        if count < TRUSTED_AFTER { Duration::ZERO } else { least }
    }

    /// Records that a batch of inputs of this size computed for `took`.
    pub(super) fn record_compute(&mut self, size: u64, took: Duration) {
        let seconds = took.as_secs_f64();
        let new = MeasuredTime { mean_seconds: seconds, least: took, count: 0 };
        let measured = self.compute.entry(bucket(size)).or_insert(new);
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

/// Returns the key of a size: its logarithm to base 2, rounded up.
fn bucket(size: u64) -> u32 {
    u64::BITS - size.max(1).saturating_sub(1).leading_zeros()
}

/// Returns the largest size with this key.
fn largest_size(bucket: u32) -> f64 {
    f64::from(bucket).exp2()
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
            (ms(40), ms(3), ms(48), ms(3))
        );
    }

    #[test]
    fn the_largest_size_within_a_time_follows_from_the_measured_ones() {
        let mut cost = Cost::new(ms(0), ms(10));
        assert_eq!(cost.size_within(ms(5)), u64::MAX, "nothing is measured");
        cost.record_compute(64, ms(20));
        assert_eq!((cost.size_within(ms(20)), cost.size_within(ms(5)), cost.size_within(ms(80))), (64, 16, 256));
        cost.record_compute(256, ms(200));
        assert_eq!((cost.size_within(ms(80)), cost.size_within(ms(199)), cost.size_within(ms(0))), (128, 128, 1));
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
