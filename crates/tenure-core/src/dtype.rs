//! The types of tensor elements, and their promotion.

use std::fmt;
use std::str::FromStr;

use crate::DTypeError;

/// The type of a tensor's elements. c10's `ScalarType`, in promotion order.
///
/// ```
/// use tenure_core::DType;
///
/// assert_eq!(DType::I64.promote(DType::F16), DType::F16);
/// assert_eq!("bfloat16".parse(), Ok(DType::BF16));
/// assert_eq!(DType::F64.size(), 8);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum DType {
    /// One byte, 0 or 1.
    Bool,
    /// Unsigned 8-bit integer.
    U8,
    /// Signed 8-bit integer.
    I8,
    /// Signed 16-bit integer.
    I16,
    /// Signed 32-bit integer.
    I32,
    /// Signed 64-bit integer.
    I64,
    /// IEEE 754 half precision.
    F16,
    /// Half precision with the exponent of `f32` (bfloat16).
    BF16,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl DType {
    /// Every dtype, in declaration order: `DType::ALL[dtype as usize] == dtype`.
    pub const ALL: [Self; 10] =
        [Self::Bool, Self::U8, Self::I8, Self::I16, Self::I32, Self::I64, Self::F16, Self::BF16, Self::F32, Self::F64];

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::I16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }

    /// Returns the alignment of an element's address in bytes.
    pub const fn alignment(self) -> usize {
        self.size()
    }

    /// Returns whether the dtype is one of the four floating-point types.
    pub const fn is_floating(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
    }

    /// Returns the name that PyTorch and NumPy use, such as `float32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "uint8",
            Self::I8 => "int8",
            Self::I16 => "int16",
            Self::I32 => "int32",
            Self::I64 => "int64",
            Self::F16 => "float16",
            Self::BF16 => "bfloat16",
            Self::F32 => "float32",
            Self::F64 => "float64",
        }
    }

    /// Returns the name that Rust uses, such as `f32`.
    pub const fn short_name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Returns the smallest dtype that both promote to: PyTorch's `torch.promote_types`.
    ///
    /// This is the later of the two in promotion order, except for two pairs of which neither dtype holds the other's
    /// values.
    pub const fn promote(self, other: Self) -> Self {
        match (self, other) {
            (Self::U8, Self::I8) | (Self::I8, Self::U8) => Self::I16,
            (Self::F16, Self::BF16) | (Self::BF16, Self::F16) => Self::F32,
            _ if self as u8 >= other as u8 => self,
            _ => other,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = DTypeError;

    /// Reads [`name`](DType::name) or [`short_name`](DType::short_name).
    fn from_str(text: &str) -> Result<Self, DTypeError> {
        Self::ALL
            .into_iter()
            .find(|dtype| dtype.name() == text || dtype.short_name() == text)
            .ok_or_else(|| DTypeError::Unknown { text: text.to_owned() })
    }
}

/// An operand, as far as [`result_type`] needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A tensor of at least one dimension.
    Tensor(DType),
    /// A tensor of zero dimensions.
    ZeroDim(DType),
    /// A number that never was a tensor: [`DType::Bool`], [`DType::I64`], or for a float the front end's default
    /// dtype, which is [`DType::F32`] in PyTorch unless set otherwise.
    Number(DType),
}

/// Returns the dtype that an operation computes in: PyTorch's `torch.result_type`. Returns `None` without operands.
///
/// Tensors with dimensions decide, then zero-dimensional ones, then numbers. A lower category counts only if its kind
/// (bool, integer, floating) is above all kinds of the higher categories. Source: `ATen/native/TypeProperties.cpp`.
///
/// ```
/// use tenure_core::{DType, Operand, result_type};
///
/// let half_times_two = [Operand::Tensor(DType::F16), Operand::Number(DType::F32)];
/// assert_eq!(result_type(half_times_two), Some(DType::F16));
/// let int_times_half = [Operand::Tensor(DType::I32), Operand::Number(DType::F32)];
/// assert_eq!(result_type(int_times_half), Some(DType::F32));
/// ```
pub fn result_type(operands: impl IntoIterator<Item = Operand>) -> Option<DType> {
    let mut tensors = None;
    let mut zero_dims = None;
    let mut numbers = None;
    for operand in operands {
        let (category, dtype) = match operand {
            Operand::Tensor(dtype) => (&mut tensors, dtype),
            Operand::ZeroDim(dtype) => (&mut zero_dims, dtype),
            Operand::Number(dtype) => (&mut numbers, dtype),
        };
        *category = Some(category.map_or(dtype, |so_far: DType| so_far.promote(dtype)));
    }
    combine(tensors, combine(zero_dims, numbers))
}

fn combine(higher: Option<DType>, lower: Option<DType>) -> Option<DType> {
    let (Some(high), Some(low)) = (higher, lower) else {
        return higher.or(lower);
    };
    let low_counts = !high.is_floating() && (high == DType::Bool || low.is_floating());
    Some(if low_counts { high.promote(low) } else { high })
}

#[cfg(test)]
mod tests {
    use super::DType::*;
    use super::*;

    /// The result of `torch.promote_types` for every pair, from the table in PyTorch's `c10/core/ScalarType.cpp`.
    #[rustfmt::skip]
    const PROMOTED: [(DType, [DType; 10]); 10] = [
        //        Bool  U8    I8    I16   I32   I64   F16   BF16  F32   F64
        (Bool,  [Bool, U8,   I8,   I16,  I32,  I64,  F16,  BF16, F32,  F64]),
        (U8,    [U8,   U8,   I16,  I16,  I32,  I64,  F16,  BF16, F32,  F64]),
        (I8,    [I8,   I16,  I8,   I16,  I32,  I64,  F16,  BF16, F32,  F64]),
        (I16,   [I16,  I16,  I16,  I16,  I32,  I64,  F16,  BF16, F32,  F64]),
        (I32,   [I32,  I32,  I32,  I32,  I32,  I64,  F16,  BF16, F32,  F64]),
        (I64,   [I64,  I64,  I64,  I64,  I64,  I64,  F16,  BF16, F32,  F64]),
        (F16,   [F16,  F16,  F16,  F16,  F16,  F16,  F16,  F32,  F32,  F64]),
        (BF16,  [BF16, BF16, BF16, BF16, BF16, BF16, F32,  BF16, F32,  F64]),
        (F32,   [F32,  F32,  F32,  F32,  F32,  F32,  F32,  F32,  F32,  F64]),
        (F64,   [F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64,  F64]),
    ];

    #[test]
    fn promotion_is_pytorchs_table() {
        for (left, row) in PROMOTED {
            for (right, expected) in DType::ALL.into_iter().zip(row) {
                assert_eq!(left.promote(right), expected, "{left} with {right}");
            }
        }
    }

    #[test]
    fn a_result_is_that_of_the_highest_category_of_the_widest_kind() {
        use Operand::{Number, Tensor, ZeroDim};
        let cases: [(&[Operand], DType); 15] = [
            (&[Tensor(F32), Number(F64)], F32),
            (&[Tensor(F16), ZeroDim(F64)], F16),
            (&[Tensor(I32), ZeroDim(I64)], I32),
            (&[Tensor(U8), Number(I64)], U8),
            (&[Tensor(I64), ZeroDim(F16)], F16),
            (&[Tensor(I8), Number(F32)], F32),
            (&[Tensor(Bool), Number(I64)], I64),
            (&[Tensor(Bool), ZeroDim(U8), Number(F32)], F32),
            (&[ZeroDim(F64), Number(F32)], F64),
            (&[ZeroDim(BF16), Number(F32)], BF16),
            (&[ZeroDim(I32), Number(I64)], I32),
            (&[Number(I64), Number(F32)], F32),
            (&[Tensor(F16), Tensor(BF16), ZeroDim(F64)], F32),
            (&[Tensor(U8), Tensor(I8)], I16),
            (&[Tensor(Bool), Tensor(Bool)], Bool),
        ];
        for (operands, expected) in cases {
            assert_eq!(result_type(operands.iter().copied()), Some(expected), "{operands:?}");
            assert_eq!(result_type(operands.iter().rev().copied()), Some(expected), "reversed {operands:?}");
        }
        assert_eq!(result_type([]), None);
    }

    #[test]
    fn names_parse_back_and_order_is_declaration_order() {
        for (position, dtype) in DType::ALL.into_iter().enumerate() {
            assert_eq!(dtype as usize, position);
            assert_eq!(dtype.name().parse(), Ok(dtype));
            assert_eq!(dtype.short_name().parse(), Ok(dtype));
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        assert_eq!(
            "float31".parse::<DType>().unwrap_err().to_string(),
            "unknown dtype \"float31\": expected bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32 or \
             float64"
        );
    }

    #[test]
    fn sizes_and_alignments_are_those_of_the_rust_types() {
        fn check<T>(dtype: DType) {
            assert_eq!((dtype.size(), dtype.alignment()), (size_of::<T>(), align_of::<T>()), "{dtype}");
        }
        check::<bool>(Bool);
        check::<u8>(U8);
        check::<i8>(I8);
        check::<i16>(I16);
        check::<i32>(I32);
        check::<i64>(I64);
        check::<u16>(F16);
        check::<u16>(BF16);
        check::<f32>(F32);
        check::<f64>(F64);
    }
}
