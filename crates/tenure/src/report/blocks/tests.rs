//! Tests that the page's data agrees with the trace.

use proptest::prelude::*;
use tenure_alloc::snapshot::pickle::PickleWriter;
use tenure_core::StreamId;
use tenure_plan::{ReadOptions, Settings, Trace, TraceAction, TraceEvent};

use super::history::BlockHistory;
use super::overview::Overview;
use super::pack::{Packed, within};
use super::unpack::{Unpacked, inflated, unpack};
use super::{PageOptions, section};

/// Makes a trace of `events`, read from a snapshot that gives each allocation one frame: function, file and line.
fn recorded(events: &[TraceEvent], frame: impl Fn(&TraceEvent) -> (String, String, u32)) -> Trace {
    let event = |writer: &mut PickleWriter<_>, event: &TraceEvent| {
        writer.dict(|writer| {
            writer.text_entry("action", event.action.name())?;
            let numbers = [("addr", event.address), ("size", event.bytes), ("time_us", event.time_us)];
            numbers.into_iter().try_for_each(|(key, number)| writer.entry(key, number))?;
            writer.entry("stream", event.stream.0)?;
            if event.action != TraceAction::Alloc {
                return Ok(());
            }
            let (name, file, line) = frame(event);
            writer.text("frames")?;
            writer.list(|writer| {
                writer.dict(|writer| {
                    writer.text_entry("name", &name)?;
                    writer.text_entry("filename", &file)?;
                    writer.entry("line", line)
                })
            })
        })
    };
    let mut writer = PickleWriter::new(Vec::new()).unwrap();
    let written = writer.dict(|writer| {
        writer.text("device_traces")?;
        writer.list(|writer| writer.list(|writer| events.iter().try_for_each(|made| event(writer, made))))
    });
    written.unwrap();
    Trace::read_from(&writer.finish().unwrap()[..], "random", &ReadOptions::default()).unwrap()
}

/// Makes a trace. Each choice allocates a block of so many bytes, or frees the live block of that number.
fn trace_of(choices: &[(bool, u16)]) -> Trace {
    let mut events: Vec<TraceEvent> = Vec::new();
    let mut live: Vec<TraceEvent> = Vec::new();
    for (index, &(allocates, number)) in choices.iter().enumerate() {
        let stream = StreamId(u64::from(number % 3));
        if allocates || live.is_empty() {
            let address = (index as u64 + 1) << 20;
            let event = TraceEvent {
                time_us: index as u64 * 7,
                address,
                bytes: number.into(),
                stream,
                action: TraceAction::Alloc,
            };
            live.push(event);
            events.push(event);
        } else {
            let block = live.swap_remove(usize::from(number) % live.len());
            for action in [TraceAction::FreeRequested, TraceAction::FreeCompleted] {
                events.push(TraceEvent { action, time_us: index as u64 * 7, ..block });
            }
        }
    }
    if events.is_empty() {
        return Trace::new("random", 0, Settings::default(), events).unwrap();
    }
    recorded(&events, |event| ("make".into(), format!("file{}.py", event.bytes % 5), event.bytes as u32))
}

/// Returns the live bytes after each event.
fn live_bytes(trace: &Trace) -> Vec<u64> {
    let mut live = 0;
    let after = trace.events().iter().map(|event| {
        match event.action {
            TraceAction::Alloc => live += event.bytes,
            TraceAction::FreeCompleted => live -= event.bytes,
            _ => {}
        }
        live
    });
    after.collect()
}

fn kept_bytes(data: &Unpacked, event: u64) -> u64 {
    let live = data.blocks.iter().filter(|b| b.born <= event && b.died.is_none_or(|died| died > event));
    live.map(|block| block.bytes).sum()
}

fn summed_bytes(data: &Unpacked, event: u64) -> u64 {
    data.summed.iter().rev().find(|step| step.0 <= event).map_or(0, |step| step.1)
}

fn packed(trace: &Trace, budget: usize) -> (Packed, Unpacked) {
    let packed = within(trace, &BlockHistory::of(trace, 0, usize::MAX), budget);
    let data = unpack(&packed.text);
    (packed, data)
}

proptest! {
    #[test]
    fn kept_and_summed_blocks_make_what_was_live_at_every_event(
        choices in prop::collection::vec(any::<(bool, u16)>(), 0..120),
        budget in 200_usize..3000,
    ) {
        let trace = trace_of(&choices);
        let (packed, data) = packed(&trace, budget);
        let length = packed.text.len() + packed.overview.len();
        prop_assert!(length <= budget.max(1500), "{length} bytes of {budget}");
        prop_assert_eq!(packed.kept, data.blocks.len());
        prop_assert_eq!(packed.summed.blocks as u64, data.summed_blocks);
        let live = live_bytes(&trace);
        for (event, &bytes) in (0..).zip(&live) {
            let kept = kept_bytes(&data, event);
            let summed = summed_bytes(&data, event);
            if packed.summed.is_exact {
                prop_assert_eq!(kept + summed, bytes, "event {}", event);
            } else {
                prop_assert!(kept + summed >= bytes, "event {}", event);
            }
        }
        // A step is as high as the most bytes that were left out during it.
        let ends = data.summed.iter().skip(1).map(|step| step.0).chain([live.len() as u64]);
        for (&(first, summed), end) in data.summed.iter().zip(ends) {
            let most = (first..end).map(|event| live[event as usize] - kept_bytes(&data, event)).max();
            prop_assert_eq!(most, Some(summed));
        }
    }

    #[test]
    fn a_page_with_room_has_every_block_as_it_was(choices in prop::collection::vec(any::<(bool, u16)>(), 1..120)) {
        let trace = trace_of(&choices);
        let (packed, data) = packed(&trace, 1 << 20);
        prop_assert_eq!(packed.summed.blocks, 0);
        let allocations = trace.events().iter().enumerate().filter(|(_, event)| event.action == TraceAction::Alloc);
        let mut blocks = data.blocks.iter();
        for (index, event) in allocations {
            let block = blocks.next().unwrap();
            prop_assert_eq!((block.born, block.bytes, block.address), (index as u64, event.bytes, event.address));
            prop_assert_eq!(block.died, trace.events().iter().position(|other| other.action == TraceAction::FreeCompleted && other.address == event.address).map(|end| end as u64));
            let stream = &data.strings[data.streams[block.stream as usize] as usize];
            prop_assert_eq!(stream, &format!("{:#x}", event.stream.0));
            let [name, file, line] = data.frames[data.stacks[block.stack.unwrap() as usize][0] as usize];
            prop_assert_eq!(&data.strings[name as usize], "make");
            prop_assert_eq!(&data.strings[file as usize], &format!("file{}.py", event.bytes % 5));
            prop_assert_eq!(line, event.bytes);
        }
        prop_assert!(blocks.next().is_none());
    }

    #[test]
    fn the_first_picture_has_the_heights_of_the_history_and_the_stacks_of_its_blocks(
        choices in prop::collection::vec(any::<(bool, u16)>(), 1..120),
        budget in 200_usize..3000,
    ) {
        let trace = trace_of(&choices);
        let (packed, data) = packed(&trace, budget);
        let Overview { rows, peak, columns, .. } = inflated(&packed.overview);
        let live = live_bytes(&trace);
        prop_assert_eq!((columns.len(), peak), (live.len(), *live.iter().max().unwrap()));
        for (event, (column, bytes)) in (0..).zip(columns.iter().zip(live)) {
            prop_assert_eq!(column.iter().map(|run| run[0]).sum::<u64>(), bytes * rows / peak.max(1));
            let lives = data.blocks.iter().filter(|b| b.born <= event && b.died.is_none_or(|died| died > event));
            let mut stacks = lives.map(|block| block.stack.unwrap() + 1).chain([0]);
            // Blocks that are too low for a row are skipped.
            prop_assert!(column.iter().all(|run| stacks.any(|stack| stack == run[1])), "event {event}");
        }
    }

    #[test]
    fn a_part_of_the_history_has_the_heights_of_the_whole(
        choices in prop::collection::vec(any::<(bool, u16)>(), 10..80),
        from in 0_usize..40,
        length in 1_usize..40,
        budget in 200_usize..3000,
    ) {
        let trace = trace_of(&choices);
        let history = BlockHistory::of(&trace, from, from + length);
        let packed = within(&trace, &history, budget);
        let data = unpack(&packed.text);
        prop_assert_eq!((data.from, data.to), (history.span.start as u64, history.span.end as u64));
        for event in history.span.clone().filter(|_| packed.summed.is_exact) {
            let shown = kept_bytes(&data, event as u64) + summed_bytes(&data, event as u64);
            prop_assert_eq!(shown, live_bytes(&trace)[event]);
        }
    }
}

#[test]
fn the_blocks_with_most_bytes_and_events_are_kept() {
    let choices: Vec<_> = (0..2000).map(|index| (true, if index == 700 { 60_000 } else { index % 97 })).collect();
    let (packed, data) = packed(&trace_of(&choices), 3000);
    assert!(packed.summed.blocks > 0 && packed.kept > 0);
    assert!(data.blocks.iter().any(|block| block.bytes == 60_000));
}

#[test]
fn segments_live_until_they_are_freed_and_may_be_unmapped_in_parts() {
    let event = |action, address: u64, bytes| TraceEvent { time_us: 0, address, bytes, stream: StreamId(0), action };
    let events = vec![
        event(TraceAction::SegmentAlloc, 1 << 30, 64),
        event(TraceAction::SegmentMap, 2 << 30, 100),
        event(TraceAction::SegmentUnmap, (2 << 30) + 20, 30),
        event(TraceAction::SegmentFree, 1 << 30, 64),
        event(TraceAction::Oom, 0, 64),
    ];
    let trace = Trace::new("segments", 0, Settings::default(), events).unwrap();
    let (_, data) = packed(&trace, 1 << 20);
    let lives: Vec<_> = data.segments.iter().map(|s| (s.born, s.died, s.address, s.bytes)).collect();
    let base = 2 << 30;
    let expected = [(0, Some(3), 1 << 30, 64), (1, Some(2), base, 100), (2, None, base, 20), (2, None, base + 50, 50)];
    assert_eq!(lives, expected);
    let marks: Vec<_> = data.marks.iter().map(|&(event, text)| (event, &data.strings[text as usize][..])).collect();
    assert_eq!(marks, [(4, "oom")]);
    // All times are equal.
    assert_eq!(data.times, [(0, 0), (4, 0)]);
}

#[test]
fn the_segments_with_most_bytes_and_events_are_kept_where_they_are_too_many() {
    let event = |action, number: u64, bytes| TraceEvent {
        time_us: 0,
        address: number << 32,
        bytes,
        stream: StreamId(0),
        action,
    };
    let pairs = (1..10_000).flat_map(|number| {
        let bytes = 64 + number * number * 7919 % 100_003;
        [TraceAction::SegmentMap, TraceAction::SegmentUnmap].map(|action| event(action, number, bytes))
    });
    let events: Vec<_> = [event(TraceAction::SegmentAlloc, 50_000, 1 << 30)].into_iter().chain(pairs).collect();
    let trace = Trace::new("segments", 0, Settings::default(), events).unwrap();
    let (packed, data) = packed(&trace, 10_000);
    assert!(packed.text.len() + packed.overview.len() <= 10_000);
    assert_eq!(packed.kept_segments, data.segments.len());
    assert!((1000..10_000).contains(&packed.kept_segments), "{} segments", packed.kept_segments);
    assert_eq!(data.segments[0].bytes, 1 << 30);
    let whole = section(&trace, &PageOptions::default(), 0).0;
    let page_bytes = whole.len() as u64 - 10_000;
    let part = section(&trace, &PageOptions { page_bytes, ..PageOptions::default() }, 0).0;
    assert!(part.len() as u64 <= page_bytes && part.contains("Of 10,000 segments, the "));
    assert!(!whole.contains(" segments, the "));
}

#[test]
fn events_from_before_the_history_are_counted() {
    let late = concat!(env!("CARGO_MANIFEST_DIR"), "/../tenure-plan/tests/data/late_start.pickle");
    let trace = Trace::read(late).unwrap();
    let (_, data) = packed(&trace, 1 << 20);
    assert_eq!((data.earlier, data.to), (2, trace.events().len() as u64));
    assert!(section(&trace, &PageOptions::default(), 0).0.contains(" events (2 from before the history)."));
}

#[test]
fn addresses_of_64_bits_stay_whole() {
    let address = (1 << 63) + (5 << 40) + 3;
    let event = TraceEvent { time_us: 0, address, bytes: 64, stream: StreamId(0), action: TraceAction::Alloc };
    let trace = Trace::new("high", 0, Settings::default(), vec![event]).unwrap();
    assert_eq!(packed(&trace, 1 << 20).1.blocks[0].address, address);
}

#[test]
fn hostile_names_stay_data() {
    let hostile = "</script><script>alert('\"&\u{0}\u{2028}\u{202e}é')</script>";
    let block = trace_of(&[(true, 1)]);
    let trace = recorded(block.events(), |_| (hostile.into(), hostile.into(), u32::MAX));
    let (packed, data) = packed(&trace, 1 << 20);
    assert!(packed.text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte)));
    assert_eq!(data.strings[data.frames[0][0] as usize], hostile);
    let html = section(&trace, &PageOptions::default(), 0).0;
    assert_eq!([html.matches("<script").count(), html.matches("</script").count()], [3, 3]);
    assert!(!html.contains("alert"));
}
