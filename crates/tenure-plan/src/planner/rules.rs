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
        evaluator.cost(&placement.plan());
        evaluator.finish()
    }
}
