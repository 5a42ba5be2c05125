//! Kernels for functions of one number, and of two and three numbers.

use std::ops::{BitAnd, BitOr, BitXor};
use std::sync::atomic::{AtomicBool, Ordering};

use super::elementwise;
use super::math::{Math, REDUCIBLE};
use crate::kernel::on_cpu;
use crate::{DType, DeviceKind, Element, Elementwise, Entry, Number, Result, Scalar, TensorError};

/// A kernel that writes a function of the inputs, computed in the dtype of its entry.
pub(crate) type PointwiseKernel = fn(&Elementwise<'_>) -> Result<()>;

/// A kernel that writes a function of one input and some numbers.
pub(crate) type Curve<const N: usize> = fn(&Elementwise<'_>, [f64; N]) -> Result<()>;

/// A kernel that writes a function of the inputs and one scalar.
pub(crate) type Scaled = fn(&Elementwise<'_>, Scalar) -> Result<()>;

/// Defines a kernel that writes an expression of one element.
macro_rules! unary {
    ($($name:ident: $bound:ident ($($dtypes:tt)*), |$x:ident| $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<PointwiseKernel>] = {
            fn kernel<T: $bound>(iter: &Elementwise<'_>) -> Result<()> {
                elementwise::unary(
                    iter,
                    #[inline(always)]
                    |$x: T| $value,
                );
                Ok(())
            }
            on_cpu!($($dtypes)*: kernel::<T>)
        };
    )*};
}
pub(super) use unary;

unary! {
    NEG: Number (wrapping lanes of numbers), |x| x.times(T::ZERO.minus(T::ONE));
    ABS: Math (lanes of floats), |x| x.abs();
    ABS_INTEGERS: Number (lanes of whole numbers), |x| if x < T::ZERO { T::ZERO.minus(x) } else { x };
    SIGN: Number (lanes of numbers), |x| if x > T::ZERO {
        T::ONE
    } else if x < T::ZERO {
        T::ZERO.minus(T::ONE)
    } else {
        T::ZERO
    };
    SQUARE: Number (wrapping lanes of numbers), |x| x.times(x);
    CUBE: Number (wrapping lanes of numbers), |x| x.times(x).times(x);
    SQRT: Math (lanes of floats), |x| x.sqrt();
    RSQRT: Math (lanes of floats), |x| T::ONE / x.sqrt();
    RECIPROCAL: Math (lanes of floats), |x| T::ONE / x;
    EXP: Math (lanes of floats), |x| x.exp();
    EXPM1: Math (lanes of floats), |x| x.expm1();
    LOG: Math (lanes of floats), |x| x.log();
    LOG1P: Math (lanes of floats), |x| x.log1p();
    LOG2: Math (lanes of floats), |x| x.log2();
    LOG10: Math (lanes of floats), |x| x.log10();
    ASIN: Math (lanes of floats), |x| x.asin();
    ACOS: Math (lanes of floats), |x| x.acos();
    ATAN: Math (lanes of floats), |x| x.atan();
    SINH: Math (lanes of floats), |x| x.sinh();
    COSH: Math (lanes of floats), |x| x.cosh();
    ASINH: Math (lanes of floats), |x| x.asinh();
    ACOSH: Math (lanes of floats), |x| x.acosh();
    ATANH: Math (lanes of floats), |x| x.atanh();
    TANH: Math (lanes of floats), |x| x.tanh();
    SIGMOID: Math (lanes of floats), |x| x.sigmoid();
    ERF: Math (lanes of floats), |x| x.erf();
    ERFC: Math (lanes of floats), |x| x.erfc();
    ERFINV: Math (lanes of floats), |x| x.erfinv();
    LGAMMA: Math (lanes of floats), |x| x.lgamma();
    DIGAMMA: Math (lanes of floats), |x| x.digamma();
    FLOOR: Math (lanes of floats), |x| x.floor();
    CEIL: Math (lanes of floats), |x| x.ceil();
    ROUND: Math (lanes of floats), |x| x.round();
    TRUNC: Math (lanes of floats), |x| x.trunc();
    FRAC: Math (lanes of floats), |x| x - x.trunc();
    BITWISE_NOT: Not (bits of integers), |x| x.not();
    IS_NAN: Math (lanes of floats), |x| x.is_nan();
    IS_INF: Math (lanes of floats), |x| x.abs() == T::of(f64::INFINITY);
    IS_FINITE: Math (lanes of floats), |x| x.abs() < T::of(f64::INFINITY);
    LOGICAL_NOT: Element (wrapping lanes of all), |x| x == T::from_scalar(false.into());
}

/// Defines a kernel for a function of angles. It uses a slow version for angles that are too large for the fast one.
macro_rules! angles {
    ($($name:ident: $function:ident;)*) => {$(
        pub(crate) const $name: &[Entry<PointwiseKernel>] = {
            fn single(iter: &Elementwise<'_>) -> Result<()> {
                elementwise::slices(
                    iter,
                    #[inline(always)]
                    |angles: &[f32], out: &mut [f32]| {
                        // The comparison is of bits, so that the maximum is vectorised.
                        let mut largest = 0;
                        for (out, angle) in out.iter_mut().zip(angles) {
                            *out = Math::$function(*angle);
                            largest = largest.max(angle.abs().to_bits());
                        }
                        if largest > REDUCIBLE.to_bits() {
                            for (out, angle) in out.iter_mut().zip(angles).filter(|(_, angle)| angle.abs() > REDUCIBLE) {
                                *out = angle.$function();
                            }
                        }
                    },
                );
                Ok(())
            }
            fn double(iter: &Elementwise<'_>) -> Result<()> {
                elementwise::unary(iter, f64::$function);
                Ok(())
            }
            &[
                (DeviceKind::Cpu, DType::F16, single),
                (DeviceKind::Cpu, DType::BF16, single),
                (DeviceKind::Cpu, DType::F32, single),
                (DeviceKind::Cpu, DType::F64, double),
            ]
        };
    )*};
}

angles! {
    SIN: sin;
    COS: cos;
    TAN: tan;
}

/// Computes the polygamma function of the order that is given as a number, which is at least 1.
pub(crate) const POLYGAMMA: &[Entry<Curve<1>>] = on_cpu!(lanes of floats: polygamma_of::<T>);

fn polygamma_of<T: Math>(iter: &Elementwise<'_>, [order]: [f64; 1]) -> Result<()> {
    let order = T::of(order);
    elementwise::unary(iter, |x: T| x.polygamma(order));
    Ok(())
}

/// Defines a kernel that writes an expression of two elements.
macro_rules! binary {
    ($($name:ident: $bound:ident ($($dtypes:tt)*), |$a:ident, $b:ident| $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<PointwiseKernel>] = {
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
pub(crate) const ADD_BOOL: &[Entry<PointwiseKernel>] = &[(DeviceKind::Cpu, DType::Bool, |iter| {
    elementwise::binary(iter, |a: bool, b: bool| a | b);
    Ok(())
})];
pub(crate) const MUL_BOOL: &[Entry<PointwiseKernel>] = &[(DeviceKind::Cpu, DType::Bool, |iter| {
    elementwise::binary(iter, |a: bool, b: bool| a & b);
    Ok(())
})];

/// Defines a kernel that divides. Division of integers by zero is an error.
macro_rules! division {
    ($($name:ident: $op:ident;)*) => {$(
        pub(crate) const $name: &[Entry<PointwiseKernel>] = {
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
pub(crate) const LERP: &[Entry<PointwiseKernel>] = on_cpu!(lanes of floats: lerp::<T>);

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

/// An element type whose bits can be inverted.
trait Not: Element + std::ops::Not<Output = Self> {}

macro_rules! not {
    ($($type:ty),*) => { $(impl Not for $type {})* };
}
not!(bool, u8, i8, i16, i32, i64);
