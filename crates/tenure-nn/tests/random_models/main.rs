//! Tests that gradients of random models are the same within a budget as without one, bit for bit. The models are
//! programs of views, writes in place, shared and kept tensors, checkpoints and gradients of gradients. They run on the
//! CPU and on simulated devices, whose work executes in any order that its events allow.
#![expect(clippy::disallowed_methods, reason = "polls a condition that no event tells of")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod planners;
mod program;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use std::{env, thread};

use parking_lot::{Mutex, RwLock};
use planners::{Who, Within};
use program::{Instruction, Operation, Program, WIDTH, program};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tenure_alloc::Request;
use tenure_core::Device;
use tenure_device::memory::{self, MemoryConfig};
use tenure_device::sim::{SimConfig, SimPlatform};
use tenure_device::{Executor, Platform};
use tenure_nn::Error;
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::optim::{Optimizer, Sgd};
use tenure_nn::train::{Pass, Task, TrainError, Trainer, TrainerOptions};
use tenure_offload::{Engine, EngineOptions, Memory, OffloadError, ProfileError, SpillLink, StepReport};
use tenure_tensor::Tensor;
use tenure_tensor::random::{DefaultGenerator, Generator};
use tenure_tier::{Destination, Disk, DiskOptions, Mover, MoverOptions};

/// Two batches of four rows and two of three, in turn: steps that are measured, planned, and made by another plan.
const STEPS: u64 = 6;
const BATCH: usize = 4;
const EXAMPLES: usize = 7;
/// The number of rows of a large model for each row of a batch.
const ROWS: usize = 512;

/// A lock for the budget of the host's memory, which belongs to the process. A test with such a budget takes it for
/// writing.
static BUDGET: RwLock<()> = RwLock::new(());

#[derive(Clone, Debug)]
struct Case {
    instructions: Vec<Instruction>,
    changes_at: usize,
    who: Who,
    part: f64,
    is_slow: bool,
    is_short: bool,
    seed: u64,
}

fn case(lengths: Range<usize>) -> impl Strategy<Value = Case> {
    let who = prop::sample::select(Who::ALL.to_vec());
    (program(lengths), 1..2 * STEPS as usize, who, 0.0..1.0, any::<[bool; 2]>(), any::<u64>()).prop_map(
        |(instructions, changes_at, who, part, [is_slow, is_short], seed)| Case {
            instructions,
            changes_at,
            who,
            part,
            is_slow,
            is_short,
            seed,
        },
    )
}

/// The results of a run.
#[derive(Default, PartialEq)]
struct Computed {
    /// Losses, gradients and tensors that outlive steps, as bits.
    bits: Vec<Vec<u32>>,
    error: Option<String>,
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    tensor.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect()
}

type Run = Trainer<Program, TextWindows>;

fn trainer(case: &Case, device: Device, rows: usize) -> Run {
    let task = Program::new(device, case.instructions.clone(), rows, case.changes_at);
    let optimizer = Optimizer::new(task.model().parameters(), 0.1, Sgd::default());
    let tokens = (0..=EXAMPLES * WIDTH).map(|index| (index * index % 61) as u32).collect();
    let options = LoaderOptions { batch_size: BATCH, workers: 0, device, ..LoaderOptions::default() };
    let loader = DataLoader::new(TextWindows::of_tokens(tokens, WIDTH).unwrap(), options);
    Trainer::new(task, loader, optimizer, TrainerOptions { steps: STEPS, ..TrainerOptions::default() })
}

/// Evicts all unused tensors from a device's memory: a request for more than the device has asks the engine to free
/// memory as long as it can.
fn press(device: Device) {
    let memory = memory::device(device.index()).unwrap();
    memory.allocate(Request::new(1 << 40, memory.streams().current_id())).unwrap_err();
}

/// Makes a run's steps. If `short` is given, that device's memory runs short repeatedly during backward.
fn computed(mut run: Run, short: Option<Device>) -> (Computed, Vec<StepReport>) {
    let _generator = DefaultGenerator::enter(Generator::new(0));
    let grads = Arc::<Mutex<HashMap<String, Tensor>>>::default();
    for parameter in run.task().model().parameters() {
        let grads = Arc::clone(&grads);
        let name = parameter.name().to_owned();
        parameter
            .register_post_accumulate_grad_hook(move |leaf| {
                grads.lock().insert(name.clone(), leaf.grad().unwrap().detach());
                short.into_iter().for_each(press);
                Ok(())
            })
            .unwrap();
    }
    let mut computed = Computed::default();
    loop {
        match run.step() {
            Ok(Some(step)) => computed.bits.push(vec![step.loss.to_bits()]),
            Ok(None) => break,
            Err(error) => {
                computed.error = Some(error.to_string());
                break;
            }
        }
        for parameter in run.task().model().parameters() {
            computed.bits.push(grads.lock().remove(parameter.name()).as_ref().map(bits).unwrap_or_default());
        }
        computed.bits.extend(run.task().kept().iter().map(bits));
    }
    let reports = run.history().iter().filter_map(|step| step.offload).collect();
    (computed, reports)
}

fn disk() -> Disk {
    Disk::open(&[env::temp_dir()], DiskOptions { staging_bytes: 4 << 20, ..DiskOptions::new(64 << 20) }).unwrap()
}

/// Makes an engine. If `part` is given, its planner gets that part of the budget.
fn engine(case: &Case, device: Device, disk: &Disk, part: Option<f64>) -> Engine {
    let memory = Memory::of(device).unwrap();
    let options = MoverOptions { disk: Some(disk.clone()), ..MoverOptions::new(8 << 20) };
    let mover = Mover::new(memory.device(), options).unwrap();
    let link = |name: &str, capacity, to| {
        let bandwidth = if case.is_slow { 1 << 20 } else { 1 << 32 };
        let out_bandwidth = bandwidth;
        let back_bandwidth = bandwidth;
        let shared_bandwidth = None;
        (SpillLink { name: name.into(), capacity, out_bandwidth, back_bandwidth, shared_bandwidth }, to)
    };
    let host = memory.device().map(|_| link("host", Some(64 << 10), Destination::Host));
    let links = host.into_iter().chain([link("disk", None, Destination::Disk)]).collect();
    let planner = Box::new(Within { who: case.who, part, seed: case.seed });
    let planning = planners::options(case.seed);
    let engine = Engine::new(memory, mover, EngineOptions { min_tensor_bytes: 512, links, planner, planning });
    engine.set_budget(1 << 40);
    engine
}

/// Counts of what happened in all cases.
#[derive(Debug, Default)]
struct Done {
    /// Models that fail without a budget too.
    refused: AtomicU64,
    /// Planned steps, and the bytes that were spilled, fetched and recomputed in them.
    planned: AtomicU64,
    spilled: AtomicU64,
    fetched: AtomicU64,
    recomputed: AtomicU64,
}

impl Done {
    fn add(&self, computed: &Computed, reports: &[StepReport]) {
        let add = |to: &AtomicU64, value: u64| to.fetch_add(value, Ordering::Relaxed);
        add(&self.refused, computed.error.is_some().into());
        for report in reports.iter().filter(|report| report.is_planned) {
            add(&self.planned, 1);
            add(&self.spilled, report.spilled_bytes);
            add(&self.fetched, report.fetched_bytes);
            add(&self.recomputed, report.recomputed_bytes);
        }
    }

    /// Checks that each kind of event happened often enough over all cases.
    fn expect(&self) {
        let cases = u64::from(*CASES);
        let of = |done: &AtomicU64| done.load(Ordering::Relaxed);
        println!("{self:?}");
        assert!(of(&self.planned) > cases && (1..cases / 2).contains(&of(&self.refused)), "{self:?}");
        // Tensors have 2 KiB: in many cases none is worth moving, and the number of those that are varies by a factor
        // of three.
        for bytes in [&self.spilled, &self.fetched, &self.recomputed] {
            assert!(of(bytes) > cases << 7, "{self:?}");
        }
    }
}

/// Checks a case with tensors of 2 KiB, for which planners have little room.
fn check(case: &Case, device: Device, disk: &Disk, done: &Done) -> Result<(), TestCaseError> {
    let (plain, _) = computed(trainer(case, device, 4), None);
    let within = trainer(case, device, 4).with_engine(engine(case, device, disk, Some(case.part))).unwrap();
    let (within, reports) = computed(within, Some(device).filter(|device| !device.is_cpu() && case.is_short));
    prop_assert_eq!(&within.error, &plain.error);
    prop_assert!(within == plain, "other bits");
    done.add(&within, &reports);
    // Tensors that were no longer needed may still be being written.
    let begun = Instant::now();
    while disk.statistics().free_bytes != disk.capacity_bytes() {
        prop_assert!(begun.elapsed() < Duration::from_secs(300), "something is left on disk");
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The number of random models: 40; with `TENURE_TEST_FACTOR=5`, five times as many.
static CASES: LazyLock<u32> =
    LazyLock::new(|| 40 * env::var("TENURE_TEST_FACTOR").map_or(1, |factor| factor.parse::<u32>().expect("a number")));

fn run(cases: u32, lengths: Range<usize>, check: impl Fn(Case) -> Result<(), TestCaseError>) {
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config).run(&case(lengths), check).unwrap();
}

#[test]
fn on_the_cpu_they_have_the_same_gradients() {
    let _shared = BUDGET.read();
    let done = Done::default();
    let disk = disk();
    run(*CASES, 6..28, |case| check(&case, Device::CPU, &disk, &done));
    done.expect();
}

/// Returns simulated devices, each with another order of execution.
fn devices() -> Vec<Device> {
    static DEVICES: LazyLock<Vec<Device>> = LazyLock::new(|| {
        let platform = SimPlatform::new((0..8).map(|seed| SimConfig { seed, ..SimConfig::default() }).collect());
        let device =
            |index| memory::install(platform.driver(index).unwrap(), MemoryConfig::default()).unwrap().device();
        (0..8).map(device).collect()
    });
    match env::var("TENURE_TEST_DRIVER") {
        Ok(driver) if driver == "cuda" => vec![Device::cuda(0)],
        _ => DEVICES.clone(),
    }
}

#[test]
fn on_devices_they_have_the_same_gradients() {
    let _shared = BUDGET.read();
    let done = Done::default();
    let disk = disk();
    let devices = devices();
    run(*CASES, 6..28, |case| {
        let device = devices[case.seed as usize % devices.len()];
        check(&case, device, &disk, &done)?;
        if let Executor::Sim(sim) = memory::device(device.index()).unwrap().driver().executor() {
            prop_assert!(sim.fault().is_none(), "{:?}", sim.fault());
        }
        Ok(())
    });
    done.expect();
}

/// Checks a case with large tensors, in a budget between the least and that of a plain step.
fn check_tight(case: &Case, disk: &Disk, done: &Done) -> Result<(), TestCaseError> {
    let case = &Case { changes_at: usize::MAX, ..case.clone() };
    let (plain, _) = computed(trainer(case, Device::CPU, ROWS), None);
    let mut run = trainer(case, Device::CPU, ROWS).with_engine(engine(case, Device::CPU, disk, None)).unwrap();
    let peak = match run.rehearse(Pass::Plain) {
        Ok(report) => report.peak_bytes.unwrap(),
        Err(error) => {
            // A plain step is refused before that for its loss.
            prop_assert!(plain.error.is_some(), "{error}");
            return Ok(());
        }
    };
    let engine = run.engine().unwrap().clone();
    engine.set_budget(1);
    let least = match run.rehearse(Pass::Budgeted) {
        Err(Error::Train(TrainError::Budget(error))) => match &*error {
            OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) => *least_bytes,
            error => return Err(TestCaseError::fail(error.to_string())),
        },
        other => return Err(TestCaseError::fail(format!("{other:?}"))),
    };
    let budget = least + (peak.saturating_sub(least) as f64 * case.part) as u64;
    engine.set_budget(budget);
    let (within, reports) = computed(run, None);
    prop_assert_eq!(&within.error, &plain.error);
    prop_assert!(within == plain, "other bits");
    done.add(&within, &reports);
    Ok(())
}

/// The tensors are so large that the budget itself is tight, and the allocator enforces it.
#[test]
fn in_budgets_between_the_least_and_a_plain_step_they_have_the_same_gradients() {
    let _alone = BUDGET.write();
    let done = Done::default();
    let disk = disk();
    // In a single small draw, possibly no tensor is worth moving.
    for _ in 0..8 {
        run(6, 16..32, |case| check_tight(&case, &disk, &done));
        if done.spilled.load(Ordering::Relaxed) > 1 << 20 {
            return;
        }
    }
    panic!("nothing left: {done:?}");
}

/// Found by chance: the measured program saves inputs of an addition that the program without its first operation does
/// not save.
#[test]
fn a_tensor_stays_whose_inputs_another_program_does_not_save() {
    let _shared = BUDGET.read();
    let instruction = |operation, a, b, to| Instruction { operation, a, b, to };
    let linear = Operation::Linear { is_second: false, has_bias: false };
    let case = Case {
        instructions: vec![
            instruction(Operation::Attention, 0, 0, 0),
            instruction(linear, 1, 0, 1),
            instruction(Operation::AddInPlace, 1, 0, 0),
            instruction(Operation::Mul, 1, 0, 2),
            instruction(Operation::Add, 0, 0, 0),
            instruction(Operation::Tanh, 0, 0, 0),
        ],
        changes_at: 1,
        who: Who::Anybody,
        part: 0.0,
        is_slow: false,
        is_short: false,
        seed: 1_461_220_537_025_283_145,
    };
    for device in devices() {
        check(&case, device, &disk(), &Done::default()).unwrap();
    }
}

/// Found by chance: the bias is updated early in backward, since its only gradient is that of its own norm. The output
/// of the linear layer, whose gradient goes nowhere, is needed after that.
#[test]
fn a_tensor_is_not_recomputed_from_a_parameter_that_was_updated() {
    let _alone = BUDGET.write();
    let instruction = |operation, a, b, to| Instruction { operation, a, b, to };
    let linear = |has_bias| Operation::Linear { is_second: true, has_bias };
    let case = Case {
        instructions: vec![
            instruction(Operation::Part { is_last: false }, 0, 0, 2),
            instruction(Operation::Mul, 0, 1, 0),
            instruction(linear(true), 2, 0, 2),
            instruction(Operation::Detach, 2, 2, 2),
            instruction(Operation::Cat, 1, 2, 1),
            instruction(Operation::AddInPlace, 2, 2, 1),
            instruction(linear(false), 1, 1, 1),
            instruction(Operation::Mul, 1, 0, 2),
            instruction(Operation::Mul, 0, 0, 0),
            instruction(Operation::Conv, 1, 2, 2),
            instruction(Operation::Flat, 2, 1, 2),
            instruction(Operation::Transpose, 1, 2, 0),
            instruction(Operation::Gelu, 1, 1, 1),
            instruction(Operation::FillPart, 2, 1, 1),
            instruction(Operation::Mul, 2, 1, 2),
            instruction(Operation::FillPart, 2, 2, 2),
        ],
        changes_at: usize::MAX,
        who: Who::Scheduled,
        part: 0.110_558_261_780_493_59,
        is_slow: true,
        is_short: true,
        seed: 16_566_757_258_722_850_286,
    };
    check_tight(&case, &disk(), &Done::default()).unwrap();
}
