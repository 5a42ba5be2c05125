//! Steps on the host's memory. They run in a process of their own, because their limit is that of the process.
#![expect(clippy::disallowed_methods, reason = "where a clock that the test moves on begins")]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::error::Error;
use std::slice;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tenure_core::{AllocatorRegistry, DType, Device, DeviceKind, Storage, WeakStorage};
use tenure_offload::{
    Engine, EngineOptions, Fate, KnownBytes, Memory, OffloadError, Pass, ProfileError, Recomputation, RecomputeInput,
    Resident, SavedBytesId, SavedHandle, SavedRecord, Signature, SpillLink, StepRecorder, StepReport, TierMoment,
};
use tenure_plan::planner::{Objective, PlannerOptions, Scheduled};
use tenure_tier::codec::{Choice, Codec};
use tenure_tier::{Destination, Disk, DiskOptions, Mover, MoverOptions};

const MIB: u64 = 1 << 20;
const LAYERS: u64 = 12;
const BYTES: u64 = 4 * MIB;
/// The number of layers in steps that are compared element by element.
const SPARSE: u64 = 6;

static ONE: Mutex<()> = Mutex::new(());

/// The time of the engines' clocks. It advances only as far as tests say.
static NOW: LazyLock<Mutex<Instant>> = LazyLock::new(|| Mutex::new(Instant::now()));

/// Advances the engines' clocks, as a computation that takes `time` would.
fn compute(time: Duration) {
    *NOW.lock() += time;
}

fn engine(budget_bytes: u64, capacity: u64) -> Engine {
    let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(capacity)).unwrap();
    let mover = Mover::new(None, MoverOptions { disk: Some(disk), ..MoverOptions::new(1 << 30) }).unwrap();
    let link = SpillLink {
        name: "disk".into(),
        capacity: Some(capacity),
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
    engine
}

fn storage(bytes: u64) -> Result<Storage, OffloadError> {
    let allocator = AllocatorRegistry::global().allocator(DeviceKind::Cpu).unwrap();
    Storage::new(bytes as usize, allocator).map_err(|source| OffloadError::Back { name: "a layer".into(), source })
}

fn fill(storage: &Storage, value: u8) {
    // SAFETY: the test is the only user of the storage.
    unsafe { std::ptr::write_bytes(storage.lock().as_ptr(), value, storage.bytes()) };
}

/// Runs a forward and a backward pass over layers that save their outputs.
fn step(engine: &Engine, pass: Pass, layers: u64) -> Result<StepReport, OffloadError> {
    step_back_to(engine, pass, layers, 0, || ())
}

/// Runs such a step with a backward pass that ends after layer `last`. Calls `look` between the two passes.
fn step_back_to(
    engine: &Engine,
    pass: Pass,
    layers: u64,
    last: u64,
    look: impl FnOnce(),
) -> Result<StepReport, OffloadError> {
    let step = engine.begin(layers, pass)?;
    let mut saved: Vec<Arc<SavedHandle>> = Vec::new();
    for layer in 0..layers {
        let out = storage(BYTES)?;
        fill(&out, layer as u8);
        drop(storage(2 * BYTES)?);
        saved.push(engine.save(&out, 0, DType::U8, None, None, || format!("layer {layer}"))?.unwrap());
        assert!(Arc::ptr_eq(
            &saved[layer as usize],
            &engine.save(&out, 0, DType::U8, None, None, String::new)?.unwrap()
        ));
        drop(out);
        engine.begin_operation(None);
    }
    look();
    for layer in (last..layers).rev() {
        let token = saved.pop().unwrap();
        let out = engine.need(&token, None)?;
        drop(storage(BYTES)?);
        let out = out.lock();
        // SAFETY: the storage is not written to any more.
        assert!(unsafe { out.as_slice() }.iter().all(|byte| u64::from(*byte) == layer));
        compute(Duration::from_millis(2));
    }
    step.finish()
}

fn peak(engine: &Engine) -> u64 {
    engine.memory().statistics().all.reserved_bytes.peak
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
        // The intervals end with a save and a need for each layer, and with the step.
        let operations = engine.take_planning().map(|planning| planning.operations);
        assert_eq!(operations, (number == 1).then_some(2 * LAYERS as usize + 1));
        assert!(report.spilled_bytes > 0 && report.fetched_bytes > 0, "{report:?}");
        assert_eq!(report.predicted.is_some(), number > 0, "{report:?}");
        if number > 0 {
            assert!(report.spilled_bytes < LAYERS * BYTES, "{report:?}");
        }
    }
    let problem = engine.problem().unwrap().unwrap();
    assert!(problem.tiers()[0].capacity.unwrap() < budget && problem.tensors().len() >= LAYERS as usize);
    // A step that differs from the planned one runs all the same, and is planned the next time.
    let other = step(&engine, Pass::Budgeted, LAYERS + 3).unwrap();
    assert!(!other.is_planned);
    assert!(step(&engine, Pass::Budgeted, LAYERS + 3).unwrap().is_planned);
}

/// The spill that an allocation would wait for may end just when the allocation looks for it.
#[test]
fn a_spill_that_ends_during_the_search_for_room_makes_room() {
    let _one = ONE.lock();
    let engine = engine(4 * BYTES, 64 * MIB);
    let one = |bytes, other_bytes| {
        let step = engine.begin(1, Pass::Budgeted).unwrap();
        let made = storage(bytes).unwrap();
        let saved = engine.save(&made, 0, DType::U8, None, None, || "one".into()).unwrap().unwrap();
        drop(made);
        drop(storage(other_bytes).unwrap());
        drop(engine.need(&saved, None).unwrap());
        drop(saved);
        step.finish().unwrap()
    };
    for _ in 0..30 {
        assert!(one(MIB, MIB).peak_bytes.is_some());
        // This step follows no plan: it differs from the measured one, and its saved tensor leaves when there is no
        // room.
        let report = one(2 * BYTES, 3 * BYTES);
        assert_eq!((report.is_planned, report.unplanned), (false, 1));
    }
}

/// Another thread may free memory after the engine has found none to free.
#[test]
fn an_allocation_that_finds_room_after_all_is_no_failure_of_the_step() {
    let _one = ONE.lock();
    let engine = engine(4 * BYTES, 64 * MIB);
    engine.set_strict();
    let others = Arc::new(Mutex::new(None));
    let Memory::Host(memory) = engine.memory() else { unreachable!() };
    let freed = Arc::clone(&others);
    memory.add_free_memory_callback(Box::new(move || {
        drop(freed.lock().take());
        false
    }));
    let step = engine.begin(1, Pass::Budgeted).unwrap();
    *others.lock() = Some(storage(3 * BYTES).unwrap());
    let found = storage(2 * BYTES).unwrap();
    step.finish().unwrap();

    let step = engine.begin(1, Pass::Budgeted).unwrap();
    storage(3 * BYTES).unwrap_err();
    drop(step);
    assert!(matches!(engine.take_cause(), Some(OffloadError::TooSmallSoFar { .. })));
    assert!(engine.take_cause().is_none());
    drop(found);
}

#[test]
fn a_step_that_goes_on_where_the_measured_one_ended_is_measured_anew() {
    let _one = ONE.lock();
    let engine = engine((LAYERS + 2) * BYTES / 2, 256 * MIB);
    // The step ends early, as if backward failed.
    step_back_to(&engine, Pass::Budgeted, LAYERS, LAYERS - 1, || ()).unwrap();
    assert!(!step(&engine, Pass::Budgeted, LAYERS).unwrap().is_planned);
    assert!(step(&engine, Pass::Budgeted, LAYERS).unwrap().peak_bytes.is_some());
    assert!(step(&engine, Pass::Budgeted, LAYERS).unwrap().is_planned);
}

#[test]
fn memory_that_an_interval_takes_before_a_tensor_of_an_earlier_step_is_needed_counts() {
    let _one = ONE.lock();
    let engine = engine(u64::MAX, 256 * MIB);
    let first = engine.begin(1, Pass::Plain).unwrap();
    let out = storage(BYTES).unwrap();
    let earlier = engine.save(&out, 0, DType::U8, None, None, String::new).unwrap().unwrap();
    drop(out);
    first.finish().unwrap();
    let second = engine.begin(1, Pass::Plain).unwrap();
    let out = storage(BYTES).unwrap();
    let saved = engine.save(&out, 0, DType::U8, None, None, String::new).unwrap().unwrap();
    drop(out);
    drop(storage(8 * BYTES).unwrap());
    drop(engine.need(&earlier, None).unwrap());
    drop(engine.need(&saved, None).unwrap());
    second.finish().unwrap();
    assert!(engine.least_budget_bytes().unwrap() >= 8 * BYTES);
}

/// Runs a forward pass that saves layers as long as the engine takes them, and a backward pass. Returns how many it
/// took.
fn unwatched_step(engine: &Engine, signature: Signature, layers: u64) -> (u64, bool, StepReport) {
    let step = engine.begin(signature, Pass::Budgeted).unwrap();
    let is_unwatched = step.is_unwatched();
    let mut saved = Vec::new();
    for layer in 0..layers {
        let out = storage(BYTES).unwrap();
        let taken = engine.save(&out, 0, DType::U8, None, None, || format!("layer {layer}")).unwrap();
        saved.push(taken.ok_or(out));
    }
    let taken = saved.iter().filter(|saved| saved.is_ok()).count() as u64;
    for layer in saved.into_iter().rev() {
        drop(layer.map(|layer| engine.need(&layer, None).unwrap()));
    }
    (taken, is_unwatched, step.finish().unwrap())
}

#[test]
fn steps_that_fit_are_not_watched_until_one_finds_no_room() {
    let _one = ONE.lock();
    let budget = 16 * BYTES;
    let engine = engine(budget, 256 * MIB);
    let woken = Arc::new(AtomicU64::new(0));
    let wake = Arc::clone(&woken);
    let step = |id, input_bytes, layers| unwatched_step(&engine, Signature { id, kind: 0, input_bytes }, layers);
    // A front end that sets no callback has to report every step.
    assert_eq!((step(0, 8, 8).1, step(0, 8, 8).1), (false, false));
    engine.on_wake(move || {
        wake.fetch_add(1, Ordering::Relaxed);
    });
    let (taken, is_unwatched, report) = step(0, 8, 8);
    assert_eq!((taken, is_unwatched, report.is_planned, report.spilled_bytes), (0, true, true, 0));
    // The peak of another size is predicted, unless steps like it are known to take more, or nothing is known.
    assert!(step(1, 7, 7).1 && !step(2, 8 * 3, 24).1 && !step(3, 0, 1).1);
    assert!(!step(2, 8 * 3, 24).1);

    // The next step takes more than others of its signature: the budget holds, and the signature is measured anew.
    reset(&engine);
    let (taken, is_unwatched, report) = step(0, 8, 24);
    assert!(peak(&engine) <= budget, "{} of {budget}", peak(&engine));
    assert!(is_unwatched && (1..24).contains(&taken) && !report.is_planned && report.spilled_bytes > 0, "{report:?}");
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    let (_, is_unwatched, report) = step(0, 8, 24);
    assert!(!is_unwatched && report.peak_bytes.is_some());
    assert!(step(0, 8, 24).2.is_planned);
    // Steps of this size are not expected to fit any more.
    assert!(!step(4, 8, 8).1 && woken.load(Ordering::Relaxed) == 1);
}

/// The recipe of a layer that is filled with its number, if its input is still there.
struct Filled {
    id: SavedBytesId,
    number: u8,
    of: Option<(SavedBytesId, WeakStorage)>,
    /// Whether the input was written to.
    is_overwritten: Arc<AtomicBool>,
}

impl Recomputation for Filled {
    fn id(&self) -> SavedBytesId {
        self.id
    }

    fn inputs(&self) -> Vec<RecomputeInput> {
        self.of.iter().map(|(id, of)| RecomputeInput { id: *id, here: of.upgrade(), recompute: None }).collect()
    }

    fn run(&self, _: &dyn KnownBytes) -> Result<Storage, Box<dyn Error + Send + Sync>> {
        if self.of.as_ref().is_some_and(|(_, of)| of.upgrade().is_none()) {
            return Err("what it is made of is gone".into());
        }
        if self.is_overwritten.load(Ordering::Relaxed) {
            return Err("what it is made of was written to".into());
        }
        let again = storage(BYTES)?;
        fill(&again, self.number);
        Ok(again)
    }
}

/// Saves layers that can be recomputed from the input `of`.
fn save_layers(
    engine: &Engine,
    of: Option<&(SavedBytesId, WeakStorage)>,
    is_overwritten: &Arc<AtomicBool>,
) -> Vec<Arc<SavedHandle>> {
    (0..LAYERS as u8)
        .map(|number| {
            let out = storage(BYTES).unwrap();
            fill(&out, number);
            let id = (out.generation(), 0);
            engine.operation(id, None);
            let filled = Filled { id, number, of: of.cloned(), is_overwritten: Arc::clone(is_overwritten) };
            let again = Some(Arc::new(filled) as Arc<dyn Recomputation>);
            engine.save(&out, 0, DType::U8, None, again, || format!("layer {number}")).unwrap().unwrap()
        })
        .collect()
}

#[test]
fn operations_are_told_of_that_a_plan_repeats_and_no_others() {
    let _one = ONE.lock();
    let engine = engine((LAYERS + 2) * BYTES / 2, 256 * MIB);
    for number in 0..3 {
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        let (mut saved, mut repeated) = (Vec::new(), 0);
        for layer in 0..LAYERS as u8 {
            let out = storage(BYTES).unwrap();
            fill(&out, layer);
            let id = (out.generation(), 0);
            let [is_other_told, is_repeated] = [None, Some(id)].map(|made| {
                let is_told = engine.listens() && engine.count_next_operation();
                match made {
                    Some(id) if is_told => engine.operation(id, None),
                    _ if is_told => engine.begin_operation(None),
                    _ => {}
                }
                is_told
            });
            repeated += u64::from(is_repeated);
            // Nothing that the other operation makes is saved.
            assert_eq!(is_other_told, number == 0);
            let again = is_repeated.then(|| {
                Arc::new(Filled { id, number: layer, of: None, is_overwritten: Arc::default() })
                    as Arc<dyn Recomputation>
            });
            saved.push(engine.save(&out, 0, DType::U8, None, again, || format!("layer {layer}")).unwrap().unwrap());
        }
        for layer in (0..LAYERS as u8).rev() {
            let token = saved.pop().unwrap();
            let out = engine.need(&token, None).unwrap();
            let out = out.lock();
            // SAFETY: the storage is not written to any more.
            assert!(unsafe { out.as_slice() }.iter().all(|byte| *byte == layer));
        }
        let report = step.finish().unwrap();
        match number {
            0 => assert_eq!(repeated, LAYERS),
            _ => {
                assert!(report.is_planned && repeated > 0);
                assert_eq!(report.recomputed_bytes, repeated * BYTES);
            }
        }
    }
}

/// An input that was there at the end of the measured step may be released earlier in later steps.
#[test]
fn a_dropped_tensor_keeps_its_inputs() {
    let _one = ONE.lock();
    let engine = engine((LAYERS + 2) * BYTES / 2, 256 * MIB);
    let take = |until_given_up: bool, until_needed: bool| {
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        let mut seed = Some(storage(1).unwrap());
        let of = seed.as_ref().map(|seed| ((seed.generation(), 0), seed.downgrade()));
        seed.take_if(|_| !until_given_up);
        let mut saved = save_layers(&engine, of.as_ref(), &Arc::default());
        seed.take_if(|_| !until_needed);
        for number in (0..LAYERS as u8).rev() {
            let out = engine.need(&saved.pop().unwrap(), None).unwrap();
            let out = out.lock();
            // SAFETY: the storage is not written to any more.
            assert!(unsafe { out.as_slice() }.iter().all(|byte| *byte == number));
        }
        let report = step.finish().unwrap();
        (report.is_planned, report.recomputed_bytes > 0, of.unwrap().1.upgrade().is_some())
    };
    assert_eq!(take(true, true), (false, false, true));
    assert_eq!(take(true, true), (true, true, true));
    assert_eq!(take(true, false), (true, true, false));
    assert_eq!(take(false, false), (true, false, false));
}

#[test]
fn nothing_is_recomputed_from_bytes_after_a_write_to_them() {
    let _one = ONE.lock();
    let engine = engine((LAYERS + 2) * BYTES / 2, 256 * MIB);
    // A step in which the input of all layers is written to before the layer `written_at` is needed.
    let take = |written_at: u64| {
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        let seed = storage(1).unwrap();
        let of = Some(((seed.generation(), 0), seed.downgrade()));
        let is_overwritten = Arc::<AtomicBool>::default();
        let mut saved = save_layers(&engine, of.as_ref(), &is_overwritten);
        for layer in (0..LAYERS).rev() {
            if layer == written_at {
                engine.before_write(&seed, 0, None).unwrap();
                is_overwritten.store(true, Ordering::Relaxed);
            }
            let out = engine.need(&saved.pop().unwrap(), None).unwrap();
            let out = out.lock();
            // SAFETY: the storage is not written to any more.
            assert!(unsafe { out.as_slice() }.iter().all(|byte| u64::from(*byte) == layer));
        }
        step.finish().unwrap()
    };
    let early = LAYERS - 3;
    assert!(!take(early).is_planned);
    // Three layers are needed before the write. The others, which the budget has no room for, are spilled.
    let report = take(early);
    assert!(report.is_planned && report.spilled_bytes > 0 && report.recomputed_bytes <= 2 * BYTES, "{report:?}");

    // Where a write comes earlier than it was measured, layers that were dropped come back before it.
    engine.forget();
    assert!(!take(0).is_planned);
    let report = take(1);
    assert!(report.is_planned && report.recomputed_bytes > 0, "{report:?}");
    assert_eq!(take(LAYERS - 1).recomputed_bytes, report.recomputed_bytes);
}

#[test]
fn residents_leave_between_their_uses_and_come_back_as_they_were_given_back() {
    let _one = ONE.lock();
    // The budget has room for half of all residents, and for what a layer takes.
    let budget = LAYERS * BYTES / 2 + 4 * BYTES;
    let engine = engine(budget, 512 * MIB);
    engine.enforce().unwrap();
    let resident = |layer: u64| {
        let bytes = storage(BYTES).unwrap();
        fill(&bytes, layer as u8);
        engine.keep(bytes, DType::U8, None, format!("state {layer}")).unwrap()
    };
    // The residents are more than there is room for, even before the first step.
    let residents: Vec<Resident> = (0..LAYERS).map(resident).collect();
    for number in 0..5 {
        reset(&engine);
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        for layer in (0..LAYERS).rev() {
            let bytes = engine.lend(&residents[layer as usize], None).unwrap();
            {
                let bytes = bytes.lock();
                // SAFETY: the resident is lent to this test alone.
                let bytes = unsafe { slice::from_raw_parts_mut(bytes.as_ptr(), bytes.bytes()) };
                assert!(bytes.iter().all(|byte| u64::from(*byte) == layer + number), "{number}: {layer}");
                bytes.iter_mut().for_each(|byte| *byte += 1);
            }
            drop(storage(BYTES).unwrap());
            engine.give_back(&residents[layer as usize], bytes, None).unwrap();
            compute(Duration::from_millis(2));
        }
        let report = step.finish().unwrap();
        assert!(peak(&engine) <= budget, "step {number}: {} of {budget}", peak(&engine));
        assert_eq!((report.is_planned, report.unplanned), (number > 0, 0), "{number}: {report:?}");
        // From the third step on, residents that the plan keeps stay in memory.
        assert!(number < 2 || (1..LAYERS * BYTES).contains(&report.spilled_bytes), "{report:?}");
    }
    let bytes = engine.look_at(&residents[3], None).unwrap();
    let bytes = bytes.lock();
    // SAFETY: the storage is not written to.
    assert_eq!(unsafe { bytes.as_slice() }[0], 8);
}

#[test]
fn where_others_take_room_what_is_needed_last_leaves_first() {
    let _one = ONE.lock();
    let engine = engine((LAYERS + 4) * BYTES, 512 * MIB);
    let resident = |layer| engine.keep(storage(BYTES).unwrap(), DType::U8, None, format!("state {layer}")).unwrap();
    let residents: Vec<Resident> = (0..LAYERS).map(resident).collect();
    let step = |others: u64| {
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        let others = (others > 0).then(|| storage(others).unwrap());
        for resident in &residents {
            let bytes = engine.lend(resident, None).unwrap();
            engine.give_back(resident, bytes, None).unwrap();
        }
        drop(others);
        step.finish().unwrap()
    };
    step(0);
    assert_eq!((step(0).is_planned, step(0).spilled_bytes), (true, 0));
    let recorder = StepRecorder::begin(&engine, Duration::from_millis(1));
    assert!(step(7 * BYTES).unplanned > 0);
    let record = recorder.finish();
    assert_eq!(
        record.saved.iter().min_by_key(|record| record.spilled.map_or(u64::MAX, |(at_us, _)| at_us)).unwrap().name,
        format!("state {}", LAYERS - 1)
    );
}

#[test]
fn a_budget_that_is_too_small_is_refused_by_what_would_do() {
    let _one = ONE.lock();
    let engine = engine(2 * BYTES, 256 * MIB);
    step(&engine, Pass::Budgeted, LAYERS).unwrap();
    let error = engine.check().unwrap_err();
    let OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) = error else { panic!("{error}") };
    // 1 MiB is for other threads.
    assert_eq!(least_bytes, 3 * BYTES + MIB);
}

#[test]
fn a_disk_that_is_too_small_is_an_error_before_a_step_that_would_keep_to_the_budget() {
    let _one = ONE.lock();
    let engine = engine(6 * BYTES, 5 * BYTES);
    // In a measured step, tensors that find no room on the disk stay in memory.
    let report = step(&engine, Pass::Budgeted, LAYERS).unwrap();
    assert_eq!(report.spilled_bytes, 5 * BYTES);
    assert!(report.peak_bytes.unwrap() > 6 * BYTES, "{report:?}");
    let error = step(&engine, Pass::Budgeted, LAYERS).unwrap_err();
    let OffloadError::NoPlan { budget_bytes, ref when, saved_bytes, ref rooms } = error else { panic!("{error}") };
    assert_eq!((budget_bytes, saved_bytes), (6 * BYTES, LAYERS * BYTES));
    assert_eq!(*rooms, format!("disk in {} takes {}", std::env::temp_dir().display(), 5 * BYTES));
    assert!(when.contains("layer "), "{error}");
    // A larger budget has room for the tensors that stay and for what is computed.
    engine.set_budget(11 * BYTES);
    assert!(step(&engine, Pass::Budgeted, LAYERS).unwrap().is_planned);
}

#[test]
fn a_record_says_what_became_of_what_was_saved_and_where_it_was() {
    let _one = ONE.lock();
    let budget = (LAYERS + 2) * BYTES / 2;
    let engine = engine(budget, 256 * MIB);
    step(&engine, Pass::Budgeted, LAYERS).unwrap();
    let recorder = StepRecorder::begin(&engine, Duration::from_micros(200));
    let report = step_back_to(&engine, Pass::Budgeted, LAYERS, 0, || recorder.look()).unwrap();
    let record = recorder.finish();

    assert_eq!((record.saved.len() as u64, record.budget_bytes), (LAYERS, Some(budget)));
    let spilled: Vec<&SavedRecord> =
        record.saved.iter().filter(|saved| saved.fate() == Fate::Spilled(Destination::Disk)).collect();
    assert_eq!(spilled.iter().map(|saved| saved.bytes).sum::<u64>(), report.spilled_bytes);
    for (layer, saved) in record.saved.iter().enumerate() {
        assert_eq!((saved.name.clone(), saved.bytes), (format!("layer {layer}"), BYTES));
        assert!(
            saved.saved_us <= saved.needed_us.unwrap() && saved.needed_us.unwrap() <= record.elapsed_us,
            "{saved:?}"
        );
        let Some((left, _)) = saved.spilled else { continue };
        assert!(saved.saved_us <= left && left <= saved.fetched_us.unwrap(), "{saved:?}");
    }
    let most = |bytes: fn(&TierMoment) -> u64| record.moments.iter().map(bytes).max().unwrap();
    assert!(most(|moment| moment.memory_bytes) <= budget && most(|moment| moment.memory_bytes) > 0);
    assert!(most(|moment| moment.disk_bytes) > 0);
    let [first, last] = [record.moments.first().unwrap(), record.moments.last().unwrap()];
    assert_eq!(last.disk_read - first.disk_read, report.fetched_bytes);
    assert!(record.moments.is_sorted_by_key(|moment| (moment.at_us, moment.disk_write)));
    // There is no record any more.
    step(&engine, Pass::Budgeted, LAYERS).unwrap();
}

/// Returns an element of a layer's output, like that of a ReLU: half of the elements are 0, and the others lie in a
/// narrow range.
fn element(layer: u64, number: usize) -> f32 {
    let mixed = (number as u32 ^ (layer as u32) << 24).wrapping_mul(0x9e37_79b9) >> 8;
    if number.is_multiple_of(2) { 0.0 } else { 1.0 + mixed as f32 / (1 << 24) as f32 }
}

/// Runs a forward and a backward pass over layers of such elements. Passes each fetched element to `check`, with the
/// saved one.
fn sparse_step(engine: &Engine, pass: Pass, check: impl Fn(f32, f32)) -> StepReport {
    let step = engine.begin(SPARSE, pass).unwrap();
    let elements = BYTES as usize / 4;
    let save = |layer| {
        let out = storage(BYTES).unwrap();
        let bytes: Vec<u8> = (0..elements).flat_map(|number| element(layer, number).to_le_bytes()).collect();
        // SAFETY: the test is the only user of the storage.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.lock().as_ptr(), bytes.len()) };
        engine.save(&out, 0, DType::F32, None, None, || format!("layer {layer}")).unwrap().unwrap()
    };
    let saved: Vec<Arc<SavedHandle>> = (0..SPARSE).map(save).collect();
    for (layer, token) in saved.into_iter().enumerate().rev() {
        let out = engine.need(&token, None).unwrap();
        let out = out.lock();
        // SAFETY: the storage is not written to any more.
        for (number, bytes) in unsafe { out.as_slice() }.chunks_exact(4).enumerate() {
            check(f32::from_le_bytes(bytes.try_into().unwrap()), element(layer as u64, number));
        }
    }
    step.finish().unwrap()
}

#[test]
fn a_disk_that_is_too_small_for_what_must_go_is_refused_by_the_plan_though_it_gets_smaller_there() {
    let _one = ONE.lock();
    let engine = engine(u64::MAX, 3 * BYTES);
    engine.set_codec(Choice::Codec(Codec::Zeros));
    sparse_step(&engine, Pass::Plain, |_, _| ());
    engine.set_budget(3 * BYTES);
    let error = engine.begin(SPARSE, Pass::Budgeted).err().unwrap();
    assert!(matches!(error, OffloadError::NoPlan { .. }), "{error}");
}

#[test]
fn codecs_shrink_spilled_bytes_and_only_lossy_ones_change_them() {
    let _one = ONE.lock();
    for name in ["zeros", "planes", "auto", "fp16", "csr-fp16"] {
        let choice: Choice = name.parse().unwrap();
        let engine = engine(SPARSE * BYTES / 2, 256 * MIB);
        engine.set_codec(choice);
        for number in 0..2 {
            let report = sparse_step(&engine, Pass::Budgeted, |found, stored| match choice.is_lossy() {
                false => assert_eq!(found.to_bits(), stored.to_bits(), "{name}"),
                // f16 has 1024 numbers from 1 to 2.
                true => assert!((found - stored).abs() <= 1.0 / 2048.0, "{name}"),
            });
            assert_eq!((report.codec, report.is_planned), (choice, number > 0));
            assert!(report.spilled_bytes > 0 && report.fetched_bytes > 0, "{report:?}");
        }
        let disk = engine.mover().disk().unwrap().statistics();
        let ratio = disk.raw_bytes as f64 / disk.written_bytes as f64;
        let expected = match choice {
            // The codec depends on how much time compression is worth here.
            Choice::Auto => 1.0..2.0,
            Choice::Codec(Codec::Zeros) => 1.8..2.0,
            Choice::Codec(Codec::Planes) => 1.05..1.6,
            Choice::Codec(Codec::Fp16) => 1.9..2.0,
            Choice::Codec(_) => 3.0..4.0,
        };
        assert!(expected.contains(&ratio), "{name}: {ratio}");
    }
}

/// The recipe of one of several tensors that are made from bytes which nothing saves.
struct Shared {
    id: SavedBytesId,
    number: u8,
    /// The bytes on the way, and how often they were computed.
    of: SavedBytesId,
    computed: Arc<AtomicU64>,
}

impl Recomputation for Shared {
    fn id(&self) -> SavedBytesId {
        self.id
    }

    fn inputs(&self) -> Vec<RecomputeInput> {
        if self.id == self.of {
            return Vec::new();
        }
        let way = Self { id: self.of, number: self.number, of: self.of, computed: Arc::clone(&self.computed) };
        vec![RecomputeInput { id: self.of, here: None, recompute: Some(Arc::new(way)) }]
    }

    fn run(&self, known: &dyn KnownBytes) -> Result<Storage, Box<dyn Error + Send + Sync>> {
        if known.find(self.of)?.is_none() {
            self.computed.fetch_add(1, Ordering::Relaxed);
            known.made(self.of, &storage(BYTES)?);
        }
        let again = storage(BYTES)?;
        fill(&again, self.number);
        Ok(again)
    }
}

#[test]
fn what_several_dropped_tensors_are_made_from_is_computed_once_more_for_all() {
    let _one = ONE.lock();
    // No tensor fits the disk.
    let engine = engine(6 * BYTES, MIB);
    let computed = Arc::new(AtomicU64::new(0));
    for number in 0..4 {
        let step = engine.begin(0, Pass::Budgeted).unwrap();
        let mut saved = Vec::new();
        let mut of = None;
        for layer in 0..LAYERS as u8 {
            // Two neighbours have it in common.
            if layer % 2 == 0 {
                let way = storage(BYTES).unwrap();
                let id = (way.generation(), 0);
                engine.operation(id, None);
                of = Some(id);
            }
            let out = storage(BYTES).unwrap();
            fill(&out, layer);
            let id = (out.generation(), 0);
            engine.operation(id, None);
            let again = Shared { id, number: layer, of: of.unwrap(), computed: Arc::clone(&computed) };
            let again = Some(Arc::new(again) as Arc<dyn Recomputation>);
            saved.push(engine.save(&out, 0, DType::U8, None, again, || format!("layer {layer}")).unwrap().unwrap());
            compute(Duration::from_millis(1));
        }
        computed.store(0, Ordering::Relaxed);
        for layer in (0..LAYERS as u8).rev() {
            let out = engine.need(&saved.pop().unwrap(), None).unwrap();
            let out = out.lock();
            // SAFETY: the storage is not written to any more.
            assert!(unsafe { out.as_slice() }.iter().all(|byte| *byte == layer));
        }
        let report = step.finish().unwrap();
        let again = report.recomputed_bytes / BYTES;
        if number > 0 {
            let computed = computed.load(Ordering::Relaxed);
            assert!(report.is_planned && again > LAYERS / 2, "{again}");
            assert!(computed <= LAYERS / 2, "{computed} of {again} in step {number}");
        }
    }
}
