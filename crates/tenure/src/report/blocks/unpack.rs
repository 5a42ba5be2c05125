//! Unpacks the page's data as the browser does, for tests.

use std::io::Read;

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::read::DeflateDecoder;
use serde::de::DeserializeOwned;

use super::pack::{LifeColumns, PageData};

#[derive(Debug, Default)]
pub(super) struct Unpacked {
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) earlier: u64,
    pub(super) strings: Vec<String>,
    pub(super) frames: Vec<[u64; 3]>,
    pub(super) stacks: Vec<Vec<u64>>,
    pub(super) streams: Vec<u64>,
    pub(super) blocks: Vec<UnpackedLife>,
    pub(super) summed_blocks: u64,
    pub(super) summed: Vec<(u64, u64)>,
    pub(super) segments: Vec<UnpackedLife>,
    pub(super) times: Vec<(u64, u64)>,
    pub(super) marks: Vec<(u64, u64)>,
    /// First event, events, name.
    pub(super) annotations: Vec<(u64, u64, u64)>,
    /// Tag, compile context, pool.
    pub(super) labels: Vec<[Option<u64>; 3]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct UnpackedLife {
    pub(super) born: u64,
    pub(super) died: Option<u64>,
    pub(super) bytes: u64,
    pub(super) address: u64,
    pub(super) stream: u64,
    pub(super) stack: Option<u64>,
    pub(super) label: Option<u64>,
}

/// Returns what was packed into `text`.
pub(super) fn inflated<T: DeserializeOwned>(text: &str) -> T {
    let mut bytes = Vec::new();
    DeflateDecoder::new(&BASE64_STANDARD.decode(text).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    let (data, rest) = postcard::take_from_bytes(&bytes).unwrap();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    data
}

pub(super) fn unpack(text: &str) -> Unpacked {
    let PageData { from, to, earlier, tables, blocks, summed, segments, times, marks, annotations, labels, .. } =
        inflated(text);
    let spans = annotations.from.into_iter().zip(annotations.events).zip(annotations.name);
    Unpacked {
        from,
        to,
        earlier,
        strings: tables.strings,
        frames: tables.frames,
        stacks: tables.stacks,
        streams: tables.streams,
        blocks: lives(&blocks),
        summed_blocks: summed.blocks,
        summed: summed.event.into_iter().zip(summed.bytes).collect(),
        segments: lives(&segments),
        times: times.event.into_iter().zip(times.us).collect(),
        marks: marks.event.into_iter().zip(marks.text).collect(),
        annotations: spans.map(|((from, events), name)| (from, events, name)).collect(),
        labels: labels.labels.into_iter().map(|label| label.map(|text| text.checked_sub(1))).collect(),
    }
}

fn lives(columns: &LifeColumns) -> Vec<UnpackedLife> {
    (0..columns.born.len())
        .map(|row| UnpackedLife {
            born: columns.born[row],
            died: columns.lived[row].checked_sub(1).map(|lived| columns.born[row] + lived),
            bytes: columns.bytes[row],
            address: columns.high[row] << 52 | columns.address[row],
            stream: columns.stream[row],
            stack: columns.stack.get(row).and_then(|stack| stack.checked_sub(1)),
            label: columns.label[row].checked_sub(1),
        })
        .collect()
}
