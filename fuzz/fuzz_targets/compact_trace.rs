//! Takes any bytes as a compact trace, with every checksum corrected, so that the fuzzer gets past them.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tenure_plan::{Format, ReadOptions, Trace};

const HEADER_START: usize = 14;

fuzz_target!(|bytes: &[u8]| {
    let mut bytes = bytes.to_vec();
    right_checksums(&mut bytes);
    let options = ReadOptions { memory_bytes: 64 << 20, decoded_bytes: 64 << 20, ..ReadOptions::default() };
    if let Ok(trace) = Trace::read_from(bytes.as_slice(), "fuzz", &options) {
        let mut written = Vec::new();
        trace.write_to(&mut written, Format::Compact).expect("memory takes any write");
        let again = Trace::read_from(written.as_slice(), "fuzz", &ReadOptions::default());
        assert_eq!(again.expect("our own traces are read"), trace);
        trace.summary();
    }
});

/// Corrects the checksum of the header and of each block, as far as the lengths lead.
fn right_checksums(bytes: &mut [u8]) {
    let Some(length) = length_at(bytes, HEADER_START - 4) else { return };
    let Some(mut start) = right_one(bytes, 0, HEADER_START, length) else { return };
    while let Some(length) = length_at(bytes, start + 4) {
        let Some(next) = right_one(bytes, start, start + 8, length) else { return };
        start = next;
    }
}

fn length_at(bytes: &[u8], at: usize) -> Option<usize> {
    let length = bytes.get(at..at + 4)?;
    Some(u32::from_le_bytes(length.try_into().ok()?) as usize)
}

fn right_one(bytes: &mut [u8], start: usize, payload: usize, length: usize) -> Option<usize> {
    let end = payload.checked_add(length)?;
    let checksum = crc32fast::hash(bytes.get(start..end)?);
    bytes.get_mut(end..end + 4)?.copy_from_slice(&checksum.to_le_bytes());
    Some(end + 4)
}
