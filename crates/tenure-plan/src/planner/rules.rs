//! Rules as planners: one order, one plan.

use super::{Planned, Planner, PlannerError, PlannerOptions, Watch, begin};
use crate::{Problem, Rule};

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
        let mut evaluator = begin(problem, options, watch)?;
        let placement = self.place(problem, problem.tiers()[0].capacity.unwrap_or(u64::MAX));
        let mut plan = placement.plan();
        // Where there is no other tier, all are in this one.
        plan.places.iter_mut().for_each(|place| *place = (*place).min(problem.tiers().len() - 1));
        evaluator.cost(&plan);
        evaluator.finish()
    }
}
