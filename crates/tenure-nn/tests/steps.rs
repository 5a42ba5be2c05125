//! Tests that ten training steps of small models equal those of torchvision and Hugging Face, in double precision.
//! `examples/ten_steps.rs` does the same with whole models.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod common;
#[path = "common/steps.rs"]
mod steps;

use common::{configs, fill, golden, images, on_devices, scope, tensor, with_scope};
use steps::{Loss, MakeOptimizer, Training, adamw, classify, classify_text, predict, sgd};
use tenure_nn::models::{Bert, DenseNet, Gpt2, Llama, R3d, R3dConfig, ResNet, ResNetConfig};
use tenure_nn::optim::{Adam, GradScaler, Optimizer, Schedule, clip_grad_norm};
use tenure_nn::{Module, Scope};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::{DType, Result, Tensor};

on_devices! {
    resnets_train_as_torchvisions
    a_densenet_trains_as_torchvisions
    an_r3d_trains_as_torchvisions
    a_bert_trains_as_hugging_faces
    a_gpt2_trains_as_hugging_faces
    a_gpt2_trains_in_mixed_precision_as_hugging_faces
    a_llama_trains_as_hugging_faces
}

/// Checks one model of `goldens/steps.py`: ten steps, and the gradients of the first.
fn check<M: Module + 'static>(
    name: &str,
    model: impl FnOnce(&Scope) -> Result<M>,
    (loss, optimizer): (Loss<M>, MakeOptimizer),
    (inputs, targets): (Tensor, Tensor),
    tolerance: f64,
) {
    let golden = golden("steps", name);
    let model = with_scope(|scope| model(&scope.zeroed()).unwrap());
    fill(&model);
    let mut training = Training::new(model, loss, optimizer);
    for step in 0..10 {
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
    tensor(labels, &[labels.len()])
}

/// Makes tokens: with `first` 0 the inputs, with 1 the tokens that follow them.
fn tokens(first: usize) -> Tensor {
    tensor(
        &[0, 6]
            .into_iter()
            .flat_map(|row| (first..first + 5).map(move |column| (7 * (row + column) + 3) as i64 % 11))
            .collect::<Vec<_>>(),
        &[2, 5],
    )
}

fn resnets_train_as_torchvisions() {
    for (name, config) in [("resnet_basic", configs::RESNET_BASIC), ("resnet_bottleneck", configs::RESNET_BOTTLENECK)] {
        let narrow = ResNetConfig { width: 8, ..config };
        let batch = (images(&[4, 3, 33, 24]), labels(&[3, 0, 4, 0]));
        check(name, |scope| ResNet::new(scope, narrow), (classify, sgd), batch, 1e-8);
    }
}

fn a_densenet_trains_as_torchvisions() {
    let batch = (images(&[4, 3, 64, 48]), labels(&[3, 0, 4, 0]));
    // Normalisation over few numbers amplifies a rounding of 10⁻¹⁵ to 10⁻⁷ in ten steps.
    check("densenet", |scope| DenseNet::new(scope, configs::DENSENET), (classify, sgd), batch, 1e-5);
}

fn an_r3d_trains_as_torchvisions() {
    let config = R3dConfig { width: 8, ..configs::R3D };
    let batch = (images(&[2, 3, 4, 20, 24]), labels(&[3, 0]));
    check("r3d", |scope| R3d::new(scope, config), (classify, sgd), batch, 1e-8);
}

fn a_bert_trains_as_hugging_faces() {
    check(
        "bert",
        |scope| Bert::new(scope, &configs::bert()),
        (classify_text, adamw),
        (tokens(0), labels(&[3, 0])),
        1e-8,
    );
}

fn a_gpt2_trains_as_hugging_faces() {
    check(
        "gpt2",
        |scope| Gpt2::new(&scope.at("transformer"), &configs::gpt2()),
        (predict, adamw),
        (tokens(0), tokens(1)),
        1e-8,
    );
}

fn a_gpt2_trains_in_mixed_precision_as_hugging_faces() {
    let golden = golden("steps", "gpt2_mixed");
    let model = Gpt2::new(&scope().zeroed(), &configs::gpt2()).unwrap();
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
        scaler.unscale(&mut optimizer).unwrap();
        let norm = clip_grad_norm(&training.parameters, 1.0).unwrap().item::<f64>().unwrap();
        assert_eq!(scaler.step(&mut optimizer).unwrap(), step != 3);
        assert_eq!(Some(scaler.state.scale), golden["scales"][step].as_f64(), "step {step}");
        // A bfloat16 has a relative error of up to 4 · 10⁻³. Weights with such errors change losses by 1%, and later
        // norms by 20%.
        let loss = loss.item_scalar().unwrap().to_f64();
        let norms = (step == 0).then_some(("norms", norm, 5e-2));
        for (what, found, tolerance) in [("losses", loss, 2e-2)].into_iter().chain(norms) {
            let expected = golden[what][step].as_f64().unwrap();
            assert!(
                (found - expected).abs() <= tolerance * expected,
                "{what}, step {step}: {found}, expected {expected}"
            );
        }
    }
}

fn a_llama_trains_as_hugging_faces() {
    // Hugging Face's model computes normalisation and rotary positions in single precision.
    check("llama", |scope| Llama::new(scope, &configs::llama()), (predict, adamw), (tokens(0), tokens(1)), 1e-6);
}
