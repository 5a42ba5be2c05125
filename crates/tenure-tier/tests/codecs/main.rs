//! Tests of codecs on the host, on devices and on the way to disks.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod devices;
mod disks;
mod host;

use tenure_core::DType;

/// Returns elements of a kind that tensors have: arbitrary bits, zeros, normally distributed, their positive part,
/// special values, or half zeros.
pub(crate) fn tensor(dtype: DType, kind: usize, count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut bits = Vec::new();
    for number in 0..count {
        let value: f32 = (0..4).map(|_| (random(&mut state) >> 40) as f32 / (1 << 24) as f32 - 0.5).sum();
        let value = match kind {
            0 => f32::from_bits(value.to_bits().wrapping_mul(0x9e37_79b9)),
            1 => 0.0,
            2 => value,
            3 => value.max(0.0),
            4 => [0.0, -0.0, f32::NAN, f32::INFINITY, -f32::NAN, 1e-42, 1e9, f32::MIN_POSITIVE][number % 8],
            _ => {
                if number / 3000 % 2 == 0 {
                    value.max(0.1) - 0.1
                } else {
                    0.0
                }
            }
        };
        let value = u64::from(value.to_bits());
        bits.extend_from_slice(
            &match dtype.size() {
                // The upper half of an f32, as in bf16.
                1 | 2 => (value >> 16).to_le_bytes(),
                4 => value.to_le_bytes(),
                _ => (value << 32 | value).to_le_bytes(),
            }[..dtype.size()],
        );
    }
    bits
}

/// Returns the next of random numbers.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ *state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}
