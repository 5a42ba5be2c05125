//! Tests of reading PyTorch snapshots in every pickle protocol.

use crate::common::{any_trace, read, refusal};
use proptest::prelude::*;
use tenure_core::StreamId;
use tenure_plan::{
    BlockState, EventError, Format, ReadOptions, SegmentTotals, Settings, Trace, TraceAction, TraceError, TraceEvent,
};

/// The same snapshot in every protocol: no events on device 0, five on device 1 (see `data/README.md`).
const PROTOCOLS: [&[u8]; 6] = [
    include_bytes!("../data/protocol0.pickle"),
    include_bytes!("../data/protocol1.pickle"),
    include_bytes!("../data/protocol2.pickle"),
    include_bytes!("../data/protocol3.pickle"),
    include_bytes!("../data/protocol4.pickle"),
    include_bytes!("../data/protocol5.pickle"),
];

/// The same snapshot of NumPy's numbers in the dicts of `collections`, in every protocol (see `data/README.md`).
const NUMPY: [&[u8]; 6] = [
    include_bytes!("../data/numpy0.pickle"),
    include_bytes!("../data/numpy1.pickle"),
    include_bytes!("../data/numpy2.pickle"),
    include_bytes!("../data/numpy3.pickle"),
    include_bytes!("../data/numpy4.pickle"),
    include_bytes!("../data/numpy5.pickle"),
];

fn expected() -> Trace {
    let at = |time: u64, action, bytes| TraceEvent {
        time_us: 1795224635308556 + time,
        address: 0x7f00_0000_0000,
        bytes,
        stream: StreamId::NULL,
        action,
    };
    let events = vec![
        at(0, TraceAction::SegmentAlloc, 2097152),
        at(1, TraceAction::Alloc, 1000),
        at(2, TraceAction::FreeRequested, 1000),
        at(3, TraceAction::FreeCompleted, 1000),
        TraceEvent { address: (1 << 63) + 5, ..at(4, TraceAction::Oom, 1 << 40) },
    ];
    let settings = Settings {
        conf: "max_split_size_mb:200".into(),
        max_split_size_bytes: Some(200 << 20),
        garbage_collection_threshold: 0.8,
        expandable_segments: true,
        roundup_power2_divisions: [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0],
    };
    Trace::new("test", 1, settings, events).unwrap()
}

#[test]
fn every_protocol_says_the_same() {
    let first = read(PROTOCOLS[0]).unwrap();
    assert!(!first.stacks().is_empty());
    for (protocol, bytes) in PROTOCOLS.into_iter().enumerate() {
        let trace = read(bytes).unwrap();
        let expected = expected();
        assert_eq!(trace, first, "protocol {protocol}");
        assert_eq!((trace.device(), trace.settings()), (expected.device(), expected.settings()));
        assert_eq!(trace.events(), expected.events());
    }
}

#[test]
fn every_truncation_is_an_error_that_says_where() {
    for (protocol, bytes) in PROTOCOLS.into_iter().enumerate() {
        for end in 0..bytes.len() {
            match read(&bytes[..end]).unwrap_err() {
                TraceError::Empty => assert_eq!(end, 0),
                TraceError::Truncated { offset } => assert_eq!(offset, end as u64, "protocol {protocol}"),
                error => panic!("protocol {protocol}, {end} bytes: {error}"),
            }
        }
    }
}

#[test]
fn a_device_may_be_chosen() {
    let choose = |device| {
        let options = ReadOptions { device: Some(device), ..ReadOptions::default() };
        Trace::read_from(PROTOCOLS[4], "test", &options)
    };
    assert!(matches!(choose(0), Err(TraceError::NoHistory { .. })));
    assert_eq!(choose(1).unwrap().events().len(), 5);
    assert_eq!(choose(2).unwrap_err().to_string(), "it has no device 2: its devices are 0 to 1");
}

#[test]
fn a_history_that_was_never_recorded_says_how() {
    let empty = snapshot_of("(lp0\n");
    assert_eq!(
        refusal(&empty),
        "it holds no events: call torch.cuda.memory._record_memory_history() before the program runs"
    );
}

#[test]
fn a_list_of_segments_has_no_history() {
    let error = read(include_bytes!("../data/memory_snapshot_list.pickle")).unwrap_err();
    assert!(error.to_string().contains("torch.cuda.memory._record_memory_history"), "{error}");
    let TraceError::NoHistory { totals, segments, .. } = error else { panic!("{error}") };
    let expected = SegmentTotals {
        segments: 1,
        live_blocks: 1,
        reserved_bytes: 2097152,
        live_bytes: 400,
        free_bytes: 2096640,
        largest_free_bytes: 2096640,
    };
    assert_eq!((totals, totals.fragmentation()), (expected, 0.0));
    assert_eq!(segments[0].blocks[1].state, BlockState::Inactive);
    // The same segments in a dict, whose device recorded nothing.
    let block = "(dVaddress\nI4096\nsVsize\nI8\nsVstate\nVinactive\nsa";
    let segment = format!("(dVdevice\nI0\nsVaddress\nI4096\nsVtotal_size\nI8\nsVblocks\n(l{block}sa");
    for traces in ["", "Vdevice_traces\n(l(las"] {
        let bytes = format!("(dVsegments\n(l{segment}s{traces}.");
        assert!(matches!(read(bytes.as_bytes()), Err(TraceError::NoHistory { .. })), "{traces}");
    }
}

#[test]
fn a_conversion_keeps_stacks_labels_segments_and_annotations() {
    for bytes in [
        &include_bytes!("../data/with_stack.pickle")[..],
        include_bytes!("../data/annotate.pickle"),
        include_bytes!("../data/late_start.pickle"),
    ] {
        let trace = read(bytes).unwrap();
        for format in [Format::Pickle, Format::PickleXz, Format::PickleGz] {
            let mut written = Vec::new();
            trace.write_to(&mut written, format).unwrap();
            let again = read(&written).unwrap();
            assert_eq!((again.events(), again.annotations()), (trace.events(), trace.annotations()));
            for index in 0..trace.events().len() {
                assert!(again.stacks().of_event(index).eq(trace.stacks().of_event(index)), "{index}");
                assert_eq!(again.labels().of_event(index), trace.labels().of_event(index), "{index}");
            }
            let blocks = |trace: &Trace| {
                let segments = trace.segments().iter().cloned();
                segments
                    .map(|mut segment| {
                        segment.stack = 0;
                        segment.blocks.iter_mut().for_each(|block| block.stack = 0);
                        segment
                    })
                    .collect::<Vec<_>>()
            };
            assert_eq!(blocks(&again), blocks(&trace));
            assert!(trace.left_out_of(format).is_empty());
        }
    }
    let trace = read(include_bytes!("../data/with_stack.pickle")).unwrap();
    assert_eq!((trace.stacks().of_event(1).len(), trace.segments().len()), (1, 1));
    let left_out = "a .ttrace file holds events only, so it lacks 1 call stacks, 1 segments with their blocks at the end; \
                    a .pickle keeps them";
    assert_eq!(trace.left_out_of(Format::Compact), [left_out]);
}

#[test]
fn a_conversion_keeps_tags_of_blocks_and_other_settings() {
    let block = |tag: &str| format!("(dVsize\nI8\nsVstate\nVinactive\nsVuser_metadata\nV{tag}\nsa");
    let blocks = ["weights", "", "weights"].map(block).concat();
    let segment = format!("(dVdevice\nI0\nsVaddress\nI4096\nsVtotal_size\nI24\nsVblocks\n(l{blocks}sa");
    let settings = "}Vthrow\nI01\nsVthreads\nI-3\nsVshare\nF0.5\nsVname\nVsome\nsVlisted\n(lI5\nasVempty\n(ls";
    let mark = event("snapshot", "");
    let bytes = format!("(dVdevice_traces\n(l(l{mark}asVsegments\n(l{segment}sVallocator_settings\n{settings}s.");
    let trace = read(bytes.as_bytes()).unwrap();
    let left_out = "left out, because they are not read: entries of allocator_settings: 1 \"listed\"";
    assert_eq!(trace.left_out_of(Format::Pickle), [left_out]);
    let mut written = Vec::new();
    trace.write_to(&mut written, Format::Pickle).unwrap();
    let again = read(&written).unwrap();
    for trace in [&trace, &again] {
        let blocks = trace.segments().iter().flat_map(|segment| &segment.blocks);
        let tags: Vec<_> = blocks.map(|block| trace.block_tag(block)).collect();
        assert_eq!(tags, [Some("weights"), None, Some("weights")]);
    }
    for (key, value) in [("throw", &b"\x88"[..]), ("name", b"some"), ("share", &0.5_f64.to_be_bytes())] {
        let after = written.windows(key.len()).position(|part| part == key.as_bytes()).unwrap() + key.len();
        let found = written[after..after + 20].windows(value.len()).any(|part| part == value);
        assert!(found, "{key}");
    }
    assert!(again.left_out_of(Format::Pickle).is_empty());
}

#[test]
fn parts_that_are_not_kept_are_counted_by_kind() {
    let frame = "(dVname\nVf\nsVfilename\nVa.py\nsVline\nI1\nsVfx_node_name\nVadd\nsVforward_frames\n(lVg\nasa";
    let allocation = |address: u64, more: &str| event("alloc", &format!("Vaddr\nI{address}\ns{more}"));
    let first = allocation(512, &format!("Vframes\n(l{frame}{frame}sVgraph\nI7\nsVvoid\nN"));
    let events = [first, allocation(1024, "")].concat().replace("Vvoid\nN", "Vvoid\nNs");
    let traces = format!("(l(l{events}a(l{}a", event("snapshot", ""));
    let bytes = snapshot_of(&format!("{traces}sVhost_traces\n(l(lasVversion\nN"));
    assert_eq!(
        read(&bytes).unwrap().left_out_of(Format::Pickle),
        [
            "devices: 1 (1 events, 0 segments)",
            "entries of events: 1 \"graph\"",
            "entries of frames: 2 \"forward_frames\", 2 \"fx_node_name\"",
            "entries of the snapshot: 1 \"host_traces\"",
        ]
        .map(|part| format!("left out, because they are not read: {part}"))
    );
}

#[test]
fn a_trace_without_a_list_of_segments_is_written_with_those_of_its_events() {
    let at = |action, address, bytes| TraceEvent { time_us: 0, address, bytes, stream: StreamId(7), action };
    let events = vec![
        at(TraceAction::SegmentAlloc, 4096, 4096),
        at(TraceAction::Alloc, 4608, 100),
        at(TraceAction::SegmentMap, 16384, 1024),
        at(TraceAction::Alloc, 16384, 1024),
        at(TraceAction::FreeRequested, 16384, 1024),
    ];
    let mut written = Vec::new();
    Trace::new("test", 2, Settings::default(), events).unwrap().write_to(&mut written, Format::Pickle).unwrap();
    let trace = read(&written).unwrap();
    let blocks = trace.segments().iter().flat_map(|segment| &segment.blocks);
    let blocks: Vec<_> = blocks.map(|block| (block.address, block.bytes, block.state)).collect();
    let expected = [
        (4096, 512, BlockState::Inactive),
        (4608, 512, BlockState::Allocated),
        (5120, 3072, BlockState::Inactive),
        (16384, 1024, BlockState::PendingFree),
    ];
    assert_eq!(blocks, expected);
    let segments = trace.segments().iter().map(|segment| (segment.device, segment.stream, segment.is_expandable));
    assert_eq!(segments.collect::<Vec<_>>(), [(2, StreamId(7), false), (2, StreamId(7), true)]);
}

#[test]
fn numbers_of_numpy_and_dicts_of_collections_are_data() {
    for (protocol, bytes) in NUMPY.into_iter().enumerate() {
        let trace = read(bytes).unwrap();
        let event = trace.events()[0];
        assert_eq!((event.time_us, event.address, event.bytes, event.stream.0), (1795224635308556, 1 << 63, 400, 3));
        assert_eq!(trace.events()[1].time_us, 1795224635308557, "protocol {protocol}");
        assert_eq!(trace.settings().max_split_size_bytes, None);
        assert_eq!(trace.stacks().of_event(0).next().unwrap().line, 12);
    }
}

#[test]
fn times_may_be_floats_and_may_be_missing() {
    let float = read(&snapshot_of(&device(&event("snapshot", "Vtime_us\nF5.75\ns")))).unwrap();
    assert_eq!((float.events()[0].time_us, float.has_times()), (5, true));
    for bad in ["F-1.0", "Fnan", "Finf"] {
        let error = read(&snapshot_of(&device(&event("snapshot", &format!("Vtime_us\n{bad}\ns"))))).unwrap_err();
        assert!(matches!(error, TraceError::Event { index: 0, reason: EventError::BadField("time_us") }), "{bad}");
    }
    assert!(!read(include_bytes!("../data/no_times.pickle")).unwrap().has_times());
}

#[test]
fn an_event_without_a_time_takes_that_of_the_event_before_it() {
    let timed = |time: u64| event("snapshot", &format!("Vtime_us\nI{time}\ns"));
    let untimed = "(dVaction\nVsnapshot\nsVaddr\nI0\nsVsize\nI0\nsVstream\nI0\nsa";
    let events = [untimed, untimed, &timed(1_700_000_000_000_000), untimed, &timed(1_700_000_000_000_009)].concat();
    let other = [timed(3), timed(3)].concat();
    let trace = read(&snapshot_of(&format!("(l(l{events}a(l{other}a"))).unwrap();
    let times: Vec<_> = trace.events().iter().map(|event| event.time_us - 1_700_000_000_000_000).collect();
    assert_eq!((trace.device(), times), (0, vec![0, 0, 0, 0, 9]));
    assert_eq!(trace.summary().duration_us, Some(9));
    assert_eq!(trace.notes(), ["3 of 5 events have no time: each counts as at the time of the event before it"]);
}

#[test]
fn events_that_were_inferred_have_the_times_of_their_neighbours() {
    let block = "(dVaddress\nI4096\nsVsize\nI8\nsVstate\nVinactive\nsa";
    let segment = format!("(dVdevice\nI0\nsVaddress\nI4096\nsVtotal_size\nI8\nsVblocks\n(l{block}sa");
    let allocation = "(dVaction\nValloc\nsVaddr\nI4096\nsVsize\nI8\nsVstream\nI0\nsVtime_us\nI70\nsa";
    let bytes = format!("(dVsegments\n(l{segment}sVdevice_traces\n(l(l{allocation}as.");
    let trace = read(bytes.as_bytes()).unwrap();
    assert_eq!(trace.summary().duration_us, Some(0));
    assert!(trace.events().len() > 1 && trace.events().iter().all(|event| event.time_us == 70));
}

#[test]
fn times_that_run_backwards_are_told() {
    let events = [9, 5, 7, 8].map(|time: u64| event("snapshot", &format!("Vtime_us\nI{time}\ns"))).concat();
    let trace = read(&snapshot_of(&device(&events))).unwrap();
    assert_eq!(trace.summary().duration_us, Some(0));
    let [note] = trace.notes() else { panic!("one line") };
    assert!(note.starts_with("times run backwards at 3 events, by up to 4 \u{b5}s"), "{note}");
}

#[test]
fn a_snapshot_without_settings_has_pytorchs_defaults() {
    let trace = read(&snapshot_of(&device(&event("snapshot", "")))).unwrap();
    assert_eq!(trace.settings(), &Settings::default());
}

#[test]
fn an_event_that_makes_no_sense_is_named() {
    let good = event("snapshot", "");
    let cases = [
        (event("alloc", "Vsize\nI-1\ns"), "event 1: field \"size\" is missing or is not an unsigned 64-bit integer"),
        (event("alloc", "Vaddr\nF1.5\ns"), "event 1: field \"addr\" is missing or is not an unsigned 64-bit integer"),
        (event("oom", "Vaddr\nNs"), "event 1: field \"device_free\" is missing or is not an unsigned 64-bit integer"),
        ("(da".into(), "event 1: it is not a dict with an action"),
        ("I5\na".into(), "event 1: it is not a dict with an action"),
        ("(la".into(), "event 1: it is not a dict with an action"),
        (event("alloc", "Vaction\nI3\ns"), "event 1: it is not a dict with an action"),
    ];
    for (bad, message) in cases {
        assert_eq!(refusal(&snapshot_of(&device(&[good.clone(), bad].concat()))), message);
    }
}

#[test]
fn a_file_that_is_not_a_snapshot_names_what_is_missing() {
    let cases: [(&[u8], &str); 6] = [
        (b"N.", "it is not a dict"),
        (b"].", "it is not a dict"),
        (b"}.", "it has no device_traces"),
        (b"}Vdevice_traces\nNs.", "device_traces is not a list"),
        (b"}Vdevice_traces\n]Nas.", "device_traces holds something that is not a list"),
        (b"}Vdevice_traces\n]sVallocator_settings\nNs.", "allocator_settings is not a dict"),
    ];
    for (bytes, reason) in cases {
        assert_eq!(refusal(bytes), format!("not a PyTorch memory snapshot: {reason}"));
    }
}

#[test]
fn a_setting_of_the_wrong_type_is_named() {
    for (key, value) in [("max_split_size", "V1\n"), ("expandable_segments", "I1\n"), ("roundup_power2_divisions", "N")]
    {
        let bytes = format!("}}Vdevice_traces\n]sVallocator_settings\n}}V{key}\n{value}ss.");
        let message = format!("not a PyTorch memory snapshot: allocator_settings has a strange {key}");
        assert_eq!(refusal(bytes.as_bytes()), message);
    }
}

#[test]
fn an_annotation_is_read() {
    let trace = read(include_bytes!("../data/annotate.pickle")).unwrap();
    assert_eq!(trace.events().iter().filter(|event| event.action == TraceAction::Annotate).count(), 1);
    assert_eq!((trace.summary().peak_requested_bytes, trace.notes().len()), (5 * (1 << 20) + 3000, 0));
}

#[test]
fn actions_of_a_later_pytorch_are_skipped_and_told() {
    let events = [event("split", ""), event("alloc", ""), event("merge", ""), event("split", "")].concat();
    let trace = read(&snapshot_of(&device(&events))).unwrap();
    assert_eq!(trace.summary().peak_requested_bytes, 8);
    let note = "3 events skipped, whose actions a later PyTorch recorded: \"merge\", \"split\"";
    assert_eq!(trace.notes(), [note]);
}

#[test]
fn many_skipped_actions_are_told_in_a_short_line() {
    let events: String = (0..100).map(|action| event(&format!("new{action:03}{}", "x".repeat(100)), "")).collect();
    let trace = read(&snapshot_of(&device(&events))).unwrap();
    let [note] = trace.notes() else { panic!("one line") };
    assert!(note.starts_with("100 events skipped") && note.ends_with("others") && note.len() < 500, "{note}");
}

#[test]
fn a_history_without_requests_of_frees_is_read() {
    let summary = read(include_bytes!("../data/skip_actions.pickle")).unwrap().summary();
    assert_eq!((summary.peak_requested_bytes, summary.live_at_end_bytes, summary.earlier_bytes), (1000, 0, 0));
}

#[test]
fn the_largest_integer_is_no_limit_on_splits() {
    let trace = read(include_bytes!("../data/max_split_size_unlimited.pickle")).unwrap();
    assert_eq!(trace.settings().max_split_size_bytes, None);
}

#[test]
fn a_threshold_may_be_an_integer() {
    let settings = "sVallocator_settings\n}Vgarbage_collection_threshold\nI1\ns";
    let bytes = snapshot_of(&(device(&event("snapshot", "")) + settings));
    assert_eq!(read(&bytes).unwrap().settings().garbage_collection_threshold, 1.0);
}

#[test]
fn the_device_with_most_bytes_is_read() {
    let trace = read(include_bytes!("../data/first_device_only_a_mark.pickle")).unwrap();
    assert_eq!((trace.device(), trace.summary().peak_requested_bytes), (1, 1 << 20));
    assert!(trace.notes().is_empty());

    let both = format!("(l(l{}a(l{}{}a", event("alloc", ""), event("alloc", ""), event("alloc", "Vaddr\nI1024\ns"));
    let trace = read(&snapshot_of(&both)).unwrap();
    assert_eq!(trace.device(), 1);
    let note = "devices with allocations: 0 (8 bytes at the peak), 1 (16 bytes at the peak); device 1 is read: choose \
                another with the option `device`";
    assert_eq!(trace.notes(), [note]);
}

/// Makes a snapshot in protocol 0 whose `device_traces` is made by `traces`.
fn snapshot_of(traces: &str) -> Vec<u8> {
    format!("(dp0\nVdevice_traces\n{traces}s.").into_bytes()
}

/// Returns one device with the events that `appended` appends.
fn device(appended: &str) -> String {
    format!("(l(l{appended}a")
}

/// Returns the operations that append an event; `more` sets further items.
fn event(action: &str, more: &str) -> String {
    let address = if action == "oom" { "" } else { "Vaddr\nI512\ns" };
    format!("(dVaction\nV{action}\ns{address}Vsize\nI8\nsVstream\nI0\nsVtime_us\nI5\ns{more}a")
}

proptest! {
    #[test]
    fn a_written_snapshot_is_read_back(trace in any_trace()) {
        // A snapshot without events may be of any device.
        prop_assume!(!trace.events().is_empty());
        for format in [Format::Pickle, Format::PickleXz, Format::PickleGz] {
            let mut written = Vec::new();
            trace.write_to(&mut written, format).unwrap();
            let read = Trace::read_from(written.as_slice(), trace.source(), &ReadOptions::default()).unwrap();
            prop_assert_eq!(read.events(), trace.events());
            prop_assert_eq!((read.source(), read.device(), read.settings()), (trace.source(), trace.device(), trace.settings()));
        }
    }
}
