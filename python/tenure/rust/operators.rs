//! The operators `+`, `-`, `*`, `/` and the sign `-`. The result of an operator is an operand beside a tensor, so that
//! a chain of tensors needs one question mark.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::{Result, Tensor};

// A method by its path: the trait's own would be found first on a tensor.
macro_rules! operators {
    ($($trait:ident $function:ident $operation:ident;)*) => {$(
        operators! {
            $trait $function $operation:
            &Tensor, &Tensor, |left, right| Tensor::$operation(left, right);
            &Tensor, Tensor, |left, right| Tensor::$operation(left, &right);
            Tensor, &Tensor, |left, right| Tensor::$operation(&left, right);
            Tensor, Tensor, |left, right| Tensor::$operation(&left, &right);
            &Tensor, Result<Tensor>, |left, right| Tensor::$operation(left, &right?);
            Tensor, Result<Tensor>, |left, right| Tensor::$operation(&left, &right?);
            Result<Tensor>, &Tensor, |left, right| Tensor::$operation(&left?, right);
            Result<Tensor>, Tensor, |left, right| Tensor::$operation(&left?, &right);
            &Tensor, f64, |left, right| Tensor::$operation(left, right);
            Tensor, f64, |left, right| Tensor::$operation(&left, right);
        }
    )*};
    ($trait:ident $function:ident $operation:ident: $($left:ty, $right:ty, |$a:ident, $b:ident| $result:expr;)*) => {$(
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;

            fn $function(self, right: $right) -> Result<Tensor> {
                let ($a, $b) = (self, right);
                $result
            }
        }
    )*};
}

operators! {
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div div;
}

macro_rules! numbers_on_the_left {
    ($($trait:ident $function:ident: |$number:ident, $tensor:ident| $result:expr;)*) => {$(
        impl $trait<&Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $function(self, $tensor: &Tensor) -> Result<Tensor> {
                let $number = self;
                $result
            }
        }

        impl $trait<Tensor> for f64 {
            type Output = Result<Tensor>;

            fn $function(self, tensor: Tensor) -> Result<Tensor> {
                self.$function(&tensor)
            }
        }
    )*};
}

numbers_on_the_left! {
    Add add: |number, tensor| tensor.add(number);
    Sub sub: |number, tensor| tensor.neg()?.add(number);
    Mul mul: |number, tensor| tensor.mul(number);
    Div div: |number, tensor| tensor.reciprocal()?.mul(number);
}

impl Neg for &Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}

impl Neg for Tensor {
    type Output = Result<Tensor>;

    fn neg(self) -> Result<Tensor> {
        Self::neg(&self)
    }
}
