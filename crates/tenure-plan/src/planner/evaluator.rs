//! Judging plans: each is played, counted, and kept if it is the best so far.

#[cfg(feature = "milp")]
use std::ops::ControlFlow;
#[cfg(feature = "milp")]
use std::time::Duration;
use std::time::Instant;

use super::{Objective, Planned, PlannerError, PlannerOptions, PlannerProgress, Watch};
use crate::simulator::Outcome;
use crate::{Plan, PlanError, Problem, simulate};

/// Judges the plans of a search and keeps the best, until a limit is reached.
pub struct Evaluator<'a, 'w> {
    problem: &'a Problem,
    options: PlannerOptions,
    watch: &'w mut Watch<'w>,
    begun: Instant,
    evaluations: u64,
    /// Plans of those that it may try that are set aside for later.
    reserved: u64,
    /// What the best costs, the bytes that it moves, and the plan.
    best: Option<(f64, u64, Plan)>,
    /// Why the last plan that could not be played could not.
    refused: PlanError,
    is_stopped: bool,
    is_ideal: bool,
    /// What no plan can cost less than.
    least: f64,
}

impl<'a, 'w> Evaluator<'a, 'w> {
    /// Nothing tried yet. Time begins to run.
    pub fn new(problem: &'a Problem, options: &PlannerOptions, watch: &'w mut Watch<'w>) -> Self {
        Self {
            problem,
            options: *options,
            watch,
            begun: Instant::now(),
            evaluations: 0,
            reserved: 0,
            best: None,
            refused: PlanError::NoTiers,
            is_stopped: false,
            is_ideal: false,
            least: match options.objective {
                Objective::Score => 0.0,
                Objective::Makespan => problem.kernels_ns() as f64,
            },
        }
    }

    /// Whether another plan may be tried, and may cost less. The first always may.
    pub fn may_go_on(&self) -> bool {
        !self.is_ideal && self.may_try()
    }

    /// Whether no plan can cost less than the best.
    pub(super) fn is_ideal(&self) -> bool {
        self.is_ideal
    }

    /// Sets aside a part of the plans that may be tried, in place of what was set aside before.
    pub(super) fn reserve(&mut self, plans: u64) {
        self.reserved = plans;
    }

    /// The best plan so far, and its cost.
    pub(super) fn best(&self) -> Option<(f64, &Plan)> {
        self.best.as_ref().map(|(cost, _, plan)| (*cost, plan))
    }

    /// Whether another plan may be tried, if only one that does less.
    pub(super) fn may_try(&self) -> bool {
        self.best.is_none() && self.evaluations == 0
            || !self.is_stopped
                && self.begun.elapsed() < self.options.time_limit
                && self.options.evaluations.is_none_or(|most| self.evaluations + self.reserved < most)
    }

    /// What a plan costs, the less the better: nanoseconds, or the share of accessed bytes that the first tier does not
    /// serve. Infinite if it cannot be played. Of plans that cost the same, that which moves fewer bytes is kept, or takes fewer
    /// steps.
    pub fn cost(&mut self, plan: &Plan) -> f64 {
        let played = simulate(self.problem, plan);
        let cost = played.as_ref().map_or(f64::INFINITY, |outcome| self.options.objective.cost(outcome));
        self.evaluations += 1;
        match played {
            Err(error) => self.refused = error,
            Ok(outcome) => {
                let moved = outcome.moved_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
                let is_better = |(best, least, kept): &(f64, u64, Plan)| {
                    (cost, moved, plan.steps.len()) < (*best, *least, kept.steps.len())
                };
                if self.best.as_ref().is_none_or(is_better) {
                    self.best = Some((cost, moved, plan.clone()));
                }
            }
        }
        let best = self.best.as_ref().map(|(cost, ..)| self.options.objective.of_cost(*cost));
        let progress = PlannerProgress { evaluations: self.evaluations, best };
        self.is_stopped |= (self.watch)(&progress).is_break();
        self.is_ideal |= cost <= self.least;
        cost
    }

    /// Tells whoever watches, between two plans, of what a solver has, or else of the best so far.
    #[cfg(feature = "milp")]
    pub(super) fn pause(&mut self, found: Option<f64>) -> ControlFlow<()> {
        let best = self.best.as_ref().map(|(cost, ..)| self.options.objective.of_cost(*cost));
        let told = (self.watch)(&PlannerProgress { evaluations: self.evaluations, best: found.or(best) });
        self.is_stopped |= told.is_break();
        told
    }

    /// How much time is left.
    #[cfg(feature = "milp")]
    pub(super) fn left(&self) -> Duration {
        self.options.time_limit.saturating_sub(self.begun.elapsed())
    }

    /// The best of all.
    ///
    /// # Errors
    /// [`PlannerError::Plan`] if none could be played, with the reason of the last.
    pub fn finish(self) -> Result<Planned, PlannerError> {
        let (.., plan) = self.best.ok_or(self.refused)?;
        Ok(Planned { plan, evaluations: self.evaluations, bound: None, elapsed: self.begun.elapsed() })
    }
}

impl Objective {
    /// What came of a plan as a cost: the less the better.
    pub fn cost(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Score => 1.0 - outcome.score(),
            // To a picosecond: what is less is what sums of times were rounded by.
            Self::Makespan => (outcome.makespan_ns * 1e3).round() / 1e3,
        }
    }

    /// A cost as what the objective is called after.
    fn of_cost(self, cost: f64) -> f64 {
        match self {
            Self::Score => 1.0 - cost,
            Self::Makespan => cost,
        }
    }
}
