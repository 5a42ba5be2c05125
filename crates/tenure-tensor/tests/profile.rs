//! Tests of the profiler, on a clock that stands still between steps. A process records one profile at a time, so the
//! tests take turns.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use tenure_device::sim::SimKernel;
use tenure_tensor::observe;
use tenure_tensor::profile::{
    ActivityKind, AlreadyProfiling, CudaTimes, OUTSIDE_MEMORY, Profile, Profiler, ProfilerOptions, SortBy, Span,
    SpanEdge, SpanKind, TableOptions,
};
use tenure_tensor::{DType, Device, Tensor};

use tenure_device::Clock;

const US: Duration = Duration::from_micros(1);

fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ones(sizes: &[usize]) -> Tensor {
    Tensor::ones(sizes, DType::F32, Device::CPU).unwrap()
}

/// Records `run`, which is given the clock. The clock moves only when `run` moves it.
fn profiled(options: ProfilerOptions, run: impl FnOnce(&Clock)) -> Profile {
    let clock = Clock::manual();
    let profiler = Profiler::start(ProfilerOptions { clock: clock.clone(), ..options }).unwrap();
    run(&clock);
    profiler.stop()
}

fn named<'a>(profile: &'a Profile, name: &str) -> Vec<&'a Span> {
    profile.spans.iter().filter(|span| span.name == name).collect()
}

fn one<'a>(profile: &'a Profile, name: &str) -> &'a Span {
    let found = named(profile, name);
    assert_eq!(found.len(), 1, "{name} in {:?}", profile.spans);
    found[0]
}

fn chrome(profile: &Profile) -> Vec<Value> {
    let mut bytes = Vec::new();
    profile.chrome_trace(&mut bytes).unwrap();
    let trace: Value = serde_json::from_slice(&bytes).unwrap();
    trace["traceEvents"].as_array().unwrap().clone()
}

#[test]
fn times_of_nested_spans_add_up() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |clock| {
        clock.advance(US);
        let _step = observe::section("step");
        clock.advance(2 * US);
        for _ in 0..2 {
            let _part = observe::section("part");
            clock.advance(3 * US);
            ones(&[2]).exp().unwrap();
        }
        clock.advance(4 * US);
    });
    let step = one(&profile, "step");
    assert_eq!((step.begin, step.duration, step.own), (US, 12 * US, 6 * US));
    assert_eq!(step.kind, SpanKind::Section);
    for part in named(&profile, "part") {
        assert_eq!((part.parent, part.duration, part.own), (Some(step.id), 3 * US, 3 * US));
    }
    let exps = named(&profile, "exp");
    assert_eq!(exps.len(), 2);
    assert!(exps.iter().all(|exp| exp.kind == SpanKind::Operation && exp.parent.is_some_and(|id| id > step.id)));
    let averages = profile.averages(false);
    let part = averages.iter().find(|row| row.name == "part").unwrap();
    assert_eq!((part.calls, part.own, part.total), (2, 6 * US, 6 * US));
    assert_eq!(averages.iter().map(|row| row.own).sum::<Duration>(), step.duration);
    assert_eq!(profile.duration, 13 * US);
}

#[test]
fn a_span_within_one_of_its_name_counts_once_in_the_total() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |clock| {
        let _outer = observe::section("again");
        let _inner = observe::section("again");
        clock.advance(US);
    });
    let averages = profile.averages(false);
    assert_eq!((averages[0].calls, averages[0].own, averages[0].total), (2, US, US));
}

#[test]
fn a_deep_nesting_is_gone_through_once() {
    const DEPTH: usize = 100_000;
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |clock| {
        let sections: Vec<_> = (0..DEPTH).map(|at| observe::section(["outer", "inner"][at % 2])).collect();
        clock.advance(US);
        sections.into_iter().rev().for_each(drop);
    });
    let edges = profile.edges();
    let begins = edges.iter().take_while(|edge| matches!(edge, SpanEdge::Begin(_))).count();
    assert_eq!((edges.len(), begins), (2 * DEPTH, DEPTH));
    let ended: Vec<usize> = edges[DEPTH..].iter().map(|edge| edge_span(*edge)).collect();
    assert!(ended.into_iter().eq((0..DEPTH).rev()));
    // With a look at all spans around each span, this would take minutes.
    for row in profile.averages(false) {
        assert_eq!((row.calls, row.total), (DEPTH as u64 / 2, US), "{}", row.name);
    }
}

fn edge_span(edge: SpanEdge) -> usize {
    match edge {
        SpanEdge::Begin(at) | SpanEdge::End(at) => at,
    }
}

#[test]
fn a_formula_whose_name_says_backward_keeps_its_name() {
    let _turn = in_turn();
    let x = ones(&[3]).requires_grad_(true).unwrap();
    let y = ones(&[3]);
    tenure_tensor::autograd::attach_all(&[&y], "CubeBackward".to_owned(), &[&x], |_| {
        Ok(|context: &tenure_tensor::autograd::Context<'_>| Ok([context.grad_if_any(0).cloned()].into_iter().collect()))
    })
    .unwrap();
    let profile = profiled(ProfilerOptions::default(), |_| y.sum_all().unwrap().backward().unwrap());
    assert_eq!(one(&profile, "CubeBackward").kind, SpanKind::Backward);
    assert_eq!(named(&profile, "sum_backward").len(), 1);
}

#[test]
fn memory_freed_outside_of_all_spans_has_a_row() {
    let _turn = in_turn();
    let x = ones(&[1 << 15]);
    let y = ones(&[1 << 15]);
    let options = ProfilerOptions { profile_memory: true, ..ProfilerOptions::default() };
    let profile = profiled(options, |_| {
        drop(x);
        drop(y);
    });
    let averages = profile.averages(false);
    let row = averages.iter().find(|row| row.name == OUTSIDE_MEMORY).unwrap();
    assert_eq!((row.calls, row.own_cpu_bytes, row.cpu_bytes), (2, -2 * (4 << 15), -2 * (4 << 15)));
    assert!(
        profiled(ProfilerOptions::default(), |_| drop(ones(&[4])))
            .averages(false)
            .iter()
            .all(|row| row.name != OUTSIDE_MEMORY)
    );
}

#[test]
fn a_row_takes_one_line_of_a_table_and_a_long_name_is_cut() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |_| {
        drop(observe::section("two\nlines\tand \u{1b}[1m"));
        drop(observe::section(&"long".repeat(30)));
    });
    let table = profile.table(SortBy::OwnTime, 10);
    assert_eq!(table.lines().take_while(|line| !line.is_empty()).count(), 3, "{table}");
    assert!(table.contains(r"two\nlines\tand \u{1b}[1m"), "{table}");
    assert!(table.contains(&format!("{}...  ", "long".repeat(13))), "{table}");
    let options = TableOptions { name_width: 10, ..TableOptions::default() };
    assert!(profile.table_of(profile.averages(false), options).contains("\nlonglon...  "));
    let options = TableOptions { name_width: usize::MAX, ..TableOptions::default() };
    assert!(profile.table_of(profile.averages(false), options).contains(&"long".repeat(30)));
}

#[test]
fn figures_of_one_call_sort_a_table() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |clock| {
        for (name, calls, each) in [("often", 9, US), ("once", 1, 5 * US)] {
            for _ in 0..calls {
                let _section = observe::section(name);
                clock.advance(each);
            }
        }
    });
    let first = |sort: &str| {
        let table = profile.table(SortBy::named(sort).unwrap(), 1);
        table.lines().nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    assert_eq!([first("cpu_time_total"), first("cpu_time")], ["often", "once"]);
    assert_eq!(SortBy::named("cuda_time"), Some(SortBy::DeviceTimeOfCall));
    assert_eq!(SortBy::named("self_cuda_memory_usage"), Some(SortBy::OwnDeviceMemory));
    assert_eq!(SortBy::named("size"), None);
}

#[test]
fn the_backward_of_an_operation_has_a_span_and_an_arrow_from_the_operation() {
    let _turn = in_turn();
    let x = ones(&[3]).requires_grad_(true).unwrap();
    let profile = profiled(ProfilerOptions::default(), |_| {
        x.exp().unwrap().sum_all().unwrap().backward().unwrap();
    });
    let forward = one(&profile, "exp");
    let backward = one(&profile, "exp_backward");
    assert_eq!(backward.kind, SpanKind::Backward);
    assert!(forward.node.is_some());
    assert_eq!(forward.node, backward.node);
    assert!(profile.spans.iter().any(|span| span.parent == Some(backward.id)), "its formula calls operations");
    assert_eq!(one(&profile, "AccumulateGrad").node, None);
    let events = chrome(&profile);
    let ends = |phase: &str| {
        let ends = events.iter().filter(|event| event["ph"] == phase && event["cat"] == "fwdbwd");
        ends.map(|event| event["id"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert!(ends("s").contains(&forward.node.unwrap()));
    let mut begins = ends("s");
    let mut ends = ends("f");
    begins.sort_unstable();
    ends.sort_unstable();
    assert_eq!(begins, ends);
}

#[test]
fn threads_have_spans_of_their_own() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions::default(), |clock| {
        let _here = observe::section("here");
        clock.advance(US);
        let there = thread::Builder::new().name("other".into()).spawn(|| drop(observe::section("there"))).unwrap();
        there.join().unwrap();
    });
    let here = one(&profile, "here");
    let there = one(&profile, "there");
    assert_ne!(here.thread, there.thread);
    assert_eq!((there.parent, here.own), (None, US));
    assert_eq!(profile.threads[there.thread], "other");
}

#[test]
fn memory_is_attributed_to_the_operation_that_allocates() {
    let _turn = in_turn();
    let x = ones(&[1 << 15]);
    let mut kept = None;
    let profile = profiled(ProfilerOptions { profile_memory: true, ..ProfilerOptions::default() }, |_| {
        let y = x.exp().unwrap();
        let _section = observe::section("free");
        kept = Some(y.sin().unwrap());
        drop(y);
    });
    let bytes = 4 << 15;
    assert_eq!(one(&profile, "exp").memory, [(Device::CPU, bytes)]);
    assert_eq!(one(&profile, "sin").memory, [(Device::CPU, bytes)]);
    assert_eq!(one(&profile, "free").memory, [(Device::CPU, -bytes)]);
    let averages = profile.averages(false);
    let free = averages.iter().find(|row| row.name == "free").unwrap();
    assert_eq!((free.own_cpu_bytes, free.cpu_bytes), (-bytes, 0));
    let memory = profile.memory_use.iter().find(|it| it.device.is_cpu()).unwrap();
    assert_eq!((memory.peak - memory.start, memory.end - memory.start), (2 * bytes as u64, bytes as u64));
    let exp = profile.memory.iter().find(|point| point.span == Some(one(&profile, "exp").id)).unwrap();
    assert_eq!((exp.change, exp.in_use), (bytes, memory.start + bytes as u64));
    let counters = chrome(&profile).into_iter().filter(|event| event["ph"] == "C");
    assert_eq!(counters.filter_map(|event| event["args"]["bytes"].as_u64()).max(), Some(memory.peak));
    drop(kept);
}

#[test]
fn shapes_are_recorded_only_if_asked_for() {
    let _turn = in_turn();
    let x = ones(&[2, 3]);
    let run = |record_shapes| {
        profiled(ProfilerOptions { record_shapes, ..ProfilerOptions::default() }, |_| {
            x.matmul(&ones(&[3, 4])).unwrap();
            x.matmul(&ones(&[3, 5])).unwrap();
        })
    };
    let without = run(false);
    assert!(named(&without, "matmul").iter().all(|span| span.inputs.is_empty()));
    let with = run(true);
    let inputs = &named(&with, "matmul")[1].inputs;
    assert_eq!(inputs.iter().map(|input| input.sizes.clone()).collect::<Vec<_>>(), [vec![2, 3], vec![3, 5]]);
    assert!(inputs.iter().all(|input| input.dtype == DType::F32));
    let rows = |by_shape| with.averages(by_shape).iter().filter(|row| row.name == "matmul").count();
    assert_eq!((rows(false), rows(true)), (1, 2));
}

#[test]
fn events_beyond_the_limit_are_counted() {
    let _turn = in_turn();
    let profile = profiled(ProfilerOptions { max_events: 3, ..ProfilerOptions::default() }, |clock| {
        let _outer = observe::section("outer");
        for _ in 0..5 {
            let _inner = observe::section("inner");
            clock.advance(US);
        }
    });
    assert_eq!((profile.spans.len(), profile.dropped), (3, 3));
    assert!(profile.spans.iter().all(|span| span.parent.is_none()), "the outer span was not kept");
    assert!(profile.table(SortBy::OwnTime, 10).contains("3 events were not kept"));
}

#[test]
fn a_process_records_one_profile_at_a_time() {
    let _turn = in_turn();
    let first = Profiler::start(ProfilerOptions::default()).unwrap();
    assert_eq!(Profiler::start(ProfilerOptions::default()).err(), Some(AlreadyProfiling));
    drop(first);
    Profiler::start(ProfilerOptions::default()).unwrap().stop();
}

#[test]
fn spans_that_have_not_ended_end_with_the_profile() {
    let _turn = in_turn();
    let mut open = None;
    let profile = profiled(ProfilerOptions::default(), |clock| {
        open = Some(observe::section("open"));
        clock.advance(5 * US);
    });
    assert_eq!(one(&profile, "open").duration, 5 * US);
    drop(open);
    assert!(profiled(ProfilerOptions::default(), |_| {}).spans.is_empty());
}

#[test]
fn kernels_and_copies_of_a_device_are_on_its_streams() {
    let _turn = in_turn();
    let Some(driver) = common::simulated() else { return };
    let x = ones(&[256]);
    let stream = tenure_device::memory::device(0).unwrap().streams().current_id();
    driver.set_time(1000);
    let options = ProfilerOptions { profile_memory: true, ..ProfilerOptions::default() };
    let profile = profiled(options, |_| {
        let on_device = x.to_device(Device::cuda(0)).unwrap();
        on_device.exp().unwrap();
        driver.advance(10);
        driver.launch(SimKernel::new("mine", stream)).unwrap();
        driver.run().unwrap();
        driver.busy_until(stream, 1030).unwrap();
    });
    let copy = profile.activities.iter().find(|it| it.kind == ActivityKind::CopyToDevice).unwrap();
    assert_eq!((copy.device, copy.bytes), (Device::cuda(0), 1024));
    let mine = profile.activities.iter().find(|it| it.name == "mine").unwrap();
    assert_eq!((mine.kind, mine.stream, mine.begin, mine.cause), (ActivityKind::Kernel, stream, 10 * US, None));
    let busy = profile.activities.iter().find(|it| it.name == "busy").unwrap();
    assert_eq!((busy.begin, busy.end), (10 * US, 30 * US));
    let exp = one(&profile, "exp");
    let caused: Vec<_> = profile.activities.iter().filter(|it| it.cause == Some(exp.id)).collect();
    assert!(!caused.is_empty() && caused.iter().all(|it| it.kind == ActivityKind::Kernel), "{caused:?}");
    assert!(exp.memory.iter().any(|(device, bytes)| *device == Device::cuda(0) && *bytes >= 1024));
    let events = chrome(&profile);
    let threads: HashMap<(u64, u64), String> = events
        .iter()
        .filter(|event| event["name"] == "thread_name")
        .map(|event| (place(event), event["args"]["name"].as_str().unwrap().to_owned()))
        .collect();
    let shown = events.iter().find(|event| event["name"] == "mine").unwrap();
    assert_eq!((shown["ph"].as_str(), shown["cat"].as_str()), (Some("X"), Some("kernel")));
    assert_eq!(threads[&place(shown)], format!("stream {}", stream.0));
    let table = profile.table(SortBy::OwnDeviceTime, 3);
    assert!(table.lines().nth(1).unwrap().starts_with("busy"), "{table}");
}

#[test]
fn the_host_and_the_devices_are_left_out_on_request() {
    let _turn = in_turn();
    let Some(_driver) = common::simulated() else { return };
    let x = ones(&[256]);
    let run = |record_host, record_devices| {
        profiled(ProfilerOptions { record_host, record_devices, ..ProfilerOptions::default() }, |_| {
            let _section = observe::section("part");
            x.to_device(Device::cuda(0)).unwrap().exp().unwrap();
        })
    };
    let host = run(true, false);
    assert_eq!((named(&host, "exp").len(), host.activities.len(), host.dropped), (1, 0, 0));
    assert_eq!(host.cuda, CudaTimes::LeftOut);
    let devices = run(false, true);
    assert!(devices.spans.is_empty() && !devices.activities.is_empty());
    assert!(devices.averages(false).iter().all(|row| row.is_device_work));
    assert!(chrome(&devices).iter().any(|event| event["cat"] == "kernel"));
}

fn place(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

#[test]
fn a_chrome_trace_has_the_fields_of_its_format_and_is_sorted() {
    let _turn = in_turn();
    let x = ones(&[8]).requires_grad_(true).unwrap();
    let options = ProfilerOptions { profile_memory: true, record_shapes: true, ..ProfilerOptions::default() };
    let profile = profiled(options, |clock| {
        let _section = observe::section("a \"name\" with\nsigns \u{1F600}");
        clock.advance(US);
        x.exp().unwrap().sum_all().unwrap().backward().unwrap();
    });
    let events = chrome(&profile);
    let mut last = 0.0;
    for event in &events {
        let has = |fields: &[&str]| fields.iter().all(|field| !event[*field].is_null());
        assert!(has(&["ph", "name", "pid", "tid", "ts"]), "{event}");
        let is_whole = match event["ph"].as_str().unwrap() {
            "X" => has(&["dur", "cat", "args"]) && event["dur"].as_f64().unwrap() >= 0.0,
            "C" => event["args"].as_object().unwrap().values().all(Value::is_number),
            "M" => has(&["args"]),
            "s" => has(&["id", "cat"]),
            "f" => has(&["id", "cat", "bp"]),
            "i" => has(&["s"]),
            _ => false,
        };
        assert!(is_whole, "{event}");
        let ts = event["ts"].as_f64().unwrap();
        assert!(event["ph"] == "M" || ts >= last, "{event} comes after {last}");
        last = ts.max(last);
    }
    assert!(events.iter().any(|event| event["name"] == "a \"name\" with\nsigns \u{1F600}"));
    let exp = events.iter().find(|event| event["name"] == "exp" && event["ph"] == "X").unwrap();
    assert_eq!(exp["args"]["Input Dims"][0], serde_json::json!([8]));
}

/// A program of sections: how long each runs before, and the sections within.
#[derive(Clone, Debug)]
struct Tree {
    before_us: u32,
    within: Vec<Tree>,
}

fn trees() -> impl Strategy<Value = Tree> {
    let leaf = (0..5u32).prop_map(|before_us| Tree { before_us, within: Vec::new() });
    leaf.prop_recursive(4, 24, 4, |inner| {
        (0..5u32, prop::collection::vec(inner, 0..4)).prop_map(|(before_us, within)| Tree { before_us, within })
    })
}

impl Tree {
    fn run(&self, clock: &Clock) {
        let _section = observe::section("node");
        clock.advance(self.before_us * US);
        self.within.iter().for_each(|tree| tree.run(clock));
    }

    fn count(&self) -> usize {
        1 + self.within.iter().map(Self::count).sum::<usize>()
    }

    fn total_us(&self) -> u32 {
        self.before_us + self.within.iter().map(Self::total_us).sum::<u32>()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_nest_and_their_own_times_sum_to_the_whole(programs in prop::collection::vec(trees(), 1..3)) {
        let _turn = in_turn();
        let profile = profiled(ProfilerOptions::default(), |clock| {
            thread::scope(|scope| {
                for tree in &programs {
                    // One after the other: they share the clock.
                    scope.spawn(|| tree.run(clock)).join().unwrap();
                }
            });
        });
        prop_assert_eq!(profile.spans.len(), programs.iter().map(Tree::count).sum::<usize>());
        let spans: HashMap<u64, &Span> = profile.spans.iter().map(|span| (span.id, span)).collect();
        for span in &profile.spans {
            let within: Vec<_> = profile.spans.iter().filter(|other| other.parent == Some(span.id)).collect();
            prop_assert_eq!(span.own + within.iter().map(|other| other.duration).sum::<Duration>(), span.duration);
            for pair in within.windows(2) {
                prop_assert!(pair[0].begin + pair[0].duration <= pair[1].begin);
            }
            let Some(outer) = span.parent.map(|parent| spans[&parent]) else { continue };
            prop_assert!(outer.id < span.id && outer.thread == span.thread && outer.begin <= span.begin);
            prop_assert!(span.begin + span.duration <= outer.begin + outer.duration);
        }
        let own: Duration = profile.spans.iter().map(|span| span.own).sum();
        prop_assert_eq!(own, programs.iter().map(Tree::total_us).sum::<u32>() * US);
    }
}
