//! Steps on the host's memory, in a process of their own: its limit is the process's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tenure_core::{AllocatorRegistry, Device, DeviceKind, Storage};
use tenure_offload::{Engine, Link, Memory, OffloadError, Options, Pass, ProfileError, Resident, Saved, StepReport};
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::{Destination, Disk, DiskOptions, Mover, MoverOptions};

const MIB: u64 = 1 << 20;
const LAYERS: u64 = 12;
const BYTES: u64 = 4 * MIB;

static ONE: Mutex<()> = Mutex::new(());

fn engine(budget_bytes: u64, capacity: u64) -> Engine {
    let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(capacity)).unwrap();
    let mover = Mover::new(None, MoverOptions { disk: Some(disk), ..MoverOptions::new(1 << 30) }).unwrap();
    let link = Link { name: "disk".into(), capacity: None, out_bandwidth: 1 << 30, back_bandwidth: 1 << 30 };
    let planning = PlannerOptions {
        objective: Objective::Makespan,
        time_limit: Duration::from_secs(5),
        evaluations: Some(50),
        seed: 0,
    };
    let links = vec![(link, Destination::Disk)];
    let options = Options { least_bytes: MIB, links, planner: Box::new(Scheduled), planning };
    let engine = Engine::new(Memory::of(Device::CPU).unwrap(), mover, options);
    engine.set_budget(budget_bytes);
    engine
}

fn storage(bytes: u64) -> Result<Storage, OffloadError> {
    let allocator = AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap();
    Storage::new(bytes as usize, allocator).map_err(|source| OffloadError::Back { name: "a layer".into(), source })
}

fn fill(storage: &Storage, value: u8) {
    // SAFETY: a test that has it alone.
    unsafe { std::ptr::write_bytes(storage.lock().as_ptr(), value, storage.bytes()) };
}

/// A forward and a backward pass over layers that save what they make.
fn step(engine: &Engine, pass: Pass, layers: u64) -> Result<StepReport, OffloadError> {
    let step = engine.begin(layers, pass)?;
    let mut saved: Vec<Arc<Saved>> = Vec::new();
    for layer in 0..layers {
        let out = storage(BYTES)?;
        fill(&out, layer as u8);
        drop(storage(2 * BYTES)?);
        saved.push(engine.save(&out, 0, None, None, || format!("layer {layer}"))?.unwrap());
        assert!(Arc::ptr_eq(&saved[layer as usize], &engine.save(&out, 0, None, None, String::new)?.unwrap()));
    }
    for layer in (0..layers).rev() {
        let token = saved.pop().unwrap();
        let out = engine.need(&token, None)?;
        drop(storage(BYTES)?);
        let out = out.lock();
        // SAFETY: nobody writes to it any more.
        assert!(unsafe { out.as_slice() }.iter().all(|byte| u64::from(*byte) == layer));
        std::thread::sleep(Duration::from_millis(2));
    }
    step.finish()
}

fn peak(engine: &Engine) -> u64 {
    let peak = engine.memory().statistics().all;
    assert!(peak.reserved_bytes.peak <= peak.allocated_bytes.peak.max(peak.reserved_bytes.peak));
    peak.allocated_bytes.peak
}

fn reset(engine: &Engine) {
    let Memory::Host(memory) = engine.memory() else { unreachable!() };
    memory.reset_peak_statistics();
}

#[test]
fn steps_keep_to_the_budget_and_what_comes_back_is_what_went() {
    let _one = ONE.lock();
    let plain = step(&engine(u64::MAX, 256 * MIB), Pass::Plain, LAYERS).unwrap();
    assert_eq!(plain.peak_bytes, Some((LAYERS + 2) * BYTES));
    assert_eq!((plain.spilled_bytes, plain.unplanned), (0, 0));

    let budget = (LAYERS + 2) * BYTES / 2;
    let engine = engine(budget, 256 * MIB);
    for number in 0..4 {
        reset(&engine);
        let report = step(&engine, Pass::Budgeted, LAYERS).unwrap();
        assert!(peak(&engine) <= budget, "step {number}: {} of {budget}", peak(&engine));
        assert_eq!(report.is_planned, number > 0, "{report:?}");
        assert!(report.spilled_bytes > 0 && report.fetched_bytes > 0, "{report:?}");
        if number > 0 {
            assert!(report.spilled_bytes < LAYERS * BYTES, "{report:?}");
        }
    }
    // Another step than was planned is made all the same, and planned the next time.
    let other = step(&engine, Pass::Budgeted, LAYERS + 3).unwrap();
    assert!(!other.is_planned);
    assert!(step(&engine, Pass::Budgeted, LAYERS + 3).unwrap().is_planned);
}

#[test]
fn residents_leave_between_their_uses_and_come_back_as_they_were_given_back() {
    let _one = ONE.lock();
    // Half of all residents, and what a layer takes.
    let budget = LAYERS * BYTES / 2 + 4 * BYTES;
    let engine = engine(budget, 512 * MIB);
    engine.enforce().unwrap();
    let resident = |layer: u64| {
        let bytes = storage(BYTES).unwrap();
        fill(&bytes, layer as u8);
        engine.keep(bytes, None, format!("state {layer}"))
    };
    // More than there is room for, from the first on.
    let residents: Vec<Resident> = (0..LAYERS).map(resident).collect();
    for number in 0..5 {
        reset(&engine);
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        for layer in (0..LAYERS).rev() {
            let bytes = engine.lend(&residents[layer as usize], None).unwrap();
            {
                let bytes = bytes.lock();
                // SAFETY: nobody else has them.
                let bytes = unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), bytes.bytes()) };
                assert!(bytes.iter().all(|byte| u64::from(*byte) == layer + number), "{number}: {layer}");
                bytes.iter_mut().for_each(|byte| *byte += 1);
            }
            drop(storage(BYTES).unwrap());
            engine.give_back(&residents[layer as usize], bytes, None).unwrap();
            std::thread::sleep(Duration::from_millis(2));
        }
        let report = step.finish().unwrap();
        assert!(peak(&engine) <= budget, "step {number}: {} of {budget}", peak(&engine));
        assert_eq!((report.is_planned, report.unplanned), (number > 0, 0), "{number}: {report:?}");
        // From the third on, what stays stays.
        assert!(number < 2 || (1..LAYERS * BYTES).contains(&report.spilled_bytes), "{report:?}");
    }
    let bytes = engine.look_at(&residents[3], None).unwrap();
    let bytes = bytes.lock();
    // SAFETY: nobody writes to it.
    assert_eq!(unsafe { bytes.as_slice() }[0], 8);
}

#[test]
fn a_budget_that_is_too_small_is_refused_by_what_would_do() {
    let _one = ONE.lock();
    let engine = engine(2 * BYTES, 256 * MIB);
    let error = step(&engine, Pass::Budgeted, LAYERS).unwrap_err();
    let OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) = error else { panic!("{error}") };
    // With a little for other threads.
    assert_eq!(least_bytes, 3 * BYTES + MIB);
}

#[test]
fn a_full_disk_is_an_error_that_names_what_was_to_go() {
    let _one = ONE.lock();
    let engine = engine(4 * BYTES, 5 * BYTES);
    let error = step(&engine, Pass::Budgeted, LAYERS).unwrap_err().to_string();
    assert!(error.contains("layer ") && error.contains("do not fit on disk"), "{error}");
}
