//! Tests of histories that begin late or lack actions: the earlier state is restored.

use crate::common::{event, read};
use proptest::prelude::*;
use tenure_alloc::snapshot::pickle::PickleWriter;
use tenure_plan::{Format, SegmentCoverage, Settings, Trace, TraceAction, TraceEvent};

use TraceAction::*;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// A segment of a snapshot: consecutive blocks, each with its size and whether it is live.
struct Segment {
    device: u64,
    address: u64,
    expandable: bool,
    blocks: Vec<(u64, bool)>,
}

fn segment(address: u64, blocks: &[(u64, bool)]) -> Segment {
    Segment { device: 0, address, expandable: false, blocks: blocks.to_vec() }
}

/// Makes a snapshot of device 0 in PyTorch's format.
fn snapshot(segments: &[Segment], events: &[TraceEvent]) -> Vec<u8> {
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    writer
        .dict(|writer| {
            writer.text("segments")?;
            writer.list(|writer| {
                segments.iter().try_for_each(|segment| {
                    writer.dict(|writer| {
                        writer.entry("device", segment.device)?;
                        writer.entry("address", segment.address)?;
                        writer.entry("total_size", segment.blocks.iter().map(|block| block.0).sum::<u64>())?;
                        writer.entry("stream", 0)?;
                        writer.text("is_expandable")?;
                        writer.flag(segment.expandable)?;
                        writer.text("blocks")?;
                        writer.list(|writer| {
                            segment.blocks.iter().try_for_each(|&(bytes, live)| {
                                writer.dict(|writer| {
                                    writer.entry("size", bytes)?;
                                    writer.text_entry("state", if live { "active_allocated" } else { "inactive" })
                                })
                            })
                        })
                    })
                })
            })?;
            writer.text("device_traces")?;
            writer.list(|writer| {
                writer.list(|writer| {
                    events.iter().try_for_each(|event| {
                        writer.dict(|writer| {
                            writer.text_entry("action", event.action.name())?;
                            writer.entry("addr", event.address)?;
                            writer.entry("size", event.bytes)?;
                            writer.entry("stream", 0)?;
                            writer.entry("time_us", event.time_us)
                        })
                    })
                })
            })
        })
        .unwrap();
    writer.finish().unwrap()
}

/// Returns the bytes and blocks before the history, the peak of requested bytes, and the most bytes in segments.
fn figures(trace: &Trace) -> (u64, usize, u64, u64) {
    let summary = trace.summary();
    (summary.earlier_bytes, summary.earlier_blocks, summary.peak_requested_bytes, summary.peak_segment_bytes)
}

#[test]
fn blocks_that_only_the_segments_list_were_there_before() {
    let trace = read(include_bytes!("../data/late_start.pickle")).unwrap();
    assert_eq!(figures(&trace), (GIB, 1, GIB + MIB, GIB + 2 * MIB));
    let summary = trace.summary();
    assert_eq!((summary.events, summary.live_at_peak.len(), summary.live_at_end_bytes), (4, 2, GIB));
    assert!(trace.events()[..trace.earlier_events()].iter().all(|event| event.time_us == 1700000000000021));
}

#[test]
fn a_block_that_is_freed_without_having_been_made_was_there_before() {
    let trace = read(include_bytes!("../data/wrapped_one_free.pickle")).unwrap();
    assert_eq!(figures(&trace), (1000, 1, 1000, 2 * MIB));
    assert_eq!(trace.summary().live_at_end_bytes, 0);
}

#[test]
fn a_segment_that_is_freed_without_having_been_made_was_there_before() {
    let trace = read(include_bytes!("../data/segment_free_first.pickle")).unwrap();
    assert_eq!(figures(&trace), (0, 0, 1000, 2 * MIB));
    assert_eq!(trace.earlier_events(), 1);
}

#[test]
fn a_block_of_the_history_is_not_counted_twice() {
    let history = [event(SegmentAlloc, 0x1000, 512), event(Alloc, 0x1000, 512)];
    let trace = read(&snapshot(&[segment(0x1000, &[(512, true)])], &history)).unwrap();
    assert_eq!(trace.events(), history);
}

#[test]
fn an_address_may_be_used_before_the_history_and_in_it() {
    let history = [event(FreeRequested, 0x1000, 512), event(FreeCompleted, 0x1000, 512), event(Alloc, 0x1000, 256)];
    let trace = read(&snapshot(&[segment(0x1000, &[(256, true), (256, false)])], &history)).unwrap();
    assert_eq!(figures(&trace), (512, 1, 512, 512));
    assert_eq!(trace.summary().live_at_end_bytes, 256);
}

#[test]
fn a_free_whose_request_was_lost_is_requested_when_it_completes() {
    let trace = read(&snapshot(&[], &[event(FreeCompleted, 0x1000, 512)])).unwrap();
    let actions: Vec<_> = trace.events().iter().map(|event| event.action).collect();
    assert_eq!(actions, [Alloc, FreeRequested, FreeCompleted]);
}

#[test]
fn a_block_over_bytes_that_the_history_used_came_after_it() {
    let history = [event(Alloc, 0x1000, 512), event(FreeRequested, 0x1000, 512), event(FreeCompleted, 0x1000, 512)];
    let trace = read(&snapshot(&[segment(0x1000, &[(256, true), (256, true), (64, true)])], &history)).unwrap();
    assert_eq!(figures(&trace), (64, 1, 576, 576));
}

#[test]
fn segments_of_other_devices_do_not_count() {
    let other = Segment { device: 1, ..segment(0x1000, &[(512, true)]) };
    let trace = read(&snapshot(&[other], &[event(Alloc, 0x1000, 64)])).unwrap();
    assert_eq!(figures(&trace), (0, 0, 64, 0));
}

#[test]
fn mapped_ranges_that_the_history_did_not_map_were_mapped_before() {
    let expandable = Segment { expandable: true, ..segment(0x1000, &[(0x300, true), (0x100, false)]) };
    let history = [event(SegmentUnmap, 0x2000, 0x100), event(SegmentMap, 0x1200, 0x200)];
    let trace = read(&snapshot(&[expandable], &history)).unwrap();
    let earlier = [event(SegmentMap, 0x1000, 0x200), event(Alloc, 0x1000, 0x300), event(SegmentMap, 0x2000, 0x100)];
    assert_eq!(&trace.events()[..trace.earlier_events()], earlier);
    assert_eq!((trace.summary().peak_segment_bytes, trace.summary().end_segment_bytes), (0x400, 0x400));
}

#[test]
fn every_format_keeps_what_was_there_before() {
    let trace = read(include_bytes!("../data/late_start.pickle")).unwrap();
    for format in Format::ALL {
        let mut written = Vec::new();
        trace.write_to(&mut written, format).unwrap();
        let again = read(&written).unwrap();
        assert_eq!((again.events(), again.earlier_events()), (trace.events(), trace.earlier_events()), "{format:?}");
    }
}

#[test]
fn errors_count_the_events_of_the_file() {
    let history = [event(FreeCompleted, 0x2000, 8), event(FreeRequested, 0x1000, 9)];
    let error = read(&snapshot(&[], &[history[0], event(Alloc, 0x1000, 8), history[1]])).unwrap_err();
    assert_eq!(error.to_string(), "event 2: free_requested of 9 bytes at 0x1000, where 8 bytes are live since event 1");
    let history = [event(FreeRequested, 0x1000, 8), event(Alloc, 0x1000, 8), event(FreeCompleted, 0x2000, 8)];
    let error = read(&snapshot(&[], &history)).unwrap_err();
    let message = "event 1: alloc of 8 bytes at 0x1000 overlaps the 8 bytes at 0x1000, live since before the history";
    assert_eq!(error.to_string(), message);
}

#[test]
fn damaged_segments_are_refused() {
    let cases: [(&[u8], &str); 3] = [
        (b"N", "segments is not a list"),
        (b"(lI1\na", "segments holds something that is not a segment"),
        (b"(l(dVdevice\nI0\nsVaddress\nI16\nsVtotal_size\nI8\nsVblocks\nNsa", "the segment at 0x10 has strange blocks"),
    ];
    for (segments, reason) in cases {
        let event = b"(dVaction\nVsnapshot\nsVaddr\nI0\nsVsize\nI0\nsVstream\nI0\nsa";
        let bytes = [b"(dVsegments\n", segments, b"sVdevice_traces\n(l(l", event, b"as."].concat();
        let error = read(&bytes).unwrap_err();
        assert_eq!(error.to_string(), format!("not a PyTorch memory snapshot: {reason}"));
    }
}

#[test]
fn a_free_that_never_completes_completes_when_it_is_requested() {
    let life = [event(Alloc, 0x1000, 512), event(FreeRequested, 0x1000, 512)];
    let other = [event(Alloc, 0x2000, 512), event(FreeRequested, 0x2000, 512)];
    for next in [life, other] {
        let trace = read(&snapshot(&[], &[life, next].concat())).unwrap();
        assert_eq!((figures(&trace), trace.summary().live_at_end_bytes), ((0, 0, 512, 0), 0));
    }
}

#[test]
fn a_free_has_not_completed_while_the_snapshot_lists_its_block() {
    let history = [event(Alloc, 0x1000, 512), event(FreeRequested, 0x1000, 512), event(Alloc, 0x1200, 64)];
    let trace = read(&snapshot(&[segment(0x1000, &[(512, true), (64, true)])], &history)).unwrap();
    assert_eq!(trace.summary().peak_requested_bytes, 576);
    // Its bytes were allocated again: the listed block was made after the history.
    let history = [history[0], history[1], event(Alloc, 0x1100, 64)];
    let trace = read(&snapshot(&[segment(0x1000, &[(512, true)])], &history)).unwrap();
    assert_eq!(trace.summary().peak_requested_bytes, 512);
}

#[test]
fn a_segment_gives_way_to_one_at_its_address() {
    let trace = read(&snapshot(&[], &[event(SegmentAlloc, 0, 512), event(SegmentAlloc, 256, 512)])).unwrap();
    assert_eq!(figures(&trace), (0, 0, 0, 512));
}

#[test]
fn segments_that_the_history_lacks_are_made_before_their_first_block() {
    let trace = read(include_bytes!("../data/segment_free_without_segment_alloc.pickle")).unwrap();
    let summary = trace.summary();
    assert_eq!((summary.live_at_end_bytes, summary.end_segment_bytes), (30 * MIB, 40 * MIB));
    assert_eq!(summary.segment_coverage, SegmentCoverage::Complete);
    let actions: Vec<_> = trace.events().iter().map(|event| (event.action, event.bytes / MIB)).collect();
    assert_eq!(actions, [(SegmentAlloc, 20), (SegmentFree, 20), (SegmentAlloc, 40), (Alloc, 30)]);
    assert_eq!(trace.notes().len(), 1);
}

#[test]
fn a_segment_that_the_snapshot_does_not_list_is_freed_unless_a_block_is_live_in_it() {
    let made = [event(SegmentAlloc, 0x1000, 512), event(SegmentAlloc, 0x2000, 512), event(Alloc, 0x2000, 64)];
    let other = [segment(0x9000, &[(512, false)])];
    let trace = read(&snapshot(&other, &made)).unwrap();
    assert_eq!((trace.summary().peak_segment_bytes, trace.summary().end_segment_bytes), (1536, 1024));
    // A larger one took its place when a block no longer fit.
    let grown = [event(SegmentAlloc, 0x1000, 512), event(Alloc, 0x1000, 1024)];
    let trace = read(&snapshot(&[segment(0x1000, &[(1024, true), (1024, false)])], &grown)).unwrap();
    let actions: Vec<_> = trace.events().iter().map(|event| (event.action, event.bytes)).collect();
    assert_eq!(actions, [(SegmentAlloc, 512), (SegmentFree, 512), (SegmentAlloc, 2048), (Alloc, 1024)]);
}

#[test]
fn mapped_ranges_at_the_end_are_those_that_the_snapshot_lists() {
    let expandable = Segment { expandable: true, ..segment(0x1000, &[(0x400, true)]) };
    let history = [event(SegmentUnmap, 0x1200, 0x200), event(Alloc, 0x1000, 0x400), event(SegmentMap, 0x5000, 0x100)];
    let trace = read(&snapshot(&[expandable], &history)).unwrap();
    let actions: Vec<_> = trace.events().iter().map(|event| (event.action, event.address, event.bytes)).collect();
    let expected = [
        (SegmentMap, 0x1000, 0x200),
        (SegmentMap, 0x1200, 0x200),
        (SegmentUnmap, 0x1200, 0x200),
        (SegmentMap, 0x1200, 0x200),
        (Alloc, 0x1000, 0x400),
        (SegmentMap, 0x5000, 0x100),
        (SegmentUnmap, 0x5000, 0x100),
    ];
    assert_eq!(actions, expected);
}

#[test]
fn reserved_bytes_are_never_below_the_live_ones() {
    let history = [event(SegmentAlloc, 0x1000, 512), event(Alloc, 0x9000, 4096), event(SegmentFree, 0x1000, 512)];
    let trace = Trace::new("test", 0, Settings::default(), history.to_vec()).unwrap();
    let summary = trace.summary();
    assert_eq!(summary.segment_coverage, SegmentCoverage::Partial);
    assert_eq!((summary.peak_segment_bytes, summary.end_segment_bytes), (4096, 4096));
    let alone = Trace::new("test", 0, Settings::default(), vec![history[1]]).unwrap().summary();
    assert_eq!((alone.segment_coverage, alone.peak_segment_bytes), (SegmentCoverage::Unrecorded, 0));
}

/// The bytes of each of eight places. Each step advances one of them: from free to live, to a requested free, to free
/// again.
const PLACE: u64 = 0x1000;

proptest! {
    #[test]
    fn a_history_may_begin_anywhere(
        steps in prop::collection::vec((0u64..8, 1..=PLACE), 1..200),
        cut in any::<prop::sample::Index>(),
    ) {
        let cut = cut.index(steps.len());
        let mut places = [(0, UserDefined); 8];
        let (mut live, mut peak, mut earlier, mut history) = (0, 0, 0, Vec::new());
        for (index, (place, bytes)) in steps.into_iter().enumerate() {
            if index == cut {
                (peak, earlier) = (live, live);
            }
            let (held, last) = &mut places[place as usize];
            *last = match last {
                Alloc => FreeRequested,
                FreeRequested => FreeCompleted,
                _ => Alloc,
            };
            match last {
                Alloc => (*held, live) = (bytes, live + bytes),
                FreeCompleted => live -= *held,
                _ => {}
            }
            peak = peak.max(live);
            history.push(event(*last, place * PLACE, *held));
        }
        history.drain(..cut);
        let segments: Vec<_> = places.iter().enumerate().map(|(place, &(held, last))| {
            let live = matches!(last, Alloc | FreeRequested);
            segment(place as u64 * PLACE, &[(held, live), (PLACE - held, false)])
        }).collect();
        let trace = read(&snapshot(&segments, &history)).unwrap();
        let summary = trace.summary();
        prop_assert_eq!((summary.earlier_bytes, summary.peak_requested_bytes), (earlier, peak));
        prop_assert_eq!((summary.live_at_end_bytes, summary.peak_segment_bytes), (live, 8 * PLACE));
        prop_assert_eq!(summary.end_segment_bytes, 8 * PLACE);
    }
}
