//! Tests of placements and recorders: where allocations go, which are refused, and what is reported.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tenure_core::{AllocatorError, AllocatorScope, Clock, Context, DataPtr, Device, KeyId, Name, Purpose, Site, Tag};
use tenure_plan::problem::{ProblemKernel, ProblemParts, ProblemTier};
use tenure_plan::{Mapping, Problem, Rule};
use tenure_tier::{Medium, Placement, PlacementOptions, RecordedEvent, Recorder, TagReport, Tier, TierError, WhenFull};

const MIB: u64 = 1 << 20;

fn mapping(places: &[(&str, usize)]) -> Mapping {
    let places = places.iter().map(|(key, tier)| ((*key).to_owned(), *tier)).collect();
    Mapping::new("test", vec!["fast".into(), "slow".into()], places).unwrap()
}

fn tiers() -> Vec<Tier> {
    vec![
        Tier::open("fast", &Medium::Dram, Some(MIB)).unwrap(),
        Tier::open("slow", &Medium::Path(std::env::temp_dir()), Some(MIB)).unwrap(),
    ]
}

fn placement(places: &[(&str, usize)], options: PlacementOptions) -> Placement {
    Placement::open(mapping(places), tiers(), options).unwrap()
}

/// Allocates as a tensor does.
fn allocate(bytes: usize) -> Result<DataPtr, AllocatorError> {
    AllocatorScope::current(Device::CPU).expect("the thread's").allocate(bytes)
}

/// Allocates the result of an operation of a module.
fn result(module: &str, op: &'static str, bytes: usize) -> Result<DataPtr, AllocatorError> {
    let _purpose = Purpose::enter(Tag::Activation, KeyId::NONE);
    let _module = Site::enter_module(Name::new(module));
    let _op = Site::enter_operation(Name::of(op));
    allocate(bytes)
}

/// Allocates the gradient of a module's weight.
fn gradient() -> DataPtr {
    let key = tenure_core::Key { module: "a".into(), op: "backward".into(), role: "weight".into(), occurrence: 0 };
    let _purpose = Purpose::enter(Tag::Gradient, KeyId::intern(key));
    allocate(400).unwrap()
}

fn is_in(tier: &Tier, block: &DataPtr) -> bool {
    tier.addresses().contains(&(block.as_ptr().addr() as u64))
}

#[test]
fn every_key_lives_in_its_tier_and_what_has_no_place_in_the_first() {
    let placement = placement(&[("a/linear/out#0", 1), ("b/linear/out#0", 0)], PlacementOptions::default());
    let _entered = placement.enter();
    let [fast, slow] = placement.tiers() else { panic!("two tiers") };
    let blocks =
        [result("a", "linear", 100).unwrap(), result("b", "linear", 200).unwrap(), result("c", "relu", 50).unwrap()];
    assert!(is_in(slow, &blocks[0]) && is_in(fast, &blocks[1]) && is_in(fast, &blocks[2]));

    let report = placement.report();
    let all = |bytes, unmapped| TagReport { bytes, verified: bytes - unmapped, unmapped, missed: 0 };
    assert_eq!([report.of("fast", Tag::Activation), report.of("slow", Tag::Activation)], [all(250, 50), all(100, 0)]);
    // A tensor without a place is not misplaced, and does not count for the mapping either.
    assert_eq!((report.verified_share, report.mapped_share, report.unmapped_bytes), (1.0, 300.0 / 350.0, 50));
    assert!(report.to_string().contains("100.00 % of tagged bytes with a place"), "{report}");
    assert!(report.to_string().contains("85.71 % have a place, and 50 bytes have none"), "{report}");
    assert_eq!((report.keys.came, &report.keys.unmapped[..]), (2, &["c/relu/out#0".to_owned()][..]));
    assert!(placement.check_all_came().is_ok());
}

#[test]
fn a_thread_that_did_not_enter_is_not_placed() {
    let placement = placement(&[], PlacementOptions::default());
    assert!(AllocatorScope::current(Device::CPU).is_none());
    let entered = placement.enter();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(AllocatorScope::current(Device::CPU).is_none()));
        let context = Context::capture();
        scope.spawn(move || {
            let _entered = context.enter();
            assert!(AllocatorScope::current(Device::CPU).is_some());
        });
    });
    drop(entered);
    assert!(AllocatorScope::current(Device::CPU).is_none());
}

#[test]
fn the_slow_tier_is_labelled_in_every_output() {
    let placement = placement(&[], PlacementOptions::default());
    if !placement.tiers()[1].nature().is_emulated() {
        eprintln!("skipped: {} is persistent memory", std::env::temp_dir().display());
        return;
    }
    let report = placement.report();
    assert!(report.is_emulated && report.tiers[1].is_emulated && !report.tiers[0].is_emulated);
    assert!(report.to_string().contains("slow: EMULATED persistent memory, an ordinary file on"));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["tiers"][1]["is_emulated"], true);
    assert!(json["tiers"][1]["nature"].as_str().unwrap().starts_with("EMULATED"));
    let error = placement.tiers()[1].allocate_for(2 << 20, Tag::Weight, KeyId::NONE).unwrap_err().to_string();
    assert!(error.contains("EMULATED"), "{error}");
}

#[test]
fn a_full_tier_is_an_error_unless_misses_are_allowed_and_then_they_are_reported() {
    let places = [("a/linear/out#0", 1)];
    let strict = placement(&places, PlacementOptions::default());
    let entered = strict.enter();
    assert!(result("a", "linear", 2 << 20).unwrap_err().to_string().contains("tier \"slow\""));
    drop(entered);

    let lax = placement(&places, PlacementOptions { when_full: WhenFull::Miss, ..PlacementOptions::default() });
    let _entered = lax.enter();
    let _first = result("a", "linear", 600 << 10).unwrap();
    let second = result("a", "linear", 600 << 10).unwrap();
    assert!(is_in(&lax.tiers()[0], &second));
    let report = lax.report();
    let missed = TagReport { bytes: 600 << 10, verified: 0, unmapped: 0, missed: 600 << 10 };
    assert_eq!(report.of("fast", Tag::Activation), missed);
    assert!(report.verified_share <= 0.5);
    assert_eq!((&report.keys.missed[..], report.keys.missed_bytes), (&["a/linear/out#0".to_owned()][..], 600 << 10));
    // No tier has room.
    assert!(result("a", "linear", 2 << 20).is_err());
}

#[test]
fn a_strict_placement_refuses_a_key_without_a_place_and_keys_that_never_came() {
    let placement =
        placement(&[("a/linear/out#0", 1)], PlacementOptions { is_strict: true, ..PlacementOptions::default() });
    let _entered = placement.enter();
    let error = result("a", "gelu", 8).unwrap_err().to_string();
    assert!(error.contains("\"test\" has no place for \"a/gelu/out#0\""), "{error}");
    let error = placement.check_all_came().unwrap_err().to_string();
    assert!(error.starts_with("1 keys of the mapping never came, such as \"a/linear/out#0\""), "{error}");
    assert!(result("a", "linear", 8).is_ok());
    placement.check_all_came().unwrap();
    // An allocation without a key, such as a batch that is read, is allowed.
    assert!(allocate(8).is_ok());
}

#[test]
fn tiers_and_mapping_go_together() {
    let one = tiers().into_iter().take(1).collect();
    let error = Placement::open(mapping(&[]), one, PlacementOptions::default()).err().unwrap();
    assert!(matches!(error, TierError::Tiers { .. }));
    assert!(error.to_string().contains(r#"["fast", "slow"], and ["fast"] were opened"#), "{error}");
    let reversed = tiers().into_iter().rev().collect();
    assert_eq!(Placement::open(mapping(&[]), reversed, PlacementOptions::default()).unwrap().tiers()[0].name(), "fast");
}

#[test]
fn a_file_that_was_cut_is_told_and_nothing_in_it_counts_as_verified() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tier");
    let slow = Tier::open("slow", &Medium::Path(path.clone()), Some(MIB)).unwrap();
    let fast = Tier::open("fast", &Medium::Dram, Some(MIB)).unwrap();
    let placement =
        Placement::open(mapping(&[("a/linear/out#0", 1)]), vec![fast, slow], PlacementOptions::default()).unwrap();
    let _entered = placement.enter();
    let _block = result("a", "linear", 100).unwrap();
    assert_eq!(placement.report().of("slow", Tag::Activation).verified, 100);

    File::options().write(true).open(path).unwrap().set_len(MIB / 2).unwrap();
    let report = placement.report();
    assert_eq!((report.of("slow", Tag::Activation).bytes, report.of("slow", Tag::Activation).verified), (100, 0));
    let trouble = report.tiers[1].trouble.as_deref().unwrap();
    assert!(trouble.contains("cut to 524288 bytes"), "{trouble}");
}

#[test]
fn pages_of_a_node_are_looked_at() {
    let near = match Tier::open("near", &Medium::Node(0), Some(MIB)) {
        Ok(tier) => tier,
        Err(error) => {
            eprintln!("skipped: {error}");
            return;
        }
    };
    let places = BTreeMap::from([("a/linear/out#0".to_owned(), 0)]);
    let mapping = Mapping::new("test", vec!["near".into()], places).unwrap();
    let placement = Placement::open(mapping, vec![near], PlacementOptions::default()).unwrap();
    let _entered = placement.enter();
    let block = result("a", "linear", 100_000).unwrap();
    // SAFETY: the block has at least these bytes.
    unsafe { block.as_ptr().write_bytes(1, 100_000) };
    let report = placement.report();
    assert_eq!(report.of("near", Tag::Activation).verified, 100_000, "{report}");
    assert_eq!(report.tiers[0].resident, Some(100_000));
}

#[test]
fn a_problem_is_of_the_last_iteration_and_of_what_is_held_then() {
    let recorder = Recorder::new().unwrap();
    let _guard = recorder.enter();
    drop(result("a", "setup", 70).unwrap());
    let mut kept = result("a", "mean", 10).unwrap();
    for _ in 0..3 {
        recorder.begin_iteration();
        let first = result("a", "linear", 400).unwrap();
        kept = result("a", "mean", 10).unwrap();
        drop(first);
        drop(result("a", "relu", 300).unwrap());
    }
    let problem = recorder.problem("test", Vec::new(), Vec::new()).unwrap();
    let lives: BTreeMap<&str, _> = problem
        .tensors()
        .iter()
        .enumerate()
        .map(|(number, tensor)| (&*tensor.key, (tensor.bytes, problem.lifetime(number))))
        .collect();
    // The kernels are the beginning, linear, mean and relu. Two means exist at once.
    let expected = [
        ("a/linear/out#0", (400, Some(1..=2))),
        ("a/mean/out#0", (20, Some(0..=3))),
        ("a/relu/out#0", (300, Some(3..=3))),
        ("a/setup/out#0", (70, None)),
    ];
    assert_eq!(lives, BTreeMap::from(expected));
    drop(kept);
}

#[test]
fn a_recording_becomes_a_problem_and_its_plan_a_mapping() {
    let recorder = Recorder::new().unwrap();
    let guard = recorder.enter();
    let weight = {
        let key = tenure_core::Key { module: "a".into(), op: "parameter".into(), role: "weight".into(), occurrence: 0 };
        let _purpose = Purpose::enter(Tag::Weight, KeyId::intern(key));
        allocate(1000).unwrap()
    };
    drop(result("a", "linear", 400).unwrap());
    let second = result("a", "relu", 300).unwrap();
    let unnamed = allocate(50).unwrap();
    drop((second, unnamed, guard, weight));
    assert_eq!(recorder.events().iter().filter(|event| matches!(event, RecordedEvent::Freed { .. })).count(), 4);

    let tier = |name: &str, capacity| ProblemTier {
        name: name.into(),
        capacity,
        is_reachable: true,
        read_bandwidth: 1,
        write_bandwidth: 1,
        latency_ns: 0,
        loaded: Vec::new(),
    };
    let problem = recorder.problem("test", vec![tier("fast", Some(1100)), tier("slow", None)], Vec::new()).unwrap();
    let keys: BTreeMap<&str, (u64, Tag)> =
        problem.tensors().iter().map(|tensor| (&*tensor.key, (tensor.bytes, tensor.tag))).collect();
    let expected = [
        ("a/linear/out#0", (400, Tag::Activation)),
        ("a/parameter/weight#0", (1000, Tag::Weight)),
        ("a/relu/out#0", (300, Tag::Activation)),
    ];
    assert_eq!(keys, BTreeMap::from(expected));
    // The module computes twice in a row.
    let weight = problem.tensors().iter().position(|tensor| tensor.tag == Tag::Weight).unwrap();
    assert_eq!(problem.accessed_bytes(weight), 3 * 1000, "written, read by its module, and gone");
    // The first activation was freed before the second was allocated.
    assert_eq!(problem.peak_bytes(), 1400);
    let plan = Rule::WeightsFirst.place(&problem, 1100).plan();
    let mapping = Mapping::of_plan(&problem, &plan).unwrap();
    assert_eq!(mapping.place("a/parameter/weight#0"), Some(0));
    assert_eq!([mapping.place("a/linear/out#0"), mapping.place("a/relu/out#0")], [Some(1); 2]);
}

#[test]
fn kernels_of_the_recorded_problem_are_measured_in_steps_that_allocate_the_same() {
    let recorder = Recorder::new().unwrap();
    let guard = recorder.enter();
    recorder.begin_iteration();
    let blocks = [result("a", "linear", 400).unwrap(), result("a", "relu", 300).unwrap()];
    drop((blocks, guard));
    let problem = recorder.problem("test", Vec::new(), Vec::new()).unwrap();

    let placement = placement(&[("a/linear/out#0", 1)], PlacementOptions::default());
    let clock = Clock::manual();
    let step = |begin_ns, kernels: &[(&'static str, u64)]| {
        let _entered = placement.enter();
        placement.begin_iteration();
        clock.advance(Duration::from_nanos(begin_ns));
        for (op, ns) in kernels {
            let _block = result("a", op, 400).unwrap();
            clock.advance(Duration::from_nanos(*ns));
        }
    };
    step(1, &[("linear", 1), ("relu", 1)]);
    assert!(placement.kernel_times_ns().unwrap_err().to_string().contains("nothing is measured"));
    placement.measure(&problem, clock.clone());
    assert!(placement.kernel_times_ns().unwrap_err().to_string().contains("no step has begun"));
    step(5, &[("mean", 1), ("relu", 1)]);
    let error = placement.kernel_times_ns().unwrap_err().to_string();
    assert!(error.contains(r#""a/mean/out#0" where the problem has "a/linear/out#0""#), "{error}");
    step(10, &[("linear", 200), ("relu", 3000)]);
    step(5, &[("linear", 1), ("relu", 1), ("relu", 1)]);
    step(5, &[("linear", 1)]);
    step(30, &[("linear", 400), ("relu", 5000)]);
    assert_eq!(placement.kernel_times_ns().unwrap(), [20, 300, 4000]);
}

#[test]
fn an_allocation_while_another_thread_begins_a_step_belongs_to_one_of_both() {
    const ALLOCATIONS: usize = 1000;
    let kernel =
        ProblemKernel { name: "a/backward/weight#0".into(), time_ns: 1, reads: Vec::new(), writes: Vec::new() };
    let kernels = vec![kernel; ALLOCATIONS];
    let problem = Problem::new(ProblemParts { name: "test".into(), kernels, ..ProblemParts::default() }).unwrap();
    let placement = placement(&[], PlacementOptions::default());
    for _ in 0..50 {
        placement.measure(&problem, Clock::manual());
        let _entered = placement.enter();
        let all_but_one = || (1..ALLOCATIONS).for_each(|_| drop(gradient()));
        placement.begin_iteration();
        all_but_one();
        let both = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                let _entered = placement.enter();
                both.wait();
                drop(gradient());
            });
            both.wait();
            placement.begin_iteration();
        });
        all_but_one();
        assert!(placement.kernel_times_ns().is_ok(), "one of the two steps has all allocations");
    }
}

#[test]
fn the_optimizer_shares_the_end_of_a_step_with_the_last_allocation() {
    let recorder = Recorder::new().unwrap();
    let guard = recorder.enter();
    let block = gradient();
    drop(guard);
    // The gradient is written, then read by the optimizer.
    let problem = recorder.problem("test", Vec::new(), Vec::new()).unwrap();
    drop(block);

    let placement = placement(&[], PlacementOptions::default());
    let clock = Clock::manual();
    let _entered = placement.enter();
    placement.measure(&problem, clock.clone());
    placement.begin_iteration();
    let _block = gradient();
    clock.advance(Duration::from_nanos(1000));
    assert_eq!(placement.kernel_times_ns().unwrap(), [500, 500]);
}
