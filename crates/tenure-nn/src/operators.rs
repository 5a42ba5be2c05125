//! Operators for parameters and buffers, as for [`Tensor`]s.
//!
//! ```
//! use tenure_nn::{Buffer, Parameter};
//! use tenure_tensor::Tensor;
//!
//! let x = Tensor::from_slice(&[1.0_f32, 2.0], &[2])?;
//! let scale = Parameter::new("scale", Tensor::from_slice(&[3.0_f32], &[1])?)?;
//! let y = (1.0 - (&x * &scale + &scale)?)?;
//! assert_eq!(y.to_vec::<f32>()?, x.mul(&scale)?.add(&scale)?.neg()?.add(1)?.to_vec::<f32>()?);
//! let shift = Buffer::new("shift", x);
//! assert_eq!((-&shift * &scale)?.to_vec::<f32>()?, (&scale * &shift)?.neg()?.to_vec::<f32>()?);
//! # Ok::<(), tenure_tensor::TensorError>(())
//! ```

use std::ops::{Add, Div, Mul, Neg, Sub};

use tenure_tensor::{Result, Tensor, Value};

use crate::{Buffer, Parameter};

macro_rules! operators {
    ($type:ident: $($trait:ident $function:ident)*) => {
        impl<'a> From<&'a $type> for Value<'a> {
            fn from(named: &'a $type) -> Self {
                Value::Tensor(named)
            }
        }

        $(
            operators! {
                $trait $function by |left, right| (left, &**right):
                (&Tensor, &$type) (Tensor, &$type) (Result<Tensor>, &$type) (f64, &$type)
            }
            operators! {
                $trait $function by |left, right| (&**left, right):
                (&$type, &Tensor) (&$type, Tensor) (&$type, Result<Tensor>) (&$type, f64)
            }
            operators! { $trait $function by |left, right| (&**left, &**right): (&$type, &Parameter) (&$type, &Buffer) }
        )*

        impl Neg for &$type {
            type Output = Result<Tensor>;

            fn neg(self) -> Result<Tensor> {
                Tensor::neg(self)
            }
        }
    };
    ($trait:ident $function:ident by |$a:ident, $b:ident| ($x:expr, $y:expr): $(($left:ty, $right:ty))*) => {$(
        impl $trait<$right> for $left {
            type Output = Result<Tensor>;

            fn $function(self, right: $right) -> Result<Tensor> {
                let ($a, $b) = (self, right);
                $trait::$function($x, $y)
            }
        }
    )*};
}
operators! { Parameter: Add add Sub sub Mul mul Div div }
operators! { Buffer: Add add Sub sub Mul mul Div div }
