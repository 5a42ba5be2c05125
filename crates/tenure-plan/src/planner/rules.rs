//! Rules as planners: one order, one plan.

use super::{Evaluator, Planned, Planner, PlannerError, PlannerOptions, Watch};
use crate::{PlanError, Problem, Rule};

impl Planner for Rule {
    fn name(&self) -> &str {
        Rule::name(*self)
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        let mut evaluator = Evaluator::new(problem, options, watch);
        let fastest = problem.tiers().first().ok_or(PlanError::NoTiers)?;
        let placement = self.place(problem, fastest.capacity.unwrap_or(u64::MAX));
        let mut plan = placement.plan();
        // Where there is no other tier, all are in this one.
        plan.places.iter_mut().for_each(|place| *place = (*place).min(problem.tiers().len() - 1));
        evaluator.cost(&plan);
        evaluator.finish()
    }
}
