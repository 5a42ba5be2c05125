//! Planners: what makes a [`Plan`] of a problem.

mod condensed;
mod decoder;
mod evaluator;
mod evolutionary;
mod flashneuron;
#[cfg(feature = "milp")]
mod milp;
mod rules;
mod schedule;
mod scheduled;
mod timeline;

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{Plan, PlanError, Problem};

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

/// Something that makes plans.
///
/// The same problem, objective, seed and number of evaluations give the same plan, unless time runs out before.
pub trait Planner {
    /// Its name in the program.
    fn name(&self) -> &str;

    /// A plan for a problem that has tiers.
    ///
    /// # Errors
    /// [`PlannerError`] if no plan was found that can be played.
    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>)
    -> Result<Planned, PlannerError>;
}

/// What a plan is to be good at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// The share of accessed bytes that the first tier serves ([`Placement::score`](crate::Placement::score)): the more the
    /// better. Tensors stay where they are, all their life.
    Score,
    /// The time that an iteration takes in the simulator ([`makespan_ns`](crate::simulator::Outcome::makespan_ns)): the less
    /// the better.
    Makespan,
}

/// How far a planner may go.
#[derive(Clone, Copy, Debug)]
pub struct PlannerOptions {
    /// What is looked for.
    pub objective: Objective,
    /// It stops after that time with the best that it has.
    pub time_limit: Duration,
    /// Plans that it may try, if they are limited.
    pub evaluations: Option<u64>,
    /// Where random numbers begin.
    pub seed: u64,
}

/// Told of progress; says whether to go on.
pub type Watch<'a> = dyn FnMut(&PlannerProgress) -> ControlFlow<()> + 'a;

/// How far a planner has come.
#[derive(Clone, Copy, Debug)]
pub struct PlannerProgress {
    /// Plans tried.
    pub evaluations: u64,
    /// What the objective says of the best so far: a score, or nanoseconds. None if there is none yet.
    pub best: Option<f64>,
}

/// What a planner found.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The best plan.
    pub plan: Plan,
    /// Plans tried: decoded and judged.
    pub evaluations: u64,
    /// What no plan can surpass: a score, if tensors stay where they are, or nanoseconds, whatever is done, as the objective
    /// says. None if the planner knows of no such bound.
    pub bound: Option<f64>,
    /// How long it took.
    pub elapsed: Duration,
}

/// Where a planner begins.
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

/// The planner `milp`.
///
/// # Errors
/// [`PlannerError::NoMilp`] in a build without the feature `milp`.
pub fn milp() -> Result<Box<dyn Planner + Send + Sync>, PlannerError> {
    #[cfg(feature = "milp")]
    return Ok(Box::new(Milp));
    #[cfg(not(feature = "milp"))]
    return Err(PlannerError::NoMilp);
}

/// Why there is no plan. Always one line.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlannerError {
    /// What was found cannot be played.
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
    /// What the planner needs beside the problem failed it.
    #[error("{planner}: {reason}")]
    Failed {
        /// The planner's name.
        planner: &'static str,
        /// Why.
        reason: String,
    },
}
