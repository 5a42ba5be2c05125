//! Tests of a snapshot's tags, compile contexts, pools and annotations.

use crate::common::read;
use tenure_alloc::snapshot::pickle::PickleWriter;
use tenure_plan::{EventLabel, Trace};

type Out = PickleWriter<Vec<u8>>;

/// An event with the labels that a snapshot records.
#[derive(Clone, Copy, Default)]
struct Recorded {
    action: &'static str,
    address: u64,
    tag: &'static str,
    context: &'static str,
    pool: Option<(u64, u64)>,
}

fn recorded(action: &'static str, address: u64) -> Recorded {
    Recorded { action, address, ..Recorded::default() }
}

fn write_event(writer: &mut Out, event: &Recorded) {
    let written = writer.dict(|writer| {
        writer.text_entry("action", event.action)?;
        let bytes = if matches!(event.action, "segment_alloc" | "segment_free") { 64 } else { 8 };
        for (key, number) in [("addr", event.address), ("size", bytes), ("stream", 0), ("time_us", 0)] {
            writer.entry(key, number)?;
        }
        writer.text_entry("user_metadata", event.tag)?;
        writer.text_entry("compile_context", event.context)?;
        if let Some((first, second)) = event.pool {
            writer.text("pool_id")?;
            writer.pair(|writer| writer.integer(first), |writer| writer.integer(second))?;
        }
        Ok(())
    });
    written.unwrap();
}

/// Makes a snapshot of `events` that lists `segments` of 64 bytes at its end, each with its pool and its live blocks.
fn snapshot(events: &[Recorded], segments: &[(u64, (u64, u64), &[u64])]) -> Trace {
    let segment = |writer: &mut Out, address: u64, pool: (u64, u64), blocks: &[u64]| {
        writer.dict(|writer| {
            for (key, number) in [("device", 0), ("address", address), ("total_size", 64), ("stream", 0)] {
                writer.entry(key, number)?;
            }
            writer.text("segment_pool_id")?;
            writer.pair(|writer| writer.integer(pool.0), |writer| writer.integer(pool.1))?;
            writer.text("blocks")?;
            writer.list(|writer| {
                blocks.iter().try_for_each(|&block| {
                    writer.dict(|writer| {
                        writer.text_entry("state", "active_allocated")?;
                        writer.entry("address", block)?;
                        writer.entry("size", 8)
                    })
                })
            })
        })
    };
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    let written = writer.dict(|writer| {
        writer.text("segments")?;
        writer.list(|writer| {
            segments.iter().try_for_each(|&(address, pool, blocks)| segment(writer, address, pool, blocks))
        })?;
        writer.text("device_traces")?;
        writer.list(|writer| {
            writer.list(|writer| {
                events.iter().for_each(|event| write_event(writer, event));
                Ok(())
            })
        })
    });
    written.unwrap();
    read(&writer.finish().unwrap()).unwrap()
}

fn label(trace: &Trace, event: usize) -> EventLabel {
    trace.labels().of_event(event).cloned().unwrap_or_default()
}

fn pools(trace: &Trace) -> Vec<Option<(u32, u32)>> {
    (0..trace.events().len()).map(|event| label(trace, event).pool).collect()
}

#[test]
fn an_event_has_the_tag_and_the_compile_context_it_was_recorded_with() {
    let trace = snapshot(
        &[
            Recorded { tag: "weights", ..recorded("alloc", 0) },
            Recorded { tag: "weights", context: "0/1", ..recorded("alloc", 8) },
            recorded("alloc", 16),
            Recorded { tag: "late", ..recorded("annotate", 16) },
        ],
        &[],
    );
    let texts = |event| {
        let label = label(&trace, event);
        [label.tag, label.compile_context].map(|text| text.map(|text| text.to_string()))
    };
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(texts(0), [some("weights"), None]);
    assert_eq!(texts(1), [some("weights"), some("0/1")]);
    assert_eq!(texts(2), [None, None]);
    assert_eq!(texts(3), [some("late"), None]);
}

#[test]
fn events_that_say_nothing_leave_no_labels() {
    let default = Some((0, 0));
    let events = [
        Recorded { context: "N/A", pool: default, ..recorded("segment_alloc", 0) },
        Recorded { context: "N/A", ..recorded("alloc", 0) },
    ];
    let trace = snapshot(&events, &[(0, (0, 0), &[0])]);
    assert!(trace.labels().is_empty() && trace.labels().of_event(0).is_none());
}

#[test]
fn an_event_says_its_pool() {
    let events = [
        Recorded { pool: Some((0, 0)), ..recorded("alloc", 0) },
        Recorded { pool: Some((0, 7)), ..recorded("alloc", 8) },
        recorded("free_requested", 8),
        recorded("free_completed", 8),
        Recorded { pool: Some((0, 0)), ..recorded("alloc", 8) },
    ];
    let found = pools(&snapshot(&events, &[]));
    assert_eq!([found[0], found[1], found[4]], [Some((0, 0)), Some((0, 7)), Some((0, 0))]);
}

#[test]
fn a_pool_that_no_event_says_is_that_of_the_segment_at_the_end() {
    let events = [
        recorded("segment_alloc", 0),
        recorded("alloc", 0),
        recorded("free_requested", 0),
        recorded("free_completed", 0),
        recorded("segment_free", 0),
        recorded("segment_alloc", 0),
        recorded("alloc", 0),
        recorded("alloc", 1000),
        recorded("alloc", 2000),
    ];
    let found = pools(&snapshot(&events, &[(0, (3, 0), &[0]), (1000, (0, 0), &[1000])]));
    let from_before = found.len() - events.len();
    let found = &found[from_before..];
    // The first segment and its block are gone, and no segment has the last block.
    assert_eq!([found[0], found[1]], [None, None]);
    assert_eq!([found[5], found[6]], [Some((3, 0)); 2]);
    assert_eq!([found[7], found[8]], [Some((0, 0)), None]);
}

#[test]
fn a_segment_that_was_mapped_in_parts_keeps_its_pool_around_the_last_of_them() {
    let events = [recorded("alloc", 0), recorded("alloc", 48), recorded("segment_map", 32), recorded("alloc", 32)];
    let found = pools(&snapshot(&events, &[(0, (3, 0), &[0, 32, 48])]));
    assert_eq!(found[found.len() - events.len()..], [Some((3, 0)); 4]);
}

#[test]
fn blocks_from_before_the_history_have_their_segments_pool_and_shift_no_label() {
    let events = [Recorded { tag: "new", ..recorded("alloc", 1000) }, recorded("alloc", 1008)];
    let trace = snapshot(&events, &[(0, (3, 0), &[16])]);
    assert_eq!(trace.earlier_events(), 2);
    assert_eq!(pools(&trace), [Some((3, 0)), Some((3, 0)), None, None]);
    let tags: Vec<_> = (0..4).map(|event| label(&trace, event).tag).collect();
    assert_eq!(tags, [None, None, Some("new".into()), None]);
}

/// Reads annotations: name, stage, time, device.
fn annotated(records: &[(&str, &str, u64, u64)]) -> Trace {
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    let written = writer.dict(|writer| {
        writer.text("device_traces")?;
        writer.list(|writer| {
            writer.list(|writer| {
                write_event(writer, &recorded("alloc", 0));
                Ok(())
            })
        })?;
        writer.text("external_annotations")?;
        writer.list(|writer| {
            records.iter().try_for_each(|&(name, stage, time_us, device)| {
                writer.dict(|writer| {
                    writer.text_entry("name", name)?;
                    writer.text_entry("stage", stage)?;
                    writer.entry("device", device)?;
                    writer.entry("time_us", time_us)
                })
            })
        })
    });
    written.unwrap();
    read(&writer.finish().unwrap()).unwrap()
}

#[test]
fn an_annotations_end_belongs_to_the_last_open_beginning_of_its_name() {
    let trace = annotated(&[
        ("earlier", "END", 5, 0),
        ("step", "START", 10, 0),
        ("layer", "START", 11, 0),
        ("layer", "START", 12, 0),
        ("other device", "START", 12, 1),
        ("layer", "END", 13, 0),
        ("mark", "", 14, 0),
        ("layer", "END", 15, 0),
        ("late", "START", 16, 0),
        ("step", "END", 20, 0),
    ]);
    let found: Vec<_> = trace.annotations().iter().map(|span| (&*span.name, span.begin_us, span.end_us)).collect();
    assert_eq!(
        found,
        [
            ("earlier", None, Some(5)),
            ("step", Some(10), Some(20)),
            ("layer", Some(11), Some(15)),
            ("layer", Some(12), Some(13)),
            ("mark", Some(14), Some(14)),
            ("late", Some(16), None),
        ]
    );
}

#[test]
fn a_snapshot_without_annotations_has_none() {
    assert!(annotated(&[]).annotations().is_empty());
}
