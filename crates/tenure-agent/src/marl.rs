//! [`Marl`]: the planner that applies networks trained by multi-agent reinforcement learning.

use tenure_plan::planner::{Decoder, Evaluator, Objective, Planned, Planner, PlannerError, PlannerOptions, Watch};
use tenure_plan::{PlanError, Problem};
use tenure_tensor::autograd;
use tenure_tensor::random::Generator;

use crate::choices::Choices;
use crate::market::Market;
use crate::play::Play;
use crate::policy::{LEANINGS, Policy, PolicyError, ROUNDS};
use crate::random::{normal, uniform};

/// The standard deviations of the noise added to bids after prices have settled, used in turn.
const BID_NOISE: [f64; 6] = [0.02, 0.05, 0.1, 0.2, 0.4, 0.8];
/// The mean number of groups, or tensors, whose leanings change in one tried plan.
const MEAN_TRIED: f64 = 3.0;
/// The standard deviation of changes to the leanings of a group.
const GROUP_SPREAD: f64 = 1.0;
/// The standard deviation of changes to the leanings of a single tensor.
const TENSOR_SPREAD: f64 = 2.0;
/// A score this close to its bound counts as reaching it.
const SCORE_TOLERANCE: f64 = 1e-9;
/// The default number of evaluations.
const EVALUATIONS: u64 = 400;

/// A planner that applies a [`Policy`], without a solver. Where tensors stay where they are, sellers and buyers find a
/// placement, one in each round. Where they move, groups of tensors begin with their learned leanings and try other
/// treatments, since true costs may differ from the problem's.
pub struct Marl {
    policy: Policy,
}

impl Marl {
    /// Creates a planner with this policy.
    pub fn new(policy: Policy) -> Self {
        Self { policy }
    }

    /// Creates a planner with the policy that comes with the crate.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn trained() -> Result<Self, PolicyError> {
        Policy::trained().map(Self::new)
    }

    /// Tries plans as long as `evaluator` allows. It may judge by another problem than `told`: by true times, where
    /// `told` only has estimates. Returns an upper bound of the score of plans in which tensors stay where they are, as
    /// [`Planned::bound`].
    ///
    /// # Errors
    /// There is not enough memory; [`PlanError::NoTiers`].
    pub fn search(
        &self,
        told: &Problem,
        options: &PlannerOptions,
        evaluator: &mut Evaluator<'_, '_>,
    ) -> Result<Option<f64>, PlannerError> {
        let failed =
            |error: tenure_tensor::TensorError| PlannerError::Failed { planner: "marl", reason: error.to_string() };
        let capacity = told.tiers().first().ok_or(PlanError::NoTiers)?.capacity.unwrap_or(u64::MAX);
        let generator = Generator::new(options.seed);
        match options.objective {
            Objective::Score => {
                let market = Market::new(told, capacity, |tensor| told.accessed_bytes(tensor) as f64);
                self.place(&market, &generator, evaluator).map(Some).map_err(failed)
            }
            Objective::Makespan => self.schedule(told, &generator, evaluator).map(|()| None).map_err(failed),
        }
    }

    /// Plays the market: each round gives one plan, and once prices have settled, the density rule gives another.
    /// Sellers have learned to get close to the best prices in few rounds, and would get no closer. From then on,
    /// prices follow the demand, and noise is added to the bids. Returns the lowest bound that prices gave.
    fn place(
        &self,
        market: &Market<'_>,
        generator: &Generator,
        evaluator: &mut Evaluator<'_, '_>,
    ) -> tenure_tensor::Result<f64> {
        let mut play = Play::new(market);
        let (mut best, mut bound) = (0.0_f64, 1.0_f64);
        // Prices go up and down around the best ones: their mean is closer.
        let mut sums = vec![0.0; market.kernels()];
        for round in 0_usize.. {
            let placement = match round.checked_sub(ROUNDS) {
                None => play.round(&self.policy)?,
                // Where few tensors fit at once, prices say little.
                Some(0) => market.place(&market.bids(&market.uniform_log_prices())),
                Some(more) => {
                    let mut bids = play.follow_demand(more);
                    let noise = BID_NOISE[more % BID_NOISE.len()];
                    bids.iter_mut().for_each(|bid| *bid += noise * normal(generator));
                    market.place(&bids)
                }
            };
            sums.iter_mut().zip(&play.log_prices).for_each(|(sum, log_price)| *sum += log_price.exp());
            let mean: Vec<f64> = sums.iter().map(|sum| (sum / (round + 1) as f64).ln()).collect();
            bound = bound.min(market.bound(&play.log_prices)).min(market.bound(&mean));
            best = best.max(1.0 - evaluator.cost(&placement.plan()));
            if !evaluator.may_go_on() || best >= bound - SCORE_TOLERANCE {
                break;
            }
        }
        Ok(bound)
    }

    /// Evaluates the plan of the learned leanings. Then changes the leanings of a few groups or tensors at a time, and
    /// keeps a change if its plan is no worse.
    fn schedule(
        &self,
        told: &Problem,
        generator: &Generator,
        evaluator: &mut Evaluator<'_, '_>,
    ) -> tenure_tensor::Result<()> {
        let decoder = Decoder::new(told, Objective::Makespan);
        let choices = Choices::new(told, &decoder, &self.policy)?;
        let leanings = autograd::no_grad(|| self.policy.leanings(&choices.features)?.to_vec::<f32>())?;
        let mut leanings: Vec<f64> = leanings.into_iter().map(f64::from).collect();
        let mut least = evaluator.cost(&decoder.decode(&choices.decide(&leanings)));
        while evaluator.may_go_on() {
            let tried = vary(&choices, &leanings, generator);
            let cost = evaluator.cost(&decoder.decode(&choices.decide(&tried)));
            if cost <= least {
                (least, leanings) = (cost, tried);
            }
        }
        Ok(())
    }
}

/// Returns changed leanings: of a few groups, each as a whole, or of a few single tensors.
fn vary(choices: &Choices, leanings: &[f64], generator: &Generator) -> Vec<f64> {
    let varies_groups = uniform(generator) < 0.5;
    let (count, spread) =
        if varies_groups { (choices.group_count(), GROUP_SPREAD) } else { (leanings.len() / LEANINGS, TENSOR_SPREAD) };
    let share = MEAN_TRIED / count.max(1) as f64;
    let offsets: Vec<Option<[f64; LEANINGS]>> = (0..count)
        .map(|_| (uniform(generator) < share).then(|| [(); LEANINGS].map(|()| spread * normal(generator))))
        .collect();
    let mut varied = leanings.to_vec();
    for (tensor, leanings) in varied.chunks_exact_mut(LEANINGS).enumerate() {
        let offsets = offsets[if varies_groups { choices.group(tensor) } else { tensor }];
        leanings.iter_mut().zip(offsets.into_iter().flatten()).for_each(|(leaning, offset)| *leaning += offset);
    }
    varied
}

impl Planner for Marl {
    fn name(&self) -> &str {
        "marl"
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        let options = PlannerOptions { evaluations: options.evaluations.or(Some(EVALUATIONS)), ..*options };
        let mut evaluator = Evaluator::new(problem, &options, watch);
        let bound = self.search(problem, &options, &mut evaluator)?;
        Ok(Planned { bound, ..evaluator.finish()? })
    }
}
