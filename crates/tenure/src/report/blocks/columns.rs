//! Columns of variable-length integers, deflated, in base64.

use std::io::Write;

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Returns all `parts`, deflated, in base64.
pub(super) fn deflated(parts: &[&[u8]]) -> String {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let written = parts.iter().try_for_each(|part| encoder.write_all(part)).and_then(|()| encoder.finish());
    BASE64_STANDARD.encode(written.expect("a vector takes every byte"))
}

/// Returns the differences of numbers that do not descend.
pub(super) fn differences(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    numbers.scan(0, |before, number| Some(number - std::mem::replace(before, number)))
}

/// Returns the zigzag-encoded differences of numbers below 2^52.
pub(super) fn signed_differences(numbers: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
    numbers.scan(0, |before, number| {
        let difference = number as i64 - std::mem::replace(before, number) as i64;
        Some((difference << 1 ^ difference >> 63) as u64)
    })
}

pub(super) fn put_column(out: &mut Vec<u8>, numbers: impl Iterator<Item = u64>) {
    numbers.for_each(|number| put(out, number));
}

/// Writes seven bits per byte, lowest first; the top bit says that more follow (LEB128).
pub(super) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
