//! Tests of the planner that solves mixed-integer problems: it finds the optimum, and its bounds hold.

use std::ops::ControlFlow;
use std::time::Duration;

use crate::drawn::{any_choices, any_parts, placements, plans, tier};
use proptest::prelude::*;
use tenure_core::Tag;
use tenure_plan::bound::{makespan_bound_ns, static_score_bound};
use tenure_plan::planner::{Milp, Objective, Planned, Planner, PlannerError, PlannerOptions};
use tenure_plan::problem::{ProblemAccess, ProblemKernel, ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor};
use tenure_plan::{PlanError, Problem, simulate};

/// The relative error of an objective that the solver's tolerances and gaps may cause.
const TOLERANCE: f64 = 1e-5;

/// Longer than any search here takes, however busy the machine is.
const UNLIMITED: Duration = Duration::from_secs(24 * 60 * 60);

fn solve(problem: &Problem, objective: Objective) -> Result<Planned, PlannerError> {
    solve_within(problem, objective, UNLIMITED)
}

fn solve_within(problem: &Problem, objective: Objective, time_limit: Duration) -> Result<Planned, PlannerError> {
    let options = PlannerOptions { objective, time_limit, evaluations: None, seed: 7 };
    Milp.plan(problem, &options, &mut |_| ControlFlow::Continue(()))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn it_finds_the_best_placement(mut parts in any_parts(9)) {
        parts.tiers[1].is_reachable = true;
        let problem = Problem::new(parts).unwrap();
        let capacity = problem.tiers()[0].capacity.unwrap();
        let best = placements(&problem, capacity).iter().map(|it| it.score(&problem)).fold(0.0, f64::max);
        let planned = solve(&problem, Objective::Score).unwrap();
        let outcome = simulate(&problem, &planned.plan).unwrap();
        prop_assert!(outcome.peak_bytes[0] <= capacity);
        prop_assert!((outcome.score() - best).abs() <= TOLERANCE, "{} {best}", outcome.score());
        let bound = planned.bound.unwrap();
        prop_assert!(best <= bound && bound <= best + TOLERANCE && bound <= static_score_bound(&problem) + TOLERANCE);
    }

    #[test]
    fn where_nothing_moves_it_finds_the_least_makespan(mut parts in any_parts(9)) {
        parts.links.clear();
        parts.tensors.iter_mut().for_each(|tensor| tensor.recompute = None);
        let problem = Problem::new(parts).unwrap();
        let capacity = problem.tiers()[0].capacity.unwrap();
        let played = placements(&problem, capacity).into_iter().filter_map(|it| simulate(&problem, &it.plan()).ok());
        let best = played.map(|outcome| outcome.makespan_ns).fold(f64::INFINITY, f64::min);
        match solve(&problem, Objective::Makespan) {
            Ok(planned) => {
                let makespan_ns = simulate(&problem, &planned.plan).unwrap().makespan_ns;
                prop_assert!(makespan_ns <= best * (1.0 + TOLERANCE), "{makespan_ns} {best}");
                prop_assert!(planned.bound.unwrap() <= best * (1.0 + TOLERANCE));
                prop_assert!(planned.bound.unwrap() >= best * (1.0 - TOLERANCE));
            }
            Err(_) => prop_assert!(best.is_infinite()),
        }
    }

    #[test]
    fn no_plan_is_better_than_its_bound(parts in any_parts(7), choices in any_choices(7)) {
        let problem = Problem::new(parts).unwrap();
        let Ok(planned) = solve(&problem, Objective::Makespan) else { return Ok(()) };
        let bound = planned.bound.unwrap();
        prop_assert!(makespan_bound_ns(&problem) <= bound * (1.0 + TOLERANCE));
        for plan in plans(&problem, &choices).iter().chain([&planned.plan]) {
            if let Ok(outcome) = simulate(&problem, plan) {
                prop_assert!(bound <= outcome.makespan_ns * (1.0 + TOLERANCE), "{bound} {}", outcome.makespan_ns);
            }
        }
    }

    #[test]
    fn the_same_problem_has_the_same_plan(parts in any_parts(9)) {
        let problem = Problem::new(parts).unwrap();
        for objective in [Objective::Score, Objective::Makespan] {
            let [first, second] = [(); 2].map(|()| solve(&problem, objective).map(|it| (it.plan, it.bound)));
            prop_assert_eq!(first, second);
        }
    }
}

#[test]
fn bytes_that_links_cannot_carry_are_computed_again() {
    // Two tensors of 100 bytes are written, then read; the first tier has room for one. A byte takes 4 ns on a link,
    // kernels take 100 ns.
    let access = |tensor| vec![ProblemAccess { tensor, bytes: 100 }];
    let kernel = |reads, writes| ProblemKernel { name: "k".into(), time_ns: 100, reads, writes };
    let tensor = |key: &str, time_ns| ProblemTensor {
        key: key.into(),
        bytes: 100,
        tag: Tag::Activation,
        compression: None,
        recompute: Some(ProblemRecompute { time_ns, inputs: vec![] }),
    };
    let link = |from, to| ProblemLink { from, to, bandwidth: 250_000_000, shared_with: None };
    let mut parts = ProblemParts {
        tiers: vec![tier("fast", Some(100), true, 1_000_000_000, 0), tier("disk", None, false, 1_000_000_000, 0)],
        links: vec![link(0, 1), link(1, 0)],
        tensors: vec![tensor("a", 40), tensor("b", 30)],
        kernels: vec![
            kernel(vec![], access(0)),
            kernel(vec![], access(1)),
            kernel(access(0), vec![]),
            kernel(access(1), vec![]),
        ],
        ..ProblemParts::default()
    };
    let found = |parts: &ProblemParts| {
        let problem = Problem::new(parts.clone()).unwrap();
        let planned = solve(&problem, Objective::Makespan).unwrap();
        (simulate(&problem, &planned.plan).unwrap().makespan_ns, planned.bound.unwrap())
    };
    // Both tensors are dropped after they were written, and recomputed.
    let (makespan_ns, bound) = found(&parts);
    assert_eq!(makespan_ns, 400.0 + 40.0 + 30.0);
    assert!((makespan_ns - bound).abs() < 1e-3, "{bound}");
    // With links that take 40 ns for each tensor, both leave and return, while kernels wait.
    parts.links.iter_mut().for_each(|link| link.bandwidth = 2_500_000_000);
    parts.tensors.iter_mut().for_each(|tensor| tensor.recompute.as_mut().unwrap().time_ns = 200);
    assert_eq!(found(&parts).0, 400.0 + 4.0 * 40.0);
}

#[test]
fn a_problem_without_tiers_is_refused() {
    let bare = Problem::new(ProblemParts::default()).unwrap();
    assert_eq!(solve(&bare, Objective::Score).unwrap_err(), PlannerError::Plan(PlanError::NoTiers));
}
