//! The worth of keeping a model on a device: high for models that are used often, take long to load or have priority.

use std::f64::consts::LN_2;
use std::time::Duration;

/// Returns the worth of a unit of memory that a model's weights take: the time that requests would wait for it if it
/// were not there, that is requests per second × time to bring all of the weights × 2^priority / units. The result is
/// twice its logarithm to base 2, rounded, since smaller differences are noise. A model without requests has the lowest
/// worth.
pub fn worth(rate: &Rate, now: Duration, reload: Duration, units: u64, priority: i32) -> i64 {
    let seconds = reload.as_secs_f64() / units.max(1) as f64;
    let worth = (rate.per_second(now) * seconds).log2() + f64::from(priority);
    (worth * 2.0).round() as i64
}

/// The half-life of a use in a [`Demand`]: it counts half after 100 uses of all models, each of which counts as a
/// second.
const HALF_LIFE: Duration = Duration::from_secs(100);

/// The copy speed from host memory to a device, and the read speed from files to host memory, in bytes per second. Only
/// their ratio decides which model leaves.
const COPIED_PER_SECOND: f64 = 5e10;
const READ_PER_SECOND: f64 = 5e9;

/// The demand for one of several models. Its clock counts the uses of all models, as seconds, so that the choice of the
/// model that leaves does not depend on the speed of the machine.
#[derive(Clone, Debug)]
pub struct Demand {
    rate: Rate,
}

impl Demand {
    /// Creates the demand for a model that was not used yet.
    pub fn new() -> Self {
        Self { rate: Rate::new(HALF_LIFE) }
    }

    /// Records a use of the model, after `uses` uses of all models.
    pub fn used(&mut self, uses: u64) {
        self.rate.used(1, Duration::from_secs(uses));
    }

    /// Returns the [worth] of its bytes on a device, after `uses` uses of all models. It is higher if the model's image
    /// is not in host memory.
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

/// A rate of requests: requests and seconds, both of which count half after each half-life.
#[derive(Clone, Debug)]
pub struct Rate {
    half_life_seconds: f64,
    /// The requests until the last use, of which older ones count less.
    requests: f64,
    /// The seconds until the last use, of which older ones count less.
    seconds: f64,
    /// The time of the last use.
    last: Duration,
    /// The time between the last two uses. Within it the next use is not late yet, and the rate stays. So models used
    /// in turn have the same rate, rather than the lowest one just when they are needed next.
    gap: Option<Duration>,
}

impl Rate {
    /// Creates a rate without requests.
    pub fn new(half_life: Duration) -> Self {
        let half_life_seconds = half_life.as_secs_f64().max(1e-9);
        Self { half_life_seconds, requests: 0.0, seconds: 0.0, last: Duration::ZERO, gap: None }
    }

    /// Records `requests` requests at `now`. Times count from a moment that is the same for all calls, and do not go
    /// back.
    pub fn used(&mut self, requests: usize, now: Duration) {
        let requests = requests as f64;
        if self.seconds == 0.0 {
            // Until there are more uses, the rate is one use in a half-life.
            self.requests = requests;
            self.seconds = self.half_life_seconds;
        } else {
            if self.gap.is_none() {
                self.requests = 0.0;
                self.seconds = 0.0;
            }
            let (before, seconds) = self.decayed(now);
            self.requests = before + requests;
            self.seconds = seconds.max(1e-3);
            self.gap = Some(now.saturating_sub(self.last));
        }
        self.last = now;
    }

    /// Returns the requests per second.
    pub fn per_second(&self, now: Duration) -> f64 {
        if self.seconds == 0.0 {
            return 0.0;
        }
        let is_late = self.gap.is_none_or(|gap| now.saturating_sub(self.last) > gap);
        let (requests, seconds) = if is_late { self.decayed(now) } else { (self.requests, self.seconds) };
        requests / seconds
    }

    /// Returns the requests and seconds until `now`, each reduced by half for each half-life since.
    fn decayed(&self, now: Duration) -> (f64, f64) {
        let weight = (-now.saturating_sub(self.last).as_secs_f64() / self.half_life_seconds).exp2();
        (self.requests * weight, self.seconds * weight + (1.0 - weight) * self.half_life_seconds / LN_2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn models_used_in_turn_have_a_constant_rate() {
        let mut rate = Rate::new(seconds(60));
        (0..=50).step_by(10).for_each(|at| rate.used(2, seconds(at)));
        for at in [50, 55, 60] {
            let expected = 2.0 / 10.0;
            assert!((rate.per_second(seconds(at)) / expected - 1.0).abs() < 0.4, "{}", rate.per_second(seconds(at)));
            assert_eq!(rate.per_second(seconds(at)).to_bits(), rate.per_second(seconds(50)).to_bits());
        }
    }

    #[test]
    fn the_rate_of_an_unused_model_decays() {
        let mut rate = Rate::new(seconds(60));
        (0..10).for_each(|at| rate.used(1, seconds(at)));
        let then = rate.per_second(seconds(9));
        assert!(rate.per_second(seconds(69)) < then / 4.0);
        assert!(rate.per_second(seconds(6000)) < then * 1e-6);
    }
}
