//! Tests of the compact format: a file is read completely, or an error says where it is damaged.

use crate::common::{any_trace, event, read, refusal};
use proptest::prelude::*;
use tenure_core::StreamId;
use tenure_plan::{Format, Settings, Trace, TraceAction, TraceEvent};

fn write(trace: &Trace) -> Vec<u8> {
    let mut bytes = Vec::new();
    trace.write_to(&mut bytes, Format::Compact).unwrap();
    bytes
}

fn small_trace() -> Trace {
    let events = vec![
        TraceEvent { time_us: 1000, ..event(TraceAction::SegmentAlloc, 0x2000, 4096) },
        TraceEvent { time_us: 1001, stream: StreamId(3), ..event(TraceAction::Alloc, 0x2000, 300) },
        TraceEvent { time_us: 1001, stream: StreamId(3), ..event(TraceAction::FreeRequested, 0x2000, 300) },
        TraceEvent { time_us: 1300, stream: StreamId(3), ..event(TraceAction::FreeCompleted, 0x2000, 300) },
        TraceEvent { time_us: 1301, ..event(TraceAction::Oom, 7, 1) },
    ];
    Trace::new("small", 1, Settings::default(), events).unwrap()
}

#[test]
fn the_bytes_are_those_of_the_document() {
    let document = include_str!("../../../../docs/reference/trace-format.md");
    let example = document.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    // Each line has bytes, then words about them.
    let expected: Vec<u8> = example
        .lines()
        .flat_map(|line| {
            line.split_whitespace()
                .map_while(|word| (word.len() == 2).then(|| u8::from_str_radix(word, 16).ok()).flatten())
        })
        .collect();
    assert_eq!(write(&small_trace()), expected);
}

#[test]
fn every_truncation_is_an_error_that_says_where() {
    let bytes = write(&small_trace());
    for end in 8..bytes.len() {
        let expected = format!("truncated: it ends at byte {end}, in the middle: copy or save it again");
        assert_eq!(refusal(&bytes[..end]), expected);
    }
}

#[test]
fn every_flipped_bit_is_found() {
    let bytes = write(&small_trace());
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        refusal(&damaged);
    }
}

#[test]
fn a_wrong_checksum_says_where_its_block_begins() {
    let mut bytes = write(&small_trace());
    let end = bytes.len();
    bytes[end - 20] ^= 1;
    assert_eq!(refusal(&bytes), "damaged trace in the block at byte 56: its checksum is wrong");
    bytes[20] ^= 1;
    assert_eq!(refusal(&bytes), "damaged trace in the block at byte 0: its checksum is wrong");
}

#[test]
fn a_missing_block_is_missed() {
    let bytes = write(&small_trace());
    let (header, blocks) = bytes.split_at(56);
    let without = [header, &blocks[blocks.len() - 12..]].concat();
    assert_eq!(refusal(&without), "damaged trace in the block at byte 56: it ends 0 events, and the header promises 5");
}

#[test]
fn another_version_is_named() {
    let mut bytes = write(&small_trace());
    bytes[8] = 2;
    let message = "it is a trace of version 2, and only version 1 is known: use a newer program";
    assert_eq!(refusal(&bytes), message);
}

#[test]
fn data_after_the_end_is_an_error() {
    let mut bytes = write(&small_trace());
    bytes.push(0);
    assert_eq!(refusal(&bytes), format!("more data after the end, at byte {}", bytes.len() - 1));
}

#[test]
fn a_trace_of_many_blocks_is_read_back() {
    let trace = Trace::new(
        "long",
        0,
        Settings::default(),
        (0..5000)
            .flat_map(|index| {
                let block = TraceEvent { time_us: index, ..event(TraceAction::Alloc, index * 700, 700) };
                [
                    block,
                    TraceEvent { action: TraceAction::FreeRequested, ..block },
                    TraceEvent { action: TraceAction::FreeCompleted, ..block },
                ]
            })
            .collect(),
    )
    .unwrap();
    assert_eq!(read(&write(&trace)).unwrap(), trace);
}

proptest! {
    #[test]
    fn a_written_trace_is_read_back(trace in any_trace()) {
        prop_assert_eq!(&read(&write(&trace)).unwrap(), &trace);
    }
}
