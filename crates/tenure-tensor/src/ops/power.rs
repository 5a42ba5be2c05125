//! Powers.

use super::pointwise::{self, Binary, Pair, Unary};
use crate::autocast::raise;
use crate::autograd::{Context, attach};
use crate::operation::operations;
use crate::{Kernel, Result, Scalar, Tensor, TensorError, Value};
use crate::{cpu, cuda};

static POW: Binary = Kernel::new("pow", &[cpu::pointwise::POW, cuda::pointwise::POW]);
static SQUARE: Unary = Kernel::new("pow", &[cpu::pointwise::SQUARE, cuda::pointwise::SQUARE]);
static CUBE: Unary = Kernel::new("pow", &[cpu::pointwise::CUBE, cuda::pointwise::CUBE]);
static SQRT: Unary = Kernel::new("pow", &[cpu::pointwise::SQRT, cuda::pointwise::SQRT]);
static RSQRT: Unary = Kernel::new("pow", &[cpu::pointwise::RSQRT, cuda::pointwise::RSQRT]);
static RECIPROCAL: Unary = Kernel::new("pow", &[cpu::pointwise::RECIPROCAL, cuda::pointwise::RECIPROCAL]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Raises each element to the power `exponent`, broadcast and promoted.
        ///
        /// # Errors
        /// Sizes that do not broadcast, different devices, `bool`, a negative power of integers.
        pow(input: Tensor, exponent: Value) -> Tensor;
    }
}

fn pow(input: &Tensor, exponent: Value<'_>) -> Result<Tensor> {
    let base = raise(input)?;
    match exponent {
        Value::Number(exponent) => base.to_number(exponent),
        Value::Tensor(exponent) => base.to_tensor(&raise(exponent)?),
    }
}

impl Tensor {
    fn to_number(&self, exponent: Scalar) -> Result<Self> {
        let pair = Pair::new("pow", self, exponent.into(), |dtype| dtype)?;
        let dtype = pair.dtype;
        if !dtype.is_floating() && exponent.to_f64() < 0.0 {
            let reason = format!("integers have no power of {exponent}: convert to a floating dtype first");
            return Err(TensorError::argument("pow", reason));
        }
        let number = exponent.to_f64();
        let simple = match number {
            2.0 => Some(&SQUARE),
            3.0 => Some(&CUBE),
            0.5 => Some(&SQRT),
            -0.5 => Some(&RSQRT),
            -1.0 => Some(&RECIPROCAL),
            _ => None,
        };
        let power = match simple {
            Some(kernel) => pointwise::run(kernel, dtype, dtype, &[self], |kernel, iter| kernel(iter))?,
            None => pair.compute(&POW, dtype)?,
        };
        attach(power, "pow", &[self], |saver| {
            let base = saver.save_if(number != 0.0, self)?;
            Ok(move |context: &Context<'_>| {
                if number == 0.0 {
                    return Ok([context.zeros(0)?].into_iter().collect());
                }
                let slope = context.unpack(base)?.pow(number - 1.0)?.mul(number)?;
                Ok([Some(context.grad(0)?.mul(&slope)?)].into_iter().collect())
            })
        })
    }

    fn to_tensor(&self, exponent: &Self) -> Result<Self> {
        let pair = Pair::new("pow", self, exponent.into(), |dtype| dtype)?;
        let power = pair.compute(&POW, pair.dtype)?;
        attach(power.clone(), "pow", &[self, exponent], |saver| {
            let base = saver.save(self)?;
            let exponent = saver.save(exponent)?;
            let power = if saver.needs(1) { Some(saver.save_output(&power, 0)?) } else { None };
            Ok(move |context: &Context<'_>| {
                let grad = context.grad(0)?;
                let base = context.unpack(base)?;
                let exponent = context.unpack(exponent)?;
                let to_base = context.give(0, || {
                    // Where the exponent is 0, the slope is 0 too, though the formula has 1/0 if the base is 0.
                    let slope = exponent.mul(&base.pow(&exponent.sub(1)?)?)?;
                    grad.mul(&slope.masked_fill(&exponent.eq(0)?, 0)?)
                })?;
                let to_exponent = context.give(1, || {
                    // Where the base is 0, the slope is 0 too, though its logarithm is infinite.
                    let slope = context.unpack(power)?.mul(&base.log()?)?;
                    grad.mul(&slope.masked_fill(&base.eq(0)?.logical_and(&exponent.ge(0)?)?, 0)?)
                })?;
                Ok([to_base, to_exponent].into_iter().collect())
            })
        })
    }
}
