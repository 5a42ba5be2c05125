//! The evaluator: simulates each plan of a search, counts it, and keeps the best so far.

#[cfg(feature = "milp")]
use std::ops::ControlFlow;
#[cfg(feature = "milp")]
use std::time::Duration;
use std::time::Instant;

use super::{Objective, Planned, PlannerOptions, PlannerProgress, PlannerResult, Watch};
use crate::simulator::Outcome;
use crate::{Plan, PlanError, Problem, simulate};

/// Judges the plans of a search and keeps the best, until a limit is reached.
pub struct Evaluator<'a, 'w> {
    problem: &'a Problem,
    options: PlannerOptions,
    watch: &'w mut Watch<'w>,
    begun: Instant,
    evaluations: u64,
    /// The number of plans, of the limit, that a later stage of the search may still try.
    reserved: u64,
    /// The cost of the best plan, the bytes that it moves, and the plan.
    best: Option<(f64, u64, Plan)>,
    /// The error of the last plan that could not be played.
    last_error: PlanError,
    /// Whether the caller has stopped the search.
    is_stopped: bool,
    /// Whether the best plan costs no more than `cost_bound`.
    is_ideal: bool,
    /// A lower bound on the cost of every plan.
    cost_bound: f64,
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
            last_error: PlanError::NoTiers,
            is_stopped: false,
            is_ideal: false,
            cost_bound: match options.objective {
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

    /// Keeps `plans` of the plans that may be tried for a later stage of the search; replaces the earlier number.
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

    /// Simulates a plan and returns its cost, the lower the better: nanoseconds, or the share of accessed bytes that
    /// the first tier does not serve. Infinite if the plan cannot be played. Of plans that cost the same, the evaluator
    /// keeps the one that moves fewer bytes, then the one with fewer steps.
    pub fn cost(&mut self, plan: &Plan) -> f64 {
        let played = simulate(self.problem, plan);
        let cost = played.as_ref().map_or(f64::INFINITY, |outcome| self.options.objective.cost(outcome));
        self.evaluations += 1;
        match played {
            Err(error) => self.last_error = error,
            Ok(outcome) => {
                let moved = outcome.moved_bytes.iter().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
                let is_better = match &self.best {
                    Some((best, least_moved, kept)) => {
                        (cost, moved, plan.steps.len()) < (*best, *least_moved, kept.steps.len())
                    }
                    None => true,
                };
                if is_better {
                    self.best = Some((cost, moved, plan.clone()));
                }
            }
        }
        let best = self.best.as_ref().map(|(cost, ..)| self.options.objective.of_cost(*cost));
        let progress = PlannerProgress { evaluations: self.evaluations, best };
        self.is_stopped |= (self.watch)(&progress).is_break();
        self.is_ideal |= cost <= self.cost_bound;
        cost
    }

    /// Reports progress to the caller between two plans: the solver's best value `found`, or else the best so far.
    #[cfg(feature = "milp")]
    pub(super) fn report_progress(&mut self, found: Option<f64>) -> ControlFlow<()> {
        let best = self.best.as_ref().map(|(cost, ..)| self.options.objective.of_cost(*cost));
        let control = (self.watch)(&PlannerProgress { evaluations: self.evaluations, best: found.or(best) });
        self.is_stopped |= control.is_break();
        control
    }

    /// Returns the time left until the limit.
    #[cfg(feature = "milp")]
    pub(super) fn time_left(&self) -> Duration {
        self.options.time_limit.saturating_sub(self.begun.elapsed())
    }

    /// Returns the best plan.
    ///
    /// # Errors
    /// [`PlannerError::Plan`](super::PlannerError::Plan) if no plan could be played, with the error of the last.
    pub fn finish(self) -> PlannerResult {
        let (.., plan) = self.best.ok_or(self.last_error)?;
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
