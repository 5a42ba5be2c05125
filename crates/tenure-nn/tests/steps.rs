//! Training steps of small models, in double precision, beside those of torchvision and Hugging Face: ten, or as many
//! as a debug build can make in a moment. `examples/ten_steps.rs` makes ten with whole ones.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
#[path = "common/steps.rs"]
mod steps;

use common::{fill, images, with_scope};
use serde_json::Value;
use steps::{Loss, MakeOptimizer, Training, adamw, classify, classify_text, predict, sgd};
use tenure_nn::models::{
    Bert, BertConfig, DenseNet, DenseNetConfig, Gpt2, Gpt2Config, Llama, LlamaConfig, R3d, R3dConfig, ResNet,
    ResNetConfig,
};
use tenure_nn::optim::{Adam, GradScaler, Optimizer, Schedule, clip_grad_norm};
use tenure_nn::{Module, Scope};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::random::Generator;
use tenure_tensor::{DType, Result, Tensor};

/// One model of `goldens/steps.py`: its first `steps` steps, and the gradients of the very first.
fn check<M: Module + 'static>(
    name: &str,
    model: impl FnOnce(&Scope) -> Result<M>,
    (loss, optimizer): (Loss<M>, MakeOptimizer),
    (inputs, targets): (Tensor, Tensor),
    steps: usize,
    tolerance: f64,
) {
    let goldens: Value = serde_json::from_str(include_str!("goldens/steps.json")).unwrap();
    let golden = &goldens[name];
    let model = with_scope(|scope| model(&scope.zeroed()).unwrap());
    fill(&model);
    let mut training = Training::new(model, loss, optimizer);
    for step in 0..steps {
        let found = training.step(&inputs, &targets).unwrap();
        let expected = golden["losses"][step].as_f64().unwrap();
        let error = (found - expected).abs();
        assert!(error <= tolerance * expected, "{name}, step {step}: {found}, expected {expected}");
        if step == 0 {
            common::compare_gradients(&training.parameters, &golden["norms"], tolerance);
        }
    }
}

fn labels(labels: &[i64]) -> Tensor {
    Tensor::from_slice(labels, &[labels.len()]).unwrap()
}

/// Tokens, or those that follow.
fn tokens(first: usize) -> Tensor {
    let row = |row: usize| (first..first + 5).map(move |column| (7 * (row + column) + 3) as i64 % 11);
    Tensor::from_slice(&[0, 6].into_iter().flat_map(row).collect::<Vec<_>>(), &[2, 5]).unwrap()
}

#[test]
fn resnets_train_as_torchvisions() {
    let batch = || (images(&[4, 3, 33, 24]), labels(&[3, 0, 4, 0]));
    let config = ResNetConfig { blocks: [1; 4], classes: 5, ..ResNetConfig::RESNET18 };
    check("resnet_basic", |scope| ResNet::new(scope, config), (classify, sgd), batch(), 2, 1e-8);
    let config = ResNetConfig { blocks: [1; 4], classes: 5, ..ResNetConfig::RESNET50 };
    check("resnet_bottleneck", |scope| ResNet::new(scope, config), (classify, sgd), batch(), 2, 1e-8);
}

#[test]
fn a_densenet_trains_as_torchvisions() {
    let config = DenseNetConfig { layers: [2, 1, 1, 1], growth: 8, channels: 3, classes: 5 };
    let batch = (images(&[4, 3, 64, 48]), labels(&[3, 0, 4, 0]));
    // Normalisation over few numbers makes a rounding of 10⁻¹⁵ as large as 10⁻⁷ in ten steps.
    check("densenet", |scope| DenseNet::new(scope, config), (classify, sgd), batch, 10, 1e-5);
}

#[test]
fn an_r3d_trains_as_torchvisions() {
    let config = R3dConfig { blocks: [1; 4], classes: 5, ..R3dConfig::R3D18 };
    let batch = (images(&[2, 3, 4, 20, 24]), labels(&[3, 0]));
    check("r3d", |scope| R3d::new(scope, config), (classify, sgd), batch, 1, 1e-8);
}

#[test]
fn a_bert_trains_as_hugging_faces() {
    let config = BertConfig {
        vocab_size: 11,
        hidden_size: 12,
        num_hidden_layers: 2,
        num_attention_heads: 3,
        intermediate_size: 20,
        max_position_embeddings: 8,
        hidden_dropout_prob: 0.0,
        attention_probs_dropout_prob: 0.0,
        ..BertConfig::default()
    };
    check("bert", |scope| Bert::new(scope, &config), (classify_text, adamw), (tokens(0), labels(&[3, 0])), 10, 1e-8);
}

fn gpt2_config() -> Gpt2Config {
    Gpt2Config {
        vocab_size: 11,
        n_positions: 8,
        n_embd: 12,
        n_layer: 2,
        n_head: 3,
        embd_pdrop: 0.0,
        attn_pdrop: 0.0,
        resid_pdrop: 0.0,
        ..Gpt2Config::default()
    }
}

#[test]
fn a_gpt2_trains_as_hugging_faces() {
    let model = |scope: &Scope| Gpt2::new(&scope.at("transformer"), &gpt2_config());
    check("gpt2", model, (predict, adamw), (tokens(0), tokens(1)), 10, 1e-8);
}

#[test]
fn a_gpt2_trains_in_mixed_precision_as_hugging_faces() {
    let goldens: Value = serde_json::from_str(include_str!("goldens/steps.json")).unwrap();
    let golden = |what: &str, step: usize| goldens["gpt2_mixed"][what][step].as_f64();
    let model = Gpt2::new(&Scope::new(&Generator::new(0)).zeroed(), &gpt2_config()).unwrap();
    fill(&model);
    let training = Training::new(model, predict, adamw);
    let mut optimizer = Optimizer::new(training.parameters.clone(), 0.002, Adam::w());
    let mut scaler = GradScaler { growth_interval: 4, ..GradScaler::default() };
    let schedule = Schedule::Linear { start: 1.0, end: 0.1, steps: 10 };
    for step in 0..10 {
        optimizer.zero_grad();
        optimizer.set_lr_scale(schedule.scale(step as u64));
        let loss = {
            let _autocast = Autocast::enter(DType::BF16);
            (training.loss)(&tokens(0), &tokens(1)).unwrap()
        };
        let overflowing = if step == 3 { 1e38 } else { 1.0 };
        scaler.scale(&loss.mul(overflowing).unwrap()).unwrap().backward().unwrap();
        let is_finite = scaler.unscale(&optimizer).unwrap();
        let norm = clip_grad_norm(&training.parameters, 1.0).unwrap();
        assert_eq!(scaler.step(&mut optimizer, is_finite).unwrap(), step != 3);
        assert_eq!(Some(scaler.state.scale), golden("scales", step), "step {step}");
        // A bfloat16 is right to 4 · 10⁻³. Weights that are other by that much move losses by 1%, and later norms by 20%.
        let expect = |what: &str, found: f64, tolerance: f64| {
            let expected = golden(what, step).unwrap();
            assert!(
                (found - expected).abs() <= tolerance * expected,
                "{what}, step {step}: {found}, expected {expected}"
            );
        };
        expect("losses", loss.item_scalar().unwrap().to_f64(), 2e-2);
        if step == 0 {
            expect("norms", norm, 5e-2);
        }
    }
}

#[test]
fn a_llama_trains_as_hugging_faces() {
    let config = LlamaConfig {
        vocab_size: 11,
        hidden_size: 24,
        intermediate_size: 20,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        ..LlamaConfig::default()
    };
    // Theirs normalises, and turns, in single precision.
    check("llama", |scope| Llama::new(scope, &config), (predict, adamw), (tokens(0), tokens(1)), 10, 1e-6);
}
