//! Training of the prices that sellers set.

use std::ops::ControlFlow;

use tenure_nn::Module;
use tenure_nn::optim::{Adam, Optimizer};
use tenure_plan::Problem;
use tenure_tensor::ops::cat;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor};

use super::{Lessons, Stage, TrainError, TrainOptions, TrainRun};
use crate::market::{Buyer, Market};
use crate::play::Play;
use crate::policy::{Policy, ROUNDS};

const LEARNING_RATE: f64 = 3e-3;
/// The number of rounds in which prices follow the demand, to find the lowest bound.
const TEACHER_ROUNDS: usize = 200;
/// The relative distance to the lowest known bound within which bounds count as equal.
const MARGIN: f64 = 2e-3;

/// A problem to train on.
struct PriceLesson {
    problem: Problem,
    /// The lowest known bound.
    bound: f64,
}

impl PriceLesson {
    fn market(&self) -> Market<'_> {
        let capacity = self.problem.tiers()[0].capacity.unwrap_or(u64::MAX);
        Market::new(&self.problem, capacity, |tensor| self.problem.accessed_bytes(tensor) as f64)
    }
}

/// Trains the network of prices. Returns whether the caller wants training to go on.
pub(super) fn learn(run: &mut TrainRun<'_>, options: &TrainOptions) -> Result<ControlFlow<()>, TrainError> {
    let lessons = run.make_lessons(options, |_, family, seed| {
        let mut lesson = PriceLesson { problem: family.fixed(seed)?, bound: 1.0 };
        lesson.bound = lowest_bound(&lesson.market());
        Ok(lesson)
    })?;
    let ControlFlow::Continue(Lessons { validation, training }) = lessons else { return Ok(ControlFlow::Break(())) };
    let stage = (Stage::Prices, options.price_steps);
    let optimizer = Optimizer::new(run.policy.parameters(), LEARNING_RATE, Adam::default());
    let generator = Generator::new(options.seed);
    run.make_steps(
        stage,
        optimizer,
        |policy| validate(policy, &validation),
        |policy| {
            let lesson = &training[(generator.next_u64() % training.len() as u64) as usize];
            let market = lesson.market();
            let mut play = Play::new(&market);
            for _ in 0..ROUNDS {
                let changes = play.changes_by(policy)?;
                excess(&market, &play.log_prices, &changes, lesson.bound)?.backward()?;
                let changes = changes.to_vec::<f32>()?.into_iter().map(f64::from).collect();
                let bids = play.apply_changes(changes);
                play.place(&bids);
            }
            Ok(())
        },
    )
}

/// Returns the mean of the lowest known bound divided by the bound that the policy's prices give.
fn validate(policy: &Policy, lessons: &[PriceLesson]) -> Result<f64, TrainError> {
    let mut sum = 0.0;
    for lesson in lessons {
        let market = lesson.market();
        let mut play = Play::new(&market);
        for _ in 0..ROUNDS {
            play.round(policy)?;
            sum += lesson.bound / market.bound(&play.log_prices);
        }
    }
    Ok(sum / (lessons.len() * ROUNDS) as f64)
}

/// Returns the lowest bound that prices reach by following the demand.
fn lowest_bound(market: &Market<'_>) -> f64 {
    let mut play = Play::new(market);
    let mut lowest = f64::INFINITY;
    for round in 0..TEACHER_ROUNDS {
        play.follow_demand(round);
        lowest = lowest.min(market.bound(&play.log_prices));
    }
    lowest
}

/// Returns the logarithm of the bound's excess over the lowest one, after prices have changed: [`Market::bound`] as a
/// tensor.
fn excess(market: &Market<'_>, log_prices: &[f64], changes: &Tensor, lowest: f64) -> tenure_tensor::Result<Tensor> {
    let buyers = &market.buyers;
    let vector = |of: &dyn Fn(&Buyer) -> f64| {
        Tensor::from_vec(buyers.iter().map(|buyer| of(buyer) as f32).collect(), &[buyers.len()])
    };
    let index = |of: fn(&Buyer) -> usize| {
        Tensor::from_vec(buyers.iter().map(|buyer| of(buyer) as i64).collect(), &[buyers.len()])
    };
    let all: f64 = buyers.iter().map(|buyer| buyer.worth).sum();
    let log_prices = log_prices.iter().map(|price| *price as f32).collect();
    let prices = Tensor::from_vec(log_prices, &[market.kernels()])?.add(changes)?.exp()?;
    let sums = cat(&[&Tensor::zeros(&[1], DType::F32, Device::CPU)?, &prices.cumsum(0)?], 0)?;
    let ends = sums.index_select(0, &index(|buyer| buyer.end)?)?;
    let paid =
        ends.sub(&sums.index_select(0, &index(|buyer| buyer.begin)?)?)?.mul(&vector(&|buyer| buyer.size / all)?)?;
    let surplus = vector(&|buyer| buyer.worth / all)?.sub(&paid)?.relu()?.sum_all()?;
    let bound = surplus.add(&prices.sum_all()?.mul(1.0 / all)?)?;
    bound.div(lowest)?.sub(1.0 - MARGIN)?.clamp_min(MARGIN / 20.0)?.log()
}
