//! Tests of the report on a running program's memory: its sums are the allocator's, and its page is complete and safe.

use std::sync::Arc;

use crate::common::assert_self_contained;
use proptest::prelude::*;
use serde_json::Value;
use tenure::alloc::Request;
use tenure::core::{Key, KeyId, StreamId, Tag};
use tenure::device::LibraryUse;
use tenure::device::memory::DeviceUse;
use tenure::device::memory::{DeviceMemory, MemoryConfig};
use tenure::device::sim::{SimConfig, SimDriver};
use tenure::report::{MemoryReport, ModuleUse};
use tenure_alloc::Recording;

const A: StreamId = StreamId::NULL;
const MIB: u64 = 1 << 20;

fn memory() -> DeviceMemory {
    DeviceMemory::new(Arc::new(SimDriver::new(SimConfig::default())), MemoryConfig::default()).unwrap()
}

fn key(module: &str, role: &str) -> KeyId {
    KeyId::intern(Key { module: module.into(), op: "linear".into(), role: role.into(), occurrence: 0 })
}

fn allocate(memory: &DeviceMemory, bytes: u64, tag: Tag, key: KeyId) -> u64 {
    memory.allocate(Request::new(bytes, A).with_tag(tag).with_key(key)).unwrap().address
}

fn report(memory: &DeviceMemory) -> MemoryReport {
    let allocator = memory.allocator();
    MemoryReport::new("a program", &allocator.snapshot(), &allocator.statistics())
}

/// Makes a model of two layers, in the middle of a step.
fn model() -> DeviceMemory {
    let memory = memory();
    allocate(&memory, 40 * MIB, Tag::Weight, key("encoder.layer.0", "weight"));
    allocate(&memory, 30 * MIB, Tag::Weight, key("encoder.layer.1", "weight"));
    allocate(&memory, 20 * MIB, Tag::Activation, key("encoder.layer.1", "out"));
    allocate(&memory, 8 * MIB, Tag::Activation, key("encoder", "out"));
    allocate(&memory, 700, Tag::Input, KeyId::NONE);
    memory
}

fn child<'a>(module: &'a ModuleUse, name: &str) -> &'a ModuleUse {
    module.children.iter().find(|child| child.name == name).unwrap()
}

#[test]
fn a_module_counts_what_the_modules_in_it_hold() {
    let program = report(&model()).modules;
    let encoder = child(&program, "encoder");
    let layers = child(encoder, "layer");
    let held = |module: &ModuleUse, tag: Tag| module.tags[tag as usize];
    assert_eq!((program.bytes(), program.blocks), (98 * MIB + 1024, 5));
    assert_eq!((encoder.bytes(), held(encoder, Tag::Activation)), (98 * MIB, 28 * MIB));
    let names: Vec<&str> = layers.children.iter().map(|layer| layer.name.as_str()).collect();
    assert_eq!(names, ["1", "0"], "the one that holds most first");
    assert_eq!(held(child(layers, "1"), Tag::Weight), 30 * MIB);
}

#[test]
fn a_page_names_tags_modules_and_blocks() {
    let memory = model();
    let nccl = LibraryUse { library: "libnccl.so.2".to_owned(), bytes: 9_000_000_000, peak_bytes: 0, allocations: 1 };
    let device = DeviceUse {
        total_bytes: 80_000_000_000,
        free_bytes: 60_000_000_000,
        allocated_bytes: 5_000_000_000,
        cached_bytes: 4_000_000_000,
        libraries: vec![nccl],
        context_bytes: Some(500_000_000),
        processes: Vec::new(),
        unnamed_bytes: 1_500_000_000,
    };
    let html = report(&memory).on_device(device).html();
    assert_self_contained(&html);
    for text in [
        "20.0 GB of 80.0 GB in use",
        "libnccl.so.2</th><td>9.00 GB</td><td>11%</td>",
        "<span class=\"swatch tag-weight\"></span>weight",
        "in no module of these",
        "encoder.<wbr>layer.<wbr>0/linear/weight#0",
        "No history was recorded",
    ] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn a_history_is_drawn_by_tag() {
    let memory = memory();
    memory.allocator().history().start(Recording::events(1000), true);
    let block = allocate(&memory, 40 * MIB, Tag::Unknown, KeyId::NONE);
    memory.allocator().retag(block, Tag::Gradient, KeyId::NONE).unwrap();
    let html = report(&memory).html();
    assert_self_contained(&html);
    assert!(html.contains("<path class=\"area tag-gradient\"") && !html.contains("<path class=\"area tag-unknown\""));
}

#[test]
fn equal_memory_has_equal_reports() {
    let memory = model();
    assert_eq!(report(&memory).html(), report(&memory).html());
}

#[test]
fn names_of_modules_are_text() {
    let memory = memory();
    allocate(&memory, MIB, Tag::Weight, key("<script>alert('&')</script>.\u{7}x\" onload=\"y", "<b>"));
    let html = report(&memory).html();
    assert_self_contained(&html);
    assert!(!html.contains("<script>") && !html.contains("<b>") && !html.contains('\u{7}'));
    assert!(html.contains("&lt;script&gt;alert('&amp;')&lt;/script&gt;") && html.contains("\\u{7}x&quot; onload"));
}

#[test]
fn paths_without_end_are_cut() {
    let memory = memory();
    allocate(&memory, MIB, Tag::Weight, key(&"a.".repeat(100_000), "weight"));
    let report = report(&memory);
    let depth = std::iter::successors(Some(&report.modules), |module| module.children.first()).count();
    assert_eq!(depth, 65);
    assert_eq!(serde_json::to_string(&report).unwrap().matches("\"a\"").count(), 64);
}

#[test]
fn small_modules_are_shown_together() {
    let memory = memory();
    allocate(&memory, 400 * MIB, Tag::Weight, key("large", "weight"));
    for index in 0..50 {
        allocate(&memory, 1000, Tag::Weight, key(&format!("small{index}"), "weight"));
    }
    let report = report(&memory);
    assert_eq!(report.modules.children.len(), 51);
    assert!(report.html().contains("50 smaller modules") && !report.html().contains("small7<"));
}

#[test]
fn an_allocator_that_holds_nothing_has_a_report() {
    let html = report(&memory()).html();
    assert_self_contained(&html);
    assert!(!html.contains("NaN") && !html.contains("inf"));
}

#[test]
fn programs_read_the_same_figures_as_json() {
    let report = report(&model());
    let json: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["requested_bytes"]["current"], 98 * MIB + 700);
    assert_eq!(json["tags"][0]["tag"], "weight");
    assert_eq!(json["modules"]["children"][0]["tags"]["weight"], 70 * MIB);
    assert_eq!(json["largest"][0]["key"], "encoder.layer.0/linear/weight#0");
    assert_eq!(json["statistics"]["allocated_bytes.activation.current"], 28 * MIB);
    assert_eq!(json["settings"]["allocator"], "tenure paged");
}

/// An operation: allocates, frees or retags.
#[derive(Clone, Debug)]
enum MemoryOp {
    Allocate(u64, usize, usize),
    Free(usize),
    Retag(usize, usize, usize),
}

fn op() -> impl Strategy<Value = MemoryOp> {
    let tag = 0..Tag::ALL.len();
    let module = 0..6_usize;
    prop_oneof![
        4 => (prop_oneof![1..4000_u64, 1..6 * MIB], tag.clone(), module.clone()).prop_map(|(b, t, m)| MemoryOp::Allocate(b, t, m)),
        2 => any::<usize>().prop_map(MemoryOp::Free),
        2 => (any::<usize>(), tag, module).prop_map(|(index, tag, module)| MemoryOp::Retag(index, tag, module)),
    ]
}

fn sums_are_whole(module: &ModuleUse) {
    let inner = |tag: usize| module.children.iter().map(|child| child.tags[tag]).sum::<u64>();
    assert!((0..Tag::ALL.len()).all(|tag| inner(tag) <= module.tags[tag]));
    assert!(module.children.is_sorted_by_key(|child| std::cmp::Reverse(child.bytes())));
    module.children.iter().for_each(sums_are_whole);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_by_tag_and_module_are_the_allocators(ops in prop::collection::vec(op(), 1..60), history in any::<bool>()) {
        const MODULES: [&str; 6] = ["", "a", "a.b", "a.b.c", "b", "b.."];
        let memory = memory();
        let mut live = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            if history && number == 5 {
                memory.allocator().history().start(Recording::events(20), true);
            }
            match *op {
                MemoryOp::Allocate(bytes, tag, module) => {
                    live.push(allocate(&memory, bytes, Tag::ALL[tag], key(MODULES[module], "out")));
                }
                MemoryOp::Free(index) if !live.is_empty() => {
                    memory.free(live.swap_remove(index % live.len())).unwrap();
                }
                MemoryOp::Retag(index, tag, module) if !live.is_empty() => {
                    let key = key(MODULES[module], "other");
                    memory.allocator().retag(live[index % live.len()], Tag::ALL[tag], key).unwrap();
                }
                MemoryOp::Free(_) | MemoryOp::Retag(..) => {}
            }
        }
        let statistics = memory.allocator().statistics();
        let report = report(&memory);
        sums_are_whole(&report.modules);
        prop_assert_eq!(report.modules.blocks, live.len());
        prop_assert_eq!(report.modules.tags, statistics.tags.map(|tag| tag.active_bytes.current));
        prop_assert_eq!(report.modules.bytes(), statistics.all.active_bytes.current);
        for held in &report.tags {
            prop_assert_eq!(held.active_bytes.current, report.modules.tags[held.tag as usize]);
        }
        prop_assert_eq!(report.tags.iter().map(|held| held.blocks).sum::<usize>(), live.len());
        let reserved: u64 = report.segments.iter().map(|segment| segment.bytes).sum();
        prop_assert_eq!(reserved, statistics.all.reserved_bytes.current);
        assert_self_contained(&report.html());
    }
}
