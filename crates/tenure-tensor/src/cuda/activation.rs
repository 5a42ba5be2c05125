//! Activation functions, their gradients, and rotary position embeddings.

use super::elementwise::{self, Expression, expressions};
use super::on_cpu;
use crate::cpu;
use crate::cpu::activation::{Band, BandBackward};
use crate::kernel::on_cuda;
use crate::{DType, Element, Elementwise, Entry, Result, Scalar};

expressions! {
    of activation:
    RELU: ["T", "T"] (lanes of floats), "a <= (T)0 ? (T)0 : a";
    GELU: ["T", "T"] (lanes of floats), "(T)0.5 * a * ((T)1 + erf(a * (T)0.70710678118654752))";
    GELU_TANH: ["T", "T"] (lanes of floats), "a * gelu_share(a)";
    SILU: ["T", "T"] (lanes of floats), "a * sigmoid(a)";
    MISH: ["T", "T"] (lanes of floats), "mish(a)";
    LOG_SIGMOID: ["T", "T"] (lanes of floats), "log_sigmoid(a)";
    HARDSIGMOID: ["T", "T"] (lanes of floats), "ramp(a)";
    HARDSWISH: ["T", "T"] (lanes of floats), "a * ramp(a)";
    TANH_BACKWARD: ["T", "T", "T"] (lanes of floats), "a * ((T)1 - b * b)";
    SIGMOID_BACKWARD: ["T", "T", "T"] (lanes of floats), "a * ((T)1 - b) * b";
    SILU_BACKWARD: ["T", "T", "T"] (lanes of floats), "a * sigmoid(b) * ((T)1 + b * ((T)1 - sigmoid(b)))";
    GELU_BACKWARD: ["T", "T", "T"] (lanes of floats),
        "a * ((T)0.5 * ((T)1 + erf(b * (T)0.70710678118654752)) + b * exp((T)-0.5 * b * b) * (T)0.3989422804014327)";
    GELU_TANH_BACKWARD: ["T", "T", "T"] (lanes of floats),
        "a * (gelu_share(b) + b * gelu_share(b) * ((T)1 - gelu_share(b)) * gelu_slope(b))";
    SWIGLU: ["T", "T", "T"] (lanes of floats), "a * sigmoid(a) * b";
    SWIGLU_BACKWARD: ["T", "T", "T", "T", "T"] (lanes of floats),
        "a * c * sigmoid(b) * ((T)1 + b * ((T)1 - sigmoid(b)))", also "a * b * sigmoid(b)";
    HARDSWISH_BACKWARD: ["T", "T", "T"] (lanes of floats),
        "a * (b < (T)3 ? (b <= (T)-3 ? (T)0 : b / (T)3 + (T)0.5) : (T)1)";
    LEAKY_RELU: ["T", "T"] (lanes of floats), "a > (T)0 ? a : a * n0", given numbers: [f64; 1];
    THRESHOLD: ["T", "T"] (lanes of floats), "a <= n0 ? n1 : a", given numbers: [f64; 2];
    ELU: ["T", "T"] (lanes of floats), "a <= (T)0 ? expm1(a * n2) * n0 : a * n1", given numbers: [f64; 3];
    SOFTPLUS: ["T", "T"] (lanes of floats), "a * n0 > n1 ? a : log1p(exp(a * n0)) / n0", given numbers: [f64; 2];
    ELU_BACKWARD: ["T", "T", "T"] (lanes of floats),
        "a * (b <= (T)0 ? n2 * n0 * exp(b * n2) : n1)", given numbers: [f64; 3];
    ROTATE: ["T", "T", "T", "T", "T", "T"] (lanes of floats),
        "a * c + n0 * b * d", also "b * c - n0 * a * d", given sign: f64;
}

pub(crate) const BAND_BACKWARD: &[Entry<BandBackward>] = on_cuda!(lanes of floats: band_backward::<T>);

fn band_backward<E: Element>(iter: &Elementwise<'_>, band: Band) -> Result<()> {
    band_backward_as(E::DTYPE, iter, band)
}

fn band_backward_as(dtype: DType, iter: &Elementwise<'_>, band: Band) -> Result<()> {
    // An infinite gradient must not pass where the slope is zero.
    macro_rules! expression {
        ($name:literal, $inside:literal) => {{
            static EXPRESSION: Expression = Expression {
                name: $name,
                lanes: &["T", "T", "T"],
                values: &[concat!("(", $inside, " ? n2 : n3) == (T)0 ? (T)0 : a * (", $inside, " ? n2 : n3)")],
                fault: None,
            };
            &EXPRESSION
        }};
    }
    let expression = match band.inclusive {
        true => expression!("closed_band_backward", "(b >= n0 && b <= n1)"),
        false => expression!("open_band_backward", "(b > n0 && b < n1)"),
    };
    let numbers = [band.low, band.high, band.inside, band.outside].map(Scalar::Float);
    elementwise::run(iter, dtype, expression, &numbers, move |iter| {
        on_cpu(iter.op(), &[cpu::activation::BAND_BACKWARD], dtype)?(iter, band)
    })
}
