//! Tests of validation: which events make a trace, and which give an error that names the first invalid one.

use crate::common::event;
use tenure_plan::{Settings, Trace, TraceAction, TraceEvent};

use TraceAction::*;

fn new(events: &[TraceEvent]) -> Result<Trace, String> {
    Trace::new("test", 0, Settings::default(), events.to_vec()).map_err(|error| error.to_string())
}

#[track_caller]
fn assert_refused(events: &[TraceEvent], message: &str) {
    assert_eq!(new(events).unwrap_err(), message);
}

#[test]
fn a_block_may_be_reused_once_its_free_completed() {
    let life = [event(Alloc, 512, 100), event(FreeRequested, 512, 100), event(FreeCompleted, 512, 100)];
    new(&[life, life].concat()).unwrap();
}

#[test]
fn neighbours_may_touch() {
    new(&[event(Alloc, 1024, 512), event(Alloc, 512, 512), event(Alloc, 1536, 0)]).unwrap();
}

#[test]
fn an_overlap_names_both_blocks() {
    assert_refused(
        &[event(Alloc, 0x1000, 0x200), event(Alloc, 0x2000, 1), event(Alloc, 0x11ff, 0x10)],
        "event 2: alloc of 16 bytes at 0x11ff overlaps the 512 bytes at 0x1000, live since event 0",
    );
}

#[test]
fn an_overlap_from_below_is_found() {
    assert_refused(
        &[event(Alloc, 0x1000, 0x200), event(Alloc, 0xf00, 0x101)],
        "event 1: alloc of 257 bytes at 0xf00 overlaps the 512 bytes at 0x1000, live since event 0",
    );
}

#[test]
fn a_block_whose_free_is_pending_is_still_live() {
    assert_refused(
        &[event(Alloc, 512, 8), event(FreeRequested, 512, 8), event(Alloc, 512, 8)],
        "event 2: alloc of 8 bytes at 0x200 overlaps the 8 bytes at 0x200, live since event 0",
    );
}

#[test]
fn two_empty_blocks_have_two_addresses() {
    assert_refused(
        &[event(Alloc, 512, 0), event(Alloc, 512, 0)],
        "event 1: alloc of 0 bytes at 0x200 overlaps the 0 bytes at 0x200, live since event 0",
    );
}

#[test]
fn a_free_of_an_unknown_address_says_how_to_record() {
    for action in [FreeRequested, FreeCompleted] {
        let message = format!(
            "event 1: {action} of 0x201, where nothing is live: the history lacks the allocation (record again, without \
             alloc in skip_actions)"
        );
        assert_refused(&[event(Alloc, 512, 8), event(action, 513, 8)], &message);
    }
}

#[test]
fn a_free_has_the_size_of_its_block() {
    assert_refused(
        &[event(Alloc, 512, 8), event(FreeRequested, 512, 9)],
        "event 1: free_requested of 9 bytes at 0x200, where 8 bytes are live since event 0",
    );
}

#[test]
fn a_free_is_requested_once() {
    let free = event(FreeRequested, 512, 8);
    assert_refused(
        &[event(Alloc, 512, 8), free, free],
        "event 2: free_requested of 0x200, whose free was already requested",
    );
}

#[test]
fn a_free_is_requested_before_it_completes() {
    assert_refused(
        &[event(Alloc, 512, 8), event(FreeCompleted, 512, 8)],
        "event 1: free_completed of 0x200, whose free was not requested",
    );
}

#[test]
fn a_range_ends_in_the_address_space() {
    for action in [Alloc, SegmentAlloc, SegmentMap] {
        let message =
            format!("event 0: {action} of 512 bytes at 0xffffffffffffff00 passes the end of the address space");
        assert_refused(&[event(action, u64::MAX - 255, 512)], &message);
    }
}

#[test]
fn events_without_a_range_may_hold_any_numbers() {
    new(&[event(Oom, u64::MAX, u64::MAX), event(Snapshot, 0, u64::MAX)]).unwrap();
}

#[test]
fn segments_do_not_overlap() {
    assert_refused(
        &[event(SegmentAlloc, 0, 1024), event(SegmentAlloc, 512, 1024)],
        "event 1: segment_alloc of 1024 bytes at 0x200 overlaps the 1024 bytes at 0x0, live since event 0",
    );
}

#[test]
fn a_segment_that_is_not_known_may_be_freed() {
    new(&[event(SegmentFree, 0, 1024)]).unwrap();
}

#[test]
fn a_clock_that_is_set_back_stands_still() {
    let at = |time_us| TraceEvent { time_us, ..event(UserDefined, 0, 0) };
    let trace = new(&[at(5), at(3), at(6), at(0)]).unwrap();
    assert_eq!(trace.events().iter().map(|event| event.time_us).collect::<Vec<_>>(), [5, 5, 6, 6]);
}

#[test]
fn a_device_number_fits_a_signed_byte() {
    let error = Trace::new("test", 128, Settings::default(), Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "device 128 cannot be: devices are numbered from 0 to 127");
}

#[test]
fn a_threshold_is_a_share() {
    for threshold in [-0.1, 1.1, f64::NAN] {
        let settings = Settings { garbage_collection_threshold: threshold, ..Settings::default() };
        assert!(Trace::new("test", 0, settings, Vec::new()).is_err());
    }
}
