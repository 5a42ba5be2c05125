//! Measures how long it takes to plan a step of some thousands of operations, and how good the plan is.
//!
//! Run `cargo bench -p tenure-offload --bench planning`. For comparison, `-- whole` asks the planner about each
//! operation by itself, and the planner takes all of its ten seconds.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use tenure_offload::Schedule;
use tenure_plan::planner::{Condensed, Objective, PlannerOptions, Scheduled};
use tenure_plan::{Planner, simulate};

use crate::transformer::Size;

#[path = "../tests/transformer/mod.rs"]
#[allow(unreachable_pub, reason = "a module of its own in tests")]
mod transformer;

fn main() {
    let is_whole = std::env::args().any(|argument| argument == "whole");
    let options = PlannerOptions {
        objective: Objective::Makespan,
        time_limit: Duration::from_secs(10),
        evaluations: None,
        seed: 0,
    };
    let sizes = [(20, 60, 8), (24, 80, 12), (32, 90, 10), (40, 64, 16), (40, 120, 12)];
    for (seed, (layers, operations, saves)) in sizes.into_iter().enumerate() {
        let profile = transformer::step(Size { layers, operations, saves, seed: seed as u64 });
        for percent in [40, 60] {
            let machine = transformer::machine(&profile, percent);
            let began = Instant::now();
            let problem = profile.problem("transformer", &machine).expect("a problem");
            let built = began.elapsed();
            let planner: &dyn Planner = if is_whole { &Scheduled } else { &Condensed::new(&Scheduled) };
            let planned = planner.plan(&problem, &options, &mut |_| ControlFlow::Continue(())).expect("a plan");
            let planning = began.elapsed() - built;
            let outcome = simulate(&problem, &planned.plan).expect("an outcome");
            let simulated = began.elapsed() - built - planning;
            let schedule = Schedule::of(&profile, &planned.plan);
            let all = began.elapsed();
            println!(
                "{:5} operations, {:3} saved, {percent} %: problem {built:.1?}, plan {planning:.1?} ({} evaluations), simulation \
                 {simulated:.1?}, all {all:.1?}; {:.1} ms, {:.4} of what it takes without a budget ({} points)",
                problem.kernels().len(),
                profile.saved().len(),
                planned.evaluations,
                outcome.makespan_ns / 1e6,
                outcome.makespan_ns / problem.kernels_ns() as f64,
                (0..profile.intervals()).filter(|point| !schedule.at(*point).is_empty()).count(),
            );
        }
    }
}
