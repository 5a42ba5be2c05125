//! Activation functions, their gradients where composing them from other operations would take several passes, and rotary
//! position embeddings.

use std::f64::consts::FRAC_1_SQRT_2;

use super::elementwise::{self, block_of, for_each_block};
use super::math::Math;
use super::pointwise::{Curve, PointwiseKernel, binary, unary};
use super::vectorized;
use crate::kernel::on_cpu;
use crate::{Elementwise, Entry, Result};

unary! {
    RELU: Math (lanes of floats), |x| if x <= T::ZERO { T::ZERO } else { x };
    GELU: Math (lanes of floats), |x| T::of(0.5) * x * (T::ONE + (x * T::of(FRAC_1_SQRT_2)).erf());
    GELU_TANH: Math (lanes of floats), |x| x * gelu_slope(x).0;
    SILU: Math (lanes of floats), |x| x * x.sigmoid();
    MISH: Math (lanes of floats), |x| {
        // This computes tanh(log(1 + eˣ)) from eˣ alone; from x = 20 on it is 1.
        let e = if x > T::of(20.0) { T::of(20.0) } else { x }.exp();
        let n = e * (e + T::of(2.0));
        x * (n / (n + T::of(2.0)))
    };
    LOG_SIGMOID: Math (lanes of floats), |x| {
        let below = if x < T::ZERO { x } else { T::ZERO };
        below - (-x.abs()).exp().log1p()
    };
    HARDSIGMOID: Math (lanes of floats), |x| ramp(x);
    HARDSWISH: Math (lanes of floats), |x| x * ramp(x);
}

binary! {
    // These gradients take the output's gradient and the output.
    TANH_BACKWARD: Math (lanes of floats), |grad, y| grad * (T::ONE - y * y);
    SIGMOID_BACKWARD: Math (lanes of floats), |grad, y| grad * (T::ONE - y) * y;
    // These gradients take the output's gradient and the input.
    SILU_BACKWARD: Math (lanes of floats), |grad, x| {
        let s = x.sigmoid();
        grad * s * (T::ONE + x * (T::ONE - s))
    };
    GELU_BACKWARD: Math (lanes of floats), |grad, x| {
        let below = T::of(0.5) * (T::ONE + (x * T::of(FRAC_1_SQRT_2)).erf());
        let density = (T::of(-0.5) * x * x).exp() * T::of(FRAC_1_SQRT_TAU);
        grad * (below + x * density)
    };
    GELU_TANH_BACKWARD: Math (lanes of floats), |grad, x| {
        let (s, slope) = gelu_slope(x);
        grad * (s + x * s * (T::ONE - s) * slope)
    };
    SWIGLU: Math (lanes of floats), |gate, x| gate * gate.sigmoid() * x;
    HARDSWISH_BACKWARD: Math (lanes of floats), |grad, x| {
        let inside = x / T::of(3.0) + T::of(0.5);
        let slope = if x <= T::of(-3.0) { T::ZERO } else { inside };
        grad * if x < T::of(3.0) { slope } else { T::ONE }
    };
}

/// The gradients of [`SWIGLU`]'s inputs, from the output's gradient and the inputs.
pub(crate) const SWIGLU_BACKWARD: &[Entry<PointwiseKernel>] = on_cpu!(lanes of floats: swiglu_backward::<T>);

fn swiglu_backward<T: Math>(iter: &Elementwise<'_>) -> Result<()> {
    for_each_block(iter, [T::DTYPE; 5], &|[to_gate, to_x, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives `n` elements of this type, and only this call accesses the outputs'.
        let ([to_gate, to_x], [grad, gate, x]) = unsafe { block_of::<T, 2, _>([to_gate, to_x], inputs, n) };
        vectorized!(for i in 0..n {
            let s = gate[i].sigmoid();
            to_gate[i] = grad[i] * x[i] * s * (T::ONE + gate[i] * (T::ONE - s));
            to_x[i] = grad[i] * gate[i] * s;
        });
    });
    Ok(())
}

/// Defines a kernel that writes an expression of some numbers and one element.
macro_rules! curve {
    ($($name:ident: |[$($number:ident),*]: [f64; $N:literal], $x:ident| $value:expr;)*) => {$(
        pub(crate) const $name: &[Entry<Curve<$N>>] = {
            fn kernel<T: Math>(iter: &Elementwise<'_>, numbers: [f64; $N]) -> Result<()> {
                let [$($number),*] = numbers.map(T::of);
                elementwise::unary(
                    iter,
                    #[inline(always)]
                    |$x: T| $value,
                );
                Ok(())
            }
            on_cpu!(lanes of floats: kernel::<T>)
        };
    )*};
}

curve! {
    LEAKY_RELU: |[slope]: [f64; 1], x| if x > T::ZERO { x } else { x * slope };
    THRESHOLD: |[threshold, value]: [f64; 2], x| if x <= threshold { value } else { x };
    ELU: |[below, above, input]: [f64; 3], x| if x <= T::ZERO { (x * input).expm1() * below } else { x * above };
    SOFTPLUS: |[beta, threshold]: [f64; 2], x| {
        let scaled = x * beta;
        if scaled > threshold { x } else { scaled.exp().log1p() / beta }
    };
}

/// The gradient of [`ELU`]'s input, from the output's gradient and the input.
pub(crate) const ELU_BACKWARD: &[Entry<Curve<3>>] = on_cpu!(lanes of floats: elu_backward::<T>);

fn elu_backward<T: Math>(iter: &Elementwise<'_>, numbers: [f64; 3]) -> Result<()> {
    let [below, above, input] = numbers.map(T::of);
    elementwise::binary(
        iter,
        #[inline(always)]
        |grad: T, x: T| grad * if x <= T::ZERO { input * below * (x * input).exp() } else { above },
    );
    Ok(())
}

/// A slope inside an interval, and another outside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Band {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// Whether the limits themselves count as inside.
    pub(crate) inclusive: bool,
    pub(crate) inside: f64,
    pub(crate) outside: f64,
}

/// A kernel that multiplies the first input, a gradient, by the slope at the second input.
pub(crate) type BandBackward = fn(&Elementwise<'_>, Band) -> Result<()>;

pub(crate) const BAND_BACKWARD: &[Entry<BandBackward>] = on_cpu!(lanes of floats: band_backward::<T>);

fn band_backward<T: Math>(iter: &Elementwise<'_>, band: Band) -> Result<()> {
    let [low, high, inside, outside] = [band.low, band.high, band.inside, band.outside].map(T::of);
    if band.inclusive {
        elementwise::binary(
            iter,
            #[inline(always)]
            move |grad: T, x: T| through((x >= low) & (x <= high), grad, [inside, outside]),
        );
    } else {
        elementwise::binary(
            iter,
            #[inline(always)]
            move |grad: T, x: T| through((x > low) & (x < high), grad, [inside, outside]),
        );
    }
    Ok(())
}

/// Multiplies a gradient by the slope inside or outside. Both products are computed, so that the compiler selects between
/// two values, not between two code paths.
#[inline(always)]
fn through<T: Math>(is_inside: bool, grad: T, slopes: [T; 2]) -> T {
    // An infinite gradient must not pass where the slope is zero.
    let [inside, outside] = slopes.map(|slope| if slope == T::ZERO { T::ZERO } else { grad * slope });
    if is_inside { inside } else { outside }
}

/// 1 / √(2π)
pub(crate) const FRAC_1_SQRT_TAU: f64 = 0.398_942_280_401_432_7;

/// 2·√(2/π)
pub(crate) const GELU_TANH_SCALE: f64 = 1.595_769_121_605_730_8;
pub(crate) const GELU_TANH_CUBE: f64 = 0.044_715;

/// Returns (1 + tanh(u)) / 2, which is the logistic function of 2u, for u = √(2/π)·(x + 0.044715·x³), and the slope of
/// 2u.
#[inline(always)]
fn gelu_slope<T: Math>(x: T) -> (T, T) {
    let scale = T::of(GELU_TANH_SCALE);
    let cube = T::of(GELU_TANH_CUBE);
    ((scale * x * (T::ONE + cube * x * x)).sigmoid(), scale * (T::ONE + T::of(3.0) * cube * x * x))
}

/// Returns (x + 3) / 6, limited to 0 to 1.
#[inline(always)]
fn ramp<T: Math>(x: T) -> T {
    let ramp = (x + T::of(3.0)) / T::of(6.0);
    let ramp = if ramp < T::ZERO { T::ZERO } else { ramp };
    if ramp > T::ONE { T::ONE } else { ramp }
}

/// A kernel that writes `a * cos + sign * b * sin` and `b * cos - sign * a * sin`, from inputs `a`, `b`, `cos` and
/// `sin`.
pub(crate) type Rotate = fn(&Elementwise<'_>, f64) -> Result<()>;

pub(crate) const ROTATE: &[Entry<Rotate>] = on_cpu!(lanes of floats: rotate::<T>);

fn rotate<T: Math>(iter: &Elementwise<'_>, sign: f64) -> Result<()> {
    let sign = T::of(sign);
    for_each_block(iter, [T::DTYPE; 6], &|[first, second, inputs @ ..], n| {
        // SAFETY: `for_each_block` gives `n` elements of this type, and only this call accesses the outputs'.
        let ([first, second], [a, b, cos, sin]) = unsafe { block_of::<T, 2, _>([first, second], inputs, n) };
        vectorized!(for i in 0..n {
            first[i] = a[i] * cos[i] + sign * b[i] * sin[i];
            second[i] = b[i] * cos[i] - sign * a[i] * sin[i];
        });
    });
    Ok(())
}
