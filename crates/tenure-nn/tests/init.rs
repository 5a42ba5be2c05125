//! What parameters are at first.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use tenure_nn::{Fan, Init};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Tensor};

fn filled(init: Init, sizes: &[usize]) -> Vec<f64> {
    let tensor = Tensor::empty(sizes, DType::F64, Device::CPU).unwrap();
    init.fill(&tensor, &Generator::new(5)).unwrap();
    tensor.to_vec().unwrap()
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

/// A weight with 100 · 9 numbers in and 50 · 9 out.
const WEIGHT: [usize; 4] = [50, 100, 3, 3];

fn check(init: Init, deviation: f64) {
    let values = filled(init, &WEIGHT);
    let (mean, found) = mean_and_deviation(&values);
    assert!(mean.abs() < 0.02 * deviation && (found / deviation - 1.0).abs() < 0.02, "{init:?}: {mean}, {found}");
}

#[test]
fn deviations_are_those_of_the_formulas() {
    check(Init::Normal { mean: 0.0, deviation: 0.3 }, 0.3);
    check(Init::Uniform { low: -0.6, high: 0.6 }, 0.6 / 3.0_f64.sqrt());
    check(Init::KaimingUniform { a: 0.0, fan: Fan::In }, (2.0 / 900.0_f64).sqrt());
    check(Init::KaimingNormal { a: 0.0, fan: Fan::Out }, (2.0 / 450.0_f64).sqrt());
    check(Init::XavierUniform { gain: 1.0 }, (2.0 / 1350.0_f64).sqrt());
    check(Init::XavierNormal { gain: 3.0 }, 3.0 * (2.0 / 1350.0_f64).sqrt());
    // Of a normal distribution cut at two deviations.
    check(Init::TruncatedNormal { mean: 0.0, deviation: 0.1, cut: 2.0 }, 0.1 * 0.8796);
}

#[test]
fn uniform_ones_stay_within_their_bounds() {
    // √6 / √((1 + 5) · 900) = 1 / 30.
    let values = filled(Init::default_weight(), &WEIGHT);
    assert!(values.iter().all(|value| value.abs() <= 1.0 / 30.0) && values.iter().any(|value| value.abs() > 0.033));
    let values = filled(Init::default_bias(16), &[1000]);
    assert!(values.iter().all(|value| value.abs() <= 0.25) && values.iter().any(|value| value.abs() > 0.24));
    let values = filled(Init::TruncatedNormal { mean: 5.0, deviation: 2.0, cut: 0.5 }, &[1000]);
    assert!(values.iter().all(|value| (4.0..=6.0).contains(value)));
}

#[test]
fn one_seed_gives_one_weight() {
    let init = Init::default_weight();
    assert_eq!(filled(init, &WEIGHT), filled(init, &WEIGHT));
}

#[test]
fn a_vector_has_no_fans() {
    let vector = Tensor::empty(&[3], DType::F32, Device::CPU).unwrap();
    let error = Init::XavierNormal { gain: 1.0 }.fill(&vector, &Generator::new(0)).unwrap_err().to_string();
    assert!(error.contains("at least two dimensions"), "{error}");
}
