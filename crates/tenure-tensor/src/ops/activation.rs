//! Activation functions.
//!
//! Gradients of the common activations are computed by kernels in one pass. Such a kernel is an operation with a
//! gradient too: the gradient times a slope, see [`sloped`].

use super::entered;
use super::pointwise::{self, Binary, Unary, promoted};
use super::unary::{SavedOperand, functions, of_floats, of_floats_in_place};
use crate::autocast::raise;
use crate::autograd::{Context, attach, is_grad_enabled};
use crate::cpu::activation::{self as kernels, Band, BandBackward};
use crate::cpu::pointwise::Curve;
use crate::cuda::activation as cuda;
use crate::operation::operations;
use crate::{DType, Elementwise, Kernel, Result, Tensor, TensorError};

static RELU: Unary = Kernel::new("relu", &[kernels::RELU, cuda::RELU]);
static RELU_IN_PLACE: Unary = Kernel::new("relu_", &[kernels::RELU, cuda::RELU]);
static LEAKY_RELU: Kernel<Curve<1>> = Kernel::new("leaky_relu", &[kernels::LEAKY_RELU, cuda::LEAKY_RELU]);
static THRESHOLD: Kernel<Curve<2>> = Kernel::new("threshold", &[kernels::THRESHOLD, cuda::THRESHOLD]);
static ELU: Kernel<Curve<3>> = Kernel::new("elu", &[kernels::ELU, cuda::ELU]);
static SOFTPLUS: Kernel<Curve<2>> = Kernel::new("softplus", &[kernels::SOFTPLUS, cuda::SOFTPLUS]);
static TANH_BACKWARD: Binary = Kernel::new("tanh_backward", &[kernels::TANH_BACKWARD, cuda::TANH_BACKWARD]);
static SIGMOID_BACKWARD: Binary = Kernel::new("sigmoid_backward", &[kernels::SIGMOID_BACKWARD, cuda::SIGMOID_BACKWARD]);
static SILU_BACKWARD: Binary = Kernel::new("silu_backward", &[kernels::SILU_BACKWARD, cuda::SILU_BACKWARD]);
static GELU_BACKWARD: Binary = Kernel::new("gelu_backward", &[kernels::GELU_BACKWARD, cuda::GELU_BACKWARD]);
static GELU_TANH_BACKWARD: Binary =
    Kernel::new("gelu_tanh_backward", &[kernels::GELU_TANH_BACKWARD, cuda::GELU_TANH_BACKWARD]);
static SWIGLU: Binary = Kernel::new("swiglu", &[kernels::SWIGLU, cuda::SWIGLU]);
static SWIGLU_BACKWARD: Binary = Kernel::new("swiglu_backward", &[kernels::SWIGLU_BACKWARD, cuda::SWIGLU_BACKWARD]);
static HARDSWISH_BACKWARD: Binary =
    Kernel::new("hardswish_backward", &[kernels::HARDSWISH_BACKWARD, cuda::HARDSWISH_BACKWARD]);
static ELU_BACKWARD: Kernel<Curve<3>> = Kernel::new("elu_backward", &[kernels::ELU_BACKWARD, cuda::ELU_BACKWARD]);
static BAND_BACKWARD: Kernel<BandBackward> =
    Kernel::new("threshold_backward", &[kernels::BAND_BACKWARD, cuda::BAND_BACKWARD]);

functions! {
    /// Computes the logistic function, from 0 to 1.
    sigmoid / sigmoid_ = pointwise::SIGMOID, by output |grad, y| sigmoid_backward(grad, y);
    /// Computes x·Φ(x) with the error function (Hendrycks and Gimpel 2016). PyTorch's `gelu(approximate="none")`.
    gelu = activation::GELU, by input |grad, x| gelu_backward(grad, x);
    /// Approximates [`gelu`](Self::gelu) with the hyperbolic tangent. PyTorch's `gelu(approximate="tanh")`.
    gelu_tanh = activation::GELU_TANH, by input |grad, x| gelu_tanh_backward(grad, x);
    /// Computes x·sigmoid(x), also called swish.
    silu / silu_ = activation::SILU, by input |grad, x| silu_backward(grad, x);
    /// Computes x·tanh(softplus(x)) (Misra 2019).
    mish = activation::MISH, by input |grad, x| {
        let t = x.softplus(1.0, 20.0)?.tanh()?;
        // tanh' = 1 - tanh², and the slope of softplus is the logistic function.
        let slope = x.mul(&x.sigmoid()?)?.mul(&t.square()?.neg()?.add(1)?)?;
        grad.mul(&t.add(&slope)?)
    };
    /// Computes the logarithm of the logistic function.
    logsigmoid = activation::LOG_SIGMOID, by input |grad, x| grad.mul(&x.neg()?.sigmoid()?);
    /// Computes (x + 3) / 6, clamped to 0 and 1.
    hardsigmoid = activation::HARDSIGMOID, by input |grad, x| band_backward(grad, x, RAMP);
    /// Computes x·hardsigmoid(x).
    hardswish = activation::HARDSWISH, by input |grad, x| hardswish_backward(grad, x);
}

/// The slope of [`Tensor::hardsigmoid`].
const RAMP: Band = Band { low: -3.0, high: 3.0, inclusive: false, inside: 1.0 / 6.0, outside: 0.0 };

/// Returns a slope of 1 above the threshold, and of `below` up to it.
fn slope_above(threshold: f64, below: f64) -> Band {
    Band { low: f64::NEG_INFINITY, high: threshold, inclusive: true, inside: below, outside: 1.0 }
}

operations! {
    static OPERATIONS;
    Method for all {
        /// Computes max(x, 0). Integers stay integers.
        ///
        /// # Errors
        /// No memory.
        relu(input: Tensor) -> Tensor;

        /// Computes [`relu`](Self::relu) in place.
        ///
        /// # Errors
        /// The errors of [`add_`](Self::add_).
        relu_(input: Tensor) -> ();

        /// Computes x / (1 + |x|).
        ///
        /// # Errors
        /// Integers, no memory.
        softsign(input: Tensor) -> Tensor;

        /// Computes x where x is positive, else `negative_slope`·x.
        ///
        /// # Errors
        /// Integers, no memory.
        leaky_relu(input: Tensor, negative_slope: Float = 0.01) -> Tensor;

        /// Computes x where x is above `threshold`, else `value`.
        ///
        /// # Errors
        /// Integers, no memory.
        threshold(input: Tensor, threshold: Float, value: Float) -> Tensor;

        /// Clamps x to the range from `min_val` to `max_val`. Clamped elements have no gradient.
        ///
        /// # Errors
        /// Integers, no memory.
        hardtanh(input: Tensor, min_val: Float = -1.0, max_val: Float = 1.0) -> Tensor;

        /// Clamps x to the range from 0 to 6.
        ///
        /// # Errors
        /// Integers, no memory.
        relu6(input: Tensor) -> Tensor;

        /// Computes x where x is positive, else `alpha`·(eˣ - 1).
        ///
        /// # Errors
        /// Integers, no memory.
        elu(input: Tensor, alpha: Float = 1.0) -> Tensor;

        /// Computes [`elu`](Self::elu), scaled so that layers keep mean 0 and variance 1 (Klambauer and others 2017).
        ///
        /// # Errors
        /// Integers, no memory.
        selu(input: Tensor) -> Tensor;

        /// Computes x where x is positive, else `alpha`·(exp(x / `alpha`) - 1).
        ///
        /// # Errors
        /// Integers, no memory.
        celu(input: Tensor, alpha: Float = 1.0) -> Tensor;

        /// Computes log(1 + exp(`beta`·x)) / `beta`, and x where `beta`·x is above `threshold`. PyTorch's defaults are
        /// 1 and 20.
        ///
        /// # Errors
        /// Integers, no memory.
        softplus(input: Tensor, beta: Float = 1.0, threshold: Float = 20.0) -> Tensor;

        /// Multiplies [`silu`](Self::silu) of this tensor, the gate, with `other`, in one pass (Shazeer 2020). Saves
        /// only the two inputs for backward.
        ///
        /// # Errors
        /// Integers, no memory.
        swiglu(input: Tensor, other: Tensor) -> Tensor;
    }
    Function for front_ends {
        /// Computes [`gelu`](Tensor::gelu) if `approximate` is `none`, and [`gelu_tanh`](Tensor::gelu_tanh) if it is
        /// `tanh`.
        ///
        /// # Errors
        /// Another `approximate`; no memory.
        #[name(gelu)]
        gelu_by(input: Tensor, approximate: Text) -> Tensor = |input: &Tensor, approximate| match approximate {
            "none" => input.gelu(),
            "tanh" => input.gelu_tanh(),
            _ => {
                let reason = format!("approximate must be \"none\" or \"tanh\", got {approximate:?}");
                Err(TensorError::argument("gelu", reason))
            }
        };
    }
}

fn relu(input: &Tensor) -> Result<Tensor> {
    if !input.dtype().is_floating() {
        check_rectifiable("relu", input)?;
        return input.clamp_min(0);
    }
    of_floats(&RELU, input, SavedOperand::output, relu_backward)
}

fn relu_(input: &Tensor) -> Result<()> {
    if !input.dtype().is_floating() {
        check_rectifiable("relu_", input)?;
        return input.copy_(&input.clamp_min(0)?);
    }
    of_floats_in_place(&RELU_IN_PLACE, input, SavedOperand::output, relu_backward)
}

fn check_rectifiable(op: &'static str, input: &Tensor) -> Result<()> {
    if input.dtype() != DType::Bool {
        return Ok(());
    }
    let expected = "truth values are never negative: use the tensor as it is, or convert it first".to_owned();
    Err(TensorError::DType { op, found: DType::Bool, expected })
}

fn softsign(input: &Tensor) -> Result<Tensor> {
    input.div(&input.abs()?.add(1)?)
}

fn leaky_relu(input: &Tensor, slope: f64) -> Result<Tensor> {
    input.curve(&LEAKY_RELU, [slope], move |grad, x| band_backward(grad, x, slope_above(0.0, slope)))
}

fn threshold(input: &Tensor, threshold: f64, value: f64) -> Result<Tensor> {
    if !input.dtype().is_floating() && input.dtype() != DType::Bool {
        return input.masked_fill(&input.le(threshold as i64)?, value);
    }
    input.curve(&THRESHOLD, [threshold, value], move |grad, x| band_backward(grad, x, slope_above(threshold, 0.0)))
}

fn hardtanh(input: &Tensor, min: f64, max: f64) -> Result<Tensor> {
    let clamped = input.detach().clamp(min, max)?;
    let band = Band { low: min, high: max, inclusive: false, inside: 1.0, outside: 0.0 };
    by_input(clamped, "hardtanh", input, move |grad, x| band_backward(grad, x, band))
}

fn relu6(input: &Tensor) -> Result<Tensor> {
    input.hardtanh(0.0, 6.0)
}

fn elu(input: &Tensor, alpha: f64) -> Result<Tensor> {
    input.exponential([alpha, 1.0, 1.0])
}

fn selu(input: &Tensor) -> Result<Tensor> {
    const ALPHA: f64 = 1.673_263_242_354_377_2;
    const SCALE: f64 = 1.050_700_987_355_480_5;
    input.exponential([ALPHA * SCALE, SCALE, 1.0])
}

fn celu(input: &Tensor, alpha: f64) -> Result<Tensor> {
    if alpha == 0.0 {
        return Err(TensorError::argument("celu", "alpha cannot be 0"));
    }
    input.exponential([alpha, 1.0, 1.0 / alpha])
}

fn softplus(input: &Tensor, beta: f64, threshold: f64) -> Result<Tensor> {
    raise(input)?.curve(&SOFTPLUS, [beta, threshold], move |grad, x| {
        let scaled = x.mul(beta)?;
        scaled.gt(threshold)?.where_(grad, &grad.mul(&scaled.sigmoid()?)?)
    })
}

fn swiglu(input: &Tensor, x: &Tensor) -> Result<Tensor> {
    let _op = entered("swiglu");
    let dtype = promoted(&[input.into(), x.into()])?;
    let gate = &input.to_dtype(dtype)?;
    let x = &x.to_dtype(dtype)?;
    let out = pointwise::run(&SWIGLU, dtype, dtype, &[gate, x], |kernel, iter| kernel(iter))?;
    attach(out, SWIGLU.name(), &[gate, x], |saver| {
        let gate = saver.save(gate)?;
        let x = saver.save_if(saver.needs(0), x)?;
        Ok(move |context: &Context<'_>| {
            let grad = context.grad(0)?;
            let gate = context.unpack(gate)?;
            let is_both = context.needs(0) && context.needs(1);
            if is_grad_enabled() || !is_both {
                let to_gate = context.give(0, || silu_backward(&grad.mul(&context.unpack(x)?)?, &gate))?;
                return Ok([to_gate, context.give(1, || gate.swiglu(&grad))?].into_iter().collect());
            }
            let x = context.unpack(x)?;
            let to_gate = pointwise::output(grad.sizes(), dtype, &[&grad])?;
            let to_x = to_gate.empty_like()?;
            let iter = Elementwise::new(SWIGLU_BACKWARD.name(), &[&to_gate, &to_x], &[&grad, &gate, &x])?;
            SWIGLU_BACKWARD.find(grad.device().kind(), dtype)?(&iter)?;
            drop(iter);
            Ok([Some(to_gate), Some(to_x)].into_iter().collect())
        })
    })
}

impl Tensor {
    fn exponential(&self, numbers: [f64; 3]) -> Result<Self> {
        self.curve(&ELU, numbers, move |grad, x| elu_backward(grad, x, numbers))
    }

    /// Runs a kernel of one input and some numbers. The gradient is `formula` of the output's gradient and the input.
    pub(super) fn curve<const N: usize>(
        &self,
        kernel: &'static Kernel<Curve<N>>,
        numbers: [f64; N],
        formula: impl Fn(&Self, &Self) -> Result<Self> + Send + Sync + 'static,
    ) -> Result<Self> {
        let out =
            pointwise::run(kernel, self.dtype(), self.dtype(), &[self], move |kernel, iter| kernel(iter, numbers))?;
        by_input(out, kernel.name(), self, formula)
    }
}

/// Attaches to `out` a gradient that `formula` computes from the output's gradient and the input.
fn by_input(
    out: Tensor,
    name: &'static str,
    input: &Tensor,
    formula: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    attach(out, name, &[input], |saver| {
        let x = saver.save(input)?;
        Ok(move |context: &Context<'_>| {
            Ok([Some(formula(&context.grad(0)?, &context.unpack(x)?)?)].into_iter().collect())
        })
    })
}

/// Returns `grad` times the slope of the hyperbolic tangent whose value is `y`.
pub(super) fn tanh_backward(grad: &Tensor, y: &Tensor) -> Result<Tensor> {
    sloped(by(&TANH_BACKWARD, grad, y)?, grad, y, tanh_backward, |grad, y| grad.mul(y)?.mul(-2))
}

fn sigmoid_backward(grad: &Tensor, y: &Tensor) -> Result<Tensor> {
    sloped(by(&SIGMOID_BACKWARD, grad, y)?, grad, y, sigmoid_backward, |grad, y| grad.sub(&grad.mul(y)?.mul(2)?))
}

fn silu_backward(grad: &Tensor, x: &Tensor) -> Result<Tensor> {
    sloped(by(&SILU_BACKWARD, grad, x)?, grad, x, silu_backward, |grad, x| {
        // s·(1 - s)·(2 + x·(1 - 2s))
        let s = x.sigmoid()?;
        let rest = x.sub(&x.mul(&s)?.mul(2)?)?.add(2)?;
        sigmoid_backward(&grad.mul(&rest)?, &s)
    })
}

fn gelu_backward(grad: &Tensor, x: &Tensor) -> Result<Tensor> {
    sloped(by(&GELU_BACKWARD, grad, x)?, grad, x, gelu_backward, |grad, x| {
        // φ(x)·(2 - x²)
        let square = x.square()?;
        let density = square.mul(-0.5)?.exp()?.mul(kernels::FRAC_1_SQRT_TAU)?;
        grad.mul(&density.mul(&square.neg()?.add(2)?)?)
    })
}

fn gelu_tanh_backward(grad: &Tensor, x: &Tensor) -> Result<Tensor> {
    sloped(by(&GELU_TANH_BACKWARD, grad, x)?, grad, x, gelu_tanh_backward, |grad, x| {
        // The function is x·s(v), where s is the logistic function of its argument v: s'·(2v' + x·((1 - 2s)·v'² +
        // v'')).
        let scale = kernels::GELU_TANH_SCALE;
        let cube = kernels::GELU_TANH_CUBE;
        let square = x.square()?;
        let s = x.mul(&square.mul(cube)?.add(1)?)?.mul(scale)?.sigmoid()?;
        let slope = square.mul(3.0 * cube)?.add(1)?.mul(scale)?;
        let bend = s.mul(-2)?.add(1)?.mul(&slope.square()?)?.add(&x.mul(6.0 * cube * scale)?)?;
        sigmoid_backward(&grad.mul(&slope.mul(2)?.add(&x.mul(&bend)?)?)?, &s)
    })
}

fn hardswish_backward(grad: &Tensor, x: &Tensor) -> Result<Tensor> {
    sloped(by(&HARDSWISH_BACKWARD, grad, x)?, grad, x, hardswish_backward, |grad, x| {
        band_backward(grad, x, Band { inside: 1.0 / 3.0, ..RAMP })
    })
}

fn elu_backward(grad: &Tensor, x: &Tensor, numbers: [f64; 3]) -> Result<Tensor> {
    let dtype = grad.dtype();
    let out = pointwise::run(&ELU_BACKWARD, dtype, dtype, &[grad, x], move |kernel, iter| kernel(iter, numbers))?;
    let [below, _, input] = numbers;
    sloped(
        out,
        grad,
        x,
        move |grad, x| elu_backward(grad, x, numbers),
        move |grad, x| elu_backward(grad, x, [below * input, 0.0, input]),
    )
}

/// Returns `grad` where `y`, the output of [`relu`](Tensor::relu), is above 0, else 0.
pub(super) fn relu_backward(grad: &Tensor, y: &Tensor) -> Result<Tensor> {
    band_backward(grad, y, slope_above(0.0, 0.0))
}

/// Returns `grad` times the slope that `band` has at `x`.
pub(super) fn band_backward(grad: &Tensor, x: &Tensor, band: Band) -> Result<Tensor> {
    let dtype = grad.dtype();
    let out = pointwise::run(&BAND_BACKWARD, dtype, dtype, &[grad, x], move |kernel, iter| kernel(iter, band))?;
    // The second derivative is zero.
    attach(out, BAND_BACKWARD.name(), &[grad], |saver| {
        let x = saver.save(x)?;
        Ok(move |context: &Context<'_>| {
            let gradient = band_backward(&context.grad(0)?, &context.unpack(x)?, band)?;
            Ok([Some(gradient)].into_iter().collect())
        })
    })
}

/// Runs `kernel` on a gradient and a saved tensor.
fn by(kernel: &'static Binary, grad: &Tensor, saved: &Tensor) -> Result<Tensor> {
    pointwise::run(kernel, grad.dtype(), grad.dtype(), &[grad, saved], |kernel, iter| kernel(iter))
}

/// Attaches a gradient to `out`, which is `grad` times a slope at `x`. `this` computes the same for another gradient;
/// `further` multiplies with the slope's derivative.
fn sloped(
    out: Tensor,
    grad: &Tensor,
    x: &Tensor,
    this: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    further: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Result<Tensor> {
    attach(out, "slope", &[grad, x], |saver| {
        let grad = saver.save_if(saver.needs(1), grad)?;
        let x = saver.save(x)?;
        Ok(move |context: &Context<'_>| {
            let from_above = context.grad(0)?;
            let x = context.unpack(x)?;
            let to_grad = context.give(0, || this(&from_above, &x))?;
            let to_x = context.give(1, || further(&from_above.mul(&context.unpack(grad)?)?, &x))?;
            Ok([to_grad, to_x].into_iter().collect())
        })
    })
}
