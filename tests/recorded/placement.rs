//! Tests of plans and packings of recorded programs, against the figures of the placement specification.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::{bert, bert_within, minimalloc};
use tenure_agent::{Marl, Policy};
use tenure_plan::packing::PackingOptions;
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::{Planner, Rule, simulate};

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn berts_scores_are_known() {
    let problem = bert();
    assert_eq!((problem.tensors().len(), problem.kernels().len()), (1463, 1369));
    let peak = problem.peak_bytes();
    for (percent, expected) in [(20, [0.115, 0.112, 0.385, 0.613, 0.692]), (50, [0.507, 0.507, 0.675, 0.819, 0.815])] {
        let capacity = peak / 100 * percent;
        for (rule, expected) in Rule::ALL.into_iter().zip(expected) {
            let placement = rule.place(&problem, capacity);
            assert!((placement.score(&problem) - expected).abs() <= 0.002, "{percent} % {}", rule.name());
            assert!(placement.peak_bytes(&problem) <= capacity);
        }
    }
}

/// The optima, found by a solver, are those of the specification's table.
#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn berts_optimum_is_reached_sooner_than_by_other_policies() {
    for (percent, optimum, evaluations) in [(20, 0.7047, 3), (50, 0.8277, 1)] {
        let problem = bert_within(percent);
        let reaches = |policy, evaluations| {
            let options = PlannerOptions {
                objective: Objective::Score,
                time_limit: Duration::MAX,
                evaluations: Some(evaluations),
                seed: 0,
            };
            let planned = Marl::new(policy).plan(&problem, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            let score = simulate(&problem, &planned.plan).unwrap().score();
            assert!(score <= planned.bound.unwrap());
            score >= 0.995 * optimum
        };
        assert!(reaches(Policy::trained().unwrap(), evaluations), "{percent} %");
        assert!(!reaches(Policy::zero().unwrap(), 2 * evaluations), "{percent} %");
        assert!(!reaches(Policy::new(1).unwrap(), 2 * evaluations), "{percent} %");
    }
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn minimallocs_instances_fit() {
    // The others take a second or two, but half a minute without optimisation.
    let names = if cfg!(debug_assertions) { &["C", "D"][..] } else { &["A", "B", "C", "D", "E", "F"] };
    for name in names {
        let options = PackingOptions { capacity_bytes: Some(1 << 20), node_limit: Some(1 << 20), time_limit: None };
        let packed = minimalloc(name).pack(&options, |_| ControlFlow::Continue(()));
        assert_eq!(packed.is_feasible(1 << 20), Some(true), "{name}");
        assert!(packed.packing.height_bytes() <= 1 << 20, "{name}");
    }
}

#[cfg(feature = "milp")]
mod milp {
    use super::*;
    use tenure_plan::Problem;
    use tenure_plan::bound::static_score_bound;
    use tenure_plan::planner::{Milp, Planned};

    /// Longer than any search here takes, however busy the machine is.
    const UNLIMITED: Duration = Duration::from_secs(24 * 60 * 60);

    fn solve(problem: &Problem, objective: Objective, time_limit: Duration) -> Planned {
        let options = PlannerOptions { objective, time_limit, evaluations: None, seed: 7 };
        Milp.plan(problem, &options, &mut |_| ControlFlow::Continue(())).unwrap()
    }

    /// Checks a plan of a search that was ended early: its bound is still far away.
    fn expect_ended_early(problem: &Problem, objective: Objective, planned: &Planned) {
        let outcome = simulate(problem, &planned.plan).unwrap();
        let bound = planned.bound.unwrap();
        let is_far = match objective {
            Objective::Score => bound > outcome.score() * 1.01,
            Objective::Makespan => bound < outcome.makespan_ns * 0.99,
        };
        assert!(is_far && outcome.score() > 0.69, "{bound} {} {}", outcome.score(), outcome.makespan_ns);
        assert_eq!(planned.evaluations, 1);
    }

    #[test]
    #[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
    fn no_room_and_all_room_take_no_search() {
        let problem = bert_within(0);
        assert_eq!(solve(&problem, Objective::Score, UNLIMITED).bound, Some(0.0));
        let all = Rule::Density.place(&problem, 0).plan();
        let planned = solve(&problem, Objective::Makespan, UNLIMITED);
        assert_eq!(simulate(&problem, &planned.plan), simulate(&problem, &all));
        let problem = bert().with_fast_bytes(bert().peak_bytes());
        let kernels_ns: u64 = problem.kernels().iter().map(|kernel| kernel.time_ns).sum();
        for (objective, expected) in [(Objective::Score, 1.0), (Objective::Makespan, kernels_ns as f64)] {
            let planned = solve(&problem, objective, UNLIMITED);
            assert_eq!(planned.bound, Some(expected));
            assert_eq!(simulate(&problem, &planned.plan).unwrap().makespan_ns, kernels_ns as f64);
        }
    }

    /// Compares with the optimum in the table of the placement specification.
    #[test]
    #[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
    fn berts_optimum_is_known() {
        // The relative error of an objective that the solver's tolerances and gaps may cause.
        const TOLERANCE: f64 = 1e-5;
        for (percent, expected) in [(20, 0.7047), (50, 0.8277)] {
            let problem = bert_within(percent);
            let planned = solve(&problem, Objective::Score, UNLIMITED);
            let score = simulate(&problem, &planned.plan).unwrap().score();
            let bound = planned.bound.unwrap();
            let relaxed = static_score_bound(&problem);
            assert!(bound <= relaxed * (1.0 + TOLERANCE) && relaxed <= score * 1.001, "{score} {bound} {relaxed}");
            // Four digits of the expected score are known.
            assert!((score - expected).abs() <= expected * 1e-4 && score >= bound * (1.0 - 1e-4), "{score} of {bound}");
        }
    }

    /// Links carry the excess tensors away and back while kernels run: at 55 GB/s without any wait.
    #[test]
    #[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
    fn bert_needs_no_longer_with_a_fifth_of_its_memory() {
        let problem = bert_within(20);
        let planned = solve(&problem, Objective::Makespan, UNLIMITED);
        let kernels_ns: u64 = problem.kernels().iter().map(|kernel| kernel.time_ns).sum();
        let makespan_ns = simulate(&problem, &planned.plan).unwrap().makespan_ns;
        assert!(makespan_ns <= kernels_ns as f64 * 1.001, "{makespan_ns}");
        assert!(planned.bound.unwrap() <= makespan_ns);
    }

    #[test]
    #[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
    fn a_search_ends_in_time_with_the_best_so_far() {
        let mut parts = bert_within(20).into_parts();
        parts.links.iter_mut().for_each(|link| link.bandwidth = 4_000_000_000);
        let problem = Problem::new(parts).unwrap();
        for objective in [Objective::Score, Objective::Makespan] {
            expect_ended_early(&problem, objective, &solve(&problem, objective, Duration::ZERO));
            // The caller's `watch` ends it, too.
            let options = PlannerOptions { objective, time_limit: UNLIMITED, evaluations: None, seed: 0 };
            let planned = Milp.plan(&problem, &options, &mut |_| ControlFlow::Break(())).unwrap();
            expect_ended_early(&problem, objective, &planned);
        }
    }
}
