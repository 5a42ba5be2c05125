//! Exponentials that add up to 1.

use crate::element::Real;
use crate::{Element, Float, Scalar};

#[inline(always)]
pub(crate) fn exp<R: Real>(value: R) -> R {
    R::from_scalar(Scalar::Float(if R::DTYPE == crate::DType::F32 {
        f64::from(exp_f32(value.to_scalar().to_f64() as f32))
    } else {
        value.to_scalar().to_f64().exp()
    }))
}

/// e to a power, to the last bit or the one before it.
#[inline(always)]
fn exp_f32(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -104.0 { -104.0 } else { x };
    let x = if x > 89.0 { 89.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4_f32;
    for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = p * r + c;
    }
    let y = p * r * r + r + 1.0;
    let half = (n as i32) >> 1;
    let rest = n as i32 - half;
    let power = |n: i32| f32::from_bits(((n + 127) << 23) as u32);
    y * power(half) * power(rest)
}
