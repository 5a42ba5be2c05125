//! Tests that layers equal PyTorch's.

use std::sync::Arc;

use crate::common::{assert_close, check, device, golden, images, on_devices, scope, tensor, with_scope};
use crate::fixtures::expect_error;
use tenure_nn::layers::{
    Activation, AdaptiveAvgPool, AttentionOptions, AvgPool, BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormOptions,
    Conv1d, Conv2d, Conv3d, ConvOptions, Dropout, Embedding, Flatten, GroupNorm, Layer, LayerNorm, Linear, LogSoftmax,
    MaxPool, MultiheadAttention, MultiheadOptions, NormOptions, PoolOptions, RmsNorm, RmsNormOptions, Sequential,
    Softmax,
};
use tenure_nn::{Init, Module, Scope};
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Device, Result, Tensor, autograd, ops};

on_devices! {
    linear_and_convolutions_are_pytorchs
    normalisations_are_pytorchs_and_keep_what_they_saw
    normalisations_without_parameters_are_pytorchs
    running_averages_move_by_the_momentum_or_are_of_all_batches
    batch_normalisation_sees_what_a_checkpoint_computes_again_once
    embeddings_are_pytorchs
    attention_is_pytorchs
    attention_without_bias_or_of_other_sizes_is_pytorchs
    the_weights_of_attention_are_those_that_were_left_out_from
    pooling_is_pytorchs
    windows_with_gaps_or_without_their_padding_are_pytorchs
    activations_are_pytorchs
    dropout_and_batch_normalisation_know_whether_they_are_trained
    a_model_is_converted_with_its_buffers
    rms_norm_without_options_is_pytorchs
}

/// Compares a layer, and its buffers afterwards.
fn compare<L: Module>(name: &str, layer: L, forward: impl Fn(&L) -> Result<Tensor>) {
    let golden = golden("layers", name);
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

fn linear_and_convolutions_are_pytorchs() {
    compare_layer("linear", |scope| Linear::new(scope, 4, 3), &images(&[2, 5, 4]));
    let options = ConvOptions { stride: [2], padding: [1], groups: 2, ..ConvOptions::default() };
    compare_layer("conv1d", |scope| Conv1d::new(scope, 4, 6, [3], options), &images(&[2, 4, 9]));
    let options = ConvOptions { padding: [1, 0], dilation: [2, 2], bias: false, ..ConvOptions::default() };
    compare_layer("conv2d", |scope| Conv2d::new(scope, 2, 3, [3, 2], options), &images(&[2, 2, 7, 8]));
    let options = ConvOptions { stride: [1, 2, 1], ..ConvOptions::default() };
    compare_layer("conv3d", |scope| Conv3d::new(scope, 2, 3, [2, 2, 2], options), &images(&[1, 2, 4, 5, 6]));
}

fn normalisations_are_pytorchs_and_keep_what_they_saw() {
    compare_layer("batch_norm1d", |scope| BatchNorm1d::new(scope, 3), &images(&[4, 3]));
    compare_layer("batch_norm2d", |scope| BatchNorm2d::new(scope, 3), &images(&[2, 3, 4, 5]));
    compare_layer("batch_norm3d", |scope| BatchNorm3d::new(scope, 3), &images(&[2, 3, 2, 3, 2]));
    compare_layer("layer_norm", |scope| LayerNorm::new(scope, &[3, 4], 1e-5), &images(&[2, 3, 4]));
    compare_layer("rms_norm", |scope| RmsNorm::new(scope, &[4], 1e-6), &images(&[2, 3, 4]));
    compare_layer("group_norm", |scope| GroupNorm::new(scope, 2, 6), &images(&[2, 6, 5]));
}

fn normalisations_without_parameters_are_pytorchs() {
    let input = |sizes| images(sizes).requires_grad_(true).unwrap();
    let options =
        BatchNormOptions { eps: 0.01, affine: false, track_running_stats: false, ..BatchNormOptions::default() };
    let make = |scope: &Scope| BatchNorm1d::with_options(scope, 3, options);
    compare_layer("batch_norm_plain", make, &input(&[4, 3]));
    // A layer without running averages needs none in evaluation.
    let mut layer = with_scope(|scope| make(scope).unwrap());
    layer.eval();
    let found = layer.forward(&images(&[4, 3])).unwrap().to_vec::<f64>().unwrap();
    assert_close("eval", &found, &golden("layers", "batch_norm_plain")["output"], 1e-9);

    let options = NormOptions { eps: 0.01, ..NormOptions::default() };
    let without_bias = NormOptions { bias: false, ..options };
    compare_layer("layer_norm_weight", |at| LayerNorm::with_options(at, &[3, 4], without_bias), &images(&[2, 3, 4]));
    let plain = NormOptions { affine: false, ..NormOptions::default() };
    compare_layer("layer_norm_plain", |at| LayerNorm::with_options(at, &[3, 4], plain), &input(&[2, 3, 4]));
    let plain = NormOptions { affine: false, ..options };
    compare_layer("group_norm_plain", |at| GroupNorm::with_options(at, 2, 6, plain), &input(&[2, 6, 5]));
    expect_error(with_scope(|scope| GroupNorm::new(scope, 4, 6)), "4 groups do not divide 6 channels");
}

/// Returns the running mean and variance of a layer with one channel, after batches of means 2 and 7 and variances 2
/// and 8.
fn seen(momentum: Option<f64>) -> [f64; 2] {
    let options = BatchNormOptions { momentum, ..BatchNormOptions::default() };
    let layer = with_scope(|scope| BatchNorm1d::with_options(scope, 1, options).unwrap());
    for batch in [[1.0, 3.0], [5.0, 9.0]] {
        layer.forward(&tensor(&batch, &[2, 1])).unwrap();
    }
    let running = layer.running.unwrap();
    assert_eq!(running.num_batches_tracked.item::<i64>().unwrap(), 2);
    [running.running_mean.item().unwrap(), running.running_var.item().unwrap()]
}

fn running_averages_move_by_the_momentum_or_are_of_all_batches() {
    assert_eq!(seen(Some(0.5)), [0.5 * 1.0 + 0.5 * 7.0, 0.5 * 1.5 + 0.5 * 8.0]);
    assert_eq!(seen(None), [4.5, 5.0]);
}

fn batch_normalisation_sees_what_a_checkpoint_computes_again_once() {
    let [plain, checked] = [(); 2].map(|()| Arc::new(with_scope(|scope| BatchNorm1d::new(scope, 3).unwrap())));
    let input = || images(&[4, 3]).requires_grad_(true).unwrap();
    let first = input();
    let second = input();
    let expected = plain.forward(&first).unwrap();
    let layer = Arc::clone(&checked);
    let found = autograd::checkpoint(&[&second], move |x| Ok(vec![layer.forward(&x[0])?])).unwrap().remove(0);
    for output in [&expected, &found] {
        output.mul(output).unwrap().mul(output).unwrap().sum_all().unwrap().backward().unwrap();
    }
    for ((name, left), (_, right)) in plain.state().into_iter().zip(checked.state()) {
        assert_eq!(left.to_bytes().unwrap(), right.to_bytes().unwrap(), "{name}");
        let grads = [left, right].map(|tensor| tensor.grad().map(|grad| grad.to_bytes().unwrap()));
        assert_eq!(grads[0], grads[1], "{name}");
    }
    let grad = |input: &Tensor| input.grad().unwrap().to_vec::<f64>().unwrap();
    assert_eq!(grad(&first), grad(&second));
}

fn embeddings_are_pytorchs() {
    let indices = tensor(&[1_i64, 2, 6, 2, 1, 1], &[2, 3]);
    let init = Init::Normal { mean: 0.0, deviation: 1.0 };
    compare_layer("embedding", |scope| Embedding::padded(scope, 7, 3, init, 2), &indices);
    let fresh = with_scope(|scope| Embedding::padded(scope, 7, 3, init, 2).unwrap());
    assert_eq!(fresh.weight.to_vec::<f64>().unwrap()[6..9], [0.0; 3]);
}

fn attention_is_pytorchs() {
    let make = |heads| with_scope(|scope| MultiheadAttention::new(scope, 6, heads, 0.0).unwrap());
    let x = images(&[2, 5, 6]);
    let other = images(&[2, 4, 6]);
    let causal = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    compare("self_attention", make(2), |layer| layer.forward(&x, &x, &x, causal));
    compare("attention", make(3), |layer| layer.forward(&x, &other, &other, AttentionOptions::default()));
    expect_error(with_scope(|scope| MultiheadAttention::new(scope, 6, 4, 0.0)), "4 heads do not divide a size of 6");
    for dropout in [-0.1, 1.5, f64::NAN] {
        expect_error(
            with_scope(|scope| MultiheadAttention::new(scope, 6, 2, dropout)),
            &format!("between 0 and 1, got {dropout}"),
        );
    }
}

fn attention_without_bias_or_of_other_sizes_is_pytorchs() {
    let make = |options| with_scope(|scope| MultiheadAttention::with_options(scope, 6, 2, options).unwrap());
    let x = images(&[2, 5, 6]);
    let other = images(&[2, 4, 6]);
    let plain = make(MultiheadOptions { bias: false, ..MultiheadOptions::default() });
    compare("attention_plain", plain, |layer| layer.forward(&x, &other, &other, AttentionOptions::default()));

    let of_sizes = MultiheadOptions { key_size: Some(4), value_size: Some(5), ..MultiheadOptions::default() };
    let query = images(&[2, 3, 6]);
    let key = images(&[2, 4, 4]);
    let value = images(&[2, 4, 5]);
    let is_seen: Vec<bool> = (0..12).map(|place| place % 3 != 1).collect();
    let mask = tensor(&is_seen, &[3, 4]);
    let options = AttentionOptions { mask: Some(&mask), ..AttentionOptions::default() };
    compare("attention_sizes", make(of_sizes), |layer| {
        let (found, weights) = layer.forward_with_weights(&query, &key, &value, options)?;
        assert_eq!(found.to_vec::<f64>()?.len(), layer.forward(&query, &key, &value, options)?.numel());
        ops::cat(&[&found, &weights], -1)
    });
}

fn the_weights_of_attention_are_those_that_were_left_out_from() {
    let mut layer = with_scope(|scope| MultiheadAttention::new(scope, 4, 1, 0.5).unwrap());
    let x = images(&[1, 8, 4]);
    let options = AttentionOptions { is_causal: true, ..AttentionOptions::default() };
    let found = |layer: &MultiheadAttention| {
        let (found, weights) = layer.forward_with_weights(&x, &x, &x, options).unwrap();
        let weight = &layer.in_proj_weights[0];
        let bias = layer.in_proj_bias.as_ref().unwrap();
        let values = x.linear(&weight.narrow(0, 8, 4).unwrap(), Some(&bias.narrow(0, 8, 4).unwrap())).unwrap();
        let expected = layer.out_proj.forward(&weights.matmul(&values).unwrap()).unwrap();
        assert!(found.sub(&expected).unwrap().abs().unwrap().max_all().unwrap().item::<f64>().unwrap() < 1e-12);
        (found.to_vec::<f64>().unwrap(), weights.to_vec::<f64>().unwrap())
    };
    let (_, weights) = found(&layer);
    let seen = || (0..64).filter(|place| place % 8 <= place / 8);
    assert!(seen().any(|place| weights[place] == 0.0) && seen().any(|place| weights[place] > 0.0));
    layer.eval();
    let (all, weights) = found(&layer);
    assert!((0..64).all(|place| (weights[place] > 0.0) == (place % 8 <= place / 8)));
    let expected = layer.forward(&x, &x, &x, options).unwrap().to_vec::<f64>().unwrap();
    assert!(all.iter().zip(expected).all(|(left, right)| (left - right).abs() < 1e-12));
}

#[test]
fn convolutions_that_cannot_be_are_refused_when_they_are_made() {
    let options = ConvOptions::default();
    for (channels, outputs, groups) in [(4, 6, 0), (4, 6, 3), (6, 4, 3)] {
        let options = ConvOptions { groups, ..options };
        let expected = format!("{groups} groups do not divide {channels} channels and {outputs} outputs");
        expect_error(with_scope(|scope| Conv2d::new(scope, channels, outputs, [3, 3], options)), &expected);
    }
    let stride = ConvOptions { stride: [2, 0], ..options };
    let dilation = ConvOptions { dilation: [0, 1], ..options };
    for (kernel, options) in [([0, 3], options), ([3, 3], stride), ([3, 3], dilation)] {
        expect_error(with_scope(|scope| Conv2d::new(scope, 4, 6, kernel, options)), "at least 1 is needed, got kernel");
    }
}

fn pooling_is_pytorchs() {
    let max = MaxPool(PoolOptions { stride: [2, 2], padding: [1, 1], ..PoolOptions::new([3, 3]) });
    let mean = AvgPool(PoolOptions { ceil: true, ..PoolOptions::new([2, 2]) });
    compare_layer(
        "pools",
        |scope| {
            let layers = Sequential::default().then(scope, |_| Ok(max))?.then(scope, |_| Ok(mean))?;
            layers.then(scope, |_| Ok(AdaptiveAvgPool([2, 3])))
        },
        &images(&[2, 2, 17, 19]),
    );
}

fn windows_with_gaps_or_without_their_padding_are_pytorchs() {
    let max = PoolOptions { stride: [2, 1], padding: [1, 1], dilation: [2, 3], ceil: true, ..PoolOptions::new([3, 2]) };
    let mean = PoolOptions {
        stride: [2, 2],
        padding: [1, 1],
        ceil: true,
        count_include_pad: false,
        ..PoolOptions::new([3, 3])
    };
    let make =
        |scope: &Scope| Sequential::default().then(scope, |_| Ok(MaxPool(max)))?.then(scope, |_| Ok(AvgPool(mean)));
    let input = images(&[2, 2, 10, 11]).requires_grad_(true).unwrap();
    compare_layer("windows", make, &input);
}

fn activations_are_pytorchs() {
    let numbers = [-25.0, -4.0, -2.5, -1.0, -0.3, 0.0, 0.4, 1.0, 2.9, 5.0, 7.0, 25.0];
    let numbers = tensor(&numbers, &[12]);
    let golden = golden("layers", "activations");
    let layers: [(&str, &dyn Layer); 20] = [
        ("ReLU()", &Activation::Relu),
        ("ReLU6()", &Activation::Relu6),
        ("LeakyReLU(negative_slope=0.2)", &Activation::LeakyRelu { slope: 0.2 }),
        ("ELU(alpha=0.7)", &Activation::Elu { alpha: 0.7 }),
        ("SELU()", &Activation::Selu),
        ("CELU(alpha=0.7)", &Activation::Celu { alpha: 0.7 }),
        ("GELU(approximate='none')", &Activation::Gelu),
        ("GELU(approximate='tanh')", &Activation::GeluTanh),
        ("SiLU()", &Activation::Silu),
        ("Mish()", &Activation::Mish),
        ("Sigmoid()", &Activation::Sigmoid),
        ("LogSigmoid()", &Activation::LogSigmoid),
        ("Tanh()", &Activation::Tanh),
        ("Softsign()", &Activation::Softsign),
        ("Softplus(beta=1.5, threshold=4.0)", &Activation::Softplus { beta: 1.5, threshold: 4.0 }),
        ("Hardsigmoid()", &Activation::Hardsigmoid),
        ("Hardswish()", &Activation::Hardswish),
        ("Hardtanh(min_val=-0.5, max_val=2.0)", &Activation::Hardtanh { min: -0.5, max: 2.0 }),
        ("Softmax(dim=-1)", &Softmax(-1)),
        ("LogSoftmax(dim=-1)", &LogSoftmax(-1)),
    ];
    for (name, layer) in layers {
        let found = layer.forward(&numbers).unwrap().to_vec::<f64>().unwrap();
        let expected: Vec<f64> = serde_json::from_value(golden[name].clone()).unwrap();
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-12 * expected.abs().max(0.01),
                "{name}: {found}, expected {expected}"
            );
        }
    }
}

fn dropout_and_batch_normalisation_know_whether_they_are_trained() {
    let scope = scope().at("0");
    let ones = Tensor::ones(&[64, 4], DType::F32, device()).unwrap();
    let mut model = Sequential::default()
        .then(&scope, |_| Dropout::new(0.5))
        .and_then(|model| model.then(&scope, |at| BatchNorm1d::new(at, 4)))
        .unwrap();
    let values = |model: &Sequential| model.forward(&ones).unwrap().to_vec::<f32>().unwrap();
    assert!(values(&model).iter().any(|value| *value < 0.0), "what was left out is below the mean");
    model.eval();
    let first = values(&model);
    let second = values(&model);
    assert!(first.chunks(4).all(|row| row == &first[..4]) && first == second);
    model.train();
    assert_ne!(values(&model), first);
}

fn a_model_is_converted_with_its_buffers() {
    let mut layer = BatchNorm2d::new(&scope(), 3).unwrap();
    layer.to_dtype(DType::BF16).unwrap();
    let dtypes: Vec<DType> = layer.state().into_iter().map(|(_, tensor)| tensor.dtype()).collect();
    assert_eq!(dtypes, [DType::BF16, DType::BF16, DType::BF16, DType::BF16, DType::I64]);
    assert!(layer.weight.as_ref().unwrap().requires_grad());
    expect_error(layer.to_dtype(DType::I32), "floating");
}

fn rms_norm_without_options_is_pytorchs() {
    let x = tensor(&[1e-4_f32, 2e-4], &[1, 2]);
    let options = RmsNormOptions { affine: false, ..RmsNormOptions::default() };
    let layer = RmsNorm::with_options(&scope(), &[2], options).unwrap();
    assert!(layer.state().is_empty());
    // The values are those of PyTorch's nn.RMSNorm(2, elementwise_affine=False).
    let cases = [(DType::F32, [0.26333, 0.52666]), (DType::F64, [0.63246, 1.26491]), (DType::BF16, [0.2637, 0.5273])];
    for (dtype, expected) in cases {
        let found = layer.forward(&x.to_dtype(dtype).unwrap()).unwrap().to_dtype(DType::F64).unwrap();
        for (found, expected) in found.to_vec::<f64>().unwrap().into_iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-2, "{dtype}: {found}, not {expected}");
        }
    }
}

#[test]
fn invalid_options_are_refused_when_a_layer_is_made() {
    let scope = Scope::new(&Generator::new(0));
    for probability in [2.0, -0.1, f64::NAN] {
        expect_error(
            Dropout::new(probability),
            &format!("dropout is a probability, between 0 and 1, got {probability}"),
        );
    }
    for padding in [3, -4] {
        expect_error(
            Embedding::padded(&scope, 3, 2, Init::ONES, padding),
            &format!("the token {padding} for padding is not one of 3"),
        );
    }
}

#[test]
fn a_frozen_layer_gets_no_gradient() {
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
