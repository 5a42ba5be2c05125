//! Training, on made-up problems.
//!
//! First sellers learn to set prices: each step plays a market and goes down the gradient of the bound that its prices give
//! (the Lagrangian dual of placement). It is convex in prices, so nobody has to say which prices would have been right, and
//! the network learns to get there in few rounds. Then groups of tensors learn what to lean to: by policy gradient
//! (REINFORCE), with the time that the simulator says a plan takes in truth, where planners were told another. A problem's
//! other samples are the baseline of each.

mod leanings;
mod prices;

use std::ops::ControlFlow;

use tenure_plan::PlanError;
use tenure_plan::problem::ProblemError;
use tenure_plan::problem::generate::Family;
use tenure_tensor::TensorError;
use tenure_tensor::random::Generator;

use crate::policy::Policy;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// Problems that are made up for each stage.
    pub problems: u64,
    /// Steps in which sellers learn.
    pub price_steps: u64,
    /// Steps in which groups of tensors learn.
    pub leaning_steps: u64,
    /// Where random numbers begin. The same options give the same policy.
    pub seed: u64,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self { problems: 1200, price_steps: 1500, leaning_steps: 2400, seed: 1 }
    }
}

/// What is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Prices of room in the fast tier.
    Prices,
    /// What is done with tensors.
    Leanings,
}

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainProgress {
    /// What is learned.
    pub stage: Stage,
    /// Steps made in the stage.
    pub step: u64,
    /// Steps of the stage.
    pub steps: u64,
    /// On problems that are not trained on, without a search: of prices, the mean of the lowest known
    /// bound over theirs, in all rounds; of leanings, the mean logarithm of the density rule's time over the plan's.
    pub validation: f64,
}

/// What came of training.
pub struct Trained {
    /// What was learned.
    pub policy: Policy,
    /// How.
    pub curve: Vec<TrainProgress>,
}

/// Why training ended. Always one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An operation on tensors: no memory.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An optimizer.
    #[error(transparent)]
    Network(#[from] tenure_nn::Error),
    /// A problem that was made up is none.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The plan of a rule cannot be played.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// Of so many problems that are trained on, there is one more to validate by.
const TRAINED_PER_VALIDATED: u64 = 30;
/// How often there is a point of the curve in a stage.
const POINTS: u64 = 20;

/// Trains a policy. `watch` is told of each point of the curve, and says whether to go on; what was learned until then is
/// returned.
///
/// # Errors
/// [`TrainError`].
pub fn train(
    options: &TrainOptions,
    watch: &mut dyn FnMut(&TrainProgress) -> ControlFlow<()>,
) -> Result<Trained, TrainError> {
    let mut run = Run { policy: Policy::new(options.seed)?, curve: Vec::new(), watch };
    if prices::learn(&mut run, options)?.is_continue() {
        _ = leanings::learn(&mut run, options)?;
    }
    Ok(Trained { policy: run.policy, curve: run.curve })
}

struct Run<'a> {
    policy: Policy,
    curve: Vec<TrainProgress>,
    watch: &'a mut dyn FnMut(&TrainProgress) -> ControlFlow<()>,
}

impl Run<'_> {
    /// After a step, or before the first: a point of the curve, if it is its turn.
    fn pass(
        &mut self,
        stage: Stage,
        (step, steps): (u64, u64),
        validate: impl FnOnce(&Policy) -> Result<f64, TrainError>,
    ) -> Result<ControlFlow<()>, TrainError> {
        if step % steps.div_ceil(POINTS).max(1) != 0 && step != steps {
            return Ok(ControlFlow::Continue(()));
        }
        let point = TrainProgress { stage, step, steps, validation: validate(&self.policy)? };
        self.curve.push(point);
        Ok((self.watch)(&point))
    }
}

/// Problems of all families, one after the other: the first to validate by, the others to train on.
fn lessons<T>(
    options: &TrainOptions,
    make: impl Fn(Family, u64) -> Result<T, TrainError>,
) -> Result<(Vec<T>, Vec<T>), TrainError> {
    let seeds = Generator::new(options.seed);
    let trained = options.problems.max(1);
    let validated = trained.div_ceil(TRAINED_PER_VALIDATED);
    let mut make =
        (0..validated + trained).map(|number| make(Family::ALL[number as usize % Family::ALL.len()], seeds.next_u64()));
    let validation = make.by_ref().take(validated as usize).collect::<Result<_, _>>()?;
    Ok((validation, make.collect::<Result<_, _>>()?))
}
