//! Tests that the agent learns true costs from measured times of programs whose problems have other costs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::time::Duration;

use common::tier;
use tenure_agent::{Learner, Marl, Measured};
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::problem::generate::{Family, Uncertain};
use tenure_plan::{Plan, Planner, Problem};

/// The number of rounds: one more than the placements that a learner tries.
const ROUNDS: usize = 10;
/// The number of plans tried in each round, and for the plan by true costs.
const EVALUATIONS: u64 = 40;

/// The seeds of the programs of each family, chosen before looking at any of them.
const SEEDS: [u64; 3] = [101, 102, 103];

/// Returns the time of an access in ns.
fn ns(bytes: u64, bandwidth: u64) -> f64 {
    bytes as f64 * 1e9 / bandwidth as f64
}

/// A simulated program: the problem that planners get, and the true times of its steps.
struct Virtual {
    name: String,
    told: Problem,
    truth: Problem,
    /// Reads of fewer bytes take `small_times` as long in the slow tier as its bandwidth says.
    small_bytes: u64,
    small_times: f64,
    /// Reads of every third tensor are in random order and take `random_times` as long in the slow tier.
    random_times: f64,
}

impl Virtual {
    /// Makes up a program whose true times and bandwidths differ from those of its problem.
    fn contended(family: Family, seed: u64) -> Self {
        let Uncertain { told, truth } = family.contended(seed).unwrap();
        let name = format!("{} {seed}", told.name());
        let small_bytes = median_read(&told);
        Self { name, told, truth, small_bytes, small_times: 3.0, random_times: 1.0 }
    }

    /// Makes up a program that only waits for memory, with six times the bytes of the fast tier. The slow tier has a
    /// quarter of the fast tier's bandwidth.
    fn memory_bound(family: Family, seed: u64) -> Self {
        let mut parts = family.program(seed);
        let peak = Problem::new(parts.clone()).unwrap().peak_bytes();
        parts.tiers = vec![tier("fast", Some(peak / 6), 100_000_000_000), tier("slow", None, 25_000_000_000)];
        for kernel in &mut parts.kernels {
            // This is 1 ns for 100 bytes.
            kernel.time_ns = kernel.accesses().map(|access| access.bytes).sum::<u64>() / 100;
        }
        let told = Problem::new(parts).unwrap();
        let name = format!("memory-bound {} {seed}", told.name());
        let small_bytes = median_read(&told);
        Self { name, truth: told.clone(), told, small_bytes, small_times: 4.0, random_times: 3.0 }
    }

    /// Returns the additional time in ns of each access of a kernel in the slow tier, reads first.
    fn losses_ns(&self, kernel: usize) -> Vec<(usize, f64)> {
        let [fast, slow] = self.truth.tiers() else { panic!("two tiers") };
        let kernel = &self.truth.kernels()[kernel];
        let latency_ns = (slow.latency_ns - fast.latency_ns) as f64;
        let reads = kernel.reads.iter().map(|read| {
            let small_times = if read.bytes < self.small_bytes { self.small_times } else { 1.0 };
            let random_times = if read.tensor % 3 == 0 { self.random_times } else { 1.0 };
            let slow_ns = small_times * random_times * ns(read.bytes, slow.read_bandwidth);
            (read.tensor, slow_ns - ns(read.bytes, fast.read_bandwidth) + latency_ns)
        });
        let writes = kernel.writes.iter().map(|write| {
            let slower = ns(write.bytes, slow.write_bandwidth) - ns(write.bytes, fast.write_bandwidth);
            (write.tensor, slower + latency_ns)
        });
        reads.chain(writes).collect()
    }

    fn kernels_ns(&self, plan: &Plan) -> Vec<u64> {
        let kernels = self.truth.kernels().iter().enumerate();
        kernels
            .map(|(number, kernel)| {
                let slow = self.losses_ns(number).into_iter().filter(|(tensor, _)| plan.places[*tensor] == 1);
                kernel.time_ns + slow.map(|(_, ns)| ns).sum::<f64>() as u64
            })
            .collect()
    }

    /// Returns the problem with true losses in place of bytes: the best score is the least time.
    fn with_true_costs(&self) -> Problem {
        let mut parts = self.told.clone().into_parts();
        for (number, kernel) in parts.kernels.iter_mut().enumerate() {
            let accesses = kernel.reads.iter_mut().chain(&mut kernel.writes);
            accesses.zip(self.losses_ns(number)).for_each(|(access, (_, ns))| access.bytes = ns as u64);
        }
        Problem::new(parts).unwrap()
    }
}

fn plan(planner: &dyn Planner, problem: &Problem) -> Plan {
    let options = PlannerOptions {
        objective: Objective::Score,
        time_limit: Duration::MAX,
        evaluations: Some(EVALUATIONS),
        seed: 1,
    };
    planner.plan(problem, &options, &mut |_| ControlFlow::Continue(())).unwrap().plan
}

fn mapping(round: usize) -> PathBuf {
    Path::new("/results").join(round.to_string())
}

/// Returns the true times in ns of steps in rounds of planning and reporting.
fn rounds(learner: &Learner, program: &Virtual, rounds: Range<usize>) -> Vec<u64> {
    rounds
        .map(|round| {
            let plan = plan(learner, &program.told);
            learner.remember(&program.told, &mapping(round), &plan);
            let kernels_ns = program.kernels_ns(&plan);
            let step_ns = kernels_ns.iter().sum();
            let measured = Measured { mapping: mapping(round), step_ns, kernels_ns };
            learner.report(&measured).unwrap();
            step_ns
        })
        .collect()
}

fn step_ns(program: &Virtual, plan: &Plan) -> f64 {
    program.kernels_ns(plan).iter().sum::<u64>() as f64
}

fn median_read(problem: &Problem) -> u64 {
    let mut reads: Vec<u64> =
        problem.kernels().iter().flat_map(|kernel| &kernel.reads).map(|read| read.bytes).collect();
    reads.sort_unstable();
    reads[reads.len() / 2]
}

/// Returns programs of all families.
fn programs(make: fn(Family, u64) -> Virtual) -> impl Iterator<Item = Virtual> {
    Family::ALL.into_iter().flat_map(move |family| SEEDS.map(|seed| make(family, seed)))
}

/// Returns sums of logarithms of true times over the times of plans made with true costs: without learning, and in the
/// last round with it. Prints a line for each program.
fn excess(programs: impl Iterator<Item = Virtual>) -> (f64, f64) {
    let (mut without, mut with) = (0.0, 0.0);
    let mut slower = Vec::new();
    for program in programs {
        let best = step_ns(&program, &plan(&Marl::trained().unwrap(), &program.with_true_costs()));
        let told = step_ns(&program, &plan(&Marl::trained().unwrap(), &program.told));
        let all = rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..ROUNDS);
        let shares: Vec<String> = all.iter().map(|ns| format!("{:.4}", *ns as f64 / best)).collect();
        eprintln!("{:<32} {:.4} | {}", program.name, told / best, shares.join(" "));
        let (last, before) = all.split_last().unwrap();
        assert_eq!(all[0] as f64, told, "{}: nothing was learned before the first report", program.name);
        if last > before.iter().min().unwrap() {
            slower.push(program.name);
        }
        without += (told / best).ln();
        with += (*last as f64 / best).ln();
    }
    eprintln!("all together: {without:.4} | {with:.4}");
    assert!(slower.is_empty(), "slower than the best measured plan: {slower:?}");
    (without, with)
}

#[test]
fn the_last_plan_is_no_slower_than_any_before() {
    excess(programs(Virtual::contended));
}

#[test]
fn where_memory_is_waited_for_most_of_the_excess_goes() {
    let (without, with) = excess(programs(Virtual::memory_bound));
    assert!(with <= 0.15 * without, "{with} {without}");
}

#[test]
fn the_same_reports_teach_the_same() {
    let program = Virtual::contended(Family::UNet, 7);
    let [one, other] = [(); 2].map(|()| rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..3));
    assert_eq!(one, other);
}

#[test]
fn learning_goes_on_from_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    let open = || Learner::open(Marl::trained().unwrap(), &path).unwrap();
    let program = Virtual::contended(Family::Layered, 7);
    let whole = rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..3);
    let mut parts = rounds(&open(), &program, 0..1);
    parts.extend(rounds(&open(), &program, 1..3));
    assert_eq!(parts, whole);
    let files = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name());
    assert_eq!(files.collect::<BTreeSet<_>>(), ["learned.json".into(), "learned.json.lock".into()].into());
}
