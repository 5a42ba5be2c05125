//! Comparisons, logic and bits.

use tenure_core::DType;

use super::pointwise::{self, Binary, Pair, Unary};
use crate::cpu::compare::{Closeness, IsClose};
use crate::{Kernel, Result, Tensor, TensorError, Value, cpu, cuda};

static IS_CLOSE: Kernel<IsClose> = Kernel::new("isclose", &[cpu::compare::IS_CLOSE, cuda::compare::IS_CLOSE]);

/// Operations on two operands, broadcast and promoted; `$result` is the dtype of the result by that of the operands.
macro_rules! relations {
    ($result:expr; $($(#[$doc:meta])* $name:ident = $room:ident :: $kernel:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// Sizes that do not broadcast, different devices, dtypes that it does not take.
            pub fn $name<'a>(&'a self, other: impl Into<Value<'a>>) -> Result<Self> {
                static KERNEL: Binary = Kernel::new(stringify!($name), &[cpu::$room::$kernel, cuda::$room::$kernel]);
                let pair = Pair::new(stringify!($name), self, other.into(), |dtype| dtype)?;
                pair.compute(&KERNEL, ($result)(pair.dtype))
            }
        )*}
    };
}

relations! {
    |_| DType::Bool;
    /// Where both are the same.
    eq = compare::EQ;
    /// Where they differ. What is no number differs from itself.
    ne = compare::NE;
    /// Where it is less.
    lt = compare::LT;
    /// Where it is less or the same.
    le = compare::LE;
    /// Where it is greater.
    gt = compare::GT;
    /// Where it is greater or the same.
    ge = compare::GE;
    /// Where both are not zero.
    logical_and = compare::LOGICAL_AND;
    /// Where one of them or both are not zero.
    logical_or = compare::LOGICAL_OR;
    /// Where exactly one of them is not zero.
    logical_xor = compare::LOGICAL_XOR;
}

relations! {
    |dtype| dtype;
    /// The bits that both have.
    bitwise_and = binary::AND;
    /// The bits that one of them or both have.
    bitwise_or = binary::OR;
    /// The bits that exactly one of them has.
    bitwise_xor = binary::XOR;
    /// Bits shifted up, zeros from below. PyTorch's `bitwise_left_shift`.
    shift_left = binary::SHIFT_LEFT;
    /// Bits shifted down, the sign from above. PyTorch's `bitwise_right_shift`.
    shift_right = binary::SHIFT_RIGHT;
}

/// Properties of each element.
macro_rules! properties {
    ($($(#[$doc:meta])* $name:ident = $room:ident :: $kernel:ident, $of_integers:expr;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// No memory.
            pub fn $name(&self) -> Result<Self> {
                static KERNEL: Unary = Kernel::new(stringify!($name), &[cpu::$room::$kernel, cuda::$room::$kernel]);
                let of_integers: Option<bool> = $of_integers;
                match of_integers {
                    Some(value) if !self.dtype().is_floating() => {
                        Self::full(self.sizes(), value, DType::Bool, self.device())
                    }
                    _ => pointwise::run(&KERNEL, self.dtype(), DType::Bool, &[self], |kernel, iter| kernel(iter)),
                }
            }
        )*}
    };
}

properties! {
    /// Where it is no number.
    isnan = unary::IS_NAN, Some(false);
    /// Where it is infinite.
    isinf = unary::IS_INF, Some(false);
    /// Where it is neither infinite nor no number.
    isfinite = unary::IS_FINITE, Some(true);
    /// Where it is zero.
    logical_not = unary::LOGICAL_NOT, None;
}

impl Tensor {
    /// Every bit turned; of `bool`, the other value.
    ///
    /// # Errors
    /// Floats.
    pub fn bitwise_not(&self) -> Result<Self> {
        static KERNEL: Unary = Kernel::new("bitwise_not", &[cpu::unary::BITWISE_NOT, cuda::unary::BITWISE_NOT]);
        pointwise::run(&KERNEL, self.dtype(), self.dtype(), &[self], |kernel, iter| kernel(iter))
    }

    /// Where it is no further from `other` than `absolute` and `relative` times the size of `other`. PyTorch's have 1e-8
    /// and 1e-5.
    ///
    /// # Errors
    /// Sizes that do not broadcast, different devices.
    pub fn isclose(&self, other: &Self, relative: f64, absolute: f64, equal_nan: bool) -> Result<Self> {
        let closeness = Closeness { relative, absolute, equal_nan };
        let pair = Pair::new("isclose", self, other.into(), |dtype| dtype)?;
        pointwise::run(&IS_CLOSE, pair.dtype, DType::Bool, &[self, other], move |kernel, iter| kernel(iter, closeness))
    }

    /// Whether all elements are [close](Self::isclose).
    ///
    /// # Errors
    /// Sizes that do not broadcast, different devices.
    pub fn allclose(&self, other: &Self, relative: f64, absolute: f64) -> Result<bool> {
        self.isclose(other, relative, absolute, false)?.are_all_true()
    }

    /// Whether sizes and all elements are the same.
    ///
    /// # Errors
    /// Different devices or dtypes.
    pub fn equal(&self, other: &Self) -> Result<bool> {
        if self.dtype() != other.dtype() {
            let expected = format!("{} is what it is compared with: convert one with to_dtype()", self.dtype());
            return Err(TensorError::DType { op: "equal", found: other.dtype(), expected });
        }
        Ok(self.sizes() == other.sizes() && self.eq(other)?.are_all_true()?)
    }

    fn are_all_true(&self) -> Result<bool> {
        self.all(&[], false)?.item::<bool>()
    }
}
