//! The arrival times of requests, and the model of each: the same for the same seed.

use std::time::Duration;

use tenure::tensor::random::Generator;

/// A request's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arrival {
    /// The time since the beginning.
    pub(super) at: Duration,
    /// The model's number.
    pub(super) model: usize,
}

/// The pattern in which requests arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Pattern {
    /// One model at a time: requests for it arrive at equal intervals for this many seconds, then the next model has
    /// its turn.
    Cycles(f64),
    /// Random times, with models by Zipf's law: model number n gets (n + 1)^-exponent times as many requests as the
    /// first. With an exponent of 0 all get equally many.
    Poisson {
        /// The exponent.
        exponent: f64,
    },
}

/// Returns the requests to `models` models over `seconds` seconds, in the order of arrival, with a mean of `rate` per
/// second.
pub(super) fn arrivals(pattern: Pattern, models: usize, rate: f64, seconds: f64, seed: u64) -> Vec<Arrival> {
    let generator = Generator::new(seed);
    match pattern {
        Pattern::Cycles(cycle) => (0..(rate * seconds).ceil() as u64)
            .map(|number| number as f64 / rate)
            .map(|at| Arrival { at: Duration::from_secs_f64(at), model: (at / cycle) as usize % models })
            .collect(),
        Pattern::Poisson { exponent } => {
            let shares = cumulative(models, exponent);
            let mut at = 0.0;
            let mut arrivals = Vec::new();
            loop {
                at -= (1.0 - unit(&generator)).ln() / rate;
                if at >= seconds {
                    return arrivals;
                }
                let drawn = unit(&generator);
                let model = shares.partition_point(|share| *share <= drawn).min(models - 1);
                arrivals.push(Arrival { at: Duration::from_secs_f64(at), model });
            }
        }
    }
}

/// Returns each model's share of the requests, added to the shares of all models before it.
fn cumulative(models: usize, exponent: f64) -> Vec<f64> {
    let weights = (1..=models).map(|rank| (rank as f64).powf(-exponent));
    let sums: Vec<f64> = weights
        .scan(0.0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        })
        .collect();
    let all = sums.last().copied().unwrap_or(1.0);
    sums.into_iter().map(|sum| sum / all).collect()
}

/// Returns a random number from 0 to below 1.
fn unit(generator: &Generator) -> f64 {
    (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns() -> impl Strategy<Value = Pattern> {
        prop_oneof![
            (0.1f64..30.0).prop_map(Pattern::Cycles),
            (0f64..2.0).prop_map(|exponent| Pattern::Poisson { exponent }),
        ]
    }

    proptest! {
        #[test]
        fn requests_come_in_order_in_time_and_the_same_for_a_seed(
            pattern in patterns(), models in 1usize..50, rate in 1f64..200.0, seconds in 0.1f64..20.0, seed: u64,
        ) {
            let found = arrivals(pattern, models, rate, seconds, seed);
            prop_assert!(found.is_sorted_by_key(|arrival| arrival.at));
            prop_assert!(found.iter().all(|arrival| arrival.at.as_secs_f64() <= seconds && arrival.model < models));
            prop_assert_eq!(&found, &arrivals(pattern, models, rate, seconds, seed));
            // Within ten standard deviations.
            let expected = rate * seconds;
            prop_assert!((found.len() as f64 - expected).abs() <= 10.0 * expected.sqrt() + 1.0, "{}", found.len());
        }

        #[test]
        fn a_model_has_its_turn_for_a_cycle(cycle in 1u32..30, models in 2usize..5) {
            let found = arrivals(Pattern::Cycles(f64::from(cycle)), models, 10.0, f64::from(cycle) * 6.0, 0);
            let turns: Vec<usize> = found.chunk_by(|a, b| a.model == b.model).map(|turn| turn.len()).collect();
            prop_assert_eq!(turns, [cycle as usize * 10; 6]);
            let order: Vec<usize> = found.chunk_by(|a, b| a.model == b.model).map(|turn| turn[0].model).collect();
            prop_assert_eq!(order, (0..6).map(|turn| turn % models).collect::<Vec<_>>());
        }

        #[test]
        fn models_are_asked_by_zipfs_law(models in 2usize..20, exponent in 0f64..1.5, seed: u64) {
            let found = arrivals(Pattern::Poisson { exponent }, models, 1000.0, 20.0, seed);
            let weights: Vec<f64> = (1..=models).map(|rank| (rank as f64).powf(-exponent)).collect();
            for (model, weight) in weights.iter().enumerate() {
                let count = found.iter().filter(|arrival| arrival.model == model).count() as f64;
                let expected = 20_000.0 * weight / weights.iter().sum::<f64>();
                prop_assert!((count - expected).abs() <= 10.0 * expected.sqrt(), "{model}: {count} for {expected}");
            }
        }
    }

    #[test]
    fn another_seed_is_another_load() {
        let of = |seed| arrivals(Pattern::Poisson { exponent: 1.0 }, 3, 10.0, 10.0, seed);
        assert_ne!(of(1), of(2));
    }
}
