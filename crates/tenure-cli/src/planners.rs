//! The planners that the program's users name.

use std::path::Path;

use clap::ValueEnum;
use tenure::agent::Policy;
use tenure::plan::Planner;
use tenure::plan::planner::{self, Evolutionary, FlashNeuron, PlannerError, Scheduled};

use crate::files;
use crate::values::PlannerName;

/// A planner that threads may share.
pub(crate) type AnyPlanner = Box<dyn Planner + Send + Sync>;

/// Returns the named planners, in the order in which reports list them. The planner marl uses `policy`, a file, or the
/// built-in one.
pub(crate) fn named(name: PlannerName, policy: Option<&Path>) -> anyhow::Result<Vec<AnyPlanner>> {
    if name == PlannerName::Milp {
        return Ok(vec![milp()?]);
    }
    let policy = match policy {
        Some(path) => Policy::read(path).map_err(|error| files::about(path, error))?,
        None => Policy::trained()?,
    };
    let mut planners: Vec<AnyPlanner> =
        tenure::agent::planners(policy).into_iter().map(|(planner, _)| planner).collect();
    if name != PlannerName::All {
        let wanted = name.to_possible_value();
        planners.retain(|planner| wanted.as_ref().is_some_and(|wanted| wanted.get_name() == planner.name()));
    }
    Ok(planners)
}

/// Returns a planner that [`PlannerName::of_a_budget`] parses.
///
/// # Panics
/// The parser refuses the planner.
pub(crate) fn of_a_budget(name: PlannerName) -> anyhow::Result<AnyPlanner> {
    Ok(match name {
        PlannerName::Flashneuron => Box::new(FlashNeuron),
        PlannerName::Scheduled => Box::new(Scheduled),
        PlannerName::Evolutionary => Box::new(Evolutionary::default()),
        PlannerName::Milp => milp()?,
        PlannerName::FirstTouch
        | PlannerName::WeightsFirst
        | PlannerName::ActivationsFirst
        | PlannerName::Hotness
        | PlannerName::Density
        | PlannerName::Marl
        | PlannerName::All => unreachable!("{name:?} keeps to no budget"),
    })
}

/// Returns the planner `milp`; in a build without it, an error that says how to get one with it.
fn milp() -> anyhow::Result<AnyPlanner> {
    or_how_to_get_it(planner::milp())
}

fn or_how_to_get_it(milp: Result<AnyPlanner, PlannerError>) -> anyhow::Result<AnyPlanner> {
    let install = "`cargo install --path crates/tenure-cli --features milp` installs a program that has it";
    milp.map_err(|error| anyhow::anyhow!("--planner milp: {error}: {install}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_milp_says_how_to_get_one_with_it() {
        assert_eq!(milp().is_ok(), cfg!(feature = "milp"));
        // The error of a build without the feature, made here because CI builds with it.
        let Err(error) = or_how_to_get_it(Err(PlannerError::NoMilp)) else { panic!("milp was made") };
        // The error as it is printed.
        let said = error.to_string();
        assert!(said.contains("cargo install") && said.contains("--features milp") && said.contains("cmake"), "{said}");
    }
}
