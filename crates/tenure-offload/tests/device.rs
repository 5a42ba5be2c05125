//! Steps of any shape on simulated devices, whose work runs in any order that its events allow. With
//! `TENURE_TEST_DRIVER=cuda`, they run on the first NVIDIA device.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::env;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tenure_alloc::Request;
use tenure_core::{DType, Storage};
use tenure_device::memory::{self, DeviceMemory, MemoryConfig};
use tenure_device::sim::{SimConfig, SimDriver};
use tenure_offload::{Engine, EngineOptions, Memory, OffloadError, Pass, SavedHandle, SpillLink, StepReport};
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{Disk, DiskOptions, Mover, MoverOptions};

const MIB: u64 = 1 << 20;

type Device = &'static DeviceMemory;

fn device(seed: u64) -> Device {
    if env::var("TENURE_TEST_DRIVER").is_ok_and(|driver| driver == "cuda") {
        return memory::device(0).unwrap();
    }
    let driver = Arc::new(SimDriver::new(SimConfig { seed, ..SimConfig::default() }));
    Box::leak(Box::new(DeviceMemory::new(driver, MemoryConfig::default()).unwrap()))
}

/// Returns an engine with `pinned_bytes` of pinned memory, and a disk for tensors that find no room there.
fn engine(device: Device, pinned_bytes: u64) -> Engine {
    let disk =
        Disk::open(&[env::temp_dir()], DiskOptions { staging_bytes: 4 << 20, ..DiskOptions::new(512 * MIB) }).unwrap();
    let mover = Mover::new(Some(device), MoverOptions { disk: Some(disk), ..MoverOptions::new(pinned_bytes as usize) });
    let mover = mover.unwrap();
    mover.probe().unwrap();
    let planning = PlannerOptions {
        objective: Objective::Makespan,
        // Evaluations end the search, not the clock.
        time_limit: Duration::from_secs(24 * 60 * 60),
        evaluations: Some(8),
        seed: 0,
    };
    let options =
        EngineOptions { min_tensor_bytes: MIB, links: SpillLink::of(&mover), planner: Box::new(Scheduled), planning };
    Engine::new(Memory::Device(device), mover, options)
}

/// An operation that makes a tensor of `mib` MiB, which the next `held` operations hold, too.
#[derive(Clone, Debug)]
struct Layer {
    mib: u64,
    held: usize,
    is_needed_twice: bool,
}

fn layers() -> impl Strategy<Value = Vec<Layer>> {
    let layer = (1..6_u64, 0..3_usize, any::<bool>());
    let layer = layer.prop_map(|(mib, held, is_needed_twice)| Layer { mib, held, is_needed_twice });
    prop::collection::vec(layer, 4..14)
}

/// Returns the MiB that a step needs at an operation: its output and the tensors held meanwhile, or its output and the
/// gradient of it that backward makes.
fn needed_mib(layers: &[Layer], number: usize) -> u64 {
    let held: u64 = layers[..number]
        .iter()
        .enumerate()
        .filter(|(earlier, layer)| earlier + layer.held >= number)
        .map(|(_, layer)| layer.mib)
        .sum();
    (held + layers[number].mib).max(2 * layers[number].mib)
}

fn made(device: Device, bytes: u64) -> Result<Storage, OffloadError> {
    Storage::new(bytes as usize, Arc::new(device))
        .map_err(|source| OffloadError::Back { name: "what a test makes".into(), source })
}

fn set(device: Device, storage: &Storage, value: u8) {
    let start = storage.lock().as_ptr().addr() as u64;
    let bytes = storage.bytes() as u64;
    device.driver().memset(start, value, bytes, device.streams().current_id()).unwrap();
}

fn check(device: Device, storage: &Storage, value: u8) {
    let mut bytes = vec![0; storage.bytes()];
    let start = storage.lock().as_ptr().addr() as u64;
    device.driver().copy_from_device(&mut bytes, start, device.streams().current_id()).unwrap();
    assert!(bytes.iter().all(|byte| *byte == value), "{:?} instead of {value}", bytes.first());
}

fn step(engine: &Engine, device: Device, layers: &[Layer], pass: Pass) -> Result<StepReport, OffloadError> {
    let stream = device.streams().current();
    let step = engine.begin(1, pass)?;
    let (mut saved, mut held): (Vec<Arc<SavedHandle>>, Vec<(usize, Storage)>) = Default::default();
    for (number, layer) in layers.iter().enumerate() {
        let out = made(device, layer.mib * MIB)?;
        set(device, &out, number as u8);
        set(device, &made(device, MIB)?, 0xff);
        saved.push(engine.save(&out, 0, DType::U8, Some(&stream), None, || format!("layer {number}"))?.unwrap());
        held.push((number + layer.held, out));
        held.retain(|(until, _)| *until > number);
    }
    held.clear();
    for (number, layer) in layers.iter().enumerate().rev() {
        let token = saved.pop().unwrap();
        for _ in 0..=u8::from(layer.is_needed_twice) {
            let out = engine.need(&token, Some(&stream))?;
            set(device, &made(device, layer.mib * MIB)?, 0xee);
            check(device, &out, number as u8);
        }
    }
    step.finish()
}

/// Returns a device, an engine with so many MiB of pinned memory and of the budget, and twelve layers of 4 MiB, whose
/// step was run without the budget.
fn limited(seed: u64, pinned_mib: u64, budget_mib: u64) -> (Device, Engine, Vec<Layer>) {
    let device = device(seed);
    let engine = engine(device, pinned_mib * MIB);
    let layers = vec![Layer { mib: 4, held: 0, is_needed_twice: false }; 12];
    step(&engine, device, &layers, Pass::Plain).unwrap();
    engine.set_budget(budget_mib * MIB);
    (device, engine, layers)
}

fn peak(device: Device) -> u64 {
    device.allocator().statistics().all.reserved_bytes.peak
}

/// How many times as many cases are drawn as usual.
fn factor() -> u32 {
    env::var("TENURE_TEST_FACTOR").map_or(1, |factor| factor.parse().expect("a number"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4 * factor()))]

    #[test]
    fn any_step_keeps_to_a_budget_and_gets_back_what_it_saved(
        layers in layers(), seed in 0..1000_u64, part in 0.0..1.0, pinned in 8..64_u64,
        codec in prop::sample::select(&["none", "auto", "zeros"][..]),
    ) {
        let device = device(seed);
        let engine = engine(device, pinned * MIB);
        engine.set_codec(codec.parse().unwrap());
        let plain = step(&engine, device, &layers, Pass::Plain).unwrap().peak_bytes.unwrap();
        // The budgets begin at the least that a step needs: the tensors that an operation makes, and those that it
        // needs.
        let least = (0..layers.len()).map(|number| needed_mib(&layers, number)).max().unwrap() * MIB + 17 * MIB;
        let budget = least + (plain.saturating_sub(least) as f64 * part) as u64;
        engine.set_budget(budget);
        device.allocator().release_cached().unwrap();
        for number in 0..3 {
            device.allocator().reset_peak_statistics();
            let report = step(&engine, device, &layers, Pass::Budgeted).unwrap();
            prop_assert!(report.is_planned, "step {}: {:?}", number, report);
            prop_assert!(peak(device) <= budget);
        }
    }
}

#[test]
fn fetched_tensors_free_pinned_memory_for_the_next_step() {
    let (device, engine, layers) = limited(2, 80, 40);
    let before = engine.mover().disk().unwrap().statistics().written_bytes;
    // 48 MiB of the pinned memory are buffers that bytes pass through.
    for _ in 0..4 {
        let report = step(&engine, device, &layers, Pass::Budgeted).unwrap();
        assert!(report.is_planned && report.spilled_bytes >= 20 * MIB, "{report:?}");
    }
    assert_eq!(engine.mover().disk().unwrap().statistics().written_bytes, before);
}

#[test]
fn what_a_step_released_for_an_allocation_without_room_later_steps_release_ahead() {
    let (device, engine, layers) = limited(3, 80, 40);
    // One of them is timed.
    (0..3).for_each(|_| _ = step(&engine, device, &layers, Pass::Budgeted).unwrap());
    let without_room = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&without_room);
    let note = move || {
        count.fetch_add(1, Ordering::Relaxed);
        false
    };
    device.allocator().add_free_memory_callback(Box::new(note));
    // The plan knows nothing of it, and has as much to spare.
    let taken = device.allocate(Request::new(4 * MIB, device.streams().current_id())).unwrap();
    let counts = [0; 4].map(|_| {
        step(&engine, device, &layers, Pass::Budgeted).unwrap();
        without_room.swap(0, Ordering::Relaxed)
    });
    assert!(counts[0] > 0 && counts[1..] == [0; 3], "{counts:?}");
    device.free(taken.address).unwrap();
}

#[test]
fn memory_that_another_part_of_the_program_takes_is_made_room_for() {
    let (device, engine, layers) = limited(1, 64, 96);
    step(&engine, device, &layers, Pass::Budgeted).unwrap();
    // The plan knows nothing of this allocation.
    let taken = device.allocate(Request::new(64 * MIB, device.streams().current_id())).unwrap();
    let report = step(&engine, device, &layers, Pass::Budgeted).unwrap();
    assert!(report.unplanned > 0, "{report:?}");
    device.free(taken.address).unwrap();
}
