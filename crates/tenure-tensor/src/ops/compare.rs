//! Comparisons, logical and bitwise operations.

use tenure_core::DType;

use super::pointwise::{self, Binary, Pair, Unary};
use crate::cpu::compare::{Closeness, IsClose};
use crate::operation::operations;
use crate::scalar::{integers, is_wide_unsigned};
use crate::{Kernel, Result, Tensor, TensorError, Value, cpu, cuda};

static IS_CLOSE: Kernel<IsClose> = Kernel::new("isclose", &[cpu::compare::IS_CLOSE, cuda::compare::IS_CLOSE]);

/// Defines operations on two operands, broadcast and promoted; `$result` maps their dtype to the result's.
macro_rules! relations {
    ($table:ident, $result:expr; $($(#[doc = $doc:literal])* $(#[name($front:ident)])? $name:ident = $room:ident :: $kernel:ident;)*) => {
        operations! {
            static $table;
            Method for all {$(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// Sizes that do not broadcast, different devices, dtypes that the operation does not support.
                $(#[name($front)])?
                $name(input: Tensor, other: Value) -> Tensor = |input: &Tensor, other: Value<'_>| {
                    static KERNEL: Binary = Kernel::new(stringify!($name), &[cpu::$room::$kernel, cuda::$room::$kernel]);
                    if let Some(result) = of_all(stringify!($name), input.dtype(), other) {
                        return Tensor::full(input.sizes(), result, DType::Bool, input.device());
                    }
                    let pair = Pair::new(stringify!($name), input, other, |dtype| dtype)?;
                    pair.compute(&KERNEL, ($result)(pair.dtype))
                };
            )*}
        }
    };
}

relations! {
    COMPARISONS, |_| DType::Bool;
    /// Tells where two tensors, or a tensor and a number, have equal elements.
    eq = compare::EQ;
    /// Tells where elements differ from those of `other`. NaN differs from itself.
    ne = compare::NE;
    /// Tells where this tensor is less than `other`.
    lt = compare::LT;
    /// Tells where this tensor is less than or equal to `other`.
    le = compare::LE;
    /// Tells where this tensor is greater than `other`.
    gt = compare::GT;
    /// Tells where this tensor is greater than or equal to `other`.
    ge = compare::GE;
    /// Tells where this tensor and `other` are both nonzero.
    logical_and = compare::LOGICAL_AND;
    /// Tells where at least one of this tensor and `other` is nonzero.
    logical_or = compare::LOGICAL_OR;
    /// Tells where exactly one of this tensor and `other` is nonzero.
    logical_xor = compare::LOGICAL_XOR;
}

relations! {
    BITS, |dtype| dtype;
    /// Computes the bitwise and of this tensor and `other`.
    bitwise_and = pointwise::AND;
    /// Computes the bitwise or of this tensor and `other`.
    bitwise_or = pointwise::OR;
    /// Computes the bitwise exclusive or of this tensor and `other`.
    bitwise_xor = pointwise::XOR;
    /// Shifts bits up and fills with zeros. PyTorch's `bitwise_left_shift`.
    #[name(bitwise_left_shift)]
    shift_left = pointwise::SHIFT_LEFT;
    /// Shifts bits down and fills with the sign. PyTorch's `bitwise_right_shift`.
    #[name(bitwise_right_shift)]
    shift_right = pointwise::SHIFT_RIGHT;
}

/// Returns the result of a comparison that is the same for all elements: that of unsigned integers with an integer which
/// their dtype does not hold. `uint8` is compared as in PyTorch, with a number that wraps; for the wider ones PyTorch has
/// no order.
fn of_all(op: &str, dtype: DType, other: Value<'_>) -> Option<bool> {
    let Value::Number(number) = other else { return None };
    let (min, max) = integers(dtype).filter(|_| is_wide_unsigned(dtype) && number.is_integer())?;
    let number = number.to_i128();
    match op {
        _ if (min..=max).contains(&number) => None,
        "eq" => Some(false),
        "ne" => Some(true),
        "lt" | "le" => Some(number > max),
        "gt" | "ge" => Some(number < min),
        _ => None,
    }
}

/// Defines properties of each element.
macro_rules! properties {
    ($($(#[doc = $doc:literal])* $name:ident = $room:ident :: $kernel:ident, $of_integers:expr;)*) => {
        operations! {
            static PROPERTIES;
            Method for all {$(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// No memory.
                $name(input: Tensor) -> Tensor = |input: &Tensor| {
                    static KERNEL: Unary = Kernel::new(stringify!($name), &[cpu::$room::$kernel, cuda::$room::$kernel]);
                    let of_integers: Option<bool> = $of_integers;
                    match of_integers {
                        Some(value) if !input.dtype().is_floating() => {
                            Tensor::full(input.sizes(), value, DType::Bool, input.device())
                        }
                        _ => pointwise::run(&KERNEL, input.dtype(), DType::Bool, &[input], |kernel, iter| kernel(iter)),
                    }
                };
            )*}
        }
    };
}

properties! {
    /// Tells where an element is NaN.
    isnan = pointwise::IS_NAN, Some(false);
    /// Tells where an element is infinite.
    isinf = pointwise::IS_INF, Some(false);
    /// Tells where an element is neither infinite nor NaN.
    isfinite = pointwise::IS_FINITE, Some(true);
    /// Tells where an element is zero.
    logical_not = pointwise::LOGICAL_NOT, None;
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Inverts every bit; of `bool`, computes the logical not.
        ///
        /// # Errors
        /// Floats.
        bitwise_not(input: Tensor) -> Tensor;

        /// Tells where the absolute difference to `other` is at most `atol` plus `rtol` times the absolute value of
        /// `other`. PyTorch's defaults are 1e-8 and 1e-5.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices.
        isclose(input: Tensor, other: Tensor, rtol: Float = 1e-5, atol: Float = 1e-8, equal_nan: Bool = false) -> Tensor;

        /// Returns whether all elements are [close](Self::isclose).
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices.
        allclose(input: Tensor, other: Tensor, rtol: Float = 1e-5, atol: Float = 1e-8) -> bool;

        /// Returns whether two tensors have equal sizes and elements, in the dtype that they promote to.
        ///
        /// # Errors
        /// Different devices.
        equal(input: Tensor, other: Tensor) -> bool;
    }
    Method for front_ends {
        /// Returns whether the one element is not zero.
        ///
        /// # Errors
        /// None or several elements.
        is_nonzero(input: Tensor) -> bool;
    }
}

fn is_nonzero(input: &Tensor) -> Result<bool> {
    let count = match input.numel() {
        1 => return input.to_dtype(DType::Bool)?.item::<bool>(),
        0 => "no values",
        _ => "more than one value",
    };
    Err(TensorError::argument("is_nonzero", format!("Boolean value of Tensor with {count} is ambiguous")))
}

fn bitwise_not(input: &Tensor) -> Result<Tensor> {
    static KERNEL: Unary = Kernel::new("bitwise_not", &[cpu::pointwise::BITWISE_NOT, cuda::pointwise::BITWISE_NOT]);
    pointwise::run(&KERNEL, input.dtype(), input.dtype(), &[input], |kernel, iter| kernel(iter))
}

fn isclose(input: &Tensor, other: &Tensor, relative: f64, absolute: f64, equal_nan: bool) -> Result<Tensor> {
    let closeness = Closeness { relative, absolute, equal_nan };
    let pair = Pair::new("isclose", input, other.into(), |dtype| dtype)?;
    pointwise::run(&IS_CLOSE, pair.dtype, DType::Bool, &[input, other], move |kernel, iter| kernel(iter, closeness))
}

fn allclose(input: &Tensor, other: &Tensor, relative: f64, absolute: f64) -> Result<bool> {
    input.isclose(other, relative, absolute, false)?.are_all_true()
}

fn equal(input: &Tensor, other: &Tensor) -> Result<bool> {
    Ok(input.sizes() == other.sizes() && input.eq(other)?.are_all_true()?)
}

impl Tensor {
    fn are_all_true(&self) -> Result<bool> {
        self.all(&[], false)?.item::<bool>()
    }
}
