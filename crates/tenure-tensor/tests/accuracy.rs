//! Functions of `f32` beside the same of `f64`, over all that they take: relative errors, element by element.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ops::Range;

use tenure_tensor::{DType, Result, Tensor};

type Function = fn(&Tensor) -> Result<Tensor>;

/// A function, where it is looked at, and how many units of the last place (2⁻²³ of the result) it may be off.
type Curve = (&'static str, Function, Range<f32>, f64);

const CURVES: &[Curve] = &[
    ("sqrt", Tensor::sqrt, 0.0..1e6, 1.0),
    ("rsqrt", Tensor::rsqrt, 1e-6..1e6, 2.0),
    ("reciprocal", Tensor::reciprocal, 1e-6..1e6, 1.0),
    ("exp", Tensor::exp, -87.0..88.0, 4.0),
    ("expm1", Tensor::expm1, -20.0..20.0, 4.0),
    ("log", Tensor::log, 1e-6..1e6, 4.0),
    ("log1p", Tensor::log1p, -0.99..1e3, 4.0),
    ("log2", Tensor::log2, 1e-6..1e6, 4.0),
    ("log10", Tensor::log10, 1e-6..1e6, 4.0),
    ("sin", Tensor::sin, -100.0..100.0, 4.0),
    ("cos", Tensor::cos, -100.0..100.0, 4.0),
    ("tan", Tensor::tan, -100.0..100.0, 4.0),
    ("asin", Tensor::asin, -1.0..1.0, 4.0),
    ("acos", Tensor::acos, -1.0..1.0, 4.0),
    ("atan", Tensor::atan, -1e3..1e3, 4.0),
    ("sinh", Tensor::sinh, -20.0..20.0, 4.0),
    ("cosh", Tensor::cosh, -20.0..20.0, 4.0),
    ("tanh", Tensor::tanh, -10.0..10.0, 4.0),
    ("erf", Tensor::erf, -5.0..5.0, 4.0),
    ("erfc", Tensor::erfc, -5.0..9.0, 4.0),
    ("erfinv", Tensor::erfinv, -0.999..0.999, 4.0),
    ("sigmoid", Tensor::sigmoid, -80.0..80.0, 4.0),
    ("gelu", Tensor::gelu, -5.0..10.0, 4.0),
    ("gelu_tanh", Tensor::gelu_tanh, -5.0..10.0, 4.0),
    ("silu", Tensor::silu, -80.0..80.0, 4.0),
    ("mish", Tensor::mish, -80.0..80.0, 4.0),
    ("logsigmoid", Tensor::logsigmoid, -80.0..80.0, 4.0),
    ("selu", Tensor::selu, -80.0..80.0, 4.0),
    ("softplus", |x| x.softplus(1.0, 20.0), -80.0..80.0, 4.0),
];

/// Of these, what is left of a negative input is a difference: as in PyTorch, it is as exact as the input.
const DIFFERENCES: &[&str] = &["gelu", "gelu_tanh"];

#[test]
fn functions_are_exact_to_the_last_places() {
    let mut far = Vec::new();
    for (name, function, range, places) in CURVES {
        let inputs = points(range.clone());
        let x = Tensor::from_slice(&inputs, &[POINTS]).unwrap();
        let found = function(&x).unwrap().to_vec::<f32>().unwrap();
        let expected = function(&x.to_dtype(DType::F64).unwrap()).unwrap().to_vec::<f64>().unwrap();
        let error = |at: usize| {
            let size = if DIFFERENCES.contains(name) { f64::from(inputs[at]) } else { expected[at] };
            // What is nearer to zero has fewer digits.
            let unit = size.abs().max(f64::from(f32::MIN_POSITIVE)) * 2_f64.powi(-23);
            (f64::from(found[at]) - expected[at]).abs() / unit
        };
        let worst = (0..POINTS).max_by(|a, b| error(*a).total_cmp(&error(*b))).unwrap();
        if error(worst).is_nan() || error(worst) > *places {
            far.push(format!("{name}({}) is {:.1} places off, at most {places}", inputs[worst], error(worst)));
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

const POINTS: usize = 20_000;

/// Numbers of a range: even ones, and ever smaller ones around zero.
fn points(range: Range<f32>) -> Vec<f32> {
    let even = |i: usize| range.start + (range.end - range.start) * (i as f32 / (POINTS / 2) as f32);
    let small = |i: usize| range.end.min(1.0) * 0.999_f32.powi(i as i32) * if i.is_multiple_of(2) { 1.0 } else { -1.0 };
    let mut points: Vec<f32> = (0..POINTS / 2).map(even).collect();
    points.extend((0..POINTS / 2).map(|i| small(i).max(range.start)));
    points
}
