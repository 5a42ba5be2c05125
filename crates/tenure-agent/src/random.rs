//! Random numbers, one at a time.

use std::f64::consts::TAU;

use tenure_tensor::random::Generator;

/// Returns a number above 0 and below 1.
pub(crate) fn uniform(generator: &Generator) -> f64 {
    ((generator.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
}

/// Returns a normally distributed number of mean 0 and variance 1 (Box and Muller).
pub(crate) fn normal(generator: &Generator) -> f64 {
    let length = uniform(generator);
    let angle = uniform(generator);
    (-2.0 * length.ln()).sqrt() * (TAU * angle).cos()
}
