//! What the agent learns from measured times of programs whose costs are not those that their problems tell.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_agent::{Learner, Marl, Measured};
use tenure_plan::planner::{Objective, PlannerOptions};
use tenure_plan::problem::generate::{Family, Uncertain};
use tenure_plan::{Plan, Planner, Problem};

const ROUNDS: usize = 5;
/// Plans tried for each round, and for the plan with true costs.
const EVALUATIONS: u64 = 40;

/// A program that runs nowhere: what was told of it, and what its steps take in truth.
struct Virtual {
    told: Problem,
    truth: Problem,
    /// Reads of fewer bytes take three times as long in the slow tier as its bandwidth says.
    small_bytes: u64,
}

impl Virtual {
    fn new(Uncertain { told, truth }: Uncertain) -> Self {
        let mut reads: Vec<u64> =
            told.kernels().iter().flat_map(|kernel| &kernel.reads).map(|read| read.bytes).collect();
        reads.sort_unstable();
        let small_bytes = reads[reads.len() / 2];
        Self { told, truth, small_bytes }
    }

    /// What each kernel loses by each access to the slow tier, reads first, in ns.
    fn losses_ns(&self, kernel: usize) -> Vec<(usize, f64)> {
        let [fast, slow] = self.truth.tiers() else { panic!("two tiers") };
        let ns = |bytes: u64, bandwidth: u64| bytes as f64 * 1e9 / bandwidth as f64;
        let kernel = &self.truth.kernels()[kernel];
        let latency_ns = (slow.latency_ns - fast.latency_ns) as f64;
        let reads = kernel.reads.iter().map(|read| {
            let times = if read.bytes < self.small_bytes { 3.0 } else { 1.0 };
            let slower = times * ns(read.bytes, slow.read_bandwidth) - ns(read.bytes, fast.read_bandwidth);
            (read.tensor, slower + latency_ns)
        });
        let writes = kernel.writes.iter().map(|write| {
            let slower = ns(write.bytes, slow.write_bandwidth) - ns(write.bytes, fast.write_bandwidth);
            (write.tensor, slower + latency_ns)
        });
        reads.chain(writes).collect()
    }

    fn kernels_ns(&self, plan: &Plan) -> Vec<u64> {
        let losses = |kernel| -> f64 {
            let slow = self.losses_ns(kernel).into_iter().filter(|(tensor, _)| plan.places[*tensor] == 1);
            slow.map(|(_, ns)| ns).sum()
        };
        let kernels = self.truth.kernels().iter().enumerate();
        kernels.map(|(number, kernel)| kernel.time_ns + losses(number) as u64).collect()
    }

    /// The problem with true losses in place of bytes: the best score is the least time.
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

/// True times of steps in rounds of planning and reporting.
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

fn programs() -> Vec<Virtual> {
    let families = Family::ALL.into_iter().map(|family| family.contended(31).unwrap());
    let mut programs: Vec<Uncertain> = families.collect();
    let bert = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/instances/bert_base_b256.json");
    match Problem::read(bert) {
        Ok(bert) => programs.push(Uncertain::of(bert.into_parts(), 33).unwrap()),
        Err(error) => eprintln!("skipped: {error}"),
    }
    programs.into_iter().map(Virtual::new).collect()
}

#[test]
fn steps_get_faster_until_they_are_as_fast_as_with_true_costs() {
    let (mut without, mut with) = (0.0, 0.0);
    for program in programs() {
        let best = step_ns(&program, &plan(&Marl::trained().unwrap(), &program.with_true_costs()));
        let told = step_ns(&program, &plan(&Marl::trained().unwrap(), &program.told));
        let all = rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..ROUNDS);
        let last = all[ROUNDS - 1] as f64;
        eprintln!(
            "{}: over the best without learning {:.4}, with {all:?} {:.4}",
            program.told.name(),
            told / best,
            last / best
        );
        assert_eq!(all[0] as f64, told, "{}: nothing was learned before the first report", program.told.name());
        assert!(last <= told && last <= 1.01 * best, "{}: {all:?}, best {best}", program.told.name());
        without += (told / best).ln();
        with += (last / best).ln();
    }
    assert!(with < 0.2 * without, "{with} {without}");
}

#[test]
fn the_same_reports_teach_the_same() {
    let program = Virtual::new(Family::UNet.contended(7).unwrap());
    let all = || rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..3);
    assert_eq!(all(), all());
}

#[test]
fn what_was_learned_is_taken_up_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    let open = || Learner::open(Marl::trained().unwrap(), &path).unwrap();
    let program = Virtual::new(Family::Layered.contended(7).unwrap());
    let whole = rounds(&Learner::new(Marl::trained().unwrap()), &program, 0..3);
    let mut parts = rounds(&open(), &program, 0..1);
    parts.extend(rounds(&open(), &program, 1..3));
    assert_eq!(parts, whole);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished is left");
}

#[test]
fn a_file_of_another_version_or_of_anything_else_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("learned.json");
    let others = [
        (r#"{"format": "tenure-learned", "version": 2, "programs": []}"#, "version 2"),
        (r#"{"format": "tenure-mapping", "version": 1}"#, "tenure-mapping"),
        ("learned", "name another file"),
    ];
    for (text, says) in others {
        fs::write(&path, text).unwrap();
        let error = Learner::open(Marl::trained().unwrap(), &path).err().unwrap().to_string();
        assert!(error.starts_with(&path.display().to_string()) && error.contains(says), "{error}");
    }
}
