//! Derivatives of the logarithm of the gamma function, in `f64`.

use std::f64::consts::PI;

/// Computes the first derivative of the logarithm of the gamma function. It is infinite at 0 and NaN at negative
/// integers, as in PyTorch.
pub(super) fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::INFINITY.copysign(-x);
    }
    if x < 0.0 {
        // A negative integer is a pole, between infinities of both signs.
        return if x == x.trunc() { f64::NAN } else { digamma(1.0 - x) - PI / (PI * (x - x.trunc())).tan() };
    }
    let mut x = x;
    let mut below = 0.0;
    while x < 10.0 {
        below += 1.0 / x;
        x += 1.0;
    }
    // The asymptotic series: B₂ₖ / (2k·x²ᵏ).
    let z = 1.0 / (x * x);
    let series = [1.0 / 12.0, -691.0 / 32760.0, 1.0 / 132.0, -1.0 / 240.0, 1.0 / 252.0, -1.0 / 120.0, 1.0 / 12.0];
    x.ln() - 0.5 / x - series.into_iter().fold(0.0, |sum, term| (sum + term) * z) - below
}

/// Computes the derivative of [`digamma`] of an order of at least 1. It is infinite at 0 and at negative integers.
pub(super) fn polygamma(order: f64, x: f64) -> f64 {
    let s = order + 1.0;
    let sign = if order % 2.0 == 0.0 { -1.0 } else { 1.0 };
    if x > 0.0 {
        return sign * libm::tgamma(s) * zeta(s, x);
    }
    let rest = x - x.floor();
    if rest == 0.0 {
        return sign * f64::INFINITY;
    }
    // The terms of the series are those of positive numbers, and those of negative ones down to x.
    sign * libm::tgamma(s) * (zeta(s, rest) + sign * (zeta(s, 1.0 - rest) - zeta(s, 1.0 - x)))
}

/// Computes the Hurwitz zeta function, the sum of (x + k)⁻ˢ over all k from 0, for s of at least 2 and positive x, by
/// Euler and Maclaurin's formula.
fn zeta(s: f64, x: f64) -> f64 {
    let mut x = x;
    let mut sum = 0.0;
    while x < 10.0 + s {
        let term = x.powf(-s);
        sum += term;
        x += 1.0;
        if term <= 1e-18 * sum {
            return sum;
        }
    }
    let power = x.powf(-s);
    // B₂ₖ / (2k)!
    let series = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
    ];
    let mut factor = s * power / x;
    let mut at = s;
    let mut tail = x * power / (s - 1.0) + 0.5 * power;
    for coefficient in series {
        tail += coefficient * factor;
        factor *= (at + 1.0) * (at + 2.0) / (x * x);
        at += 2.0;
    }
    sum + tail
}
