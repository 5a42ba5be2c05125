//! Steps that go by their program's allocations, on the host's memory. They run in a process of their own, because
//! their limit is that of the process.
#![expect(clippy::disallowed_methods, reason = "where a clock that the test moves on begins")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::error::Error;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_core::{AllocatorRegistry, DType, Device, DeviceKind, Storage};
use tenure_device::Stream;
use tenure_device::allocation_clock::AllocationClock;
use tenure_offload::{
    Engine, EngineOptions, KnownBytes, Memory, PacedFrontEnd, Pass, Position, Recomputation, RecomputeInput,
    SavedBytesId, SavedHandle, SpillLink, StatePart, StepReport, Watched,
};
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{Destination, Disk, DiskOptions, Mover, MoverOptions};

const MIB: u64 = 1 << 20;
const LAYERS: u8 = 12;
const BYTES: u64 = 4 * MIB;

static ONE: Mutex<()> = Mutex::new(());

/// The time of the engines' clocks. It advances only as far as the program says.
static NOW: LazyLock<Mutex<Instant>> = LazyLock::new(|| Mutex::new(Instant::now()));

/// A program on the CPU: what of its work is watched, and its sequence number.
#[derive(Default)]
struct Program {
    state: Mutex<ProgramState>,
}

#[derive(Default)]
struct ProgramState {
    watched: Option<Watched>,
    sequence: u64,
    is_backward: bool,
}

impl PacedFrontEnd for Program {
    fn position(&self) -> Position {
        let state = self.state.lock();
        if state.is_backward { Position::Backward(state.sequence) } else { Position::Forward(state.sequence) }
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn stream(&self) -> Option<Stream> {
        None
    }

    fn release_state(&self, _: u64, _: StatePart) -> bool {
        false
    }

    fn watch(&self, watched: Watched) {
        let mut state = self.state.lock();
        if !state.is_backward {
            state.watched = Some(watched);
        }
    }
}

/// The outcome of a step.
struct Done {
    report: StepReport,
    /// The layers whose saved tensors were reported.
    saves: Vec<u8>,
    /// The layers whose operations were noted.
    operations: Vec<u8>,
}

/// A saved tensor: in the engine's care, or held by the program.
enum Saved {
    Reported(Arc<SavedHandle>),
    Held(Storage),
}

/// Makes a layer's bytes again.
struct Filled {
    id: SavedBytesId,
    layer: u8,
}

impl Recomputation for Filled {
    fn id(&self) -> SavedBytesId {
        self.id
    }

    fn inputs(&self) -> Vec<RecomputeInput> {
        Vec::new()
    }

    fn run(&self, _: &dyn KnownBytes) -> Result<Storage, Box<dyn Error + Send + Sync>> {
        Ok(allocated(BYTES, self.layer))
    }
}

/// Allocates as a program that is counted does.
fn allocated(bytes: u64, value: u8) -> Storage {
    AllocationClock::of(Device::CPU).allocate(bytes as usize);
    let allocator = AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap();
    let storage = Storage::new(bytes as usize, allocator).unwrap();
    // SAFETY: nothing else uses the storage.
    unsafe { std::ptr::write_bytes(storage.lock().as_ptr(), value, bytes as usize) };
    storage
}

fn engine(program: &Arc<Program>, budget_bytes: u64, spill_bytes: u64) -> Engine {
    let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(spill_bytes)).unwrap();
    let mover = Mover::new(None, MoverOptions { disk: Some(disk), ..MoverOptions::new(1 << 30) }).unwrap();
    let link = SpillLink {
        name: "disk".into(),
        capacity: Some(spill_bytes),
        out_bandwidth: 1 << 30,
        back_bandwidth: 1 << 30,
        shared_bandwidth: None,
    };
    let planning = PlannerOptions {
        objective: Objective::Makespan,
        // Evaluations end the search, not the clock.
        time_limit: Duration::from_secs(24 * 60 * 60),
        evaluations: Some(50),
        seed: 0,
    };
    let links = vec![(link, Destination::Disk)];
    let options = EngineOptions { min_tensor_bytes: MIB, links, planner: Box::new(Scheduled), planning };
    let engine = Engine::new(Memory::of(Device::CPU).unwrap(), mover, options);
    engine.set_host_time(|| *NOW.lock());
    engine.set_budget(budget_bytes);
    engine.set_strict();
    engine.count_allocations(Arc::clone(program) as Arc<dyn PacedFrontEnd>);
    engine
}

/// Returns a program and an engine, with a budget in which a quarter of what the program saves has no room.
fn tight() -> (Arc<Program>, Engine, u64) {
    let program = Arc::default();
    let budget = u64::from(LAYERS) * BYTES * 3 / 4;
    let engine = engine(&program, budget, 256 * MIB);
    (program, engine, budget)
}

/// Runs a step whose layers save what they make. Each consists of an operation that allocates the result, with one of
/// the same sequence number inside, and one that makes something small. `size_of` gives the bytes of a layer.
fn step(engine: &Engine, program: &Program, can_repeat: bool, size_of: impl Fn(u8) -> u64) -> Done {
    // Numbers go on from step to step.
    let begin = program.state.lock().sequence + 1000;
    *program.state.lock() = ProgramState { sequence: begin, ..ProgramState::default() };
    let step = engine.begin(0, Pass::Budgeted).unwrap();
    program.state.lock().watched = Some(Watched { saves: true, operations_from: engine.operations_from() });
    let (mut saved, mut saves, mut operations) = (Vec::new(), Vec::new(), Vec::new());
    let hears = || {
        let state = program.state.lock();
        state.watched.unwrap().operations_from.is_some_and(|from| state.sequence >= from)
    };
    for layer in 0..LAYERS {
        program.state.lock().sequence += 1;
        let is_noted = hears() && engine.count_next_operation();
        let out = allocated(size_of(layer), layer);
        let id = (out.generation(), 0);
        if is_noted {
            operations.push(layer);
            engine.operation(id, None);
        }
        drop(allocated(size_of(layer) / 2, 0));
        let reports = program.state.lock().watched.unwrap().saves;
        let again = (can_repeat && is_noted).then(|| Arc::new(Filled { id, layer }) as Arc<dyn Recomputation>);
        let handle = if reports {
            engine.save(&out, 0, DType::U8, None, again, || format!("layer {layer}")).unwrap()
        } else {
            None
        };
        saved.push(match handle {
            Some(handle) => {
                saves.push(layer);
                Saved::Reported(handle)
            }
            None => Saved::Held(out),
        });
        // An operation that makes nothing large.
        program.state.lock().sequence += 1;
        if hears() && engine.count_next_operation() {
            engine.begin_operation(None);
        }
        *NOW.lock() += Duration::from_millis(2);
    }
    program.state.lock().is_backward = true;
    for (layer, saved) in saved.into_iter().enumerate().rev() {
        let out = match saved {
            Saved::Reported(handle) => engine.need(&handle, None).unwrap(),
            Saved::Held(out) => out,
        };
        program.state.lock().sequence = begin + 1 + 2 * layer as u64;
        drop(allocated(BYTES, 0));
        let out = out.lock();
        // SAFETY: the storage is not written to any more.
        assert!(unsafe { out.as_slice() }.iter().all(|byte| usize::from(*byte) == layer));
        *NOW.lock() += Duration::from_millis(2);
    }
    Done { report: step.finish().unwrap(), saves, operations }
}

fn peak(engine: &Engine) -> u64 {
    let Memory::Host(memory) = engine.memory() else { unreachable!() };
    let peak = memory.statistics().all.reserved_bytes.peak;
    memory.reset_peak_statistics();
    peak
}

#[test]
fn a_planned_step_reports_only_what_moves_and_keeps_to_the_budget() {
    let _one = ONE.lock();
    let (program, engine, budget) = tight();
    let measured = step(&engine, &program, false, |_| BYTES);
    assert_eq!((measured.saves.len(), measured.report.is_planned), (usize::from(LAYERS), false));
    for _ in 0..3 {
        peak(&engine);
        let planned = step(&engine, &program, false, |_| BYTES);
        assert!(planned.report.is_planned);
        assert_eq!(planned.report.unplanned, 0);
        assert!(planned.report.spilled_bytes > 0 && peak(&engine) <= budget);
        assert!(planned.saves.len() < usize::from(LAYERS), "{:?}", planned.saves);
        assert!(planned.saves.len() as u64 * BYTES >= planned.report.spilled_bytes);
        assert!(planned.operations.is_empty());
    }
}

#[test]
fn a_planned_step_hears_of_the_operations_that_it_repeats_and_of_no_others() {
    let _one = ONE.lock();
    let program = Arc::default();
    // No tensor fits the disk.
    let engine = engine(&program, u64::from(LAYERS) * BYTES / 2, MIB);
    let measured = step(&engine, &program, true, |_| BYTES);
    assert_eq!(measured.operations.len(), usize::from(LAYERS));
    for _ in 0..3 {
        let planned = step(&engine, &program, true, |_| BYTES);
        assert!(planned.report.is_planned && planned.report.spilled_bytes == 0);
        assert!(planned.report.recomputed_bytes >= planned.operations.len() as u64 * BYTES);
        assert!((1..usize::from(LAYERS)).contains(&planned.operations.len()), "{:?}", planned.operations);
        assert!(planned.operations.iter().all(|layer| planned.saves.contains(layer)));
    }
}

#[test]
fn a_step_that_differs_leaves_the_plan_with_all_values_and_is_measured_again() {
    let _one = ONE.lock();
    // Each is more than the reserve has.
    for (differs_from, factor) in [(0, 3), (1, 2), (5, 3), (5, 2), (LAYERS - 1, 3)] {
        let (program, engine, budget) = tight();
        step(&engine, &program, false, |_| BYTES);
        assert!(step(&engine, &program, false, |_| BYTES).report.is_planned);
        peak(&engine);
        let other = step(&engine, &program, false, |layer| if layer < differs_from { BYTES } else { factor * BYTES });
        assert!(!other.report.is_planned && peak(&engine) <= budget);
        // All that is saved after the plan has been left is reported.
        let reported = other.saves.iter().filter(|layer| **layer > differs_from + 1).count();
        assert_eq!(reported, usize::from(LAYERS.saturating_sub(differs_from + 2)), "{:?}", other.saves);
        assert_eq!(step(&engine, &program, false, |_| BYTES).saves.len(), usize::from(LAYERS));
        assert!(step(&engine, &program, false, |_| BYTES).report.is_planned);
    }
}

#[test]
fn a_step_whose_sizes_depend_on_data_follows_the_plan() {
    let _one = ONE.lock();
    let (program, engine, budget) = tight();
    // Every third layer saves about as much as the least that counts.
    let sizes = |layer: u8, percent: u64| if layer % 3 == 2 { MIB + 1 } else { BYTES } * percent / 100;
    step(&engine, &program, false, |layer| sizes(layer, 100));
    for percents in [[90, 110], [140, 60], [70, 130], [99, 101]] {
        peak(&engine);
        let planned = step(&engine, &program, false, |layer| sizes(layer, percents[usize::from(layer % 2)]));
        assert!(planned.report.is_planned && planned.report.spilled_bytes > 0 && peak(&engine) <= budget);
        assert!(planned.saves.len() < usize::from(LAYERS), "{:?}", planned.saves);
    }
}

#[test]
fn a_step_that_finds_too_little_room_reports_the_rest_of_what_it_saves() {
    let _one = ONE.lock();
    let (program, engine, budget) = tight();
    step(&engine, &program, false, |_| BYTES);
    let usual = step(&engine, &program, false, |_| BYTES);
    // Memory that the plan knows nothing of.
    let held = allocated(budget / 3, 1);
    let tight = step(&engine, &program, false, |_| BYTES);
    assert!(tight.report.unplanned > 0 && tight.saves.len() > usual.saves.len());
    assert!(peak(&engine) <= budget);
    drop(held);
}

#[test]
fn a_planned_step_may_exceed_a_budget_that_allows_it_and_is_measured_again() {
    let _one = ONE.lock();
    let (program, engine, budget) = tight();
    engine.set_may_exceed(true);
    step(&engine, &program, false, |_| BYTES);
    assert!(step(&engine, &program, false, |_| BYTES).report.is_planned);
    // Memory that the plan knows nothing of, and beside which not even one layer has room.
    let held = allocated(budget - BYTES / 2, 1);
    let report = step(&engine, &program, false, |_| BYTES).report;
    assert!(report.is_planned && report.exceeded_bytes.is_some_and(|bytes| bytes > budget), "{report:?}");
    drop(held);
    assert!(!step(&engine, &program, false, |_| BYTES).report.is_planned);
}
