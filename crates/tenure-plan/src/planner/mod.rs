//! Planners: they make a [`Plan`] for a problem.

mod condensed;
mod decoder;
mod evaluator;
mod evolutionary;
mod flashneuron;
#[cfg(feature = "milp")]
mod milp;
mod schedule;
mod scheduled;
mod timeline;

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{Plan, PlanError, Problem, Rule};

pub use condensed::Condensed;
pub use decoder::{Decisions, Decoder, Treatment};
pub use evaluator::Evaluator;
pub use evolutionary::Evolutionary;
pub use flashneuron::FlashNeuron;
#[cfg(feature = "milp")]
pub use milp::Milp;
#[cfg(feature = "milp")]
pub(crate) use milp::relaxed_score;
pub use scheduled::Scheduled;

/// A planner.
///
/// The same problem, objective, seed and number of evaluations give the same plan, unless time runs out before.
pub trait Planner {
    /// Returns its name in the program.
    fn name(&self) -> &str;

    /// Makes a plan for a problem that has tiers.
    ///
    /// # Errors
    /// [`PlannerError`] if no plan was found that can be played.
    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult;
}

/// The objective of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The share of accessed bytes that the first tier serves
    /// ([`FixedPlacement::score`](crate::FixedPlacement::score)): the more the better. Every tensor stays in one tier
    /// for its whole lifetime.
    Score,
    /// The time that an iteration takes in the simulator
    /// ([`makespan_ns`](crate::simulator::Outcome::makespan_ns)): the less the better.
    Makespan,
}

/// Settings of a planner: its objective and its limits.
#[derive(Clone, Copy, Debug)]
pub struct PlannerOptions {
    /// The objective.
    pub objective: Objective,
    /// The planner stops after this time with the best plan that it has.
    pub time_limit: Duration,
    /// The most plans that it may try; `None` is no limit.
    pub evaluations: Option<u64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// A callback that gets the progress and returns whether to go on.
pub type Watch<'a> = dyn FnMut(&PlannerProgress) -> ControlFlow<()> + 'a;

/// The progress of a planner.
#[derive(Clone, Copy, Debug)]
pub struct PlannerProgress {
    /// Plans tried.
    pub evaluations: u64,
    /// The objective's value of the best plan so far: a score, or nanoseconds. `None` if there is none yet.
    pub best: Option<f64>,
}

/// The result of a planner.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The best plan.
    pub plan: Plan,
    /// Plans tried: decoded and judged.
    pub evaluations: u64,
    /// A bound that no plan surpasses, as a value of the objective: of a score, over plans in which tensors stay where
    /// they are; of the nanoseconds, over all plans. `None` if the planner knows no such bound.
    pub bound: Option<f64>,
    /// The time that it took.
    pub elapsed: Duration,
}

/// The result of a planner, or the reason why there is no plan.
pub type PlannerResult = Result<Planned, PlannerError>;

/// Starts the evaluation of plans for a planner.
fn begin<'a, 'w>(
    problem: &'a Problem,
    options: &PlannerOptions,
    watch: &'w mut Watch<'w>,
) -> Result<Evaluator<'a, 'w>, PlanError> {
    if problem.tiers().is_empty() {
        return Err(PlanError::NoTiers);
    }
    Ok(Evaluator::new(problem, options, watch))
}

/// A rule is a planner that tries one order.
impl Planner for Rule {
    fn name(&self) -> &str {
        Rule::name(*self)
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let mut evaluator = begin(problem, options, watch)?;
        let placement = self.place(problem, problem.tiers()[0].capacity.unwrap_or(u64::MAX));
        evaluator.cost(&placement.plan());
        evaluator.finish()
    }
}

/// Returns the planner `milp`.
///
/// # Errors
/// [`PlannerError::NoMilp`] in a build without the feature `milp`.
pub fn milp() -> Result<Box<dyn Planner + Send + Sync>, PlannerError> {
    #[cfg(feature = "milp")]
    return Ok(Box::new(Milp));
    #[cfg(not(feature = "milp"))]
    return Err(PlannerError::NoMilp);
}

/// The reason why there is no plan. Always one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// No plan was found that can be played.
    #[error("no plan that can be played was found: {0}")]
    Plan(#[from] PlanError),
    /// The solver of mixed-integer problems is not in this build.
    #[error(
        "this build lacks the planner milp: build it with the feature `milp`, which needs cmake, a C++ compiler and libclang"
    )]
    NoMilp,
    /// The solver of mixed-integer problems gave no answer.
    #[error("HiGHS gave no answer: {0}")]
    Solver(&'static str),
    /// A planner failed because of something other than the problem.
    #[error("{planner}: {reason}")]
    Failed {
        /// The planner's name.
        planner: &'static str,
        /// The reason.
        reason: String,
    },
}
