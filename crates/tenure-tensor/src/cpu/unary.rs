//! Kernels for functions of one number.

use super::elementwise;
use super::math::{Math, REDUCIBLE};
use crate::kernel::on_cpu;
use crate::{DType, DeviceKind, Element, Elementwise, Entry, Number, Result};

/// A kernel that writes a function of one input, computed in the dtype of its entry.
pub(crate) type UnaryKernel = fn(&Elementwise<'_>) -> Result<()>;

/// Defines a kernel that writes an expression of one element.
macro_rules! unary {
    ($($name:ident: $bound:ident ($($dtypes:tt)*), |$x:ident| $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<UnaryKernel>] = {
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
        pub(crate) const $name: &[Entry<UnaryKernel>] = {
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

/// An element type whose bits can be inverted.
trait Not: Element + std::ops::Not<Output = Self> {}

macro_rules! not {
    ($($type:ty),*) => { $(impl Not for $type {})* };
}
not!(bool, u8, i8, i16, i32, i64);
