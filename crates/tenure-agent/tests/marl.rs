//! Tests of the learned planner on problems that it was not trained on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use tenure_agent::{Marl, Policy};
use tenure_core::Tag;
use tenure_plan::planner::{Evaluator, Objective, Planned, PlannerError, PlannerOptions};
use tenure_plan::problem::generate::Family;
use tenure_plan::problem::{ProblemAccess, ProblemKernel, ProblemParts, ProblemTensor, ProblemTier};
use tenure_plan::{PlanError, Planner, Problem, Rule, simulate};

fn options(objective: Objective, evaluations: u64, seed: u64) -> PlannerOptions {
    PlannerOptions { objective, time_limit: Duration::MAX, evaluations: Some(evaluations), seed }
}

fn plan(policy: Policy, problem: &Problem, options: &PlannerOptions) -> Planned {
    Marl::new(policy).plan(problem, options, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn score(problem: &Problem, planned: &Planned) -> f64 {
    simulate(problem, &planned.plan).unwrap().score()
}

fn density_score(problem: &Problem) -> f64 {
    Rule::Density.place(problem, problem.tiers()[0].capacity.unwrap()).score(problem)
}

/// Returns the problem with two tiers, of which the fast one has `bytes` bytes.
fn with_capacity(problem: &Problem, bytes: u64) -> Problem {
    let tier = |name: &str, capacity| ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: 1,
        write_bandwidth: 1,
        latency_ns: 0,
        loaded: Vec::new(),
    };
    let mut parts = problem.clone().into_parts();
    parts.tiers = vec![tier("fast", Some(bytes)), tier("slow", None)];
    Problem::new(parts).unwrap()
}

#[test]
fn without_changes_of_prices_the_order_is_the_density_rules() {
    for (number, family) in Family::ALL.into_iter().enumerate() {
        let problem = family.fixed(number as u64).unwrap();
        let planned = plan(Policy::zero().unwrap(), &problem, &options(Objective::Score, 1, 0));
        assert_eq!(score(&problem, &planned), density_score(&problem), "{}", problem.name());
    }
}

/// The optima, found by a solver, are those of the specification's table.
#[test]
fn berts_optimum_is_reached_sooner_than_by_other_policies() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/instances/bert_base_b256.json");
    if !path.exists() {
        eprintln!("skipped: there is no {}", path.display());
        return;
    }
    let bert = Problem::read(path).unwrap();
    for (percent, optimum, evaluations) in [(20, 0.7047, 3), (50, 0.8277, 1)] {
        let problem = with_capacity(&bert, bert.peak_bytes() / 100 * percent);
        let reaches = |policy, evaluations| {
            let planned = plan(policy, &problem, &options(Objective::Score, evaluations, 0));
            assert!(score(&problem, &planned) <= planned.bound.unwrap());
            score(&problem, &planned) >= 0.995 * optimum
        };
        assert!(reaches(Policy::trained().unwrap(), evaluations), "{percent} %");
        assert!(!reaches(Policy::zero().unwrap(), 2 * evaluations), "{percent} %");
        assert!(!reaches(Policy::new(1).unwrap(), 2 * evaluations), "{percent} %");
    }
}

#[test]
fn unknown_costs_are_met_by_trying() {
    let (mut gain, mut first) = (0.0, 0.0);
    for (number, family) in Family::ALL.into_iter().enumerate() {
        let problem = family.contended(77 + number as u64).unwrap();
        let time = |evaluations| {
            let options = options(Objective::Makespan, evaluations, 0);
            let mut watch = |_: &_| ControlFlow::Continue(());
            let mut evaluator = Evaluator::new(&problem.truth, &options, &mut watch);
            Marl::trained().unwrap().search(&problem.told, &options, &mut evaluator).unwrap();
            let planned = evaluator.finish().unwrap();
            assert_eq!(planned.evaluations, evaluations);
            simulate(&problem.truth, &planned.plan).unwrap().makespan_ns
        };
        let capacity = problem.told.tiers()[0].capacity.unwrap();
        let density = Rule::Density.place(&problem.told, capacity).plan();
        let density = simulate(&problem.truth, &density).unwrap().makespan_ns;
        let once = time(1);
        let often = time(40);
        assert!(often <= once);
        first += (density / once).ln();
        gain += (density / often).ln();
    }
    assert!(first > 0.0 && gain > first, "{first} {gain}");
}

#[test]
fn the_same_seed_gives_the_same_plan() {
    for objective in [Objective::Score, Objective::Makespan] {
        let problem = Family::Layered.contended(5).unwrap().told;
        let planned = |seed| plan(Policy::trained().unwrap(), &problem, &options(objective, 20, seed)).plan;
        assert_eq!(planned(3), planned(3));
    }
}

#[test]
fn limits_are_kept() {
    let problem = Family::Transformer.contended(5).unwrap().told;
    for objective in [Objective::Score, Objective::Makespan] {
        assert!(plan(Policy::trained().unwrap(), &problem, &options(objective, 7, 0)).evaluations <= 7);
        let no_time = PlannerOptions { time_limit: Duration::ZERO, ..options(objective, 7, 0) };
        assert_eq!(plan(Policy::trained().unwrap(), &problem, &no_time).evaluations, 1);
        let stopped =
            Marl::trained().unwrap().plan(&problem, &options(objective, 7, 0), &mut |_| ControlFlow::Break(()));
        assert_eq!(stopped.unwrap().evaluations, 1);
    }
}

#[test]
fn what_holds_nothing_is_planned_too() {
    let parts = with_capacity(&Problem::new(ProblemParts::default()).unwrap(), 10).into_parts();
    for objective in [Objective::Score, Objective::Makespan] {
        let nothing = Problem::new(parts.clone()).unwrap();
        assert!(plan(Policy::trained().unwrap(), &nothing, &options(objective, 3, 0)).plan.places.is_empty());
        let everything = with_capacity(&Family::UNet.fixed(1).unwrap(), u64::MAX);
        let planned = plan(Policy::trained().unwrap(), &everything, &options(objective, 3, 0));
        assert_eq!(score(&everything, &planned), 1.0);
    }
    let bare = Problem::new(ProblemParts::default()).unwrap();
    let refused =
        Marl::trained().unwrap().plan(&bare, &options(Objective::Score, 3, 0), &mut |_| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err(), PlannerError::Plan(PlanError::NoTiers));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// For any policy: no plan is too large, and no placement surpasses the bound.
    #[test]
    fn any_policys_plans_can_be_played(seed in any::<u64>(), family in prop::sample::select(Family::ALL.to_vec())) {
        let problem = family.fixed(seed).unwrap();
        let planned = plan(Policy::new(seed).unwrap(), &problem, &options(Objective::Score, 10, seed));
        let played = simulate(&problem, &planned.plan).unwrap();
        prop_assert!(played.peak_bytes[0] <= problem.tiers()[0].capacity.unwrap());
        prop_assert!(density_score(&problem) <= planned.bound.unwrap() + 1e-9);
        prop_assert!(played.score() <= planned.bound.unwrap() + 1e-9);
    }
}

#[test]
fn what_wins_nothing_has_the_room_that_is_left() {
    let tier = |name: &str, is_reachable, capacity| ProblemTier {
        name: name.into(),
        capacity,
        is_reachable,
        read_bandwidth: 1,
        write_bandwidth: 1,
        latency_ns: 0,
        loaded: Vec::new(),
    };
    let tensor =
        |key: &str, tag| ProblemTensor { key: key.into(), bytes: 100, tag, compression: None, recompute: None };
    let access = |tensor, bytes| vec![ProblemAccess { tensor, bytes }];
    let kernel = |reads, writes| ProblemKernel { name: "k".into(), time_ns: 100, reads, writes };
    for others in [vec![], vec![tier("disk", false, None)], vec![tier("slow", true, None)]] {
        let parts = ProblemParts {
            tiers: std::iter::once(tier("fast", true, Some(1000))).chain(others).collect(),
            tensors: vec![
                tensor("a", Tag::Activation),
                tensor("unread", Tag::Weight),
                tensor("empty", Tag::Activation),
                tensor("untouched", Tag::Activation),
            ],
            kernels: vec![kernel(vec![], access(0, 100)), kernel(access(0, 100), access(2, 0))],
            ..ProblemParts::default()
        };
        let problem = Problem::new(parts).unwrap();
        let planned = |objective| plan(Policy::trained().unwrap(), &problem, &options(objective, 20, 0));
        assert_eq!(planned(Objective::Score).plan.places[..3], [0; 3]);
        assert_eq!(score(&problem, &planned(Objective::Makespan)), 1.0);
    }
}
