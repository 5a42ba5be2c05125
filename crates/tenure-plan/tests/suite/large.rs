//! Tests that problems of many kernels, or of kernels with many tensors, are planned as fast as others.

use std::fs;
use std::ops::ControlFlow;
use std::time::Duration;

use tenure_core::Tag;
use tenure_plan::bound::{makespan_bound_ns, score_bound};
use tenure_plan::planner::{Evolutionary, FlashNeuron, Objective, PlannerOptions, Scheduled};
use tenure_plan::problem::{
    ProblemAccess, ProblemKernel, ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor, ProblemTier,
};
use tenure_plan::{Planner, Problem, Rule, simulate};

/// The number of tensors, and of kernels.
const MANY: usize = 20_000;

/// Makes a problem with two tiers; the first has room for half of the tensors.
fn problem(kernels: Vec<ProblemKernel>) -> Problem {
    let tier = |name: &str, bandwidth| ProblemTier {
        name: name.into(),
        capacity: None,
        is_reachable: true,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        latency_ns: 0,
        loaded: vec![],
    };
    let link = |from, to| ProblemLink { from, to, bandwidth: 5_000_000_000, shared_with: None };
    let parts = ProblemParts {
        tiers: vec![tier("fast", 100_000_000_000), tier("slow", 10_000_000_000)],
        links: vec![link(0, 1), link(1, 0)],
        tensors: (0..MANY)
            .map(|number| ProblemTensor {
                key: number.to_string(),
                bytes: 4096,
                tag: if number.is_multiple_of(4) { Tag::Weight } else { Tag::Activation },
                compression: None,
                recompute: (number % 4 == 3).then(|| ProblemRecompute { time_ns: 1000, inputs: vec![number - 1] }),
            })
            .collect(),
        kernels,
        ..ProblemParts::default()
    };
    let problem = Problem::new(parts).unwrap();
    let half = problem.peak_bytes() / 2;
    problem.with_fast_bytes(half)
}

fn kernel(reads: impl Iterator<Item = usize>, writes: impl Iterator<Item = usize>) -> ProblemKernel {
    let access = |tensor| ProblemAccess { tensor, bytes: 4096 };
    ProblemKernel {
        name: "k".into(),
        time_ns: 1000,
        reads: reads.map(access).collect(),
        writes: writes.map(access).collect(),
    }
}

/// Returns the seconds of processor time that this thread has used: they do not depend on how busy the machine is.
fn processor_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/stat").unwrap();
    // The name, which may hold spaces, ends with the last parenthesis; times are in hundredths of a second.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
    let [user, system] = [fields[11], fields[12]].map(|field| field.parse::<f64>().unwrap());
    (user + system) / 100.0
}

fn is_planned_in_time(problem: &Problem) {
    let begun = processor_seconds();
    let least_ns = makespan_bound_ns(problem);
    assert!(score_bound(problem) >= 0.5);
    for planner in [&Rule::Density as &dyn Planner, &FlashNeuron, &Scheduled, &Evolutionary::default()] {
        let options = PlannerOptions {
            objective: Objective::Makespan,
            // The number of evaluations ends the search, not the clock.
            time_limit: Duration::from_secs(24 * 60 * 60),
            evaluations: Some(3),
            seed: 0,
        };
        let planned = planner.plan(problem, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(least_ns <= simulate(problem, &planned.plan).unwrap().makespan_ns * (1.0 + 1e-12));
    }
    // It takes a second when optimised, on an idle machine; an algorithm of quadratic time would take minutes.
    let seconds = processor_seconds() - begun;
    assert!(seconds < 100.0, "{seconds} s");
}

#[test]
fn one_kernel_of_many_tensors() {
    is_planned_in_time(&problem(vec![kernel(0..MANY / 2, MANY / 2..MANY)]));
}

#[test]
fn many_kernels() {
    // Half of the layers run forward, half backward.
    let layer = |kernel: usize| 2 * kernel.min(MANY - 1 - kernel);
    let kernels = (0..MANY).map(layer).map(|layer| kernel(layer..layer + 1, layer + 1..layer + 2));
    is_planned_in_time(&problem(kernels.collect()));
}
