//! The Rust types of tensor elements.

use std::ops::{Add, Div, Mul, Neg, Sub};

use half::{bf16, f16};
use tenure_core::DType;

use crate::Scalar;

/// A type of tensor elements.
///
/// # Safety
/// `DTYPE` is the dtype of exactly this representation.
pub unsafe trait Element: Copy + Send + Sync + PartialEq + PartialOrd + std::fmt::Debug + 'static {
    /// The dtype of this type.
    const DTYPE: DType;

    /// Converts from a scalar, to the nearest value. Integers are cut off and wrap; `bool` is whether the scalar is not
    /// zero.
    fn from_scalar(value: Scalar) -> Self;

    /// Converts to a scalar of the same value.
    fn to_scalar(self) -> Scalar;
}

/// An element type with arithmetic. `Sum` is the type in which sums and products are accumulated.
pub trait Number: Element {
    /// The accumulator type: `f32` for floats of up to 32 bits, `f64` for `f64`, `i64` for integers, where `u64` wraps.
    type Sum: Number;

    /// The number 0.
    const ZERO: Self;

    /// The number 1.
    const ONE: Self;

    /// Converts to the accumulator type.
    fn widen(self) -> Self::Sum;

    /// Converts back from the accumulator type; an integer that does not fit wraps.
    fn narrow(sum: Self::Sum) -> Self;

    /// Returns the sum; integers wrap, here and below.
    fn plus(self, other: Self) -> Self;

    /// Returns the difference.
    fn minus(self, other: Self) -> Self;

    /// Returns the product.
    fn times(self, other: Self) -> Self;
}

/// A floating-point element type. `Compute` is the type that functions are computed in: `f32` or `f64`.
pub trait Float: Number<Sum = Self::Compute> {
    /// The type to compute in: `f32` for floats of up to 32 bits, else `f64`.
    type Compute: Real;
}

macro_rules! element {
    ($($type:ty, $dtype:ident, $scalar:ident, $from:expr;)*) => {$(
        // SAFETY: the dtype is named for the type, and tenure-core tests that its size and alignment are the type's.
        unsafe impl Element for $type {
            const DTYPE: DType = DType::$dtype;

            #[inline(always)]
            fn from_scalar(value: Scalar) -> Self {
                ($from)(value)
            }

            #[inline(always)]
            fn to_scalar(self) -> Scalar {
                Scalar::$scalar(self.into())
            }
        }
    )*};
}

element! {
    bool, Bool, Bool, |value: Scalar| value.to_bool();
    u8, U8, Int, |value: Scalar| value.to_i64() as u8;
    i8, I8, Int, |value: Scalar| value.to_i64() as i8;
    i16, I16, Int, |value: Scalar| value.to_i64() as i16;
    i32, I32, Int, |value: Scalar| value.to_i64() as i32;
    i64, I64, Int, |value: Scalar| value.to_i64();
    f16, F16, Float, |value: Scalar| f16::from_f64(value.to_f64());
    bf16, BF16, Float, |value: Scalar| bf16::from_f64(value.to_f64());
    f32, F32, Float, |value: Scalar| value.to_f64() as f32;
    f64, F64, Float, |value: Scalar| value.to_f64();
    u16, U16, Int, |value: Scalar| value.to_i64() as u16;
    u32, U32, Int, |value: Scalar| value.to_i64() as u32;
}

// SAFETY: as for the others.
unsafe impl Element for u64 {
    const DTYPE: DType = DType::U64;

    #[inline(always)]
    fn from_scalar(value: Scalar) -> Self {
        value.to_u64()
    }

    #[inline(always)]
    fn to_scalar(self) -> Scalar {
        self.into()
    }
}

macro_rules! number {
    ($($type:ty, $sum:ty, $zero:expr, $one:expr, $widen:expr, $narrow:expr, $plus:expr, $minus:expr, $times:expr;)*) => {$(
        impl Number for $type {
            type Sum = $sum;
            const ZERO: Self = $zero;
            const ONE: Self = $one;

            #[inline(always)]
            fn widen(self) -> $sum {
                ($widen)(self)
            }

            #[inline(always)]
            fn narrow(sum: $sum) -> Self {
                ($narrow)(sum)
            }

            #[inline(always)]
            fn plus(self, other: Self) -> Self {
                $plus(self, other)
            }

            #[inline(always)]
            fn minus(self, other: Self) -> Self {
                $minus(self, other)
            }

            #[inline(always)]
            fn times(self, other: Self) -> Self {
                $times(self, other)
            }
        }
    )*};
}

number! {
    u8, i64, 0, 1, i64::from, |sum| sum as u8, u8::wrapping_add, u8::wrapping_sub, u8::wrapping_mul;
    i8, i64, 0, 1, i64::from, |sum| sum as i8, i8::wrapping_add, i8::wrapping_sub, i8::wrapping_mul;
    i16, i64, 0, 1, i64::from, |sum| sum as i16, i16::wrapping_add, i16::wrapping_sub, i16::wrapping_mul;
    i32, i64, 0, 1, i64::from, |sum| sum as i32, i32::wrapping_add, i32::wrapping_sub, i32::wrapping_mul;
    i64, i64, 0, 1, |value| value, |sum| sum, i64::wrapping_add, i64::wrapping_sub, i64::wrapping_mul;
    u16, i64, 0, 1, i64::from, |sum| sum as u16, u16::wrapping_add, u16::wrapping_sub, u16::wrapping_mul;
    u32, i64, 0, 1, i64::from, |sum| sum as u32, u32::wrapping_add, u32::wrapping_sub, u32::wrapping_mul;
    u64, i64, 0, 1, |value| value as i64, |sum| sum as u64, u64::wrapping_add, u64::wrapping_sub, u64::wrapping_mul;
    f16, f32, f16::ZERO, f16::ONE, widen_f16, narrow_f16, Add::add, Sub::sub, Mul::mul;
    bf16, f32, bf16::ZERO, bf16::ONE, widen_bf16, narrow_bf16, Add::add, Sub::sub, Mul::mul;
    f32, f32, 0.0, 1.0, |value| value, |sum| sum, Add::add, Sub::sub, Mul::mul;
    f64, f64, 0.0, 1.0, |value| value, |sum| sum, Add::add, Sub::sub, Mul::mul;
}

/// Returns the dtype in which kernels compute elements of `dtype`: `f32` for 16-bit floats, `dtype` itself for all
/// others.
pub(crate) fn computed(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// Returns the signed integer type of the same width, for an unsigned type wider than 8 bits; `dtype` itself for all
/// others.
///
/// The bits of a number are the same in both types, so whatever only moves or counts bits, or wraps, computes both.
pub(crate) const fn signed(dtype: DType) -> DType {
    match dtype {
        DType::U16 => DType::I16,
        DType::U32 => DType::I32,
        DType::U64 => DType::I64,
        other => other,
    }
}

/// A floating-point type to compute in: `f32` or `f64`.
pub trait Real:
    Float<Compute = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
}
impl Real for f32 {}
impl Real for f64 {}

impl Float for f16 {
    type Compute = f32;
}
impl Float for bf16 {
    type Compute = f32;
}
impl Float for f32 {
    type Compute = f32;
}
impl Float for f64 {
    type Compute = f64;
}

// The conversions below have no branches, so that loops over them are vectorised.
#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

#[inline(always)]
fn narrow_bf16(value: f32) -> bf16 {
    let bits = value.to_bits();
    // Rounds to nearest, ties to even; NaN stays NaN.
    let rounded = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    let quiet = (bits >> 16) as u16 | 0x40;
    bf16::from_bits(if value.is_nan() { quiet } else { rounded })
}

#[inline(always)]
fn widen_f16(value: f16) -> f32 {
    let bits = u32::from(value.to_bits());
    let magnitude = (bits & 0x7fff) << 13;
    // The exponent counts from 127 rather than 15. Subnormal numbers are fractions of the smallest normal one.
    let normal = f32::from_bits(magnitude + ((127 - 15) << 23));
    let subnormal = (bits & 0x7fff) as f32 * f32::from_bits((127 - 24) << 23);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let finite = if magnitude < 0x0400 << 13 { subnormal } else { normal };
    let value = if magnitude >= 0x7c00 << 13 { special } else { finite };
    f32::from_bits(value.to_bits() | (bits & 0x8000) << 16)
}

#[inline(always)]
fn narrow_f16(value: f32) -> f16 {
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    // Rounds to nearest, ties to even. Adding 0.5, whose last bit counts 2⁻²⁴, rounds results that become subnormal.
    let normal = magnitude.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < (127 - 14) << 23 { subnormal } else { normal };
    // From 65520 on, the nearest `f16` is infinity.
    let rounded = if magnitude >= 0x477f_f000 { special } else { finite };
    f16::from_bits((rounded | (bits >> 16 & 0x8000)) as u16)
}

/// Runs an expression with `$T` as the element type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::DType::Bool => {
                type $T = bool;
                $body
            }
            $crate::DType::U8 => {
                type $T = u8;
                $body
            }
            $crate::DType::I8 => {
                type $T = i8;
                $body
            }
            $crate::DType::I16 => {
                type $T = i16;
                $body
            }
            $crate::DType::I32 => {
                type $T = i32;
                $body
            }
            $crate::DType::I64 => {
                type $T = i64;
                $body
            }
            $crate::DType::F16 => {
                type $T = half::f16;
                $body
            }
            $crate::DType::BF16 => {
                type $T = half::bf16;
                $body
            }
            $crate::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::DType::F64 => {
                type $T = f64;
                $body
            }
            $crate::DType::U16 => {
                type $T = u16;
                $body
            }
            $crate::DType::U32 => {
                type $T = u32;
                $body
            }
            $crate::DType::U64 => {
                type $T = u64;
                $body
            }
        }
    };
}
pub(crate) use with_element;
