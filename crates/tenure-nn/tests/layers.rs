//! Layers beside PyTorch's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;

use common::{assert_close, check, images, with_scope};
use serde_json::Value;
use tenure_nn::layers::{
    Activation, AdaptiveAvgPool, AttentionOptions, AvgPool, BatchNorm1d, BatchNorm2d, BatchNorm3d, Conv1d, Conv2d,
    Conv3d, ConvOptions, Dropout, Embedding, Flatten, GroupNorm, Layer, LayerNorm, Linear, MaxPool, MultiheadAttention,
    PoolOptions, RmsNorm, Sequential,
};
use tenure_nn::{Init, Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor};

fn golden(name: &str) -> Value {
    let goldens: Value = serde_json::from_str(include_str!("goldens/layers.json")).unwrap();
    goldens[name].clone()
}

/// Compares a layer, and what it has kept afterwards.
fn compare<L: Module>(name: &str, layer: L, forward: impl Fn(&L) -> Result<Tensor>) {
    let golden = golden(name);
    check(&golden, &layer, 1e-9, || forward(&layer));
    for (name, tensor) in layer.state() {
        if let Some(expected) = golden["buffers"].get(name) {
            let found = tensor.to_dtype(DType::F64).unwrap().to_vec().unwrap();
            assert_close(name, &found, expected, 1e-9);
        }
    }
}

fn compare_layer<L: Layer>(name: &str, make: impl FnOnce(&Scope) -> Result<L>, input: &Tensor) {
    compare(name, with_scope(|scope| make(scope).unwrap()), |layer| layer.forward(input));
}

#[test]
fn linear_and_convolutions_are_pytorchs() {
    compare_layer("linear", |scope| Linear::new(scope, 4, 3), &images(&[2, 5, 4]));
    let options = ConvOptions { stride: [2], padding: [1], groups: 2, ..ConvOptions::default() };
    compare_layer("conv1d", |scope| Conv1d::new(scope, 4, 6, [3], options), &images(&[2, 4, 9]));
    let options = ConvOptions { padding: [1, 0], dilation: [2, 2], bias: false, ..ConvOptions::default() };
    compare_layer("conv2d", |scope| Conv2d::new(scope, 2, 3, [3, 2], options), &images(&[2, 2, 7, 8]));
    let options = ConvOptions { stride: [1, 2, 1], ..ConvOptions::default() };
    compare_layer("conv3d", |scope| Conv3d::new(scope, 2, 3, [2, 2, 2], options), &images(&[1, 2, 4, 5, 6]));
}

#[test]
fn normalisations_are_pytorchs_and_keep_what_they_saw() {
    compare_layer("batch_norm1d", |scope| BatchNorm1d::new(scope, 3), &images(&[4, 3]));
    compare_layer("batch_norm2d", |scope| BatchNorm2d::new(scope, 3), &images(&[2, 3, 4, 5]));
    compare_layer("batch_norm3d", |scope| BatchNorm3d::new(scope, 3), &images(&[2, 3, 2, 3, 2]));
    compare_layer("layer_norm", |scope| LayerNorm::new(scope, &[3, 4], 1e-5), &images(&[2, 3, 4]));
    compare_layer("rms_norm", |scope| RmsNorm::new(scope, &[4], 1e-6), &images(&[2, 3, 4]));
    compare_layer("group_norm", |scope| GroupNorm::new(scope, 2, 6), &images(&[2, 6, 5]));
}

#[test]
fn embeddings_are_pytorchs() {
    let indices = Tensor::from_slice(&[1_i64, 2, 6, 2, 1, 1], &[2, 3]).unwrap();
    let init = Init::Normal { mean: 0.0, deviation: 1.0 };
    compare_layer("embedding", |scope| Embedding::padded(scope, 7, 3, init, 2), &indices);
    let fresh = with_scope(|scope| Embedding::padded(scope, 7, 3, init, 2).unwrap());
    assert_eq!(fresh.weight.to_vec::<f64>().unwrap()[6..9], [0.0; 3]);
}

#[test]
fn attention_is_pytorchs() {
    let make = |heads| with_scope(|scope| MultiheadAttention::new(scope, 6, heads, 0.0).unwrap());
    let (x, other) = (images(&[2, 5, 6]), images(&[2, 4, 6]));
    let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    compare("self_attention", make(2), |layer| layer.forward(&x, &x, &x, causal));
    compare("attention", make(3), |layer| layer.forward(&x, &other, &other, AttentionOptions::default()));
    let error = with_scope(|scope| MultiheadAttention::new(scope, 6, 4, 0.0)).err().unwrap().to_string();
    assert!(error.contains("4 heads do not divide a size of 6"), "{error}");
}

#[test]
fn pooling_is_pytorchs() {
    let max = MaxPool(PoolOptions { stride: [2, 2], padding: [1, 1], ..PoolOptions::new([3, 3]) });
    let mean = AvgPool(PoolOptions { ceil: true, ..PoolOptions::new([2, 2]) });
    let make = |scope: &Scope| {
        let layers = Sequential::default().then(scope, |_| Ok(max))?.then(scope, |_| Ok(mean))?;
        layers.then(scope, |_| Ok(AdaptiveAvgPool([2, 3])))
    };
    compare_layer("pools", make, &images(&[2, 2, 17, 19]));
}

#[test]
fn dropout_and_batch_normalisation_know_whether_they_are_trained() {
    let scope = Scope::new(&Generator::new(0)).at("0");
    let ones = Tensor::ones(&[64, 4], DType::F32, Device::CPU).unwrap();
    let mut model = Sequential::default()
        .then(&scope, |_| Ok(Dropout::new(0.5)))
        .and_then(|model| model.then(&scope, |at| BatchNorm1d::new(at, 4)))
        .unwrap();
    let values = |model: &Sequential| model.forward(&ones).unwrap().to_vec::<f32>().unwrap();
    assert!(values(&model).iter().any(|value| *value < 0.0), "what was left out is below the mean");
    model.eval();
    let (first, second) = (values(&model), values(&model));
    assert!(first.chunks(4).all(|row| row == &first[..4]) && first == second);
    model.train();
    assert_ne!(values(&model), first);
}

#[test]
fn a_model_is_converted_with_its_buffers() {
    let generator = Generator::new(0);
    let mut layer = BatchNorm2d::new(&Scope::new(&generator), 3).unwrap();
    layer.to_dtype(DType::BF16).unwrap();
    let dtypes: Vec<DType> = layer.state().into_iter().map(|(_, tensor)| tensor.dtype()).collect();
    assert_eq!(dtypes, [DType::BF16, DType::BF16, DType::BF16, DType::BF16, DType::I64]);
    assert!(layer.weight.requires_grad());
    assert!(layer.to_dtype(DType::I32).unwrap_err().to_string().contains("floating"));
}

#[test]
fn what_is_frozen_gets_no_gradient() {
    let generator = Generator::new(0);
    let layer = Linear::new(&Scope::new(&generator), 2, 2).unwrap();
    layer.set_requires_grad(false).unwrap();
    let y = layer.forward(&Tensor::ones(&[1, 2], DType::F32, Device::CPU).unwrap()).unwrap();
    assert!(!y.requires_grad());
}

#[test]
fn activations_and_flatten_go_into_a_sequence() {
    let scope = Scope::new(&Generator::new(0)).at("features");
    let model = Sequential::default()
        .then(&scope, |_| Ok(Activation::Relu))
        .and_then(|model| model.then(&scope, |_| Ok(Flatten)))
        .unwrap();
    let x = Tensor::from_slice(&[-1.0_f32, 2.0, 3.0, -4.0], &[1, 2, 2]).unwrap();
    let y = model.forward(&x).unwrap();
    assert_eq!((y.sizes(), y.to_vec::<f32>().unwrap()), (&[1, 4][..], vec![0.0, 2.0, 3.0, 0.0]));
    assert!(model.state().is_empty());
}
