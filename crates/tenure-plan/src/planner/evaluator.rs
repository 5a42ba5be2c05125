//! The evaluator: plays each plan, counts it, and keeps the best so far.

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
    /// Plans out of the limit that are reserved for later.
    reserved: u64,
    /// The cost of the best plan, the bytes that it moves, and the plan.
    best: Option<(f64, u64, Plan)>,
    /// The error of the last plan that could not be played.
    refused: PlanError,
    is_stopped: bool,
    is_ideal: bool,
    /// A lower bound on the cost of every plan.
    least: f64,
}

impl<'a, 'w> Evaluator<'a, 'w> {
    /// Makes an evaluator that has tried no plan. The time limit starts now.
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

    /// Returns whether another plan may be tried and may cost less. The first plan may always be tried.
    pub fn may_go_on(&self) -> bool {
        !self.is_ideal && self.may_try()
    }

    /// Returns whether no plan can cost less than the best.
    pub(super) fn is_ideal(&self) -> bool {
        self.is_ideal
    }

    /// Reserves `plans` of the plans that may be tried; replaces the earlier reservation.
    pub(super) fn reserve(&mut self, plans: u64) {
        self.reserved = plans;
    }

    /// Returns the best plan so far, and its cost.
    pub(super) fn best(&self) -> Option<(f64, &Plan)> {
        self.best.as_ref().map(|(cost, _, plan)| (*cost, plan))
    }

    /// Returns whether another plan may be tried, even if it can only have fewer moves or steps.
    pub(super) fn may_try(&self) -> bool {
        self.best.is_none() && self.evaluations == 0
            || !self.is_stopped
                && self.begun.elapsed() < self.options.time_limit
                && self.options.evaluations.is_none_or(|most| self.evaluations + self.reserved < most)
    }

    /// Plays a plan and returns its cost, the lower the better: nanoseconds, or the share of accessed bytes that the
    /// first tier does not serve. Infinite if the plan cannot be played. Of plans that cost the same, the evaluator
    /// keeps the one that moves fewer bytes, then the one with fewer steps.
    pub fn cost(&mut self, plan: &Plan) -> f64 {
        let played = simulate(self.problem, plan);
        let cost = played.as_ref().map_or(f64::INFINITY, |outcome| self.options.objective.cost(outcome));
        self.evaluations += 1;
        match played {
            Err(error) => self.refused = error,
            Ok(outcome) => {
                let moved = outcome.moved_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
                if self.best.as_ref().is_none_or(|(best, least, kept)| {
                    (cost, moved, plan.steps.len()) < (*best, *least, kept.steps.len())
                }) {
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

    /// Reports progress to the caller between two plans: the solver's best value `found`, or else the best so far.
    #[cfg(feature = "milp")]
    pub(super) fn pause(&mut self, found: Option<f64>) -> ControlFlow<()> {
        let best = self.best.as_ref().map(|(cost, ..)| self.options.objective.of_cost(*cost));
        let told = (self.watch)(&PlannerProgress { evaluations: self.evaluations, best: found.or(best) });
        self.is_stopped |= told.is_break();
        told
    }

    /// Returns the time that is left.
    #[cfg(feature = "milp")]
    pub(super) fn left(&self) -> Duration {
        self.options.time_limit.saturating_sub(self.begun.elapsed())
    }

    /// Returns the best plan.
    ///
    /// # Errors
    /// [`PlannerError::Plan`] if no plan could be played, with the error of the last.
    pub fn finish(self) -> Result<Planned, PlannerError> {
        let (.., plan) = self.best.ok_or(self.refused)?;
        Ok(Planned { plan, evaluations: self.evaluations, bound: None, elapsed: self.begun.elapsed() })
    }
}

impl Objective {
    /// Converts the outcome of a plan to a cost: the lower the better.
    pub fn cost(self, outcome: &Outcome) -> f64 {
        match self {
            Self::Score => 1.0 - outcome.score(),
            // Rounded to a picosecond: smaller differences are rounding errors of sums.
            Self::Makespan => (outcome.makespan_ns * 1e3).round() / 1e3,
        }
    }

    /// Converts a cost to the value of the objective.
    fn of_cost(self, cost: f64) -> f64 {
        match self {
            Self::Score => 1.0 - cost,
            Self::Makespan => cost,
        }
    }
}
