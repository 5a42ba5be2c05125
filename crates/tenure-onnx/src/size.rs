//! Sizes that depend on axes whose size varies.

use std::fmt;
use std::ops::{Add, Mul, Sub};

/// The number of traces, if axes are dynamic: the one with the given sizes, those with other sizes, and a last one.
pub(crate) const TRACES: usize = 6;

/// The number of traces that formulas are found from. The last trace checks them.
pub(crate) const FITTED: usize = TRACES - 1;

/// A number in each trace: different ones if it depends on the sizes of dynamic axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Size(pub(crate) [i64; TRACES]);

impl Size {
    pub(crate) fn fixed(number: i64) -> Self {
        Self([number; TRACES])
    }

    /// Returns a number of something that each trace has, or that the only trace has.
    pub(crate) fn of<T>(traces: &[T], number: impl Fn(&T) -> i64) -> Self {
        Self(std::array::from_fn(|trace| number(&traces[trace.min(traces.len() - 1)])))
    }

    /// Returns the number in the trace with the given sizes.
    pub(crate) fn given(self) -> i64 {
        self.0[0]
    }

    /// Returns the number if it is the same in all traces.
    pub(crate) fn known(self) -> Option<i64> {
        (!self.is_dynamic()).then(|| self.given())
    }

    pub(crate) fn is_dynamic(self) -> bool {
        self.0.iter().any(|number| *number != self.given())
    }

    /// Returns the numbers of the traces that formulas are found from.
    pub(crate) fn fitted(&self) -> &[i64] {
        &self.0[..FITTED]
    }

    /// Returns a number that is computed of this one in each trace.
    pub(crate) fn map(self, compute: impl FnMut(i64) -> i64) -> Self {
        Self(self.0.map(compute))
    }

    /// Returns a number that is computed of two in each trace.
    pub(crate) fn zip(self, other: Self, compute: impl Fn(i64, i64) -> i64) -> Self {
        Self(std::array::from_fn(|trace| compute(self.0[trace], other.0[trace])))
    }

    /// Returns the number that this one is `other` times, if it is one.
    pub(crate) fn divided(self, other: Self) -> Option<Self> {
        let is_multiple = self.0.iter().zip(other.0).all(|(number, by)| by != 0 && number % by == 0);
        is_multiple.then(|| self.zip(other, |number, by| number / by))
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.zip(other, |one, other| one.saturating_add(other))
    }
}

impl Sub for Size {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        self.zip(other, |one, other| one.saturating_sub(other))
    }
}

impl Mul for Size {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        self.zip(other, |one, other| one.saturating_mul(other))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(number) => number.fmt(to),
            None => {
                let others: Vec<String> = self.0[1..].iter().map(i64::to_string).collect();
                write!(to, "{} ({} with other sizes)", self.given(), others.join(", "))
            }
        }
    }
}
