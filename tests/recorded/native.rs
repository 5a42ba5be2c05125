//! Tests of the model of PyTorch's allocator against PyTorch's own recordings.

use std::collections::HashMap;
use std::sync::Arc;

use crate::backing::{FakeBacking, MIB};
use crate::trace;
use tenure::replay::{AllocatorKind, Replay};
use tenure_alloc::{MemoryReports, NativeAllocator, NativeConfig, Request, Resource, Statistics};
use tenure_plan::{Trace, TraceAction};

/// The memory of the recording machine's device.
const DEVICE_BYTES: u64 = 143_771 * MIB;

/// PyTorch's own figures, from `traces/README.md`, in bytes.
struct Recorded {
    trace: &'static str,
    requested: u64,
    allocated: u64,
    reserved: u64,
    segments: u64,
    expandable_reserved: u64,
}

const RECORDED: [Recorded; 5] = [
    Recorded {
        trace: "resnet50_train",
        requested: 6057040912,
        allocated: 6085264384,
        reserved: 7493124096,
        segments: 111,
        expandable_reserved: 6117392384,
    },
    Recorded {
        trace: "densenet201_train",
        requested: 10322467152,
        allocated: 10386999296,
        reserved: 11410604032,
        segments: 426,
        expandable_reserved: 10443816960,
    },
    Recorded {
        trace: "gpt2_varlen",
        requested: 22351444256,
        allocated: 22367414784,
        reserved: 26132611072,
        segments: 178,
        expandable_reserved: 24058527744,
    },
    Recorded {
        trace: "llama_ckpt_varlen",
        requested: 12730697696,
        allocated: 12812407808,
        reserved: 20147339264,
        segments: 293,
        expandable_reserved: 14329839616,
    },
    Recorded {
        trace: "multi_model_serve",
        requested: 1799091384,
        allocated: 1801559552,
        reserved: 3978297344,
        segments: 144,
        expandable_reserved: 2956984320,
    },
];

/// Replays a trace. Returns the figures, and the number of blocks that were not at their recorded address.
fn replay(trace: &Trace, config: NativeConfig) -> (Statistics, usize) {
    let backing = Arc::new(FakeBacking::new(DEVICE_BYTES));
    let segments = trace.events().iter().filter(|event| event.action == TraceAction::SegmentAlloc);
    backing.give_addresses(segments.map(|event| event.address));
    let allocator = NativeAllocator::new(backing, config).unwrap();

    let mut live = HashMap::new();
    let mut misplaced = 0;
    for event in trace.events() {
        match event.action {
            TraceAction::Alloc => {
                let block = allocator.allocate(Request::new(event.bytes, event.stream)).unwrap();
                misplaced += usize::from(block.address != event.address);
                live.insert(event.address, block.address);
            }
            TraceAction::FreeRequested => allocator.free(live.remove(&event.address).unwrap()).unwrap(),
            _ => {}
        }
    }
    (allocator.statistics(), misplaced)
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn native_puts_every_block_where_pytorch_did() {
    for recorded in RECORDED {
        let trace = trace(recorded.trace);
        let (statistics, misplaced) = replay(&trace, NativeConfig::default());
        assert_eq!(misplaced, 0, "{}", recorded.trace);
        assert_eq!(statistics.all.requested_bytes.peak, recorded.requested, "{}", recorded.trace);
        assert_eq!(statistics.all.allocated_bytes.peak, recorded.allocated, "{}", recorded.trace);
        assert_eq!(statistics.all.reserved_bytes.peak, recorded.reserved, "{}", recorded.trace);
        assert_eq!(statistics.all.segment.peak, recorded.segments, "{}", recorded.trace);
        assert_eq!(statistics.num_device_alloc, recorded.segments, "{}", recorded.trace);
    }
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn expandable_reserves_what_pytorch_did() {
    for recorded in RECORDED {
        let trace = trace(recorded.trace);
        let (statistics, _) = replay(&trace, NativeConfig::expandable());
        assert_eq!(statistics.all.reserved_bytes.peak, recorded.expandable_reserved, "{}", recorded.trace);
    }
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn replays_reserve_what_pytorch_did() {
    let recorded = [
        ("resnet50_train", [7493124096, 6117392384], 6085264384, 111),
        ("multi_model_serve", [3978297344, 2956984320], 1801559552, 144),
    ];
    for (name, [native_reserved, expandable_reserved], allocated, segments) in recorded {
        let trace = trace(name);
        let native = Replay::new(AllocatorKind::Native).run(&trace).unwrap();
        assert_eq!(native.mismatched_addresses, Some(0), "{name}");
        assert_eq!(native.peak_reserved_bytes, native_reserved, "{name}");
        assert_eq!((native.peak_allocated_bytes, native.peak_segments), (allocated, segments), "{name}");
        let expandable = Replay::new(AllocatorKind::Expandable).run(&trace).unwrap();
        assert_eq!(expandable.peak_reserved_bytes, expandable_reserved, "{name}");
    }
}
