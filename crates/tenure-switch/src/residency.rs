//! Which models are worth their memory on a device: those that are asked for often, take long to bring and have priority.

use std::f64::consts::LN_2;
use std::time::Duration;

/// The worth of a unit of memory that a model's weights have: the time that requests would wait for it if it were not there, requests a
/// second × time to bring all of the weights × 2^priority / units. As twice its logarithm to base 2, rounded: smaller differences are
/// noise. That of a model that is not asked for is the least there is.
pub fn worth(rate: &Rate, now: Duration, reload: Duration, units: u64, priority: i32) -> i64 {
    let seconds = reload.as_secs_f64() / units.max(1) as f64;
    let worth = (rate.per_second(now) * seconds).log2() + f64::from(priority);
    (worth * 2.0).round() as i64
}

/// After how many uses of all models a use counts half.
const HALF_LIFE: Duration = Duration::from_secs(100);

/// Bytes a second from the host's memory to a device, and from files to the host's memory. What leaves depends on their ratio alone.
const COPIED_PER_SECOND: f64 = 5e10;
const READ_PER_SECOND: f64 = 5e9;

/// The demand for one of several models. Its clock counts the uses of all of them, as seconds, so that which model leaves does not depend on
/// how fast a machine is.
#[derive(Clone, Debug)]
pub struct Demand {
    rate: Rate,
}

impl Demand {
    /// It was not used yet.
    pub fn new() -> Self {
        Self { rate: Rate::new(HALF_LIFE) }
    }

    /// It is used, after so many uses of all models.
    pub fn used(&mut self, uses: u64) {
        self.rate.used(1, Duration::from_secs(uses));
    }

    /// The [worth] of its bytes on a device, after so many uses of all models. It is higher where the model's image is not in the host's
    /// memory.
    pub fn worth(&self, uses: u64, bytes: u64, has_image: bool, priority: i32) -> i64 {
        let mut seconds = bytes as f64 / COPIED_PER_SECOND;
        if !has_image {
            seconds += bytes as f64 / READ_PER_SECOND;
        }
        worth(&self.rate, Duration::from_secs(uses), Duration::from_secs_f64(seconds), bytes, priority)
    }
}

impl Default for Demand {
    fn default() -> Self {
        Self::new()
    }
}

/// How often something is asked for: requests and seconds, both of which count half after each half-life.
#[derive(Clone, Debug)]
pub struct Rate {
    half_life_seconds: f64,
    requests: f64,
    seconds: f64,
    last: Duration,
    /// Between the last two uses. Within it the next one is not late yet, and the rate stays: models used in turn then have
    /// the same rate, and not the lowest when they are needed next.
    gap: Option<Duration>,
}

impl Rate {
    /// Nothing was asked for yet.
    pub fn new(half_life: Duration) -> Self {
        let half_life_seconds = half_life.as_secs_f64().max(1e-9);
        Self { half_life_seconds, requests: 0.0, seconds: 0.0, last: Duration::ZERO, gap: None }
    }

    /// So many requests came now. Times are since a moment that is the same for all calls, and do not go back.
    pub fn used(&mut self, requests: usize, now: Duration) {
        let requests = requests as f64;
        if self.seconds == 0.0 {
            // Once in a half-life, until more is known.
            (self.requests, self.seconds) = (requests, self.half_life_seconds);
        } else {
            if self.gap.is_none() {
                (self.requests, self.seconds) = (0.0, 0.0);
            }
            let (before, seconds) = self.decayed(now);
            (self.requests, self.seconds) = (before + requests, seconds.max(1e-3));
            self.gap = Some(now.saturating_sub(self.last));
        }
        self.last = now;
    }

    /// Requests a second.
    pub fn per_second(&self, now: Duration) -> f64 {
        if self.seconds == 0.0 {
            return 0.0;
        }
        let is_late = self.gap.is_none_or(|gap| now.saturating_sub(self.last) > gap);
        let (requests, seconds) = if is_late { self.decayed(now) } else { (self.requests, self.seconds) };
        requests / seconds
    }

    fn decayed(&self, now: Duration) -> (f64, f64) {
        let kept = (-now.saturating_sub(self.last).as_secs_f64() / self.half_life_seconds).exp2();
        (self.requests * kept, self.seconds * kept + (1.0 - kept) * self.half_life_seconds / LN_2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn what_is_used_in_turn_has_the_same_rate_all_the_time() {
        let mut rate = Rate::new(seconds(60));
        (0..=50).step_by(10).for_each(|at| rate.used(2, seconds(at)));
        for at in [50, 55, 60] {
            let expected = 2.0 / 10.0;
            assert!((rate.per_second(seconds(at)) / expected - 1.0).abs() < 0.4, "{}", rate.per_second(seconds(at)));
            assert_eq!(rate.per_second(seconds(at)).to_bits(), rate.per_second(seconds(50)).to_bits());
        }
    }

    #[test]
    fn what_is_not_used_any_more_is_forgotten() {
        let mut rate = Rate::new(seconds(60));
        (0..10).for_each(|at| rate.used(1, seconds(at)));
        let then = rate.per_second(seconds(9));
        assert!(rate.per_second(seconds(69)) < then / 4.0);
        assert!(rate.per_second(seconds(6000)) < then * 1e-6);
    }
}
