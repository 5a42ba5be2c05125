//! The operators `+`, `-`, `*`, `/`, `%`, `&`, `|`, `^` and `!`.
//!
//! ```
//! use tenure_tensor::Tensor;
//!
//! let (a, b) = (Tensor::from_slice(&[1.0_f32, 2.0], &[2])?, Tensor::from_slice(&[3.0_f32, 4.0], &[2])?);
//! // The result of an operator is an operand beside a tensor, so that a chain of tensors needs one question mark.
//! let c = (&a * &b + &a - &b)?;
//! assert_eq!((1.0 - (c * 0.5)?)?.to_vec::<f32>()?, [0.5, -2.0]);
//! # Ok::<(), tenure_tensor::TensorError>(())
//! ```

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Not, Rem, Sub};

use tenure_core::DType;

use super::Tensor;
use crate::scalar::floating;
use crate::{Result, Value};

/// An operand of an operator: a tensor, a number, or the result of another operator.
enum OperatorOperand {
    Tensor(Result<Tensor>),
    Number(f64),
}

impl From<&Tensor> for OperatorOperand {
    fn from(tensor: &Tensor) -> Self {
        Self::Tensor(Ok(tensor.clone()))
    }
}

impl From<Tensor> for OperatorOperand {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(Ok(tensor))
    }
}

impl From<Result<Tensor>> for OperatorOperand {
    fn from(tensor: Result<Tensor>) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<f64> for OperatorOperand {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

fn apply(
    left: impl Into<OperatorOperand>,
    right: impl Into<OperatorOperand>,
    operation: impl for<'a> Fn(&'a Tensor, Value<'a>) -> Result<Tensor>,
) -> Result<Tensor> {
    match (left.into(), right.into()) {
        (OperatorOperand::Tensor(left), OperatorOperand::Tensor(right)) => operation(&left?, (&right?).into()),
        (OperatorOperand::Tensor(left), OperatorOperand::Number(right)) => operation(&left?, right.into()),
        (OperatorOperand::Number(left), OperatorOperand::Tensor(right)) => {
            let right = right?;
            operation(&Tensor::scalar(left, floating(right.dtype()))?, (&right).into())
        }
        // No operator is declared between two numbers.
        (OperatorOperand::Number(left), OperatorOperand::Number(right)) => {
            operation(&Tensor::scalar(left, DType::F32)?, right.into())
        }
    }
}

macro_rules! operator {
    ($trait:ident $function:ident $method:ident: $(($left:ty, $right:ty))*) => {$(
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;

            fn $function(self, right: $right) -> Result<Tensor> {
                apply(self, right, |left, right| left.$method(right))
            }
        }
    )*};
    (tensors: $($trait:ident $function:ident $method:ident;)*) => {$(
        operator! {
            $trait $function $method:
            (&Tensor, &Tensor) (&Tensor, Tensor) (&Tensor, Result<Tensor>)
            (Tensor, &Tensor) (Tensor, Tensor) (Tensor, Result<Tensor>)
            (Result<Tensor>, &Tensor) (Result<Tensor>, Tensor)
        }
    )*};
    (numbers: $($trait:ident $function:ident $method:ident;)*) => {$(
        operator! { $trait $function $method: (&Tensor, f64) (Tensor, f64) (f64, &Tensor) (f64, Tensor) }
    )*};
}

operator! {
    tensors:
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
    Rem rem remainder;
    BitAnd bitand bitwise_and;
    BitOr bitor bitwise_or;
    BitXor bitxor bitwise_xor;
}
operator! {
    numbers:
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
    Rem rem remainder;
}

macro_rules! prefix {
    ($($trait:ident $function:ident $method:ident;)*) => {$(
        impl $trait for &Tensor {
            type Output = Result<Tensor>;

            fn $function(self) -> Result<Tensor> {
                self.$method()
            }
        }

        impl $trait for Tensor {
            type Output = Result<Tensor>;

            fn $function(self) -> Result<Tensor> {
                Tensor::$method(&self)
            }
        }
    )*};
}
prefix! {
    Neg neg neg;
    Not not bitwise_not;
}
