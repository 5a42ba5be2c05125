//! The program's own state in a budget of a simulated device: it leaves where steps find no room beside it.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{DType, Storage};
use tenure_device::allocation_clock::AllocationClock;
use tenure_device::memory::{DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_device::{Stream, zero_copy};
use tenure_offload::{
    Engine, EngineOptions, Memory, OffloadError, PacedFrontEnd, Pass, Position, ProfileError, SpillLink, StatePart,
    StepReport, Watched,
};
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{Destination, Mover, MoverOptions};

const MIB: u64 = 1 << 20;
const LAYERS: u64 = 6;
const BYTES: u64 = 8 * MIB;

/// A program with some tensors of state, each on the device or in zero-copy memory.
struct Program {
    engine: Mutex<Option<Engine>>,
    memory: &'static DeviceMemory,
    state: Mutex<Vec<Storage>>,
    /// Whether it has gradients and weights that can leave.
    has_parameters: Mutex<bool>,
}

impl PacedFrontEnd for Program {
    /// The program reports everything at all times.
    fn position(&self) -> Position {
        Position::Unknown
    }

    fn is_alone(&self) -> bool {
        true
    }

    fn stream(&self) -> Option<Stream> {
        Some(self.stream_now())
    }

    fn watch(&self, _: Watched) {}

    fn release_state(&self, bytes: u64, part: StatePart) -> bool {
        let engine = self.engine.lock().clone().unwrap();
        let mut released = 0;
        for storage in self.state.lock().iter_mut().filter(|storage| !is_zero_copy(storage)) {
            if released >= bytes {
                break;
            }
            let copied =
                engine.zero_copy().unwrap().allocate_copy(address_of(storage), BYTES as usize, self.stream_now().id());
            let Ok(copied) = copied else { break };
            *storage = copied;
            released += BYTES;
        }
        engine.set_state_bytes(self.state_on_device());
        let parameters_leave = part == StatePart::All && std::mem::take(&mut *self.has_parameters.lock());
        if parameters_leave {
            engine.set_parameter_bytes(0);
        }
        released > 0 || parameters_leave
    }
}

impl Program {
    fn new(budget_bytes: u64, pinned_bytes: usize) -> (Arc<Self>, Engine) {
        let driver = Arc::new(SimDriver::new(SimConfig::default()));
        let memory: &'static DeviceMemory =
            Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default()).unwrap()));
        let mover = Mover::new(Some(memory), MoverOptions::new(pinned_bytes)).unwrap();
        let link = SpillLink {
            name: "host".into(),
            capacity: Some(pinned_bytes as u64),
            out_bandwidth: 1 << 34,
            back_bandwidth: 1 << 34,
            shared_bandwidth: None,
        };
        // Evaluations end the search, not the clock.
        let time_limit = Duration::from_secs(24 * 60 * 60);
        let planning = PlannerOptions { objective: Objective::Makespan, time_limit, evaluations: Some(50), seed: 0 };
        let links = vec![(link, Destination::Host)];
        let options = EngineOptions { min_tensor_bytes: MIB, links, planner: Box::new(Scheduled), planning };
        let engine = Engine::new(Memory::Device(memory), mover, options);
        engine.set_budget(budget_bytes);
        engine.set_strict();
        engine.enforce().unwrap();
        let program = Arc::new(Self {
            engine: Mutex::new(Some(engine.clone())),
            memory,
            state: Mutex::default(),
            has_parameters: Mutex::default(),
        });
        engine.count_allocations(Arc::clone(&program) as _);
        (program, engine)
    }

    fn stream_now(&self) -> Stream {
        self.memory.streams().current()
    }

    fn state_on_device(&self) -> u64 {
        self.state.lock().iter().filter(|storage| !is_zero_copy(storage)).count() as u64 * BYTES
    }

    /// Allocates as PyTorch does.
    fn allocate(&self, bytes: u64) -> Option<Storage> {
        AllocationClock::of(self.memory.device()).allocate(bytes as usize);
        let on_device = Storage::new(bytes as usize, Arc::new(self.memory)).ok();
        on_device.or_else(|| zero_copy::overflow(self.memory.device(), bytes as usize, self.stream_now().id()))
    }

    /// Runs a step whose layers save what they make.
    fn step(&self, engine: &Engine) -> Result<StepReport, OffloadError> {
        let stream = self.stream_now();
        let step = engine.begin(0, Pass::Budgeted)?;
        let mut saved = Vec::new();
        for layer in 0..LAYERS {
            let out = self.allocate(BYTES).ok_or_else(|| engine.take_cause().unwrap())?;
            let handle = engine.save(&out, 0, DType::U8, Some(&stream), None, || format!("layer {layer}"))?;
            saved.push((handle, out));
        }
        // The engine alone has what it has taken; a step that follows a plan keeps the rest.
        let mut saved: Vec<_> = saved.into_iter().map(|(handle, out)| handle.ok_or(out)).collect();
        while let Some(saved) = saved.pop() {
            if let Ok(handle) = saved {
                drop(engine.need(&handle, Some(&stream))?);
            }
        }
        step.finish()
    }

    /// Makes the state if there is none, and updates it, which takes `bytes` bytes for a while.
    fn update(&self, engine: &Engine, count: usize, bytes: u64) {
        engine.begin_update().unwrap();
        while self.state.lock().len() < count {
            let storage = self.allocate(BYTES).unwrap();
            let value = self.state.lock().len() as u8;
            let stream = self.stream_now();
            self.memory.driver().memset(address_of(&storage), value, BYTES, stream.id()).unwrap();
            self.state.lock().push(storage);
        }
        drop(self.allocate(bytes));
        engine.end_update().unwrap();
        engine.set_state_bytes(self.state_on_device());
    }

    fn assert_unchanged(&self) {
        for (number, storage) in self.state.lock().iter().enumerate() {
            let mut bytes = vec![0; BYTES as usize];
            self.memory.driver().copy_from_device(&mut bytes, address_of(storage), self.stream_now().id()).unwrap();
            assert!(bytes.iter().all(|byte| usize::from(*byte) == number), "tensor {number}");
        }
    }
}

fn address_of(storage: &Storage) -> u64 {
    storage.lock().as_ptr().addr() as u64
}

fn is_zero_copy(storage: &Storage) -> bool {
    zero_copy::contains(address_of(storage))
}

/// The functions that serve allocations without room are the process's.
static ONE: Mutex<()> = Mutex::new(());

#[test]
fn state_leaves_where_no_step_fits_beside_it_and_keeps_its_bytes() {
    let _one = ONE.lock();
    // A step takes 48 MiB, and all of the state 64.
    let (program, engine) = Program::new(64 * MIB, 256 << 20);
    for number in 0..6 {
        let report = program.step(&engine).unwrap();
        assert_eq!(report.is_planned, number > 0, "step {number}");
        program.update(&engine, 8, MIB);
        program.assert_unchanged();
    }
    let on_device = program.state_on_device();
    assert!((1..=40 * MIB).contains(&on_device), "{on_device}");
    assert_eq!(engine.zero_copy().unwrap().bytes(), 64 * MIB - on_device);
    // What has left takes room of the memory that saved tensors are spilled to.
    let problem = engine.problem().unwrap().unwrap();
    assert_eq!(problem.tiers()[1].capacity, Some(256 * MIB - (64 * MIB - on_device)));
    *program.engine.lock() = None;
}

#[test]
fn an_update_that_lacks_room_makes_state_leave_before_the_next_step() {
    let _one = ONE.lock();
    let (program, engine) = Program::new(96 * MIB, 256 << 20);
    for _ in 0..3 {
        program.step(&engine).unwrap();
        program.update(&engine, 4, MIB);
    }
    assert_eq!(program.state_on_device(), 32 * MIB);
    // 32 MiB of state and 80 for a while are 16 too many, all of which find no room in one piece.
    program.update(&engine, 4, 80 * MIB);
    assert_eq!(program.state_on_device(), 32 * MIB);
    program.step(&engine).unwrap();
    assert_eq!(program.state_on_device(), 0);
    program.update(&engine, 4, 80 * MIB);
    program.assert_unchanged();
    assert_eq!(engine.zero_copy().unwrap().take_peak_bytes(), 32 * MIB);
    *program.engine.lock() = None;
}

#[test]
fn a_budget_is_too_small_where_host_memory_is_too() {
    let _one = ONE.lock();
    let (program, engine) = Program::new(64 * MIB, 72 << 20);
    program.step(&engine).unwrap();
    program.update(&engine, 4, MIB);
    // Nothing else is left of the host's memory.
    let held: Vec<_> =
        std::iter::from_fn(|| engine.zero_copy().unwrap().allocate(1 << 20, program.stream_now().id()).ok()).collect();
    let outcome = (0..3).try_for_each(|_| program.step(&engine).map(drop));
    let is_too_small = matches!(outcome, Err(OffloadError::Profile(ProfileError::TooSmall { .. })));
    assert!(is_too_small, "{outcome:?}");
    assert_eq!(program.state_on_device(), 32 * MIB);
    drop(held);
    *program.engine.lock() = None;
}

#[test]
fn gradients_and_weights_leave_where_a_step_cannot_be_measured_beside_them() {
    let _one = ONE.lock();
    let (program, engine) = Program::new(BYTES / 2, 1 << 30);
    *program.has_parameters.lock() = true;
    engine.set_parameter_bytes(BYTES);
    let report = program.step(&engine).unwrap();
    assert!(report.unplanned > 0 && !report.is_planned, "{report:?}");
    assert_eq!(engine.least_budget_bytes(), None, "a step with memory elsewhere is no measurement");
    assert!(*program.has_parameters.lock(), "they leave between steps");
    assert!(matches!(program.step(&engine), Err(OffloadError::TooSmallSoFar { .. })));
    assert!(!*program.has_parameters.lock());
    *program.engine.lock() = None;
}
