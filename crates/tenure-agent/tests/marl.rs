//! Tests of the learned planner on problems that it was not trained on.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::ops::ControlFlow;
use std::time::Duration;

use common::tier;
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
    let mut parts = problem.clone().into_parts();
    parts.tiers = vec![tier("fast", Some(bytes), 1), tier("slow", None, 1)];
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
        let [one, other] = [3, 3].map(|seed| plan(Policy::trained().unwrap(), &problem, &options(objective, 20, seed)));
        assert_eq!(one.plan, other.plan);
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
fn a_problem_without_tensors_is_planned_too() {
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
fn tensors_that_gain_nothing_get_the_room_that_is_left() {
    let tags =
        [("a", Tag::Activation), ("unread", Tag::Weight), ("empty", Tag::Activation), ("untouched", Tag::Activation)];
    let tensors =
        tags.map(|(key, tag)| ProblemTensor { key: key.into(), bytes: 100, tag, compression: None, recompute: None });
    let accesses = [(vec![], (0, 100)), (vec![ProblemAccess { tensor: 0, bytes: 100 }], (2, 0))];
    let kernels = accesses.map(|(reads, (tensor, bytes))| ProblemKernel {
        name: "k".into(),
        time_ns: 100,
        reads,
        writes: vec![ProblemAccess { tensor, bytes }],
    });
    let disk = ProblemTier { is_reachable: false, ..tier("disk", None, 1) };
    for others in [vec![], vec![disk], vec![tier("slow", None, 1)]] {
        let parts = ProblemParts {
            tiers: std::iter::once(tier("fast", Some(1000), 1)).chain(others).collect(),
            tensors: tensors.to_vec(),
            kernels: kernels.to_vec(),
            ..ProblemParts::default()
        };
        let problem = Problem::new(parts).unwrap();
        let [placed, scheduled] = [Objective::Score, Objective::Makespan]
            .map(|objective| plan(Policy::trained().unwrap(), &problem, &options(objective, 20, 0)));
        assert_eq!(placed.plan.places[..3], [0; 3]);
        assert_eq!(score(&problem, &scheduled), 1.0);
    }
}
