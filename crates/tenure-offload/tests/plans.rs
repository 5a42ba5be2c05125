//! Plans of profiled steps keep within the steps' budgets.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::ops::ControlFlow;
use std::time::Duration;

use proptest::prelude::*;
use tenure_offload::{Machine, OffloadAction, Profile, ProfileError, Recipe, SavedIndex, Schedule, SpillLink};
use tenure_plan::planner::{Condensed, Objective, Planned, PlannerError, PlannerOptions, Scheduled, Watch};
use tenure_plan::{Plan, Planner, Problem, simulate};

use crate::transformer::Size;

mod transformer;

const MIB: u64 = 1 << 20;

fn machine(budget_bytes: u64) -> Machine {
    let host = SpillLink {
        name: "host".into(),
        capacity: None,
        out_bandwidth: 10 << 30,
        back_bandwidth: 10 << 30,
        shared_bandwidth: None,
    };
    Machine { budget_bytes, slack_bytes: 0, bandwidth: 1 << 40, launch_ns: 0, links: vec![host] }
}

/// Returns the profile of `layers` layers. Each saves two tensors, and the second is cheap to recompute from the first.
fn layers(layers: usize) -> Profile {
    let mut profile = Profile::new();
    for layer in 0..layers {
        let x = profile.save(100 * MIB, format!("layer {layer}/linear"), 8 * MIB);
        let y = profile.save(100 * MIB, format!("layer {layer}/gelu"), 16 * MIB);
        profile.saved_mut(y).recipe = Some(Recipe { inputs: vec![x], operations: 1, time_ns: 50_000 });
    }
    for saved in (0..2 * layers).rev() {
        profile.need(120 * MIB, SavedIndex(saved));
    }
    profile.end(110 * MIB);
    profile
        .set_times((0..2 * layers).map(|_| 500_000).chain((0..layers).flat_map(|_| [1_000_000, 1])).chain([1_000_000]));
    profile
}

fn plan(problem: &Problem) -> Plan {
    plan_by(&Scheduled, problem)
}

fn plan_by(planner: &dyn Planner, problem: &Problem) -> Plan {
    let options = PlannerOptions {
        objective: Objective::Makespan,
        // Evaluations end the search, not the clock.
        time_limit: Duration::from_secs(24 * 60 * 60),
        evaluations: Some(40),
        seed: 1,
    };
    planner.plan(problem, &options, &mut |_| ControlFlow::Continue(())).unwrap().plan
}

/// Returns the most bytes of saved tensors that are in memory at once, if the schedule is followed and moves take no
/// time.
fn most_bytes(profile: &Profile, schedule: &Schedule) -> u64 {
    let mut here = vec![false; profile.saved().len()];
    let mut most = 0;
    for point in 0..profile.intervals() {
        for (number, saved) in profile.saved().iter().enumerate() {
            here[number] |= saved.at() == point;
        }
        for (number, action) in schedule.at(point) {
            here[*number] = matches!(action, OffloadAction::Fetch);
        }
        most =
            most.max(profile.saved().iter().zip(&here).filter(|(_, here)| **here).map(|(saved, _)| saved.bytes).sum());
    }
    most
}

#[test]
fn tensors_that_fit_stay_in_memory() {
    let profile = layers(8);
    let problem = profile.problem("layers", &machine(400 * MIB)).unwrap();
    assert_eq!(problem.backward(), Some(17));
    assert_eq!(
        Schedule::of(&profile, &plan(&problem)),
        Schedule::of(&profile, &Plan { places: vec![0; 16], steps: vec![] })
    );
}

#[test]
fn tensors_that_do_not_fit_leave_at_little_cost() {
    let profile = layers(8);
    let problem = profile.problem("layers", &machine(200 * MIB)).unwrap();
    let plan = plan(&problem);
    let outcome = simulate(&problem, &plan).unwrap();
    assert!(outcome.makespan_ns < 1.05 * problem.kernels_ns() as f64, "{}", outcome.makespan_ns);
    assert!(outcome.peak_bytes[0] <= 100 * MIB);
    let schedule = Schedule::of(&profile, &plan);
    let actions = |is_it: fn(&OffloadAction) -> bool| {
        (0..profile.intervals()).flat_map(|point| schedule.at(point)).filter(|(_, action)| is_it(action)).count()
    };
    let spilled = actions(|action| matches!(action, OffloadAction::Spill { link: 0 }));
    assert_eq!(spilled, actions(|action| *action == OffloadAction::Fetch));
    assert!(spilled + actions(|action| *action == OffloadAction::Drop) > 0);
    assert!(most_bytes(&profile, &schedule) < 8 * 24 * MIB);
}

#[test]
fn a_budget_that_is_too_small_is_an_error_that_says_what_would_do() {
    let profile = layers(8);
    let error = profile.problem("layers", &machine(100 * MIB)).unwrap_err();
    let ProfileError::TooSmall { least_bytes, ref needed, .. } = error else { panic!("{error}") };
    assert_eq!(least_bytes, 136 * MIB);
    assert_eq!(needed.other_bytes + needed.used_bytes + needed.aside_bytes, least_bytes);
    let words = error.to_string();
    assert!(words.contains("when it uses \"layer 0/gelu\"") && words.contains("what is being computed "), "{error}");
    assert!(profile.problem("layers", &machine(least_bytes)).is_ok());
    assert!(profile.problem("layers", &machine(least_bytes - 1)).is_err());
}

/// Counts the kernels that a planner is asked about.
struct Counting(Cell<usize>);

impl Planner for Counting {
    fn name(&self) -> &str {
        "counting"
    }

    fn plan(
        &self,
        problem: &Problem,
        options: &PlannerOptions,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlannerError> {
        self.0.set(self.0.get() + problem.kernels().len());
        Scheduled.plan(problem, options, watch)
    }
}

#[test]
fn a_step_of_ten_thousand_operations_is_planned_as_some_hundreds() {
    let profile = transformer::step(Size { layers: 32, operations: 90, saves: 10, seed: 2 });
    assert!(profile.intervals() > 9_000);
    let problem = profile.problem("transformer", &transformer::machine(&profile, 40)).unwrap();
    let options = PlannerOptions {
        objective: Objective::Makespan,
        time_limit: Duration::from_secs(24 * 60 * 60),
        evaluations: None,
        seed: 0,
    };
    let planner = Counting(Cell::new(0));
    let planned = Condensed::new(&planner).plan(&problem, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    assert!(planner.0.get() <= 1000, "{} kernels", planner.0.get());
    assert!(planned.evaluations <= 500, "{} plans", planned.evaluations);
    // With all the kernels and 600 plans, the ratio was 1.026.
    let outcome = simulate(&problem, &planned.plan).unwrap();
    assert!(outcome.makespan_ns < 1.03 * problem.kernels_ns() as f64, "{}", outcome.makespan_ns);
}

/// Generates steps that save and need tensors in any order, each saved before it is needed.
fn steps() -> impl Strategy<Value = Profile> {
    let saves = prop::collection::vec((1..64 * MIB, 0..2_000_000_u64, 0..64 * MIB, any::<bool>()), 1..20);
    (saves, prop::collection::vec((any::<prop::sample::Index>(), 0..2_000_000_u64, 0..64 * MIB, any::<bool>()), 0..40))
        .prop_map(|(saves, needs)| {
            let mut profile = Profile::new();
            let mut times = Vec::new();
            for (number, (bytes, time_ns, other, is_cheap)) in saves.into_iter().enumerate() {
                times.push(time_ns);
                let saved = profile.save(other, format!("tensor {number}"), bytes);
                if is_cheap && number > 0 {
                    profile.saved_mut(saved).recipe =
                        Some(Recipe { inputs: vec![SavedIndex(number - 1)], operations: 1, time_ns: 1000 });
                }
            }
            let saved = profile.saved().len();
            for (which, time_ns, other, is_held) in needs {
                times.push(time_ns);
                profile.need(other, SavedIndex(which.index(saved)));
                if is_held {
                    profile.hold(SavedIndex(which.index(saved)));
                }
            }
            profile.end(0);
            profile.set_times(times);
            profile
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_step_is_planned_within_the_least_budget(profile in steps(), more in 0..256 * MIB, most_kernels in 1_usize..100) {
        let (least, _) = profile.least_bytes();
        let problem = profile.problem("any", &machine(least + more)).unwrap();
        let planner = Condensed { planner: &Scheduled, most_kernels };
        let plan = plan_by(&planner, &problem);
        simulate(&problem, &plan).unwrap();
        let schedule = Schedule::of(&profile, &plan);
        // A needed tensor has been fetched, is still there, or is recomputed.
        for (number, saved) in profile.saved().iter().enumerate() {
            let mut is_out = false;
            for point in saved.at()..profile.intervals() {
                for (_, action) in schedule.at(point).iter().filter(|(other, _)| *other == number) {
                    prop_assert!(*action == OffloadAction::Drop || is_out == (*action == OffloadAction::Fetch));
                    is_out = matches!(action, OffloadAction::Spill { .. });
                }
            }
        }
    }
}
