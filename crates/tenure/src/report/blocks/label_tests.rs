//! Tests that the page's tags, pools and annotations are those of the snapshot.

use std::io;

use tenure_alloc::snapshot::pickle::PickleWriter;
use tenure_plan::{ReadOptions, Trace};

use super::history::BlockHistory;
use super::pack::{Packed, within};
use super::unpack::{Unpacked, unpack};
use super::{PageOptions, section};

type Out = PickleWriter<Vec<u8>>;

/// Action, address, tag, compile context, pool. Every block and segment has 64 bytes; event `n` is at `n` µs.
type Recorded = (&'static str, u64, &'static str, &'static str, u64);

/// Name, stage, time in µs.
type Annotated<'a> = (&'a str, &'a str, u64);

fn recorded(events: &[Recorded], annotations: &[Annotated<'_>]) -> Trace {
    let event = |writer: &mut Out, time_us: u64, &(action, address, tag, context, pool): &Recorded| {
        writer.dict(|writer| {
            writer.text_entry("action", action)?;
            for (key, number) in [("addr", address), ("size", 64), ("stream", 0), ("time_us", time_us)] {
                writer.entry(key, number)?;
            }
            writer.text_entry("user_metadata", tag)?;
            writer.text_entry("compile_context", context)?;
            writer.text("pool_id")?;
            writer.pair(|writer| writer.integer(pool), |writer| writer.integer(0))
        })
    };
    let annotation = |writer: &mut Out, &(name, stage, time_us): &Annotated<'_>| {
        writer.dict(|writer| {
            writer.text_entry("name", name)?;
            writer.text_entry("stage", stage)?;
            writer.entry("time_us", time_us)
        })
    };
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    let written: io::Result<()> = writer.dict(|writer| {
        writer.text("device_traces")?;
        writer.list(|writer| {
            writer.list(|writer| (0..).zip(events).try_for_each(|(time_us, made)| event(writer, time_us, made)))
        })?;
        writer.text("external_annotations")?;
        writer.list(|writer| annotations.iter().try_for_each(|made| annotation(writer, made)))
    });
    written.unwrap();
    Trace::read_from(&writer.finish().unwrap()[..], "labels", &ReadOptions::default()).unwrap()
}

fn packed(trace: &Trace, from: usize, to: usize, budget: usize) -> (Packed, Unpacked) {
    let packed = within(trace, &BlockHistory::of(trace, from, to), budget);
    let data = unpack(&packed.text);
    (packed, data)
}

/// Returns the tag, the compile context and the pool of a label.
fn texts(data: &Unpacked, label: Option<u64>) -> [Option<&str>; 3] {
    label.map_or([None; 3], |label| {
        data.labels[label as usize].map(|text| text.map(|text| &*data.strings[text as usize]))
    })
}

fn spans(data: &Unpacked) -> Vec<(&str, u64, u64)> {
    data.annotations.iter().map(|&(from, count, name)| (&*data.strings[name as usize], from, count)).collect()
}

#[test]
fn blocks_and_segments_have_their_tags_compile_contexts_and_pools() {
    let events = [
        ("segment_alloc", 0, "", "N/A", 2),
        ("alloc", 0, "weights", "0/1", 2),
        ("alloc", 1 << 20, "", "N/A", 0),
        ("free_requested", 0, "", "", 0),
        ("free_completed", 0, "", "", 0),
        ("alloc", 0, "weights", "0/1", 2),
    ];
    let (_, data) = packed(&recorded(&events, &[]), 0, usize::MAX, 1 << 20);
    let weights = [Some("weights"), Some("0/1"), Some("(2, 0)")];
    let of_blocks: Vec<_> = data.blocks.iter().map(|block| texts(&data, block.label)).collect();
    assert_eq!(of_blocks, [weights, [None, None, Some("default")], weights]);
    assert_eq!(texts(&data, data.segments[0].label), [None, None, Some("(2, 0)")]);
    assert_eq!(data.labels.len(), 3);
}

#[test]
fn a_block_that_the_program_names_has_its_name_after_its_tag() {
    let events = [
        ("alloc", 0, "load", "", 0),
        ("alloc", 64, "", "", 0),
        ("annotate", 0, "embedding", "", 0),
        ("annotate", 64, "head", "", 0),
        ("free_requested", 64, "", "", 0),
        ("free_completed", 64, "", "", 0),
        ("alloc", 64, "", "", 0),
    ];
    let (_, data) = packed(&recorded(&events, &[]), 0, usize::MAX, 1 << 20);
    let tags: Vec<_> = data.blocks.iter().map(|block| texts(&data, block.label)[0]).collect();
    assert_eq!(tags, [Some("load · embedding"), Some("head"), None]);
    let marks: Vec<_> = data.marks.iter().map(|&(_, text)| &*data.strings[text as usize]).collect();
    assert_eq!(marks, ["annotate embedding", "annotate head"]);
}

#[test]
fn the_rest_of_a_segment_stays_in_its_pool() {
    let segment = |action, address| (action, address, "", "", 5);
    let events = [segment("segment_map", 0), segment("segment_map", 64), ("segment_unmap", 32, "", "", 0)];
    let (_, data) = packed(&recorded(&events, &[]), 0, usize::MAX, 1 << 20);
    let left: Vec<_> = data.segments.iter().filter(|segment| segment.died.is_none()).collect();
    assert_eq!(left.iter().map(|segment| (segment.address, segment.bytes)).collect::<Vec<_>>(), [(0, 32), (96, 32)]);
    assert!(left.iter().all(|segment| texts(&data, segment.label)[2] == Some("(5, 0)")));
}

/// Returns ten blocks that are never freed, one at each µs.
fn ten_blocks() -> Vec<Recorded> {
    (0..10).map(|number| ("alloc", number * 64, "", "", 0)).collect()
}

#[test]
fn annotations_cover_the_events_of_their_time() {
    let annotations = [
        ("before", "END", 1),
        ("step", "START", 2),
        ("forward", "START", 2),
        ("forward", "END", 4),
        ("step", "END", 7),
        ("mark", "", 8),
        ("open", "START", 9),
        ("after", "START", 10),
    ];
    let trace = recorded(&ten_blocks(), &annotations);
    let (_, data) = packed(&trace, 0, usize::MAX, 1 << 20);
    let expected = [("before", 0, 2), ("step", 2, 6), ("forward", 2, 3), ("mark", 8, 1), ("open", 9, 1)];
    assert_eq!(spans(&data), expected);
    // A part of the history has the annotations that touch it, whole.
    let (_, data) = packed(&trace, 5, 9, 1 << 20);
    assert_eq!(spans(&data), [("step", 2, 6), ("mark", 8, 1)]);
}

#[test]
fn the_longest_annotations_are_kept_where_they_are_too_many() {
    let names: Vec<String> = (0..500).map(|number| format!("annotation {number}")).collect();
    let mut annotations = vec![("whole", "START", 0)];
    annotations.extend(names.iter().map(|name| (&**name, "", 5)));
    annotations.push(("whole", "END", 9));
    let trace = recorded(&ten_blocks(), &annotations);
    let (packed, data) = packed(&trace, 0, usize::MAX, 10_000);
    assert!(packed.text.len() + packed.overview.len() <= 10_000);
    assert_eq!((packed.annotations, packed.kept_annotations), (501, data.annotations.len()));
    assert!((2..100).contains(&data.annotations.len()), "{} annotations", data.annotations.len());
    assert_eq!(spans(&data)[0], ("whole", 0, 10));
    let whole = section(&trace, &PageOptions::default(), 0).0;
    let part = section(&trace, &PageOptions { page_bytes: whole.len() as u64 - 1500, ..PageOptions::default() }, 0).0;
    assert!(part.contains("Of 501 annotations, the ") && !whole.contains("Of 501 annotations"));
}

#[test]
fn a_snapshot_that_labels_nothing_has_no_column_of_labels() {
    let (_, data) = packed(&recorded(&ten_blocks(), &[]), 0, usize::MAX, 1 << 20);
    assert!(data.labels.is_empty() && data.annotations.is_empty());
    assert!(data.blocks.iter().all(|block| block.label.is_none()));
}
