//! The types of tensor elements, and their promotion.

use std::fmt;
use std::str::FromStr;

use crate::DTypeError;

/// The type of a tensor's elements: c10's `ScalarType`. The position of a dtype is part of the C interface.
///
/// ```
/// use tenure_core::DType;
///
/// assert_eq!(DType::I64.promote(DType::F16), Ok(DType::F16));
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
    /// Unsigned 16-bit integer.
    U16,
    /// Unsigned 32-bit integer.
    U32,
    /// Unsigned 64-bit integer.
    U64,
}

impl DType {
    /// Every dtype, in declaration order: `DType::ALL[dtype as usize] == dtype`.
    pub const ALL: [Self; 13] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::I16,
        Self::I32,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::U16,
        Self::U32,
        Self::U64,
    ];

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::BF16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
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

    /// Returns whether the dtype holds numbers that are never negative.
    pub const fn is_unsigned(self) -> bool {
        matches!(self, Self::U8 | Self::U16 | Self::U32 | Self::U64)
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
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
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
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
        }
    }

    /// Returns the smallest dtype that both promote to: PyTorch's `torch.promote_types`. Where PyTorch has none, which
    /// is for `uint16`, `uint32` or `uint64` with another integer type, this is the answer of the array API standard.
    ///
    /// # Errors
    /// [`DTypeError::NoCommon`]: `uint64` with a signed integer type. No integer type holds the values of both.
    pub const fn promote(self, other: Self) -> Result<Self, DTypeError> {
        let (low, high) = if self.rank() <= other.rank() { (self, other) } else { (other, self) };
        match (low, high) {
            (Self::F16, Self::BF16) | (Self::BF16, Self::F16) => Ok(Self::F32),
            _ if high.is_floating() || matches!(low, Self::Bool) || low.is_unsigned() == high.is_unsigned() => Ok(high),
            (Self::U8, Self::I8) => Ok(Self::I16),
            (_, Self::U16) | (Self::U16, Self::I16) => Ok(Self::I32),
            (_, Self::U32) | (Self::U32, Self::I32) => Ok(Self::I64),
            (_, Self::U64) | (Self::U64, Self::I64) => Err(DTypeError::NoCommon { left: self, right: other }),
            _ => Ok(high),
        }
    }

    /// Returns the position in the order in which the later of two dtypes is nearly always what both promote to.
    const fn rank(self) -> u8 {
        match self {
            Self::Bool => 0,
            Self::U8 => 1,
            Self::I8 => 2,
            Self::U16 => 3,
            Self::I16 => 4,
            Self::U32 => 5,
            Self::I32 => 6,
            Self::U64 => 7,
            Self::I64 => 8,
            Self::F16 => 9,
            Self::BF16 => 10,
            Self::F32 => 11,
            Self::F64 => 12,
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
    /// A number that never was a tensor: [`DType::Bool`], [`DType::I64`] or, for one that is too large for that,
    /// [`DType::U64`], or for a float the front end's default dtype, which is [`DType::F32`] in PyTorch unless set
    /// otherwise.
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
/// assert_eq!(result_type(half_times_two)?, Some(DType::F16));
/// let int_times_half = [Operand::Tensor(DType::I32), Operand::Number(DType::F32)];
/// assert_eq!(result_type(int_times_half)?, Some(DType::F32));
/// # Ok::<(), tenure_core::DTypeError>(())
/// ```
///
/// # Errors
/// [`DTypeError::NoCommon`]: `uint64` and a signed integer type decide together.
pub fn result_type(operands: impl IntoIterator<Item = Operand>) -> Result<Option<DType>, DTypeError> {
    let mut tensors = None;
    let mut zero_dims = None;
    let mut numbers = None;
    for operand in operands {
        let (category, dtype) = match operand {
            Operand::Tensor(dtype) => (&mut tensors, dtype),
            Operand::ZeroDim(dtype) => (&mut zero_dims, dtype),
            Operand::Number(dtype) => (&mut numbers, dtype),
        };
        *category = Some(match (*category, operand) {
            (None, _) => dtype,
            // Numbers of several sizes are integers all the same.
            (Some(DType::I64), Operand::Number(DType::U64)) | (Some(DType::U64), Operand::Number(DType::I64)) => {
                DType::U64
            }
            (Some(so_far), _) => so_far.promote(dtype)?,
        });
    }
    combine(tensors, combine(zero_dims, numbers)?)
}

fn combine(higher: Option<DType>, lower: Option<DType>) -> Result<Option<DType>, DTypeError> {
    let (Some(high), Some(low)) = (higher, lower) else {
        return Ok(higher.or(lower));
    };
    let low_counts = !high.is_floating() && (high == DType::Bool || low.is_floating());
    if low_counts { high.promote(low).map(Some) } else { Ok(higher) }
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

    /// The results for the wider unsigned types, from the array API standard; with `bool` and floats, NumPy's and
    /// PyTorch's. `Bool` stands for none.
    #[rustfmt::skip]
    const UNSIGNED: [(DType, [DType; 13]); 3] = [
        //      Bool  U8    I8    I16   I32   I64   F16   BF16  F32   F64   U16   U32   U64
        (U16,  [U16,  U16,  I32,  I32,  I32,  I64,  F16,  BF16, F32,  F64,  U16,  U32,  U64]),
        (U32,  [U32,  U32,  I64,  I64,  I64,  I64,  F16,  BF16, F32,  F64,  U32,  U32,  U64]),
        (U64,  [U64,  U64,  Bool, Bool, Bool, Bool, F16,  BF16, F32,  F64,  U64,  U64,  U64]),
    ];

    #[test]
    fn promotion_is_pytorchs_table() {
        for (left, row) in PROMOTED {
            for (right, expected) in DType::ALL.into_iter().zip(row) {
                assert_eq!(left.promote(right), Ok(expected), "{left} with {right}");
            }
        }
    }

    #[test]
    fn unsigned_types_promote_as_in_the_array_api_standard() {
        for (left, row) in UNSIGNED {
            for (right, expected) in DType::ALL.into_iter().zip(row) {
                let expected = (expected != Bool).then_some(expected);
                assert_eq!(left.promote(right).ok(), expected, "{left} with {right}");
                assert_eq!(right.promote(left).ok(), expected, "{right} with {left}");
            }
        }
        assert_eq!(
            U64.promote(I8).unwrap_err().to_string(),
            "no integer dtype holds the values of both uint64 and int8: convert one of them first"
        );
    }

    #[test]
    fn a_result_is_that_of_the_highest_category_of_the_widest_kind() {
        use Operand::{Number, Tensor, ZeroDim};
        let cases: [(&[Operand], DType); 19] = [
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
            (&[Tensor(U64), Number(I64)], U64),
            (&[Tensor(U64), ZeroDim(I8)], U64),
            (&[Tensor(Bool), Number(U64)], U64),
            (&[Tensor(U64), Number(I64), Number(U64)], U64),
        ];
        for (operands, expected) in cases {
            assert_eq!(result_type(operands.iter().copied()), Ok(Some(expected)), "{operands:?}");
            assert_eq!(result_type(operands.iter().rev().copied()), Ok(Some(expected)), "reversed {operands:?}");
        }
        assert_eq!(result_type([]), Ok(None));
        assert!(result_type([Tensor(U64), Tensor(I64)]).is_err());
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
            "unknown dtype \"float31\": expected bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32, \
             float64, uint16, uint32 or uint64"
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
        check::<u16>(U16);
        check::<u32>(U32);
        check::<u64>(U64);
    }
}
