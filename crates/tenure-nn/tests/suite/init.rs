//! Tests of the initial values of parameters.

use tenure_nn::layers::{
    BatchNorm2d, Conv1d, Conv2d, Conv3d, ConvOptions, Embedding, GroupNorm, LayerNorm, Linear, MultiheadAttention,
    RmsNorm,
};
use tenure_nn::models::{Bert, DenseNet, Gpt2, Llama, ResNet};
use tenure_nn::{Fan, Init, Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor};

use crate::common::{configs, device, golden, on_devices};
use crate::fixtures::expect_error;

on_devices! {
    deviations_are_those_of_the_formulas
    uniform_ones_stay_within_their_bounds
    one_seed_gives_one_weight
    layers_begin_as_pytorchs
    models_begin_as_torchvisions_and_hugging_faces
}

fn filled(init: Init, sizes: &[usize]) -> Vec<f64> {
    let tensor = Tensor::empty(sizes, DType::F64, device()).unwrap();
    init.fill(&tensor, &Generator::new(5)).unwrap();
    tensor.to_vec().unwrap()
}

fn mean_and_deviation(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    (mean, variance.sqrt())
}

/// The sizes of a weight with 100 · 9 inputs and 50 · 9 outputs.
const WEIGHT: [usize; 4] = [50, 100, 3, 3];

fn check(init: Init, deviation: f64) {
    let values = filled(init, &WEIGHT);
    let (mean, found) = mean_and_deviation(&values);
    assert!(mean.abs() < 0.02 * deviation && (found / deviation - 1.0).abs() < 0.02, "{init:?}: {mean}, {found}");
}

fn deviations_are_those_of_the_formulas() {
    check(Init::Normal { mean: 0.0, deviation: 0.3 }, 0.3);
    check(Init::Uniform { low: -0.6, high: 0.6 }, 0.6 / 3.0_f64.sqrt());
    check(Init::KaimingUniform { a: 0.0, fan: Fan::In }, (2.0 / 900.0_f64).sqrt());
    check(Init::KaimingNormal { a: 0.0, fan: Fan::Out }, (2.0 / 450.0_f64).sqrt());
    check(Init::XavierUniform { gain: 1.0 }, (2.0 / 1350.0_f64).sqrt());
    check(Init::XavierNormal { gain: 3.0 }, 3.0 * (2.0 / 1350.0_f64).sqrt());
    // 0.8796 is the deviation of a standard normal distribution cut at two deviations.
    check(Init::TruncatedNormal { mean: 0.0, deviation: 0.1, cut: 2.0 }, 0.1 * 0.8796);
}

fn uniform_ones_stay_within_their_bounds() {
    // The bound is √6 / √((1 + 5) · 900) = 1 / 30.
    let values = filled(Init::default_weight(), &WEIGHT);
    assert!(values.iter().all(|value| value.abs() <= 1.0 / 30.0) && values.iter().any(|value| value.abs() > 0.033));
    let values = filled(Init::default_bias(16), &[1000]);
    assert!(values.iter().all(|value| value.abs() <= 0.25) && values.iter().any(|value| value.abs() > 0.24));
    let values = filled(Init::TruncatedNormal { mean: 5.0, deviation: 2.0, cut: 0.5 }, &[1000]);
    assert!(values.iter().all(|value| (4.0..=6.0).contains(value)));
}

fn one_seed_gives_one_weight() {
    let init = Init::default_weight();
    assert_eq!(filled(init, &WEIGHT), filled(init, &WEIGHT));
}

#[test]
fn a_vector_has_no_fans() {
    let vector = Tensor::empty(&[3], DType::F32, Device::CPU).unwrap();
    expect_error(Init::XavierNormal { gain: 1.0 }.fill(&vector, &Generator::new(0)), "at least two dimensions");
}

/// Compares initial values with PyTorch's, as exactly as their number allows.
fn compare<M: Module>(name: &str, make: impl FnOnce(&Scope) -> Result<M>) {
    let golden = golden("init", name);
    let module = make(&Scope::new(&Generator::new(5)).with_dtype(DType::F64).with_device(device())).unwrap();
    for parameter in module.parameters() {
        let what = format!("{name}: {}", parameter.name());
        let [mean, deviation, largest]: [f64; 3] =
            serde_json::from_value(golden[parameter.name()].clone()).expect(&what);
        let values: Vec<f64> = parameter.to_vec().unwrap();
        let found = mean_and_deviation(&values);
        let unsure = 6.0 / (values.len() as f64).sqrt();
        assert!((found.0 - mean).abs() <= unsure * deviation, "{what}: mean {}, theirs {mean}", found.0);
        assert!((found.1 - deviation).abs() <= unsure * deviation, "{what}: deviation {}, theirs {deviation}", found.1);
        // The values of a uniform distribution end at 1.7 deviations, those of a normal one far beyond.
        let found = values.iter().fold(0.0_f64, |largest, value| largest.max(value.abs()));
        let is_alike = (found - largest).abs() <= (unsure + 0.3) * largest;
        assert!(is_alike, "{what}: at most {found}, theirs {largest}");
    }
}

fn layers_begin_as_pytorchs() {
    compare("linear", |scope| Linear::new(scope, 100, 900));
    compare("conv1d", |scope| Conv1d::new(scope, 60, 700, [3], ConvOptions::default()));
    let grouped = ConvOptions { groups: 2, ..ConvOptions::default() };
    compare("conv2d", |scope| Conv2d::new(scope, 30, 600, [3, 2], grouped));
    compare("conv3d", |scope| Conv3d::new(scope, 10, 500, [2; 3], ConvOptions::default()));
    compare("embedding", |scope| Embedding::new(scope, 300, 20));
    compare("attention", |scope| MultiheadAttention::new(scope, 96, 4, 0.0));
    compare("batch_norm", |scope| BatchNorm2d::new(scope, 7));
    compare("layer_norm", |scope| LayerNorm::new(scope, &[3, 4], 1e-5));
    compare("group_norm", |scope| GroupNorm::new(scope, 2, 6));
    compare("rms_norm", |scope| RmsNorm::new(scope, &[5], 1e-5));
}

fn models_begin_as_torchvisions_and_hugging_faces() {
    compare("resnet_basic", |scope| ResNet::new(scope, configs::RESNET_BASIC));
    compare("densenet", |scope| DenseNet::new(scope, configs::DENSENET));
    compare("bert", |scope| Bert::new(scope, &configs::bert()));
    compare("gpt2", |scope| Gpt2::new(&scope.at("transformer"), &configs::gpt2()));
    compare("llama", |scope| Llama::new(scope, &configs::llama()));
}
