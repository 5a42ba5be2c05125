//! Tests of recorded traces against PyTorch's own figures (`traces/README.md` beside them).

use crate::trace;
use tenure_plan::{Format, ReadOptions, Trace, TraceAction};

struct Figures {
    name: &'static str,
    events: usize,
    streams: usize,
    segments: usize,
    peak_requested_bytes: u64,
}

const RECORDED: [Figures; 5] = [
    figures("resnet50_train", 10857, 1, 111, 6057040912),
    figures("densenet201_train", 52470, 1, 426, 10322467152),
    figures("gpt2_varlen", 51607, 1, 178, 22351444256),
    figures("llama_ckpt_varlen", 96226, 1, 293, 12730697696),
    figures("multi_model_serve", 91851, 4, 144, 1799091384),
];

const fn figures(
    name: &'static str,
    events: usize,
    streams: usize,
    segments: usize,
    peak_requested_bytes: u64,
) -> Figures {
    Figures { name, events, streams, segments, peak_requested_bytes }
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn summaries_equal_pytorchs_figures() {
    for figures in RECORDED {
        let trace = trace(figures.name);
        let summary = trace.summary();
        assert_eq!(trace.source(), figures.name);
        assert_eq!(summary.events, figures.events, "{}", figures.name);
        assert_eq!(summary.streams.len(), figures.streams, "{}", figures.name);
        assert_eq!(summary.segments, figures.segments, "{}", figures.name);
        assert_eq!(summary.peak_requested_bytes, figures.peak_requested_bytes, "{}", figures.name);
        assert_eq!(trace.events()[0].action, TraceAction::SegmentAlloc);
    }
}

#[test]
#[cfg_attr(not(has_programs), ignore = "the recorded programs are not beside the repository")]
fn a_compact_trace_keeps_every_event() {
    for figures in RECORDED {
        let trace = trace(figures.name);
        let mut written = Vec::new();
        trace.write_to(&mut written, Format::Compact).unwrap();
        assert!(written.len() < 8 * trace.events().len(), "{} bytes for {}", written.len(), figures.name);
        let again = Trace::read_from(written.as_slice(), "", &ReadOptions::default()).unwrap();
        let kept = |trace: &Trace| {
            (trace.source().to_owned(), trace.device(), trace.settings().clone(), trace.earlier_events())
        };
        assert_eq!(kept(&again), kept(&trace));
        assert!(again.events() == trace.events(), "{}", figures.name);
    }
}
