//! Training on made-up problems.
//!
//! First, sellers learn to set prices. Each step plays a market and goes down the gradient of the bound that its prices
//! give (the Lagrangian dual of placement). The bound is convex in prices, so training needs no examples of good
//! prices, and the network learns to reach them in few rounds. Then, groups of tensors learn their leanings by policy
//! gradient (REINFORCE). The reward is a plan's simulated time by the true costs, while planners only get estimates.
//! The baseline of each sample is the mean of all samples of its problem.

mod leanings;
mod prices;

use std::ops::ControlFlow;

use tenure_nn::Module;
use tenure_nn::optim::{Optimizer, clip_grad_norm};
use tenure_plan::PlanError;
use tenure_plan::problem::ProblemError;
use tenure_plan::problem::generate::Family;
use tenure_tensor::TensorError;
use tenure_tensor::random::Generator;

use crate::policy::Policy;

/// Settings of [`train`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainOptions {
    /// The number of problems that are generated for each stage.
    pub problems: u64,
    /// The number of steps in which sellers learn.
    pub price_steps: u64,
    /// The number of steps in which groups of tensors learn.
    pub leaning_steps: u64,
    /// The seed of random numbers. The same options give the same policy.
    pub seed: u64,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self { problems: 1200, price_steps: 1500, leaning_steps: 2400, seed: 1 }
    }
}

/// A stage of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Sellers learn prices of room in the fast tier.
    Prices,
    /// Groups of tensors learn leanings to treatments.
    Leanings,
}

/// A point of the learning curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainProgress {
    /// The stage.
    pub stage: Stage,
    /// The number of steps made in the stage.
    pub step: u64,
    /// The number of steps of the stage.
    pub steps: u64,
    /// The result on problems that are not trained on, without a search. For prices: the mean over all rounds of the
    /// lowest known bound divided by that of the prices. For leanings: the mean logarithm of the density rule's time
    /// over the plan's.
    pub validation: f64,
}

/// A step that [`train`] has just done.
#[derive(Clone, Copy, Debug)]
pub enum TrainEvent<'a> {
    /// It made a problem to train on.
    Problem,
    /// It made a step.
    Step {
        /// The stage.
        stage: Stage,
        /// The number of steps made in the stage.
        step: u64,
    },
    /// It validated the policy.
    Point(&'a TrainProgress),
}

/// The result of training.
pub struct Trained {
    /// The trained policy.
    pub policy: Policy,
    /// The learning curve.
    pub curve: Vec<TrainProgress>,
}

/// The reason why training failed. Its message is one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// An operation on tensors failed: there is not enough memory.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// The networks or the optimizer failed.
    #[error(transparent)]
    Network(#[from] tenure_nn::Error),
    /// A generated problem is invalid.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// The plan of a rule cannot be simulated.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// The number of training problems for each validation problem.
const TRAINED_PER_VALIDATED: u64 = 30;
/// The number of points of the curve in a stage.
const POINTS: u64 = 20;

/// Trains a policy. `watch` learns of each event and decides whether to go on. If it stops training, the policy so far is
/// returned.
///
/// # Errors
/// [`TrainError`].
pub fn train(
    options: &TrainOptions,
    watch: &mut dyn FnMut(TrainEvent<'_>) -> ControlFlow<()>,
) -> Result<Trained, TrainError> {
    let mut run = TrainRun { policy: Policy::new(options.seed)?, curve: Vec::new(), watch };
    if prices::learn(&mut run, options)?.is_continue() {
        _ = leanings::learn(&mut run, options)?;
    }
    Ok(Trained { policy: run.policy, curve: run.curve })
}

/// The problems of a stage.
struct Lessons<T> {
    validation: Vec<T>,
    training: Vec<T>,
}

/// The state of a training run.
struct TrainRun<'a> {
    policy: Policy,
    curve: Vec<TrainProgress>,
    watch: &'a mut dyn FnMut(TrainEvent<'_>) -> ControlFlow<()>,
}

impl TrainRun<'_> {
    /// Reports that `step` of `steps` were made. If a point of the curve is due, validates the policy and adds the point.
    /// Returns whether to go on.
    fn made_step(
        &mut self,
        stage: Stage,
        (step, steps): (u64, u64),
        validate: impl FnOnce(&Policy) -> Result<f64, TrainError>,
    ) -> Result<ControlFlow<()>, TrainError> {
        if (self.watch)(TrainEvent::Step { stage, step }).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        if step % steps.div_ceil(POINTS).max(1) != 0 && step != steps {
            return Ok(ControlFlow::Continue(()));
        }
        let point = TrainProgress { stage, step, steps, validation: validate(&self.policy)? };
        self.curve.push(point);
        Ok((self.watch)(TrainEvent::Point(&point)))
    }

    /// Makes the steps of a stage, unless the caller stops it. `learn` computes the gradients of a step.
    fn make_steps(
        &mut self,
        (stage, steps): (Stage, u64),
        mut optimizer: Optimizer,
        validate: impl Fn(&Policy) -> Result<f64, TrainError>,
        mut learn: impl FnMut(&Policy) -> Result<(), TrainError>,
    ) -> Result<ControlFlow<()>, TrainError> {
        let mut step = 0;
        loop {
            let next = self.made_step(stage, (step, steps), &validate)?;
            if next.is_break() || step == steps {
                return Ok(next);
            }
            optimizer.set_lr_scale(1.0 - 0.9 * step as f64 / steps as f64);
            optimizer.zero_grad();
            learn(&self.policy)?;
            clip_grad_norm(&self.policy.parameters(), 1.0)?;
            optimizer.step()?;
            step += 1;
        }
    }

    /// Makes problems of all families in turn, unless the caller stops it.
    fn make_lessons<T>(
        &mut self,
        options: &TrainOptions,
        make: impl Fn(&Policy, Family, u64) -> Result<T, TrainError>,
    ) -> Result<ControlFlow<(), Lessons<T>>, TrainError> {
        let seeds = Generator::new(options.seed);
        let trained = options.problems.max(1);
        let validated = trained.div_ceil(TRAINED_PER_VALIDATED);
        let mut lessons = Vec::new();
        for family in (0..validated + trained).map(|number| Family::ALL[number as usize % Family::ALL.len()]) {
            lessons.push(make(&self.policy, family, seeds.next_u64())?);
            if (self.watch)(TrainEvent::Problem).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        let training = lessons.split_off(validated as usize);
        Ok(ControlFlow::Continue(Lessons { validation: lessons, training }))
    }
}
