//! Tests of the accuracy of `f32` functions against the same functions of `f64`, over their whole domains, by relative
//! errors element by element.

use std::ops::Range;

use half::{bf16, f16};
use tenure_tensor::{DType, Result, Tensor};

type Function = fn(&Tensor) -> Result<Tensor>;

/// A function, the range of its tested inputs, and how many units of the last place (2⁻²³ of the result) it may be off.
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
    ("lgamma", Tensor::lgamma, 1e-6..1e3, 4.0),
    ("digamma", Tensor::digamma, 1e-6..1e3, 4.0),
    ("trigamma", |x| x.polygamma(1), 1e-6..1e3, 4.0),
    ("sigmoid", Tensor::sigmoid, -80.0..80.0, 4.0),
    ("gelu", Tensor::gelu, -5.0..10.0, 4.0),
    ("gelu_tanh", Tensor::gelu_tanh, -5.0..10.0, 4.0),
    ("silu", Tensor::silu, -80.0..80.0, 4.0),
    ("mish", Tensor::mish, -80.0..80.0, 4.0),
    ("logsigmoid", Tensor::logsigmoid, -80.0..80.0, 4.0),
    ("selu", Tensor::selu, -80.0..80.0, 4.0),
    ("softplus", |x| x.softplus(1.0, 20.0), -80.0..80.0, 4.0),
];

/// For negative inputs of these functions, the result is a difference: as in PyTorch, it is as exact as the input.
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
            // Smaller numbers are subnormal, and have fewer digits.
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

/// Returns evenly spaced numbers of a range, and ever smaller ones around zero.
fn points(range: Range<f32>) -> Vec<f32> {
    let mut points: Vec<f32> =
        (0..POINTS / 2).map(|i| range.start + (range.end - range.start) * (i as f32 / (POINTS / 2) as f32)).collect();
    points.extend((0..POINTS / 2).map(|i| {
        let sign = if i.is_multiple_of(2) { 1.0 } else { -1.0 };
        (range.end.min(1.0) * 0.999_f32.powi(i as i32) * sign).max(range.start)
    }));
    points
}

/// The largest argument with exact sines and cosines: beyond, the argument is reduced with less precision.
const REDUCIBLE: f32 = 1e9;

/// Compares with `f64` over all magnitudes, both infinities, NaN, zeros and subnormal numbers.
fn sweep(name: &str, ours: Function, exact: impl Fn(f64) -> f64, ulps: f64, domain: impl Fn(f32) -> bool) {
    let special =
        [0.0, -0.0, 1.0, -1.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN_POSITIVE, 1e-45];
    let everywhere = (0..=u32::MAX).step_by(30_011).map(f32::from_bits);
    let dense = (-400_000..400_000).step_by(7).map(|i| i as f32 * 2.5e-4);
    let mut worst = (0.0, 0.0, 0.0);
    let inputs: Vec<f32> = special.into_iter().chain(everywhere).chain(dense).filter(|x| domain(*x)).collect();
    let outputs = ours(&Tensor::from_slice(&inputs, &[inputs.len()]).unwrap()).unwrap().to_vec::<f32>().unwrap();
    for (x, found) in inputs.into_iter().zip(outputs) {
        let expected = exact(f64::from(x));
        let nearest = expected as f32;
        if nearest.is_nan() || nearest.is_infinite() || found.is_nan() || found.is_infinite() {
            let is_same = found == nearest || (found.is_nan() && nearest.is_nan());
            // The two are one step apart, from the largest number to infinity.
            let is_edge = found.abs() == f32::MAX || nearest.abs() == f32::MAX;
            assert!(is_same || is_edge, "{name}({x:e}) is {found:e}, expected {nearest:e}");
            continue;
        }
        let ulp = f64::from(nearest.abs().next_up()) - f64::from(nearest.abs());
        let error = (f64::from(found) - expected).abs() / ulp;
        if error > worst.1 {
            worst = (x, error, found);
        }
    }
    assert!(worst.1 <= ulps, "{name}({:e}) is {:e}, which is {:.2} units off", worst.0, worst.2, worst.1);
}

#[test]
fn functions_are_near_the_true_ones() {
    sweep("exp", Tensor::exp, f64::exp, 2.0, |_| true);
    sweep("expm1", Tensor::expm1, f64::exp_m1, 2.0, |_| true);
    sweep("log", Tensor::log, f64::ln, 2.0, |_| true);
    sweep("log1p", Tensor::log1p, f64::ln_1p, 2.0, |_| true);
    sweep("log2", Tensor::log2, f64::log2, 2.0, |_| true);
    sweep("log10", Tensor::log10, f64::log10, 2.5, |_| true);
    sweep("tanh", Tensor::tanh, f64::tanh, 3.0, |_| true);
    sweep("erf", Tensor::erf, libm::erf, 2.0, |_| true);
    sweep("erfc", Tensor::erfc, libm::erfc, 3.0, |_| true);
    // Subnormal results are lost, as the exponential of the negated input is infinite.
    sweep(
        "sigmoid",
        Tensor::sigmoid,
        |x| 1.0 / (1.0 + (-x).exp()),
        3.0,
        |x| x >= -87.0 || x.is_infinite() || x.is_nan(),
    );
    sweep("sin", Tensor::sin, f64::sin, 1.0, |x| x.abs() <= REDUCIBLE);
    sweep("cos", Tensor::cos, f64::cos, 1.0, |x| x.abs() <= REDUCIBLE);
    sweep("tan", Tensor::tan, f64::tan, 1.0, |x| x.abs() <= REDUCIBLE);
}

fn inverse_erf(y: f64) -> f64 {
    Tensor::scalar(y, DType::F64).unwrap().erfinv().unwrap().item().unwrap()
}

#[test]
fn the_inverse_of_the_error_function_is_one() {
    for i in -999..1000 {
        let y = f64::from(i) / 1000.0;
        assert!((libm::erf(inverse_erf(y)) - y).abs() <= 4e-16, "{y}");
    }
    assert_eq!(inverse_erf(1.0), f64::INFINITY);
    assert_eq!(inverse_erf(-1.0), f64::NEG_INFINITY);
    assert!(inverse_erf(1.1).is_nan() && inverse_erf(f64::NAN).is_nan());
    assert!((inverse_erf(1e-12) / 8.862_269_254_527_58e-13 - 1.0).abs() < 1e-14);
}

fn widened(narrow: &Tensor) -> Vec<f32> {
    narrow.to_dtype(DType::F32).unwrap().to_vec().unwrap()
}

/// Compares conversions of many elements with those of the crate `half`, bit for bit; NaN stays NaN.
#[test]
fn narrow_floats_convert_as_the_library_does() {
    let wide: Vec<f32> = (0..=u32::MAX).step_by(4_093).map(f32::from_bits).collect();
    let wide_tensor = Tensor::from_slice(&wide, &[wide.len()]).unwrap();
    let to_bf16 = wide_tensor.to_dtype(DType::BF16).unwrap().to_vec::<bf16>().unwrap();
    let to_f16 = wide_tensor.to_dtype(DType::F16).unwrap().to_vec::<f16>().unwrap();
    for (value, (to_bf16, to_f16)) in wide.into_iter().zip(to_bf16.into_iter().zip(to_f16)) {
        let bf16 = bf16::from_f32(value);
        let f16 = f16::from_f32(value);
        assert!(to_bf16.to_bits() == bf16.to_bits() || (to_bf16.is_nan() && bf16.is_nan()), "{value:e}");
        assert!(to_f16.to_bits() == f16.to_bits() || (to_f16.is_nan() && f16.is_nan()), "{value:e}");
    }
    let (bf16s, f16s): (Vec<_>, Vec<_>) =
        (0..=u16::MAX).map(|bits| (bf16::from_bits(bits), f16::from_bits(bits))).unzip();
    let same =
        |found: f32, expected: f32| found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan());
    for (value, found) in bf16s.iter().zip(widened(&Tensor::from_slice(&bf16s, &[bf16s.len()]).unwrap())) {
        assert!(same(found, value.to_f32()), "{value:e}");
    }
    for (value, found) in f16s.iter().zip(widened(&Tensor::from_slice(&f16s, &[f16s.len()]).unwrap())) {
        assert!(same(found, value.to_f32()), "{value:e}");
    }
}
