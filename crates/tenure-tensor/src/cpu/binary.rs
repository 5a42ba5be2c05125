//! Kernels for functions of two numbers.

use std::ops::{BitAnd, BitOr, BitXor};
use std::sync::atomic::{AtomicBool, Ordering};

use super::elementwise;
use super::math::Math;
use crate::kernel::on_cpu;
use crate::{DType, DeviceKind, Element, Elementwise, Entry, Number, Result, Scalar, TensorError};

/// A kernel that writes a function of two inputs, computed in the dtype of its entry.
pub(crate) type BinaryKernel = fn(&Elementwise<'_>) -> Result<()>;

/// A kernel that writes a function of the inputs and one scalar.
pub(crate) type Scaled = fn(&Elementwise<'_>, Scalar) -> Result<()>;

/// Defines a kernel that writes an expression of two elements.
macro_rules! binary {
    ($($name:ident: $bound:ident ($($dtypes:tt)*), |$a:ident, $b:ident| $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<BinaryKernel>] = {
            fn kernel<T: $bound>(iter: &Elementwise<'_>) -> Result<()> {
                elementwise::binary(
                    iter,
                    #[inline(always)]
                    |$a: T, $b: T| $value,
                );
                Ok(())
            }
            on_cpu!($($dtypes)*: kernel::<T>)
        };
    )*};
}

pub(super) use binary;

binary! {
    ADD: Number (wrapping lanes of numbers), |a, b| a.plus(b);
    SUB: Number (wrapping lanes of numbers), |a, b| a.minus(b);
    MUL: Number (wrapping lanes of numbers), |a, b| a.times(b);
    DIV: Math (lanes of floats), |a, b| a / b;
    MAXIMUM: Element (lanes of all), |a, b| if a > b || is_unordered(a) { a } else { b };
    MINIMUM: Element (lanes of all), |a, b| if a < b || is_unordered(a) { a } else { b };
    ATAN2: Math (lanes of floats), |a, b| a.atan2(b);
    POW: Power (lanes of numbers), |a, b| a.power(b);
    AND: Bits (bits of integers), |a, b| a & b;
    OR: Bits (bits of integers), |a, b| a | b;
    XOR: Bits (bits of integers), |a, b| a ^ b;
    SHIFT_LEFT: Shift (bits of whole numbers), |a, b| a.left(b);
    SHIFT_RIGHT: Shift (lanes of whole numbers), |a, b| a.right(b);
}

/// The sum of `bool` is `or`, and the product is `and`.
pub(crate) const ADD_BOOL: &[Entry<BinaryKernel>] = &[(DeviceKind::Cpu, DType::Bool, |iter| {
    elementwise::binary(iter, |a: bool, b: bool| a | b);
    Ok(())
})];
pub(crate) const MUL_BOOL: &[Entry<BinaryKernel>] = &[(DeviceKind::Cpu, DType::Bool, |iter| {
    elementwise::binary(iter, |a: bool, b: bool| a & b);
    Ok(())
})];

/// Defines a kernel that divides. Division of integers by zero is an error.
macro_rules! division {
    ($($name:ident: $op:ident;)*) => {$(
        pub(crate) const $name: &[Entry<BinaryKernel>] = {
            fn kernel<T: Division>(iter: &Elementwise<'_>) -> Result<()> {
                let by_zero = AtomicBool::new(false);
                elementwise::binary(
                    iter,
                    #[inline(always)]
                    |a: T, b: T| {
                        if T::IS_INTEGER && b == T::ZERO {
                            by_zero.store(true, Ordering::Relaxed);
                            return T::ZERO;
                        }
                        a.$op(b)
                    },
                );
                if by_zero.into_inner() {
                    return Err(TensorError::argument(iter.op(), "an integer was divided by zero"));
                }
                Ok(())
            }
            on_cpu!(lanes of numbers: kernel::<T>)
        };
    )*};
}

division! {
    DIV_FLOOR: div_floor;
    DIV_TRUNC: div_trunc;
    REMAINDER: remainder;
    FMOD: fmod;
}

/// a + number · b
pub(crate) const ADD_SCALED: &[Entry<Scaled>] = on_cpu!(wrapping lanes of numbers: add_scaled::<T>);
/// a + number · b · c
pub(crate) const ADDCMUL: &[Entry<Scaled>] = on_cpu!(wrapping lanes of numbers: addcmul::<T>);
/// a + number · b / c
pub(crate) const ADDCDIV: &[Entry<Scaled>] = on_cpu!(lanes of floats: addcdiv::<T>);
/// a + c · (b - a)
pub(crate) const LERP: &[Entry<BinaryKernel>] = on_cpu!(lanes of floats: lerp::<T>);

fn add_scaled<T: Number>(iter: &Elementwise<'_>, factor: Scalar) -> Result<()> {
    let factor = T::from_scalar(factor);
    elementwise::binary(
        iter,
        #[inline(always)]
        |a: T, b: T| a.plus(factor.times(b)),
    );
    Ok(())
}

fn addcmul<T: Number>(iter: &Elementwise<'_>, factor: Scalar) -> Result<()> {
    let factor = T::from_scalar(factor);
    elementwise::ternary(
        iter,
        #[inline(always)]
        |a: T, b: T, c: T| a.plus(factor.times(b).times(c)),
    );
    Ok(())
}

fn addcdiv<T: Math>(iter: &Elementwise<'_>, factor: Scalar) -> Result<()> {
    let factor = T::from_scalar(factor);
    elementwise::ternary(
        iter,
        #[inline(always)]
        |a: T, b: T, c: T| a + factor * b / c,
    );
    Ok(())
}

fn lerp<T: Math>(iter: &Elementwise<'_>) -> Result<()> {
    elementwise::ternary(
        iter,
        #[inline(always)]
        |a: T, b: T, weight: T| {
            // Starting from the nearer end gives both ends exactly.
            let distance = b - a;
            if weight.abs() < T::of(0.5) { a + weight * distance } else { b - distance * (T::ONE - weight) }
        },
    );
    Ok(())
}

/// Returns whether the value is NaN.
#[inline(always)]
fn is_unordered<T: Element>(value: T) -> bool {
    value.partial_cmp(&value).is_none()
}

/// Integers and `bool`.
trait Bits: Element + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> {}

macro_rules! bits {
    ($($type:ty),*) => { $(impl Bits for $type {})* };
}
bits!(bool, u8, i8, i16, i32, i64);

/// Division of numbers, rounded to whole numbers.
trait Division: Number {
    const IS_INTEGER: bool;
    fn div_floor(self, divisor: Self) -> Self;
    fn div_trunc(self, divisor: Self) -> Self;
    /// Returns the remainder that has the divisor's sign.
    fn remainder(self, divisor: Self) -> Self;
    /// Returns the remainder that has the dividend's sign.
    fn fmod(self, divisor: Self) -> Self;
}

trait Power: Number {
    fn power(self, exponent: Self) -> Self;
}

/// Shifts of bits. A shift by all bits or more leaves only the sign.
trait Shift: Number {
    fn left(self, by: Self) -> Self;
    fn right(self, by: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => {$(
        impl Division for $type {
            const IS_INTEGER: bool = true;

            #[inline(always)]
            fn div_floor(self, divisor: Self) -> Self {
                let rest = self.wrapping_rem(divisor);
                self.wrapping_div(divisor) - Self::from(rest != 0 && (rest < Self::ZERO) != (divisor < Self::ZERO))
            }

            #[inline(always)]
            fn div_trunc(self, divisor: Self) -> Self {
                self.wrapping_div(divisor)
            }

            #[inline(always)]
            fn remainder(self, divisor: Self) -> Self {
                let rest = self.wrapping_rem(divisor);
                if rest != 0 && (rest < Self::ZERO) != (divisor < Self::ZERO) { rest + divisor } else { rest }
            }

            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                self.wrapping_rem(divisor)
            }
        }

        impl Power for $type {
            #[inline(always)]
            fn power(self, exponent: Self) -> Self {
                if exponent < Self::ZERO {
                    // The result is 1 / self ^ -exponent, cut off.
                    return match (self.widen(), exponent & 1) {
                        (1, _) | (-1, 0) => 1,
                        (-1, _) => self,
                        _ => 0,
                    };
                }
                let mut power = Self::ONE;
                let mut square = self;
                let mut left = exponent;
                while left != 0 {
                    if left & 1 == 1 {
                        power = power.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    left >>= 1;
                }
                power
            }
        }

        impl Shift for $type {
            #[inline(always)]
            fn left(self, by: Self) -> Self {
                let bits = <$type>::BITS as i64;
                if (0..bits).contains(&by.widen()) { self.wrapping_shl(by as u32) } else { 0 }
            }

            #[inline(always)]
            fn right(self, by: Self) -> Self {
                let last = <$type>::BITS as i64 - 1;
                let by = by.widen();
                let within = if (0..=last).contains(&by) { by } else { last };
                // An unsigned number has no sign to leave.
                if within != by && <$type>::MIN == 0 { 0 } else { self.wrapping_shr(within as u32) }
            }
        }
    )*};
}
integers!(u8, i8, i16, i32, i64, u64);

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Division for $type {
            const IS_INTEGER: bool = false;

            #[inline(always)]
            fn div_floor(self, divisor: Self) -> Self {
                if divisor == 0.0 {
                    return self / divisor;
                }
                // (self - rest) / divisor is nearly whole; the plain quotient could round up to the next whole number.
                let rest = self % divisor;
                let whole = (self - rest) / divisor;
                let whole = if rest != 0.0 && (rest < 0.0) != (divisor < 0.0) { whole - 1.0 } else { whole };
                if whole == 0.0 { (0.0 as $type).copysign(self / divisor) } else { whole.round_ties_even() }
            }

            #[inline(always)]
            fn div_trunc(self, divisor: Self) -> Self {
                (self / divisor).trunc()
            }

            #[inline(always)]
            fn remainder(self, divisor: Self) -> Self {
                let rest = self % divisor;
                if rest == 0.0 {
                    // Zero has the divisor's sign too, as in Python.
                    rest.copysign(divisor)
                } else if (rest < 0.0) != (divisor < 0.0) {
                    rest + divisor
                } else {
                    rest
                }
            }

            #[inline(always)]
            fn fmod(self, divisor: Self) -> Self {
                self % divisor
            }
        }

        impl Power for $type {
            #[inline(always)]
            fn power(self, exponent: Self) -> Self {
                self.powf(exponent)
            }
        }
    )*};
}
floats!(f32, f64);
