//! Sizes that depend on axes whose size varies.

use std::fmt;
use std::ops::{Add, Mul};

/// A number in two traces: different ones if it depends on the sizes of dynamic axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Size {
    /// The number in the first trace.
    pub(crate) first: i64,
    /// The number in the second trace.
    pub(crate) second: i64,
}

impl Size {
    pub(crate) fn fixed(number: i64) -> Self {
        Self { first: number, second: number }
    }

    /// Returns the number if it is the same in both traces.
    pub(crate) fn known(self) -> Option<i64> {
        (self.first == self.second).then_some(self.first)
    }

    pub(crate) fn is_dynamic(self) -> bool {
        self.first != self.second
    }

    /// Returns the number that this one is `other` times, if it is one.
    pub(crate) fn divided(self, other: Self) -> Option<Self> {
        let divide = |number: i64, by: i64| (by != 0 && number % by == 0).then(|| number / by);
        Some(Self { first: divide(self.first, other.first)?, second: divide(self.second, other.second)? })
    }

    /// Returns the number that is added to `other` to give this one.
    pub(crate) fn minus(self, other: Self) -> Self {
        Self { first: self.first - other.first, second: self.second - other.second }
    }
}

impl Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { first: self.first + other.first, second: self.second + other.second }
    }
}

impl Mul for Size {
    type Output = Self;

    fn mul(self, other: Self) -> Self {
        Self { first: self.first * other.first, second: self.second * other.second }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some(number) => number.fmt(to),
            None => write!(to, "{} (or {} with other sizes)", self.first, self.second),
        }
    }
}
