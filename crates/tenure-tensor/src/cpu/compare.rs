//! Kernels for comparisons, logic and selection.

use super::elementwise;
use super::math::Math;
use super::pointwise::{PointwiseKernel, binary};
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result, Scalar};

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

/// A kernel that writes the second input where the first, a `bool`, is true, and the third elsewhere.
pub(crate) type Where = fn(&Elementwise<'_>) -> Result<()>;
/// A kernel that writes the input, limited to `min` and `max`.
pub(crate) type Clamp = fn(&Elementwise<'_>, Option<Scalar>, Option<Scalar>) -> Result<()>;
/// A kernel that copies the input, with NaN, infinity and minus infinity replaced.
pub(crate) type NanToNum = fn(&Elementwise<'_>, [f64; 3]) -> Result<()>;

pub(crate) const WHERE: &[Entry<Where>] = on_cpu!(bits of all: choose::<T>);
pub(crate) const CLAMP: &[Entry<Clamp>] = on_cpu!(lanes of numbers: clamp::<T>);
pub(crate) const NAN_TO_NUM: &[Entry<NanToNum>] = on_cpu!(lanes of floats: nan_to_num::<T>);

fn choose<T: Element>(iter: &Elementwise<'_>) -> Result<()> {
    elementwise::ternary(
        iter,
        #[inline(always)]
        |condition: bool, a: T, b: T| if condition { a } else { b },
    );
    Ok(())
}

fn clamp<T: Element>(iter: &Elementwise<'_>, min: Option<Scalar>, max: Option<Scalar>) -> Result<()> {
    // NaN stays NaN.
    let min = min.map(T::from_scalar);
    let max = max.map(T::from_scalar);
    match (min, max) {
        (Some(min), Some(max)) => elementwise::unary(
            iter,
            #[inline(always)]
            |x: T| {
                let x = if x < min { min } else { x };
                if x > max { max } else { x }
            },
        ),
        (Some(min), None) => elementwise::unary(
            iter,
            #[inline(always)]
            |x: T| if x < min { min } else { x },
        ),
        (None, Some(max)) => elementwise::unary(
            iter,
            #[inline(always)]
            |x: T| if x > max { max } else { x },
        ),
        (None, None) => elementwise::unary(iter, |x: T| x),
    }
    Ok(())
}

fn nan_to_num<T: Math>(iter: &Elementwise<'_>, values: [f64; 3]) -> Result<()> {
    let [nan, above, below] = values.map(T::of);
    let infinity = T::of(f64::INFINITY);
    elementwise::unary(
        iter,
        #[inline(always)]
        |x: T| {
            let x = if x.is_nan() { nan } else { x };
            let x = if x == infinity { above } else { x };
            if x == -infinity { below } else { x }
        },
    );
    Ok(())
}
