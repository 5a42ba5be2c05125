//! Scalars: numbers as operands of tensor operations.

use std::fmt;

use tenure_core::DType;

use crate::{Result, Tensor, TensorError};

/// A number without a dtype: the operation that uses it decides the dtype.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A `bool`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer that is too large for [`Int`](Self::Int), which holds all others: at least 2⁶³.
    Unsigned(u64),
    /// A floating-point number.
    Float(f64),
}

impl Scalar {
    /// Returns the dtype of its kind: `bool`, `int64`, `uint64` or `float32` (PyTorch's default).
    pub fn dtype(self) -> DType {
        match self {
            Self::Bool(_) => DType::Bool,
            Self::Int(_) => DType::I64,
            Self::Unsigned(_) => DType::U64,
            Self::Float(_) => DType::F32,
        }
    }

    /// Converts to a float.
    #[inline]
    pub fn to_f64(self) -> f64 {
        match self {
            Self::Bool(value) => f64::from(u8::from(value)),
            Self::Int(value) => value as f64,
            Self::Unsigned(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Converts to an integer, rounding towards zero. An integer of 2⁶³ or more wraps.
    #[inline]
    pub fn to_i64(self) -> i64 {
        match self {
            Self::Bool(value) => i64::from(value),
            Self::Int(value) => value,
            Self::Unsigned(value) => value as i64,
            Self::Float(value) => value as i64,
        }
    }

    /// Converts to an unsigned integer, rounding towards zero. A negative integer wraps.
    #[inline]
    pub fn to_u64(self) -> u64 {
        match self {
            Self::Float(value) if value >= 0.0 => value as u64,
            other => other.to_i64() as u64,
        }
    }

    /// Returns an integer exactly; rounds a float towards zero.
    pub(crate) fn to_i128(self) -> i128 {
        match self {
            Self::Unsigned(value) => value.into(),
            Self::Float(value) => value as i128,
            other => other.to_i64().into(),
        }
    }

    /// Checks, for the operation `op`, that a dtype can hold the number. Unsigned integers accept negative numbers,
    /// which wrap; floats accept numbers that are too large, which become infinity.
    ///
    /// # Errors
    /// It cannot.
    pub fn check_fits(self, op: &'static str, dtype: DType) -> Result<()> {
        let Some((min, max)) = integers(dtype) else { return Ok(()) };
        if self.is_within(min.min(-max), max) { Ok(()) } else { Err(self.misfit(op, dtype, (min, max))) }
    }

    /// Checks, for the operation `op`, that a dtype can hold the number without wrapping.
    pub(crate) fn check_holds(self, op: &'static str, dtype: DType) -> Result<()> {
        let Some((min, max)) = integers(dtype) else { return Ok(()) };
        if self.is_within(min, max) { Ok(()) } else { Err(self.misfit(op, dtype, (min, max))) }
    }

    /// Checks, for the operation `op`, that the number can be a limit of elements of a dtype. A negative limit of `uint8`
    /// wraps, as in PyTorch, which has no limits of wider unsigned integers.
    pub(crate) fn check_limits(self, op: &'static str, dtype: DType) -> Result<()> {
        if is_wide_unsigned(dtype) { self.check_holds(op, dtype) } else { self.check_fits(op, dtype) }
    }

    fn is_within(self, min: i128, max: i128) -> bool {
        let is_nan = matches!(self, Self::Float(value) if value.is_nan());
        !is_nan && (min..=max).contains(&self.to_i128())
    }

    fn misfit(self, op: &'static str, dtype: DType, (min, max): (i128, i128)) -> TensorError {
        let reason = format!("{self} does not fit {dtype}, which holds {min} to {max}: take another dtype");
        TensorError::argument(op, reason)
    }

    /// Returns the product with another number. Integers wrap.
    pub(crate) fn times(self, other: Self) -> Self {
        match (self, other) {
            (Self::Float(_), _) | (_, Self::Float(_)) => Self::Float(self.to_f64() * other.to_f64()),
            _ => Self::Int(self.to_i64().wrapping_mul(other.to_i64())),
        }
    }

    /// Checks, for the operation `op`, that a dtype can hold an integer of 2⁶³ or more. Smaller integers wrap where
    /// they are operands, as in PyTorch.
    pub(crate) fn check_large(self, op: &'static str, dtype: DType) -> Result<()> {
        if matches!(self, Self::Unsigned(_)) { self.check_fits(op, dtype) } else { Ok(()) }
    }

    /// Returns whether the number is an integer.
    pub(crate) fn is_integer(self) -> bool {
        matches!(self, Self::Int(_) | Self::Unsigned(_))
    }

    /// Returns whether the number is not zero.
    #[inline]
    pub fn to_bool(self) -> bool {
        match self {
            Self::Bool(value) => value,
            Self::Int(value) => value != 0,
            Self::Unsigned(value) => value != 0,
            Self::Float(value) => value != 0.0,
        }
    }
}

/// Returns whether a dtype is one of the unsigned integers that PyTorch neither orders nor limits.
pub(crate) fn is_wide_unsigned(dtype: DType) -> bool {
    matches!(dtype, DType::U16 | DType::U32 | DType::U64)
}

/// Returns the smallest and the largest number of an integer dtype, or `None` for other dtypes.
pub(crate) fn integers(dtype: DType) -> Option<(i128, i128)> {
    match dtype {
        DType::U8 => Some((0, u8::MAX.into())),
        DType::I8 => Some((i8::MIN.into(), i8::MAX.into())),
        DType::I16 => Some((i16::MIN.into(), i16::MAX.into())),
        DType::I32 => Some((i32::MIN.into(), i32::MAX.into())),
        DType::I64 => Some((i64::MIN.into(), i64::MAX.into())),
        DType::U16 => Some((0, u16::MAX.into())),
        DType::U32 => Some((0, u32::MAX.into())),
        DType::U64 => Some((0, u64::MAX.into())),
        _ => None,
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(to),
            Self::Int(value) => value.fmt(to),
            Self::Unsigned(value) => value.fmt(to),
            Self::Float(value) => value.fmt(to),
        }
    }
}

/// An operand: a tensor or a number.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A number. It never makes a dtype wider within its kind.
    Number(Scalar),
}

impl<'a> From<&'a Tensor> for Value<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

macro_rules! from_number {
    ($($type:ty => $kind:ident),*) => {$(
        impl From<$type> for Scalar {
            fn from(value: $type) -> Self {
                Self::$kind(value.into())
            }
        }

        impl From<$type> for Value<'_> {
            fn from(value: $type) -> Self {
                Self::Number(value.into())
            }
        }
    )*};
}
from_number!(bool => Bool, i32 => Int, i64 => Int, f32 => Float, f64 => Float);

impl From<u64> for Scalar {
    fn from(value: u64) -> Self {
        i64::try_from(value).map_or(Self::Unsigned(value), Self::Int)
    }
}

impl From<u64> for Value<'_> {
    fn from(value: u64) -> Self {
        Self::Number(value.into())
    }
}

impl From<Scalar> for Value<'_> {
    fn from(value: Scalar) -> Self {
        Self::Number(value)
    }
}

/// Returns the dtype that quotients and analytic functions are computed in: PyTorch's default dtype instead of an
/// integer.
pub(crate) fn floating(dtype: DType) -> DType {
    if dtype.is_floating() { dtype } else { DType::F32 }
}
