//! Conversions between dtypes.

use half::{bf16, f16};

use super::vectorized;
use crate::element::signed;
use crate::{DType, Number};

/// A function that converts elements without gaps, with the arguments from, to and count.
///
/// # Safety
/// `from` must have `count` elements of the one dtype, and `to` room for `count` of the other; they must not overlap.
pub(super) type Cast = unsafe fn(*const u8, *mut u8, usize);

/// Returns whether elements of one dtype have the bytes that they are converted to in the other.
pub(super) fn is_same(from: DType, to: DType) -> bool {
    from == to || from.size() == to.size() && is_integer(from) && is_integer(to)
}

/// Returns the conversion from one dtype to another. Floats are cut off to integers, which wrap.
pub(super) fn between(from: DType, to: DType) -> Cast {
    if is_same(from, to) {
        return match from.size() {
            1 => same::<1>,
            2 => same::<2>,
            4 => same::<4>,
            _ => same::<8>,
        };
    }
    // Integers that become narrower lose the same bits with and without a sign.
    let from = if is_integer(to) && to.size() < from.size() { signed(from) } else { from };
    match from {
        DType::F16 => from_float::<f16>(to),
        DType::BF16 => from_float::<bf16>(to),
        DType::F32 => from_float::<f32>(to),
        DType::F64 => from_float::<f64>(to),
        // The bytes of `bool` are 0 and 1.
        DType::Bool | DType::U8 => to_any::<u8>(to),
        DType::I8 => to_any::<i8>(to),
        DType::I16 => to_any::<i16>(to),
        DType::I32 => to_any::<i32>(to),
        DType::I64 => to_any::<i64>(to),
        DType::U16 => to_any::<u16>(to),
        DType::U32 => to_any::<u32>(to),
        DType::U64 => to_any::<u64>(to),
    }
}

fn is_integer(dtype: DType) -> bool {
    !dtype.is_floating() && dtype != DType::Bool
}

fn from_float<F: Convert>(to: DType) -> Cast {
    // Only an unsigned integer holds the largest floats.
    if to == DType::U64 { cast::<F, u64> } else { to_any::<F>(to) }
}

fn to_any<F: Convert>(to: DType) -> Cast {
    match signed(to) {
        DType::Bool => cast::<F, bool>,
        DType::I16 => cast::<F, i16>,
        DType::I32 => cast::<F, i32>,
        DType::I64 => cast::<F, i64>,
        DType::F16 => cast::<F, f16>,
        DType::BF16 => cast::<F, bf16>,
        DType::F32 => cast::<F, f32>,
        DType::F64 => cast::<F, f64>,
        _ => cast::<F, i8>,
    }
}

/// # Safety
/// See [`Cast`].
unsafe fn cast<F: Convert, T: Convert>(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller promises.
    let (from, to) =
        unsafe { (std::slice::from_raw_parts(from.cast::<F>(), n), std::slice::from_raw_parts_mut(to.cast::<T>(), n)) };
    vectorized!(to.iter_mut().zip(from).for_each(|(to, from)| *to = T::convert(*from)));
}

/// # Safety
/// See [`Cast`].
unsafe fn same<const WIDTH: usize>(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: as the caller promises.
    unsafe { to.copy_from_nonoverlapping(from, n * WIDTH) };
}

/// A type of elements that can be converted to the others.
trait Convert: Copy {
    /// The widest type of its kind, which holds every value without loss.
    type Wide: Wide;

    fn wide(self) -> Self::Wide;

    fn from_wide(wide: impl Wide) -> Self;

    #[inline(always)]
    fn convert<F: Convert>(from: F) -> Self {
        Self::from_wide(from.wide())
    }
}

/// A number type that the processor converts to others.
trait Wide: Copy {
    fn to_i64(self) -> i64;
    fn to_u64(self) -> u64;
    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    fn is_zero(self) -> bool;
}

macro_rules! wide {
    ($($type:ty: $unsigned:expr;)*) => {$(
        impl Wide for $type {
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }

            #[inline(always)]
            fn to_u64(self) -> u64 {
                ($unsigned)(self)
            }

            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }

            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }

            #[inline(always)]
            fn is_zero(self) -> bool {
                self == 0 as $type
            }
        }
    )*};
}
wide! {
    i32: |value| value as u64;
    i64: |value| value as u64;
    u64: |value| value;
    f32: |value| if value < 0.0 { value as i64 as u64 } else { value as u64 };
    f64: |value| if value < 0.0 { value as i64 as u64 } else { value as u64 };
}

macro_rules! convert {
    ($($type:ty, $wide:ty: $to_wide:expr, $by:ident $from_wide:expr;)*) => {$(
        impl Convert for $type {
            type Wide = $wide;

            #[inline(always)]
            fn wide(self) -> $wide {
                ($to_wide)(self)
            }

            #[inline(always)]
            fn from_wide(wide: impl Wide) -> Self {
                ($from_wide)(wide.$by())
            }
        }
    )*};
}
convert! {
    bool, i32: i32::from, is_zero |is_zero: bool| !is_zero;
    i8, i32: i32::from, to_i64 |value| value as i8;
    i16, i32: i32::from, to_i64 |value| value as i16;
    i32, i32: |value| value, to_i64 |value| value as i32;
    i64, i64: |value| value, to_i64 |value| value;
    u8, i32: i32::from, to_i64 |value| value as u8;
    u16, i32: i32::from, to_i64 |value| value as u16;
    u32, i64: i64::from, to_i64 |value| value as u32;
    u64, u64: |value| value, to_u64 |value| value;
    f16, f32: Number::widen, to_f32 f16::narrow;
    bf16, f32: Number::widen, to_f32 bf16::narrow;
    f32, f32: |value| value, to_f32 |value| value;
    f64, f64: |value| value, to_f64 |value| value;
}
