//! Kernels for comparisons and logic.

use super::binary::{BinaryKernel, binary};
use super::elementwise;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result};

binary! {
    EQ: Element (wrapping lanes of all), |a, b| a == b;
    NE: Element (wrapping lanes of all), |a, b| a != b;
    LT: Element (lanes of all), |a, b| a < b;
    LE: Element (lanes of all), |a, b| a <= b;
    GT: Element (lanes of all), |a, b| a > b;
    GE: Element (lanes of all), |a, b| a >= b;
    LOGICAL_AND: Element (wrapping lanes of all), |a, b| is_true(a) & is_true(b);
    LOGICAL_OR: Element (wrapping lanes of all), |a, b| is_true(a) | is_true(b);
    LOGICAL_XOR: Element (wrapping lanes of all), |a, b| is_true(a) ^ is_true(b);
}

#[inline(always)]
fn is_true<T: Element>(value: T) -> bool {
    value != T::from_scalar(false.into())
}

/// The tolerances of [`IsClose`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closeness {
    pub(crate) relative: f64,
    pub(crate) absolute: f64,
    /// Whether NaN counts as close to NaN.
    pub(crate) equal_nan: bool,
}

/// A kernel that writes whether the first input is close to the second.
pub(crate) type IsClose = fn(&Elementwise<'_>, Closeness) -> Result<()>;

pub(crate) const IS_CLOSE: &[Entry<IsClose>] = on_cpu!(all: is_close);

/// Compares in `f64`, whatever the dtype.
fn is_close(iter: &Elementwise<'_>, closeness: Closeness) -> Result<()> {
    let Closeness { relative, absolute, equal_nan } = closeness;
    elementwise::binary(
        iter,
        #[inline(always)]
        |a: f64, b: f64| {
            let distance = (a - b).abs();
            // Only infinity itself is close to infinity.
            let is_near = distance <= absolute + relative * b.abs() && distance < f64::INFINITY;
            a == b || is_near || (equal_nan && a.is_nan() && b.is_nan())
        },
    );
    Ok(())
}
