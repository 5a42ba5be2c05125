//! Functions of one number.

use std::f64::consts::{LN_2, LN_10, PI};

use tenure_core::DType;

use super::activation;
use super::pointwise::{self, Unary, floating};
use super::reduce;
use crate::autocast::raise;
use crate::autograd::{Context, Grads, Saver, attach, attach_in_place};
use crate::cpu::pointwise::{self as kernels, Curve};
use crate::cuda::pointwise as cuda;
use crate::operation::operations;
use crate::{Kernel, Result, Tensor, TensorError};

/// Defines functions of floats. The formula computes the input's gradient from the output's and a saved tensor: the
/// input (`by input`), or the output (`by output`), which lets the input's memory go. A second name is that of the
/// function in place. Integers are converted to PyTorch's default dtype.
macro_rules! functions {
    ($($(#[doc = $doc:literal])* $name:ident $(/ $in_place:ident)? = $room:ident :: $kernel:ident, by $saved:ident |$grad:ident, $value:ident| $formula:expr;)*) => {
        $crate::operation::operations! {
            static FUNCTIONS;
            Method for all {$(
                $(#[doc = $doc])*
                ///
                /// # Errors
                /// No memory.
                $name(input: Tensor) -> $crate::Tensor = |input: &$crate::Tensor| {
                    static KERNEL: $crate::ops::pointwise::Unary = $crate::Kernel::new(stringify!($name), &[$crate::cpu::$room::$kernel, $crate::cuda::$room::$kernel]);
                    let saved = $crate::ops::unary::SavedOperand::$saved;
                    $crate::ops::unary::of_floats(&KERNEL, input, saved, |$grad: &$crate::Tensor, $value: &$crate::Tensor| $formula)
                };
                $(
                    #[doc = concat!(" Computes [`", stringify!($name), "`](Self::", stringify!($name), ") in place.")]
                    ///
                    /// # Errors
                    /// The errors of [`add_`](Self::add_).
                    $in_place(input: Tensor) -> () = |input: &$crate::Tensor| {
                        static KERNEL: $crate::ops::pointwise::Unary = $crate::Kernel::new(stringify!($in_place), &[$crate::cpu::$room::$kernel, $crate::cuda::$room::$kernel]);
                        let saved = $crate::ops::unary::SavedOperand::$saved;
                        $crate::ops::unary::of_floats_in_place(&KERNEL, input, saved, |$grad: &$crate::Tensor, $value: &$crate::Tensor| $formula)
                    };
                )?
            )*}
        }
    };
}
pub(super) use functions;

/// The functions that are computed in `float32` inside an [`Autocast`](crate::autocast::Autocast), as in PyTorch.
const RAISED: [&str; 14] = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
];

/// The tensor that a formula needs.
#[expect(non_camel_case_types, reason = "words of `functions!`")]
pub(super) enum SavedOperand {
    input,
    output,
}

/// Runs `kernel` on floats. The gradient is `formula` of the output's gradient and the saved tensor.
pub(super) fn of_floats(
    kernel: &'static Unary,
    input: &Tensor,
    by: SavedOperand,
    formula: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    let raised = if RAISED.contains(&kernel.name()) { raise(input)? } else { input.clone() };
    let input = &raised;
    let dtype = floating(raised.dtype());
    let out = pointwise::run(kernel, dtype, dtype, &[input], |kernel, iter| kernel(iter))?;
    attach(out.clone(), kernel.name(), &[input], |saver| by.save(saver, input, &out, formula))
}

/// Runs `kernel` as [`of_floats`] does, and writes to the input.
pub(super) fn of_floats_in_place(
    kernel: &'static Unary,
    target: &Tensor,
    by: SavedOperand,
    formula: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<()> {
    let op = kernel.name();
    let dtype = floating(target.dtype());
    target.check_stores(op, dtype)?;
    attach_in_place(
        target,
        op,
        &[target],
        || pointwise::write(op, kernel, dtype, target, &[target], |kernel, iter| kernel(iter)),
        |saver| by.save(saver, target, target, formula),
    )
}

impl SavedOperand {
    fn save<F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static>(
        self,
        saver: &mut Saver,
        input: &Tensor,
        output: &Tensor,
        formula: F,
    ) -> Result<impl Fn(&Context<'_>) -> Result<Grads> + Send + Sync + use<F>> {
        let saved = match self {
            Self::input => saver.save(input)?,
            Self::output => saver.save_output(output, 0)?,
        };
        Ok(move |context: &Context<'_>| {
            let gradient = formula(&context.grad(0)?, &context.unpack(saved)?)?;
            Ok([Some(gradient)].into_iter().collect())
        })
    }
}

functions! {
    /// Computes the square root of each element.
    sqrt / sqrt_ = pointwise::SQRT, by output |grad, y| grad.div(&y.mul(2)?);
    /// Computes 1 divided by the square root of each element.
    rsqrt / rsqrt_ = pointwise::RSQRT, by output |grad, y| grad.mul(-0.5)?.mul(&y.pow(3)?);
    /// Computes 1 divided by each element.
    reciprocal / reciprocal_ = pointwise::RECIPROCAL, by output |grad, y| grad.mul(&y.square()?)?.neg();
    /// Computes e to the power of each element.
    exp / exp_ = pointwise::EXP, by output |grad, y| grad.mul(y);
    /// Computes e to the power of each element, minus 1, precisely also near 0.
    expm1 = pointwise::EXPM1, by output |grad, y| grad.mul(&y.add(1)?);
    /// Computes the natural logarithm of each element.
    log / log_ = pointwise::LOG, by input |grad, x| grad.div(x);
    /// Computes the natural logarithm of 1 plus each element, precisely also near 0.
    log1p = pointwise::LOG1P, by input |grad, x| grad.div(&x.add(1)?);
    /// Computes the logarithm to base 2.
    log2 = pointwise::LOG2, by input |grad, x| grad.div(&x.mul(LN_2)?);
    /// Computes the logarithm to base 10.
    log10 = pointwise::LOG10, by input |grad, x| grad.div(&x.mul(LN_10)?);
    /// Computes the sine of an angle in radians.
    sin = pointwise::SIN, by input |grad, x| grad.mul(&x.cos()?);
    /// Computes the cosine of an angle in radians.
    cos = pointwise::COS, by input |grad, x| grad.mul(&x.sin()?)?.neg();
    /// Computes the tangent of an angle in radians.
    tan = pointwise::TAN, by output |grad, y| grad.mul(&y.square()?.add(1)?);
    /// Computes the arcsine, in radians.
    asin = pointwise::ASIN, by input |grad, x| grad.mul(&one_minus_square(x)?.rsqrt()?);
    /// Computes the arccosine, in radians.
    acos = pointwise::ACOS, by input |grad, x| grad.mul(&one_minus_square(x)?.rsqrt()?)?.neg();
    /// Computes the arctangent, in radians.
    atan = pointwise::ATAN, by input |grad, x| grad.div(&x.square()?.add(1)?);
    /// Computes the hyperbolic sine.
    sinh = pointwise::SINH, by input |grad, x| grad.mul(&x.cosh()?);
    /// Computes the hyperbolic cosine.
    cosh = pointwise::COSH, by input |grad, x| grad.mul(&x.sinh()?);
    /// Computes the inverse of the hyperbolic sine.
    asinh = pointwise::ASINH, by input |grad, x| grad.mul(&x.square()?.add(1)?.rsqrt()?);
    /// Computes the inverse of the hyperbolic cosine.
    acosh = pointwise::ACOSH, by input |grad, x| grad.mul(&x.square()?.sub(1)?.rsqrt()?);
    /// Computes the inverse of the hyperbolic tangent.
    atanh = pointwise::ATANH, by input |grad, x| grad.div(&one_minus_square(x)?);
    /// Computes the hyperbolic tangent.
    tanh / tanh_ = pointwise::TANH, by output |grad, y| activation::tanh_backward(grad, y);
    /// Computes the error function.
    erf = pointwise::ERF, by input |grad, x| grad.mul(&bell(x)?.mul(2.0 / PI.sqrt())?);
    /// Computes 1 minus the error function, precisely also where that is near 1.
    erfc = pointwise::ERFC, by input |grad, x| grad.mul(&bell(x)?.mul(-2.0 / PI.sqrt())?);
    /// Computes the inverse of the error function, for elements from -1 to 1.
    erfinv = pointwise::ERFINV, by output |grad, y| grad.mul(&y.square()?.exp()?.mul(PI.sqrt() / 2.0)?);
    /// Computes the logarithm of the absolute value of the gamma function.
    lgamma = pointwise::LGAMMA, by input |grad, x| grad.mul(&x.digamma()?);
    /// Computes the derivative of [`lgamma`](Self::lgamma).
    digamma = pointwise::DIGAMMA, by input |grad, x| grad.mul(&x.polygamma(1)?);
}

/// Computes exp(-x²).
fn bell(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.exp()
}

fn one_minus_square(x: &Tensor) -> Result<Tensor> {
    x.square()?.neg()?.add(1)
}

static POLYGAMMA: Kernel<Curve<1>> = Kernel::new("polygamma", &[kernels::POLYGAMMA, cuda::POLYGAMMA]);
static NEG: Unary = Kernel::new("neg", &[kernels::NEG, cuda::NEG]);
static ABS: Unary = Kernel::new("abs", &[kernels::ABS, kernels::ABS_INTEGERS, cuda::ABS, cuda::ABS_INTEGERS]);
static SIGN: Unary = Kernel::new("sign", &[kernels::SIGN, cuda::SIGN]);
static SQUARE: Unary = Kernel::new("square", &[kernels::SQUARE, cuda::SQUARE]);
static FRAC: Unary = Kernel::new("frac", &[kernels::FRAC, cuda::FRAC]);
static FLOOR: Unary = Kernel::new("floor", &[kernels::FLOOR, cuda::FLOOR]);
static CEIL: Unary = Kernel::new("ceil", &[kernels::CEIL, cuda::CEIL]);
static ROUND: Unary = Kernel::new("round", &[kernels::ROUND, cuda::ROUND]);
static TRUNC: Unary = Kernel::new("trunc", &[kernels::TRUNC, cuda::TRUNC]);

operations! {
    static OPERATIONS;
    Method for all {
        /// Negates each element. Unsigned integers wrap.
        ///
        /// # Errors
        /// `bool`.
        neg(input: Tensor) -> Tensor;

        /// Computes the absolute value of each element.
        ///
        /// # Errors
        /// `bool`.
        abs(input: Tensor) -> Tensor;

        /// Computes the square of each element: of `bool`, as `int64`.
        ///
        /// # Errors
        /// No memory.
        square(input: Tensor) -> Tensor;

        /// Computes the fractional part, with the element's sign.
        ///
        /// # Errors
        /// Integers.
        frac(input: Tensor) -> Tensor;

        /// Computes the sign of each element: 1, 0 or -1. Its gradient is zero. `bool` stays as it is.
        ///
        /// # Errors
        /// No memory.
        sign(input: Tensor) -> Tensor;

        /// Rounds down to an integer. Its gradient is zero.
        ///
        /// # Errors
        /// `bool`.
        floor(input: Tensor) -> Tensor;

        /// Rounds up to an integer. Its gradient is zero.
        ///
        /// # Errors
        /// `bool`.
        ceil(input: Tensor) -> Tensor;

        /// Rounds to the nearest integer, and halves to the even integer. Its gradient is zero.
        ///
        /// # Errors
        /// `bool`.
        round(input: Tensor) -> Tensor;

        /// Rounds towards zero. Its gradient is zero.
        ///
        /// # Errors
        /// `bool`.
        trunc(input: Tensor) -> Tensor;

        /// Computes the derivative of the order `n` of [`digamma`](Self::digamma), which is that of order 0.
        ///
        /// # Errors
        /// A negative order; no memory.
        polygamma(input: Tensor, n: Int) -> Tensor;
    }
    Method for front_ends {
        /// Rounds to so many decimal places, or if `decimals` is negative, to a multiple of a power of ten.
        ///
        /// # Errors
        /// Integers.
        #[name(round)]
        round_to(input: Tensor, decimals: Int) -> Tensor;
    }
    Function for front_ends {
        /// Computes [`polygamma`](Tensor::polygamma) with the order first, as PyTorch's function has it.
        ///
        /// # Errors
        /// A negative order; no memory.
        #[name(polygamma)]
        polygamma_of(n: Int, input: Tensor) -> Tensor = |n, input: &Tensor| input.polygamma(n);
    }
}

fn round_to(input: &Tensor, decimals: isize) -> Result<Tensor> {
    reduce::floating("round", input)?;
    let power = 10_f64.powi(decimals.unsigned_abs().try_into().unwrap_or(i32::MAX));
    match decimals {
        0 => input.round(),
        1.. => input.mul(power)?.round()?.div(power),
        _ => input.div(power)?.round()?.mul(power),
    }
}

fn neg(input: &Tensor) -> Result<Tensor> {
    if input.dtype() == DType::Bool {
        let expected = "a number is needed: use logical_not() to invert a mask".to_owned();
        return Err(TensorError::DType { op: "neg", found: DType::Bool, expected });
    }
    attach(input.same_dtype(&NEG)?, "neg", &[input], |_| {
        Ok(|context: &Context<'_>| Ok([Some(context.grad(0)?.neg()?)].into_iter().collect()))
    })
}

fn abs(input: &Tensor) -> Result<Tensor> {
    attach(input.same_dtype(&ABS)?, "abs", &[input], |saver| {
        let x = saver.save(input)?;
        Ok(move |context: &Context<'_>| {
            let sign = context.unpack(x)?.sign()?;
            Ok([Some(context.grad(0)?.mul(&sign)?)].into_iter().collect())
        })
    })
}

fn square(input: &Tensor) -> Result<Tensor> {
    if input.dtype() == DType::Bool {
        return input.to_dtype(DType::I64)?.square();
    }
    attach(input.same_dtype(&SQUARE)?, "square", &[input], |saver| {
        let x = saver.save(input)?;
        Ok(move |context: &Context<'_>| {
            let twice = context.unpack(x)?.mul(2)?;
            Ok([Some(context.grad(0)?.mul(&twice)?)].into_iter().collect())
        })
    })
}

fn frac(input: &Tensor) -> Result<Tensor> {
    attach(input.same_dtype(&FRAC)?, "frac", &[input], |_| {
        Ok(|context: &Context<'_>| Ok([Some(context.grad(0)?)].into_iter().collect()))
    })
}

fn sign(input: &Tensor) -> Result<Tensor> {
    if input.dtype() == DType::Bool {
        return input.copy();
    }
    input.step(&SIGN)
}

fn floor(input: &Tensor) -> Result<Tensor> {
    input.whole(&FLOOR)
}

fn ceil(input: &Tensor) -> Result<Tensor> {
    input.whole(&CEIL)
}

fn round(input: &Tensor) -> Result<Tensor> {
    input.whole(&ROUND)
}

fn trunc(input: &Tensor) -> Result<Tensor> {
    input.whole(&TRUNC)
}

impl Tensor {
    /// Rounds floats; integers are copied as they are.
    fn whole(&self, kernel: &'static Unary) -> Result<Self> {
        let is_integer = !self.dtype().is_floating() && self.dtype() != DType::Bool;
        if is_integer { self.copy() } else { self.step(kernel) }
    }

    /// Runs a step function, whose gradient is zero.
    fn step(&self, kernel: &'static Unary) -> Result<Self> {
        attach(self.same_dtype(kernel)?, kernel.name(), &[self], |_| {
            Ok(|context: &Context<'_>| Ok([context.zeros(0)?].into_iter().collect()))
        })
    }

    fn same_dtype(&self, kernel: &'static Unary) -> Result<Self> {
        pointwise::run(kernel, self.dtype(), self.dtype(), &[self], |kernel, iter| kernel(iter))
    }
}

fn polygamma(input: &Tensor, n: isize) -> Result<Tensor> {
    if n < 0 {
        return Err(TensorError::argument("polygamma", format!("n = {n}: an order of 0 or more is needed")));
    }
    if n == 0 {
        return input.digamma();
    }
    let input = input.to_dtype(floating(input.dtype()))?;
    input.curve(&POLYGAMMA, [n as f64], move |grad, x| grad.mul(&x.polygamma(n + 1)?))
}
