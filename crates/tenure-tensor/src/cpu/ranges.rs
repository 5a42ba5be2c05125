//! Ranges of numbers: arange, linspace, logspace.

use crate::kernel::on_cpu;
use crate::{Access, Element, Entry, Result, Scalar, Tensor};

/// A kernel that writes numbers to a contiguous tensor, each computed from its index.
pub(crate) type RangeKernel = fn(&'static str, &Tensor, RangeRule) -> Result<()>;

pub(crate) const RANGES: &[Entry<RangeKernel>] = on_cpu!(numbers: range::<T>);

/// The rule of a range.
#[derive(Clone, Copy)]
pub(crate) enum RangeRule {
    /// Integers: the first number, and the step.
    Integers(i64, i64),
    /// Floats: the first number, and the step.
    Floats(f64, f64),
    /// Equally spaced numbers from the first to the second, both included.
    Between(f64, f64),
    /// Powers of the first number, with equally spaced exponents from the second to the third.
    Powers(f64, f64, f64),
}

impl RangeRule {
    /// Returns number `i` of `count`.
    fn number(self, i: usize, count: usize) -> Scalar {
        match self {
            Self::Integers(start, step) => Scalar::Int(start.wrapping_add(step.wrapping_mul(i as i64))),
            Self::Floats(start, step) => Scalar::Float(start + step * i as f64),
            Self::Between(start, end) => Scalar::Float(between(start, end, i, count)),
            Self::Powers(base, start, end) => Scalar::Float(base.powf(between(start, end, i, count))),
        }
    }
}

/// Returns number `i` of `count` from `start` to `end`, exact at both.
fn between(start: f64, end: f64, i: usize, count: usize) -> f64 {
    let step = (end - start) / (count.max(2) - 1) as f64;
    if i < count / 2 || count == 1 { start + step * i as f64 } else { end - step * (count - 1 - i) as f64 }
}

fn range<T: Element>(op: &'static str, out: &Tensor, rule: RangeRule) -> Result<()> {
    let mut access = Access::new(op, &[out], &[])?;
    let numbers = access.slice_mut::<T>(0)?;
    let count = numbers.len();
    numbers.iter_mut().enumerate().for_each(|(i, to)| *to = T::from_scalar(rule.number(i, count)));
    Ok(())
}
