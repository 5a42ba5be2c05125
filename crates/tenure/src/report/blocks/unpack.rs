//! Unpacks the page's data as the browser does, for tests.

use std::io::Read;

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::read::DeflateDecoder;

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

/// Returns the rows, the highest bytes, and the runs of each column.
pub(super) fn unpack_overview(text: &str) -> (u64, u64, Vec<Vec<(u64, u64)>>) {
    let bytes = inflated(text);
    let mut numbers = Columns { bytes: &bytes };
    let [columns, rows, peak, ..] = [(); 6].map(|()| numbers.number());
    let mut runs = || (0..numbers.number()).map(|_| (numbers.number(), numbers.number())).collect();
    let columns = (0..columns).map(|_| runs()).collect();
    assert!(numbers.bytes.is_empty(), "{} bytes are left", numbers.bytes.len());
    (rows, peak, columns)
}

fn inflated(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(&BASE64_STANDARD.decode(text).unwrap()[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

pub(super) fn unpack(text: &str) -> Unpacked {
    let bytes = inflated(text);
    let mut columns = Columns { bytes: &bytes };
    let [from, to, earlier] = [(); 3].map(|()| columns.number());
    let strings = (0..columns.number()).map(|_| columns.text()).collect();
    let frames = columns.number();
    let [names, files, lines] = [(); 3].map(|()| columns.column(frames));
    let frames = names.iter().zip(files).zip(lines).map(|((&name, file), line)| [name, file, line]).collect();
    let count = columns.number();
    let lengths = columns.column(count);
    let stacks = lengths.into_iter().map(|length| columns.column(length)).collect();
    let count = columns.number();
    let streams = columns.column(count);
    let mut blocks = columns.lives();
    let stacks_of_blocks = columns.column(blocks.len() as u64);
    blocks.iter_mut().zip(stacks_of_blocks).for_each(|(block, stack)| block.stack = stack.checked_sub(1));
    let [summed_blocks, count] = [(); 2].map(|()| columns.number());
    let summed = columns.sums(count).into_iter().zip(columns.signed_sums(count)).collect();
    let mut segments = columns.lives();
    let [_error_us, count] = [(); 2].map(|()| columns.number());
    let times = columns.sums(count).into_iter().zip(columns.sums(count)).collect();
    let count = columns.number();
    let marks = columns.sums(count).into_iter().zip(columns.column(count)).collect();
    let count = columns.number();
    let [begins, lengths, names] = [columns.sums(count), columns.column(count), columns.column(count)];
    let annotations = begins.into_iter().zip(lengths).zip(names).map(|((begin, length), name)| (begin, length, name));
    let annotations = annotations.collect();
    let count = columns.number();
    let texts = [(); 3].map(|()| columns.column(count));
    let labels = (0..count as usize).map(|label| [0, 1, 2].map(|text| texts[text][label].checked_sub(1))).collect();
    if count > 0 {
        blocks.iter_mut().chain(&mut segments).for_each(|life| life.label = columns.number().checked_sub(1));
    }
    assert!(columns.bytes.is_empty(), "{} bytes are left", columns.bytes.len());
    Unpacked {
        from,
        to,
        earlier,
        strings,
        frames,
        stacks,
        streams,
        blocks,
        summed_blocks,
        summed,
        segments,
        times,
        marks,
        annotations,
        labels,
    }
}

struct Columns<'a> {
    bytes: &'a [u8],
}

impl Columns<'_> {
    fn number(&mut self) -> u64 {
        let length = self.bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let (number, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        number.iter().rev().fold(0, |value, byte| value << 7 | u64::from(byte & 0x7f))
    }

    fn text(&mut self) -> String {
        let length = self.number() as usize;
        let (text, rest) = self.bytes.split_at(length);
        self.bytes = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn column(&mut self, count: u64) -> Vec<u64> {
        (0..count).map(|_| self.number()).collect()
    }

    fn sums(&mut self, count: u64) -> Vec<u64> {
        let mut sum = 0;
        self.column(count).into_iter().map(|number| (sum += number, sum).1).collect()
    }

    fn signed_sums(&mut self, count: u64) -> Vec<u64> {
        let mut sum = 0_i64;
        let difference = |code: u64| (code >> 1) as i64 ^ -((code & 1) as i64);
        self.column(count).into_iter().map(|code| (sum += difference(code), sum as u64).1).collect()
    }

    fn lives(&mut self) -> Vec<UnpackedLife> {
        let count = self.number();
        let born = self.sums(count);
        let lived = self.column(count);
        let bytes = self.column(count);
        let address = self.signed_sums(count);
        let high = self.column(count);
        let stream = self.column(count);
        (0..count as usize)
            .map(|index| UnpackedLife {
                born: born[index],
                died: lived[index].checked_sub(1).map(|lived| born[index] + lived),
                bytes: bytes[index],
                address: high[index] << 52 | address[index],
                stream: stream[index],
                stack: None,
                label: None,
            })
            .collect()
    }
}
