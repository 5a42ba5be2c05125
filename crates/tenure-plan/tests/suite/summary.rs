//! Tests of trace summaries.

use crate::common::{any_trace, event};
use proptest::prelude::*;
use tenure_core::StreamId;
use tenure_plan::{Settings, SizeClass, Trace, TraceAction, TraceEvent};

use TraceAction::*;

fn small_trace() -> Trace {
    let events = vec![
        TraceEvent { time_us: 10, ..event(SegmentAlloc, 0, 1 << 20) },
        TraceEvent { time_us: 11, stream: StreamId(7), ..event(Alloc, 0, 1000) },
        TraceEvent { time_us: 12, ..event(Alloc, 1024, 600) },
        TraceEvent { time_us: 13, ..event(FreeRequested, 1024, 600) },
        TraceEvent { time_us: 14, ..event(Alloc, 2048, 5) },
        TraceEvent { time_us: 15, ..event(FreeCompleted, 1024, 600) },
        TraceEvent { time_us: 16, ..event(Alloc, 4096, 600) },
        TraceEvent { time_us: 30, ..event(Oom, 100, 1 << 40) },
    ];
    Trace::new("small", 0, Settings::default(), events).unwrap()
}

#[test]
fn counts() {
    let summary = small_trace().summary();
    assert_eq!((summary.events, summary.allocations, summary.segments, summary.ooms), (8, 4, 1, 1));
    assert_eq!(summary.streams, [StreamId(0), StreamId(7)]);
    assert_eq!(summary.duration_us, Some(20));
    assert_eq!(summary.live_at_end_bytes, 1605);
}

#[test]
fn a_block_counts_until_its_free_completes() {
    let summary = small_trace().summary();
    assert_eq!((summary.peak_requested_bytes, summary.peak_event), (1605, Some(4)));
    assert_eq!(summary.live_at_peak.iter().map(|block| block.event).collect::<Vec<_>>(), [1, 2, 4]);
}

#[test]
fn size_classes_are_powers_of_two() {
    let classes: Vec<_> = small_trace()
        .summary()
        .size_classes
        .iter()
        .map(|entry| (entry.class.to_string(), entry.allocations, entry.bytes, entry.live_at_peak_bytes))
        .collect();
    assert_eq!(classes, [("4 B".into(), 1, 5, 5), ("512 B".into(), 3, 2200, 1600)]);
    assert_eq!(SizeClass::of(0), SizeClass::of(1));
    assert_eq!(SizeClass::of(u64::MAX).to_string(), "8 EiB");
}

#[test]
fn an_empty_trace_has_no_peak() {
    let summary = Trace::new("empty", 0, Settings::default(), Vec::new()).unwrap().summary();
    assert_eq!((summary.peak_event, summary.peak_requested_bytes, summary.duration_us), (None, 0, None));
}

proptest! {
    #[test]
    fn the_holders_of_the_peak_add_up_to_it(trace in any_trace()) {
        let summary = trace.summary();
        prop_assert_eq!(summary.live_at_peak.iter().map(|block| block.bytes).sum::<u64>(), summary.peak_requested_bytes);
        let by_class = summary.size_classes.iter().map(|entry| entry.live_at_peak_bytes).sum::<u64>();
        prop_assert_eq!(by_class, summary.peak_requested_bytes);
    }
}
