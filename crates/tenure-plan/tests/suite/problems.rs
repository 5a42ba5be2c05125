//! Tests of problems as files, and of the placements that simple rules make.

use crate::drawn::tensor;
use proptest::prelude::*;
use tenure_core::{StreamId, Tag};
use tenure_plan::problem::{
    ProblemAccess, ProblemKernel, ProblemLink, ProblemParts, ProblemRecompute, ProblemTensor, ProblemTier,
};
use tenure_plan::{FixedPlacement, Problem, Rule, Settings, Trace, TraceAction, TraceEvent};

fn kernel(name: &str, reads: &[(usize, u64)], writes: &[(usize, u64)]) -> ProblemKernel {
    let all = |list: &[(usize, u64)]| {
        list.iter().map(|(tensor, bytes)| ProblemAccess { tensor: *tensor, bytes: *bytes }).collect()
    };
    ProblemKernel { name: name.into(), time_ns: 100, reads: all(reads), writes: all(writes) }
}

/// Makes a weight that is read twice, and two activations, one after the other.
fn parts() -> ProblemParts {
    ProblemParts {
        name: "small".into(),
        source: "by hand".into(),
        tiers: vec![
            ProblemTier {
                name: "fast".into(),
                capacity: Some(100),
                is_reachable: true,
                read_bandwidth: 1000,
                write_bandwidth: 500,
                latency_ns: 3,
                loaded: vec![[0.5, 1.0], [1.0, 2.5]],
            },
            ProblemTier {
                name: "slow".into(),
                capacity: None,
                is_reachable: false,
                read_bandwidth: 10,
                write_bandwidth: 5,
                latency_ns: 30,
                loaded: vec![],
            },
        ],
        links: vec![
            ProblemLink { from: 0, to: 1, bandwidth: 7, shared_with: None },
            ProblemLink { from: 1, to: 0, bandwidth: 7, shared_with: Some(0) },
        ],
        tensors: vec![
            tensor("weight", 60, Tag::Weight),
            tensor("first", 40, Tag::Activation),
            ProblemTensor {
                compression: Some(2.0),
                recompute: Some(ProblemRecompute { time_ns: 50, inputs: vec![0, 1] }),
                ..tensor("second", 30, Tag::Activation)
            },
            tensor("unused", 5, Tag::Unknown),
        ],
        kernels: vec![
            kernel("begin", &[(0, 60)], &[(1, 40)]),
            kernel("go on", &[(0, 60), (1, 40)], &[(2, 90)]),
            kernel("end", &[(2, 30)], &[]),
        ],
        backward: None,
    }
}

#[test]
fn lives_and_accesses_follow_from_kernels() {
    let problem = Problem::new(parts()).unwrap();
    let lives: Vec<_> = (0..4).map(|number| problem.lifetime(number)).collect();
    assert_eq!(lives, [Some(0..=2), Some(0..=1), Some(1..=2), None]);
    assert_eq!((0..4).map(|number| problem.accessed_bytes(number)).collect::<Vec<_>>(), [120, 80, 120, 0]);
    assert_eq!((problem.live_bytes(|_| true), problem.peak_bytes()), (vec![100, 130, 90], 130));
    assert_eq!(problem.live_bytes(|tensor| tensor == 1), [40, 40, 0]);
}

#[test]
fn rules_fill_the_fast_tier() {
    let problem = Problem::new(parts()).unwrap();
    let found = |rule: Rule, capacity| {
        let placement = rule.place(&problem, capacity);
        assert!(placement.peak_bytes(&problem) <= capacity);
        (0..4).filter(|tensor| placement.is_fast(*tensor)).collect::<Vec<_>>()
    };
    assert_eq!(Rule::Density.order(&problem), [2, 1, 0]);
    assert_eq!(Rule::Hotness.order(&problem), [2, 0, 1]);
    assert_eq!(found(Rule::FirstTouch, 100), [0, 1]);
    assert_eq!(found(Rule::ActivationsFirst, 90), [1, 2]);
    assert_eq!(found(Rule::WeightsFirst, 90), [0, 2]);
    assert_eq!(found(Rule::Density, 40), [2]);
    assert_eq!(found(Rule::Density, 0), [0; 0]);
    assert_eq!(Rule::Hotness.place(&problem, 130).score(&problem), 1.0);
    assert_eq!(Rule::WeightsFirst.place(&problem, 90).score(&problem), 0.75);
}

#[test]
fn tensors_without_room_go_to_the_next_reachable_tier() {
    let mut parts = parts();
    let tier = |name: &str, capacity| ProblemTier { name: name.into(), capacity, ..parts.tiers[0].clone() };
    let more = [tier("beside", Some(60)), tier("far", None)];
    parts.tiers.extend(more);
    let problem = Problem::new(parts).unwrap();
    // The weight fills the third tier; kernels do not reach the second.
    assert_eq!(Rule::WeightsFirst.place(&problem, 0).plan().places[..3], [2, 3, 3]);
    assert_eq!(Rule::WeightsFirst.place(&problem, 60).plan().places[..3], [0, 2, 3]);
}

#[test]
fn a_file_says_all_and_appears_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.json");
    let problem = Problem::new(parts()).unwrap();
    problem.write(&path).unwrap();
    assert_eq!(Problem::read(&path).unwrap(), problem);
    let error = problem.write(folder.path().join("missing/small.json")).unwrap_err().to_string();
    assert!(error.contains("missing/small.json: "), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn an_invalid_part_is_refused_with_its_place() {
    let refused = |change: &dyn Fn(&mut ProblemParts), expected: &[&str]| {
        let mut parts = parts();
        change(&mut parts);
        let error = Problem::new(parts).unwrap_err().to_string();
        assert!(expected.iter().all(|expected| error.contains(expected)), "{error}");
        assert_eq!(error.lines().count(), 1);
    };
    refused(&|parts| parts.tensors[1].key = "weight".into(), &["tensor 1, \"weight\"", "no other tensor"]);
    refused(&|parts| parts.tensors[1].key.clear(), &["tensor 1"]);
    refused(&|parts| parts.tensors[0].bytes = u64::MAX, &["64 bits"]);
    refused(&|parts| parts.tensors[2].compression = Some(0.5), &["compression is 0.5"]);
    refused(&|parts| parts.tensors[2].recompute.as_mut().unwrap().inputs.push(2), &["computed again from tensor 2"]);
    refused(
        &|parts| parts.kernels[1].reads[0].tensor = 4,
        &["kernel 1, \"go on\"", "tensor 4 does not exist: there are 4"],
    );
    refused(&|parts| parts.kernels[1].reads[0].bytes = u64::MAX, &["64 bits"]);
    refused(&|parts| parts.kernels[0].time_ns = u64::MAX, &["64 bits"]);
    refused(&|parts| parts.tiers[0].write_bandwidth = 0, &["tier 0, \"fast\"", "bandwidth is 0"]);
    refused(&|parts| parts.tiers[0].loaded[1][1] = 0.5, &["both rising"]);
    refused(&|parts| parts.tiers[0].loaded[0][0] = f64::NAN, &["both rising"]);
    refused(&|parts| parts.links[1].to = 2, &["link 1", "from tier 1 to 2"]);
    refused(&|parts| parts.links[1].shared_with = Some(1), &["share its bandwidth with link 1"]);
}

#[test]
fn texts_that_are_no_problem_are_refused() {
    for (text, expected) in [
        ("", "line 1 column 0"),
        ("[]", "neither a problem nor a kernel trace"),
        ("{}", "missing field `name`"),
        (
            r#"{"format": "tenure-problem", "version": 2}"#,
            "version 2 of the format is not known: this program reads version 1",
        ),
        (r#"{"format": "tenure-problem", "version": 1, "name": "x", "tensors": [], "kernels": [], "more": 1}"#, "more"),
        (r#"{"name": "x", "tensors": [], "kernels": [], "more\n\r\u0085": 1}"#, "unknown field `more   `"),
        (
            r#"{"format": "tenure-problem", "version": 1, "name": "", "kernels": [],
                "tensors": [{"key": "a", "bytes": 1, "tag": "scratch"}]}"#,
            "unknown tag \"scratch\": use one of unknown, weight, activation, gradient, optimizer_state, input, workspace at line 2",
        ),
        (
            r#"{"name": "x", "tensors": [], "kernels": [{"name": "k", "time_ns": 1, "inputs": [7], "outputs": []}]}"#,
            "id 7",
        ),
        (
            r#"{"name": "x", "kernels": [],
                "tensors": [{"id": 1, "bytes": 1, "role": "input"}, {"id": 1, "bytes": 1, "role": "input"}]}"#,
            "another tensor has its id",
        ),
    ] {
        let error = Problem::from_json(text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
}

#[test]
fn the_documented_example_is_a_problem() {
    let text = include_str!("../../../../docs/reference/problem-format.md");
    let example = text.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let problem = Problem::from_json(example).unwrap();
    assert_eq!((problem.name(), problem.tiers().len(), problem.links()[1].shared_with), ("small", 2, Some(0)));
    assert_eq!((problem.peak_bytes(), problem.all_accessed_bytes()), (100_000_000, 200_000_000));
    assert_eq!(problem.tensors()[1].recompute, Some(ProblemRecompute { time_ns: 50_000, inputs: vec![0] }));
}

proptest! {
    #[test]
    fn any_order_fits(
        sizes in prop::collection::vec(0_u64..100, 1..12),
        uses in prop::collection::vec((0_usize..12, 0_usize..12), 1..20),
        order in prop::collection::vec(0_usize..12, 0..30),
        capacity in 0_u64..400,
    ) {
        let count = sizes.len();
        let tensors = sizes.iter().enumerate().map(|(number, bytes)| {
            tensor(&number.to_string(), *bytes, if number % 3 == 0 { Tag::Weight } else { Tag::Activation })
        });
        let kernels = uses.iter().map(|(from, to)| {
            let from = from % count;
            let to = to % count;
            kernel("k", &[(from, sizes[from])], &[(to, sizes[to])])
        });
        let parts = ProblemParts { tensors: tensors.collect(), kernels: kernels.collect(), ..ProblemParts::default() };
        let problem = Problem::new(parts).unwrap();
        let placement = FixedPlacement::first_fit(&problem, order.iter().map(|number| number % count), capacity);
        prop_assert!(placement.peak_bytes(&problem) <= capacity);
        prop_assert!((0.0..=1.0).contains(&placement.score(&problem)));
        // Every tensor that was left out did not fit.
        let used = problem.live_bytes(|tensor| placement.is_fast(tensor));
        for number in order.iter().map(|number| number % count).filter(|number| !placement.is_fast(*number)) {
            let Some(life) = problem.lifetime(number) else { continue };
            prop_assert!(used[life].iter().any(|used| used + sizes[number] > capacity));
        }
        let everything = Rule::ALL.map(|rule| rule.place(&problem, problem.peak_bytes()).score(&problem));
        prop_assert!(everything.iter().all(|score| *score == 1.0));
    }
}

#[test]
fn a_trace_tells_when_blocks_are_there() {
    let event = |time_us, action, address, bytes| TraceEvent { time_us, address, bytes, stream: StreamId(0), action };
    let events = vec![
        event(10, TraceAction::SegmentAlloc, 0, 4096),
        event(20, TraceAction::Alloc, 0, 100),
        event(25, TraceAction::Alloc, 512, 300),
        event(30, TraceAction::Alloc, 1024, 100),
        event(31, TraceAction::FreeRequested, 512, 300),
        event(31, TraceAction::FreeCompleted, 512, 300),
        event(40, TraceAction::Alloc, 512, 300),
        event(47, TraceAction::FreeRequested, 1024, 100),
    ];
    let trace = Trace::new("steps", 0, Settings::default(), events).unwrap();
    let problem = Problem::of_trace(&trace).unwrap();
    assert_eq!((problem.name(), problem.peak_bytes()), ("steps", 100 + 300 + 100 + 300));
    let keys: Vec<&str> = problem.tensors().iter().map(|tensor| &*tensor.key).collect();
    assert_eq!(keys, ["100#0", "300#0", "100#1", "300#1"]);
    // The first and the last were never freed.
    let lives: Vec<_> = (0..4).map(|tensor| problem.lifetime(tensor)).collect();
    assert_eq!(lives, [Some(0..=3), Some(1..=2), Some(2..=3), Some(0..=3)]);
    let times: Vec<u64> = problem.kernels().iter().map(|kernel| kernel.time_ns).collect();
    assert_eq!(times, [5000, 5000, 10_000, 7000]);
    assert_eq!(problem.kernels()[3].reads, [ProblemAccess { tensor: 2, bytes: 100 }]);
}

#[test]
fn recorded_traces_are_problems_of_no_smaller_peak() {
    let trace = Trace::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz")).unwrap();
    let problem = Problem::of_trace(&trace).unwrap();
    // A block that is never freed counts from the beginning.
    let summary = trace.summary();
    assert!(
        problem.peak_bytes() >= summary.peak_requested_bytes && problem.peak_bytes() < 2 * summary.peak_requested_bytes
    );
    let half = problem.clone().with_fast_bytes(problem.peak_bytes() / 2);
    let density = Rule::Density.place(&half, problem.peak_bytes() / 2);
    assert!(density.score(&half) > 0.5 && density.peak_bytes(&half) <= problem.peak_bytes() / 2);
}
