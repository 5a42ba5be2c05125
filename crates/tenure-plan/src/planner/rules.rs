//! Rules as planners: one order, one plan.

use std::time::Instant;

use super::{Planned, Planner, PlannerError, PlannerOptions, Watch};
use crate::{PlanError, Problem, Rule};

impl Planner for Rule {
    fn name(&self) -> &str {
        Rule::name(*self)
    }

    fn plan(&self, problem: &Problem, _: &PlannerOptions, _: &mut Watch<'_>) -> Result<Planned, PlannerError> {
        let begun = Instant::now();
        let fastest = problem.tiers().first().ok_or(PlanError::NoTiers)?;
        let placement = self.place(problem, fastest.capacity.unwrap_or(u64::MAX));
        Ok(Planned::at_once(placement.plan(), begun))
    }
}
