//! Columns of variable-length integers, deflated, in base64.

use std::io::Write;

use flate2::Compression;
use flate2::write::DeflateEncoder;

/// Returns all `parts`, deflated, in base64.
pub(super) fn deflated(parts: &[&[u8]]) -> String {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    let written = parts.iter().try_for_each(|part| encoder.write_all(part)).and_then(|()| encoder.finish());
    base64(&written.expect("a vector takes every byte"))
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

/// Encodes in base64 (RFC 4648, section 4).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 0x3f;
            text.push(if digit <= group.len() { char::from(DIGITS[value as usize]) } else { '=' });
        }
    }
    text
}
