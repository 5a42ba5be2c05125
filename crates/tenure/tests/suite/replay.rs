//! Tests of replays: their counts, and the meaning of repeats and lag.

use std::ops::ControlFlow;

use tenure::Error;
use tenure::core::StreamId;
use tenure::plan::{Settings, Trace, TraceAction, TraceEvent};
use tenure::replay::{AllocatorKind, Replay, ReplayProgress};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn sample() -> Trace {
    Trace::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/resnet50_step.pickle.xz")).unwrap()
}

/// Makes a trace of `(time, action, address, bytes, stream)`; a `free` becomes both of its events.
fn trace(events: &[(u64, &str, u64, u64, u64)]) -> Trace {
    let mut recorded = Vec::new();
    for &(time_us, name, address, bytes, stream) in events {
        let actions = if name == "free" { vec!["free_requested", "free_completed"] } else { vec![name] };
        recorded.extend(actions.into_iter().map(|name| TraceEvent {
            time_us,
            address,
            bytes,
            stream: StreamId(stream),
            action: TraceAction::from_name(name).unwrap(),
        }));
    }
    Trace::new("made", 0, Settings::default(), recorded).unwrap()
}

#[test]
fn native_puts_every_block_where_pytorch_did() {
    let outcome = Replay::new(AllocatorKind::Native).run(&sample()).unwrap();
    assert_eq!(outcome.mismatched_addresses, Some(0));
    assert_eq!((outcome.events, outcome.operations), (2914, 2 * 1259));
    assert_eq!(outcome.peak_requested_bytes, sample().summary().peak_requested_bytes);
    assert_eq!((outcome.peak_segments, outcome.driver_calls.malloc), (111, 111));
    assert_eq!(outcome.created_bytes, outcome.peak_reserved_bytes);
}

#[test]
fn every_allocator_serves_the_same_requests_in_what_it_reserves() {
    let trace = sample();
    for &allocator in AllocatorKind::ALL {
        let outcome = Replay::new(allocator).run(&trace).unwrap();
        let peaks = [outcome.peak_requested_bytes, outcome.peak_allocated_bytes, outcome.peak_reserved_bytes];
        assert!(peaks.is_sorted(), "{allocator}: {peaks:?}");
        assert_eq!(peaks[0], trace.summary().peak_requested_bytes, "{allocator}");
        assert_eq!(outcome.mismatched_addresses.is_some(), allocator == AllocatorKind::Native);
    }
}

#[test]
fn a_pass_ends_with_nothing_live_and_the_next_begins_with_what_is_cached() {
    let trace = trace(&[
        (100, "alloc", GIB, 30 * MIB, 0),
        (200, "alloc", 2 * GIB, 40 * MIB, 0),
        (300, "free", GIB, 30 * MIB, 0),
    ]);
    let replay = Replay { repeat: 3, ..Replay::new(AllocatorKind::Native) };
    let outcome = replay.run(&trace).unwrap();
    assert_eq!(outcome.operations, 4, "those of one pass, and the free of what it left");
    assert_eq!((outcome.driver_calls.malloc, outcome.driver_calls_last_repeat.total()), (2, 0));
    assert_eq!((outcome.peak_requested_bytes, outcome.peak_reserved_bytes), (70 * MIB, 70 * MIB));
    assert!(outcome.modelled_driver_us > 0.0 && outcome.modelled_driver_us_last_repeat == 0.0);
    assert_eq!(outcome.trace_duration_us, Some(200));
}

#[test]
fn memory_changes_streams_freely_once_the_lag_is_over() {
    let trace = trace(&[
        (0, "alloc", GIB, GIB, 1),
        (10_000, "free", GIB, GIB, 1),
        (20_000, "alloc", GIB, GIB, 2),
        (30_000, "free", GIB, GIB, 2),
    ]);
    let replay = |lag_us| {
        let replay = Replay { lag_us, ..Replay::new(AllocatorKind::Paged) };
        let outcome = replay.run(&trace).unwrap();
        (outcome.peak_reserved_bytes, outcome.cross_stream_waits + outcome.host_syncs)
    };
    let slack = GIB / 16;
    for lag_us in [0, 10_000] {
        let (reserved, waits) = replay(lag_us);
        assert!(reserved < GIB + slack && waits == 0, "{reserved} bytes, {waits} waits at a lag of {lag_us} µs");
    }
    let (reserved, waits) = replay(10_001);
    assert!(reserved > GIB + slack || waits > 0, "the first stream's work was not over");
}

#[test]
fn the_work_of_a_pass_is_over_when_the_next_begins() {
    let trace = trace(&[(0, "alloc", GIB, GIB, 1), (10, "free", GIB, GIB, 1), (20, "alloc", GIB, 512, 2)]);
    let replay = Replay { repeat: 3, lag_us: 1_000_000, allocator: AllocatorKind::Paged };
    let outcome = replay.run(&trace).unwrap();
    assert_eq!((outcome.host_syncs, outcome.driver_calls_last_repeat.create), (0, 0));
}

#[test]
fn segments_freed_by_the_program_are_released() {
    let trace = trace(&[
        (0, "segment_alloc", GIB, 30 * MIB, 0),
        (0, "alloc", GIB, 30 * MIB, 0),
        (1, "free", GIB, 30 * MIB, 0),
        (2, "segment_free", GIB, 30 * MIB, 0),
        (3, "segment_alloc", 2 * GIB, 30 * MIB, 0),
        (3, "alloc", 2 * GIB, 30 * MIB, 0),
    ]);
    let outcome = Replay::new(AllocatorKind::Native).run(&trace).unwrap();
    assert_eq!((outcome.driver_calls.malloc, outcome.driver_calls.free), (2, 1));
    assert_eq!(outcome.mismatched_addresses, Some(0));
}

#[test]
fn a_recording_that_cannot_be_followed_is_replayed_elsewhere() {
    // The second segment is where the first one still holds a block.
    let trace = trace(&[
        (0, "segment_alloc", GIB, 2 * MIB, 0),
        (0, "alloc", GIB, MIB, 0),
        (1, "segment_free", GIB, 2 * MIB, 0),
        (2, "segment_alloc", GIB, 30 * MIB, 0),
        (2, "alloc", GIB + 8 * MIB, 20 * MIB, 0),
    ]);
    let outcome = Replay::new(AllocatorKind::Native).run(&trace).unwrap();
    assert_eq!(outcome.mismatched_addresses, Some(2));
}

#[test]
fn the_event_that_an_allocator_refuses_is_named() {
    let trace = trace(&[(0, "alloc", GIB, 512, 0), (1, "alloc", 1 << 60, 5 << 61, 0)]);
    for &allocator in AllocatorKind::ALL {
        let error = Replay::new(allocator).run(&trace).unwrap_err();
        assert!(matches!(error, Error::Replay { event: 1, .. }), "{error}");
        assert!(error.to_string().starts_with(&format!("event 1: {allocator}: ")), "{error}");
    }
}

#[test]
fn observers_see_every_event_of_every_pass() {
    let trace = trace(&[(0, "alloc", GIB, 1000, 0), (1, "free", GIB, 1000, 0)]);
    let mut seen = Vec::new();
    let replay = Replay { repeat: 2, ..Replay::new(AllocatorKind::Native) };
    replay
        .run_observed(&trace, |progress| {
            seen.push(progress);
            ControlFlow::Continue(())
        })
        .unwrap();
    let at = |pass, event, requested_bytes, allocated_bytes| ReplayProgress {
        pass,
        event,
        requested_bytes,
        allocated_bytes,
        reserved_bytes: 2 * MIB,
    };
    let pass = |pass| [at(pass, 0, 1000, 1024), at(pass, 1, 1000, 1024), at(pass, 2, 0, 0)];
    assert_eq!(seen, [pass(0), pass(1)].concat());
}

#[test]
fn an_observer_can_stop_a_replay() {
    let trace = trace(&[(0, "alloc", GIB, 1000, 0), (1, "free", GIB, 1000, 0)]);
    for &allocator in AllocatorKind::ALL {
        let mut seen = 0;
        let error = Replay::new(allocator)
            .run_observed(&trace, |progress| {
                seen += 1;
                if progress.event == 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap_err();
        assert!(matches!(error, Error::Stopped { event: 1 }), "{error}");
        assert_eq!(seen, 2, "it is not begun again");
    }
}
