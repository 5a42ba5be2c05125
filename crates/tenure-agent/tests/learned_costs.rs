//! Tests of a learner's costs of several tiers, of its time limit, and of the number of placements that it tries.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use common::tier;
use tenure_agent::{Learner, Marl, Measured};
use tenure_core::Tag;
use tenure_plan::planner::{Objective, Planned, PlannerOptions};
use tenure_plan::problem::{ProblemAccess, ProblemKernel, ProblemParts, ProblemTensor};
use tenure_plan::{Plan, Planner, Problem};

const MB: u64 = 1_000_000;

/// Returns a problem with tensors of 90 MB. For each tensor, one kernel reads `read_mb` of it. Each tier has a capacity
/// in MB and a time in ns for each byte.
fn problem(read_mb: &[u64], tiers: &[(Option<u64>, u64)]) -> Problem {
    Problem::new(ProblemParts {
        name: "weights".into(),
        tiers: (0..)
            .zip(tiers)
            .map(|(number, (capacity_mb, byte_ns))| {
                tier(&number.to_string(), capacity_mb.map(|mb| mb * MB), 1_000_000_000 / byte_ns)
            })
            .collect(),
        tensors: (0..read_mb.len())
            .map(|number| ProblemTensor {
                key: number.to_string(),
                bytes: 90 * MB,
                tag: Tag::Weight,
                compression: None,
                recompute: None,
            })
            .collect(),
        kernels: read_mb
            .iter()
            .enumerate()
            .map(|(tensor, mb)| ProblemKernel {
                name: tensor.to_string(),
                time_ns: mb * MB,
                reads: vec![ProblemAccess { tensor, bytes: mb * MB }],
                writes: Vec::new(),
            })
            .collect(),
        ..ProblemParts::default()
    })
    .unwrap()
}

fn report(learner: &Learner, problem: &Problem, places: &[usize], kernels_ms: &[u64]) {
    let mapping = PathBuf::from(format!("/results/{places:?}"));
    learner.remember(problem, &mapping, &Plan { places: places.to_vec(), steps: Vec::new() });
    let kernels_ns: Vec<u64> = kernels_ms.iter().map(|ms| ms * MB).collect();
    learner.report(&Measured { mapping, step_ns: kernels_ns.iter().sum(), kernels_ns }).unwrap();
}

/// Plans by a learner whose search is stopped at its first call of `watch`, or never. Also returns the number of calls.
fn plan(learner: &Learner, problem: &Problem, is_stopped: bool) -> (Planned, u64) {
    let options =
        PlannerOptions { objective: Objective::Score, time_limit: Duration::MAX, evaluations: Some(40), seed: 1 };
    let mut asked = 0;
    let planned = learner.plan(problem, &options, &mut |_| {
        asked += 1;
        if is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    (planned.unwrap(), asked)
}

#[test]
fn costs_of_all_slower_tiers_count() {
    let learner = Learner::new(Marl::trained().unwrap());
    let problem = problem(&[90, 80, 30], &[(Some(100), 1), (Some(100), 2), (None, 4)]);
    assert_eq!(plan(&learner, &problem, false).0.plan.places, [0, 1, 2]);
    // A byte in the last tier takes ten times the estimated additional time; the second tier is as estimated.
    report(&learner, &problem, &[0, 1, 2], &[90, 160, 30 + 10 * 90]);
    assert_eq!(plan(&learner, &problem, false).0.plan.places, [1, 2, 0]);
}

#[test]
fn an_unmeasured_placement_is_tried_where_no_other_is_predicted_to_be_faster() {
    let learner = Learner::new(Marl::trained().unwrap());
    let problem = problem(&[90, 80], &[(Some(100), 1), (None, 4)]);
    report(&learner, &problem, &[0, 1], &[90, 320]);
    // By the estimate for the first tensor, this takes longer.
    assert_eq!(plan(&learner, &problem, false).0.plan.places, [1, 0]);
    report(&learner, &problem, &[1, 0], &[360, 80]);
    assert_eq!(plan(&learner, &problem, false).0.plan.places, [0, 1]);
}

#[test]
fn a_fit_that_is_to_stop_stops_and_there_is_a_plan() {
    let learner = Learner::new(Marl::trained().unwrap());
    let problem = problem(&[90, 80, 30], &[(Some(100), 1), (None, 4)]);
    report(&learner, &problem, &[0, 1, 1], &[90, 320, 1000]);
    let (planned, asked) = plan(&learner, &problem, true);
    assert_eq!((planned.evaluations, asked), (1, 2), "once before the first round of the fit, and once after a plan");
}

/// Returns the placement of ten tensors with only `fast` in the fast tier.
fn places(fast: usize) -> Vec<usize> {
    (0..10).map(|tensor| usize::from(tensor != fast)).collect()
}

/// Returns the times of kernels under that placement: a later tensor loses more in the slow tier.
fn kernels_ms(fast: usize) -> Vec<u64> {
    (0..10).map(|kernel| if kernel == fast { 10 } else { 40 + kernel as u64 }).collect()
}

/// Returns a learner with reports on nine of these placements, so that it answers with the fastest.
fn nine_placements() -> (Learner, Problem) {
    let learner = Learner::new(Marl::trained().unwrap());
    let problem = problem(&[10; 10], &[(Some(100), 1), (None, 4)]);
    for fast in 0..9 {
        report(&learner, &problem, &places(fast), &kernels_ms(fast));
    }
    (learner, problem)
}

#[test]
fn after_nine_placements_the_fastest_is_the_answer() {
    // The tenth tensor loses most in the slow tier, so its placement would be tried next.
    let (learner, problem) = nine_placements();
    let (planned, _) = plan(&learner, &problem, false);
    assert_eq!((planned.plan.places, planned.evaluations), (places(8), 0));
}

#[test]
fn one_odd_report_on_a_placement_changes_nothing() {
    let (learner, problem) = nine_placements();
    // The first report is much too fast for a slow placement, the second much too slow for the fastest.
    for (fast, odd_ms) in [(0, 1), (8, 1000)] {
        report(&learner, &problem, &places(fast), &[odd_ms; 10]);
        report(&learner, &problem, &places(fast), &kernels_ms(fast));
    }
    assert_eq!(plan(&learner, &problem, false).0.plan.places, places(8));
}

#[test]
fn the_last_five_reports_on_a_placement_count() {
    let (learner, problem) = nine_placements();
    (0..4).for_each(|_| report(&learner, &problem, &places(8), &kernels_ms(8)));
    (0..2).for_each(|_| report(&learner, &problem, &places(8), &[1000; 10]));
    assert_eq!(plan(&learner, &problem, false).0.plan.places, places(8), "three of five are as before");
    report(&learner, &problem, &places(8), &[1000; 10]);
    assert_eq!(plan(&learner, &problem, false).0.plan.places, places(7), "two of five are as before");
}
