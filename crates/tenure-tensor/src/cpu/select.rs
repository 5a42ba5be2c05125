//! Selection and clamping of elements.

use super::elementwise;
use super::math::Math;
use crate::kernel::on_cpu;
use crate::{Element, Elementwise, Entry, Result, Scalar};

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
