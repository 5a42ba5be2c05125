//! Tests of optimizers, schedules, clipping and loss scaling.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::cuda::cuda;
use crate::common::golden;
use crate::fixtures::expect_error;
use tenure_nn::optim::{
    Adafactor, Adagrad, Adam, GradScaler, Lbfgs, LbfgsOptions, LrAdjustment, Muon, NAdam, Optimizer, RmsProp, Rule,
    ScalerState, Schedule, Sgd, clip_grad_norm, clip_grad_value,
};
use tenure_nn::{Error, Parameter, StateError};
use tenure_tensor::{DType, Device, Tensor};

const SIZES: [&[usize]; 3] = [&[], &[3], &[2, 3]];
const BATCHES: [&[usize]; 4] = [&[], &[3], &[4, 3], &[2, 3, 4]];
const MATRICES: [&[usize]; 3] = [&[2, 3], &[5, 3], &[4, 4]];
const STEPS: usize = 5;

fn parameters() -> Vec<Parameter> {
    parameters_of(&SIZES, Device::CPU)
}

fn parameters_of(sizes: &[&[usize]], device: Device) -> Vec<Parameter> {
    sizes
        .iter()
        .enumerate()
        .map(|(number, sizes)| {
            let count: usize = sizes.iter().product();
            let values: Vec<f32> = (0..count)
                .map(|i| if count == 1 { -1.0 } else { (-1.0 + 2.5 * i as f64 / (count - 1) as f64) as f32 })
                .collect();
            let values = Tensor::from_slice(&values, sizes).unwrap().to_device(device).unwrap();
            Parameter::new(format!("p{number}"), values).unwrap()
        })
        .collect()
}

fn set_gradients(parameters: &[Parameter], step: usize) {
    for (number, parameter) in parameters.iter().enumerate() {
        let values = parameter.to_vec::<f32>().unwrap();
        let grad = values
            .iter()
            .enumerate()
            .map(|(place, value)| ((7 * place + 3 * step + number) as f64).sin() + 0.1 * f64::from(*value));
        let grad: Vec<f32> = grad.map(|grad| grad as f32).collect();
        let grad = Tensor::from_slice(&grad, parameter.sizes()).unwrap().to_device(parameter.device()).unwrap();
        parameter.set_grad(Some(grad)).unwrap();
    }
}

fn check(name: &str, lr: f64, rule: impl Rule + Clone + 'static) {
    check_of(&SIZES, name, lr, rule, 1e-6);
}

fn check_of(sizes: &[&[usize]], name: &str, lr: f64, rule: impl Rule + Clone + 'static, tolerance: f64) {
    check_on(parameters_of(sizes, Device::CPU), name, lr, rule.clone(), tolerance as f32);
    check_on(parameters_of(sizes, cuda()), name, lr, rule, tolerance as f32);
}

fn check_on(parameters: Vec<Parameter>, name: &str, lr: f64, rule: impl Rule + 'static, tolerance: f32) {
    let mut optimizer = Optimizer::new(parameters.clone(), lr, rule);
    let steps = &golden("optimizers", "rules")[name];
    for step in 0..STEPS {
        set_gradients(&parameters, step);
        optimizer.step().unwrap();
        for (number, parameter) in parameters.iter().enumerate() {
            let expected: Vec<f32> = serde_json::from_value(steps[step][number].clone()).unwrap();
            for (found, expected) in parameter.to_vec::<f32>().unwrap().into_iter().zip(expected) {
                let error = (found - expected).abs();
                assert!(
                    error <= tolerance * expected.abs().max(0.1),
                    "{name}, step {step}: {found}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn rules_step_as_pytorch_does() {
    let sgd = Sgd::default();
    check("sgd", 0.1, sgd);
    check("sgd_decay", 0.1, Sgd { weight_decay: 0.05, ..sgd });
    check("sgd_momentum", 0.1, Sgd { momentum: 0.9, dampening: 0.3, weight_decay: 0.01, ..sgd });
    check("sgd_nesterov", 0.1, Sgd { momentum: 0.9, nesterov: true, ..sgd });
    let adam = Adam::default();
    check("adam", 0.01, adam);
    check("adam_decay", 0.01, Adam { betas: (0.8, 0.95), eps: 1e-6, weight_decay: 0.1, ..adam });
    check("adamw", 0.01, Adam { weight_decay: 0.1, ..Adam::w() });
    let adagrad = Adagrad::default();
    check("adagrad", 0.1, adagrad);
    let decay = Adagrad { lr_decay: 0.1, weight_decay: 0.05, initial_accumulator_value: 0.2, ..adagrad };
    check("adagrad_decay", 0.1, decay);
    let rmsprop = RmsProp::default();
    check("rmsprop", 0.01, rmsprop);
    let momentum = RmsProp { alpha: 0.9, eps: 1e-6, weight_decay: 0.1, momentum: 0.8, ..rmsprop };
    check("rmsprop_momentum", 0.01, momentum);
    check("rmsprop_centered", 0.01, RmsProp { alpha: 0.9, weight_decay: 0.1, centered: true, ..rmsprop });
    let centered = RmsProp { alpha: 0.9, momentum: 0.8, centered: true, ..rmsprop };
    check("rmsprop_centered_momentum", 0.01, centered);
    let nadam = NAdam::default();
    check("nadam", 0.01, nadam);
    let decay = NAdam { betas: (0.8, 0.95), eps: 1e-6, weight_decay: 0.1, momentum_decay: 0.1, ..nadam };
    check("nadam_decay", 0.01, decay);
    check("nadamw", 0.01, NAdam { weight_decay: 0.1, is_decoupled: true, ..nadam });
}

#[test]
fn adafactor_steps_batches_of_matrices_as_pytorch_does() {
    let adafactor = Adafactor::default();
    check_of(&BATCHES, "adafactor", 0.1, adafactor, 2e-6);
    let decay = Adafactor { beta2_decay: -0.5, eps1: Some(1e-3), eps2: 0.1, d: 1.2, weight_decay: 0.1 };
    check_of(&BATCHES, "adafactor_decay", 0.6, decay, 2e-6);
}

/// Checks that a step after `steps` others is the same from their saved state. Returns the state.
fn expect_to_go_on(sizes: &[&[usize]], steps: usize, rule: impl Rule + Copy + 'static) -> BTreeMap<String, Tensor> {
    let [first, second] = [Device::CPU; 2].map(|device| parameters_of(sizes, device));
    let mut whole = Optimizer::new(first.clone(), 0.1, rule);
    let mut stopped = Optimizer::new(second.clone(), 0.1, rule);
    for step in 0..steps {
        for (parameters, optimizer) in [(&first, &mut whole), (&second, &mut stopped)] {
            set_gradients(parameters, step);
            optimizer.step().unwrap();
        }
    }
    let state: BTreeMap<String, Tensor> = stopped.state().unwrap().into_iter().collect();
    let mut resumed = Optimizer::new(second.clone(), 0.1, rule);
    resumed.load(&state).unwrap();
    for (parameters, optimizer) in [(&first, &mut whole), (&second, &mut resumed)] {
        set_gradients(parameters, steps);
        optimizer.step().unwrap();
    }
    for (left, right) in first.iter().zip(&second) {
        assert_eq!(left.to_vec::<f32>().unwrap(), right.to_vec::<f32>().unwrap());
    }
    state
}

#[test]
fn an_optimizer_goes_on_from_its_state() {
    expect_to_go_on(&SIZES, 2, Adam::w());
}

#[test]
fn adafactor_goes_on_from_its_rows_and_columns() {
    let state = expect_to_go_on(&BATCHES, 1, Adafactor::default());
    assert_eq!((state["p3.row_var"].sizes(), state["p3.col_var"].sizes()), (&[2, 3, 1][..], &[2, 1, 4][..]));
    assert_eq!(state["p1.variance"].sizes(), [3]);
}

#[test]
fn muon_steps_matrices_as_pytorch_does() {
    let muon = Muon::default();
    check_of(&MATRICES, "muon", 0.01, muon, 1e-6);
    let lr_adjustment = LrAdjustment::MatchRmsAdamW;
    let other = Muon { weight_decay: 0.5, momentum: 0.8, nesterov: false, iterations: 3, lr_adjustment, ..muon };
    check_of(&MATRICES, "muon_match", 0.01, other, 1e-6);
}

#[test]
fn muon_steps_only_matrices() {
    let parameters = parameters_of(&[&[2, 3], &[3]], Device::CPU);
    set_gradients(&parameters, 0);
    let before = parameters[0].to_vec::<f32>().unwrap();
    expect_error(
        Optimizer::new(parameters.clone(), 0.1, Muon::default()).step(),
        "a parameter has sizes [3], and only matrices are stepped",
    );
    assert_eq!(parameters[0].to_vec::<f32>().unwrap(), before);
}

/// Returns the start of the function that `optimizers.py` minimizes.
fn pairs(device: Device) -> Vec<Parameter> {
    let values: [(&str, [f32; 2], &[usize]); 2] = [("a", [-1.2, 1.0], &[2]), ("b", [0.5, -0.7], &[2, 1])];
    values
        .into_iter()
        .map(|(name, values, sizes)| {
            let values = Tensor::from_slice(&values, sizes).unwrap().to_device(device).unwrap();
            Parameter::new(name, values).unwrap()
        })
        .collect()
}

fn rosenbrock(parameters: &[Parameter]) -> tenure_nn::Result<Tensor> {
    let mut total = Tensor::zeros(&[], DType::F32, parameters[0].device())?;
    for parameter in parameters {
        parameter.set_grad(None)?;
        let flat = parameter.flatten(0, -1)?;
        let x = flat.select(0, 0)?;
        let valley = flat.select(0, 1)?.sub(&x.square()?)?.square()?.mul(10.0)?;
        total = total.add(&valley)?.add(&x.neg()?.add(1.0)?.square()?)?;
    }
    total.backward()?;
    Ok(total)
}

#[test]
fn lbfgs_minimizes_as_pytorch_does() {
    let fixed = LbfgsOptions { lr: 0.1, max_iterations: 6, history_size: 3, ..LbfgsOptions::default() };
    let searched = LbfgsOptions { max_iterations: 4, strong_wolfe: true, ..LbfgsOptions::default() };
    for (name, options) in [("fixed", fixed), ("strong_wolfe", searched)] {
        for device in [Device::CPU, cuda()] {
            let parameters = pairs(device);
            let mut optimizer = Lbfgs::new(parameters.clone(), options);
            for step in 0..3 {
                // Steps go on from the state of the one before.
                let state: BTreeMap<String, Tensor> = optimizer.state().unwrap().into_iter().collect();
                optimizer = Lbfgs::new(parameters.clone(), options);
                optimizer.load(&state).unwrap();
                optimizer.step(|| rosenbrock(&parameters)).unwrap();
                for (number, parameter) in parameters.iter().enumerate() {
                    let expected = golden("optimizers", "lbfgs")[name][step][number].clone();
                    let expected: Vec<f32> = serde_json::from_value(expected).unwrap();
                    for (found, expected) in parameter.to_vec::<f32>().unwrap().into_iter().zip(expected) {
                        assert!((found - expected).abs() <= 1e-4, "{name}, step {step}: {found}, expected {expected}");
                    }
                }
            }
        }
    }
}

#[test]
fn lbfgs_refuses_options_out_of_range() {
    let options = LbfgsOptions::default();
    let cases = [
        (LbfgsOptions { lr: -1.0, ..options }, "the learning rate is -1"),
        (LbfgsOptions { tolerance_grad: -1.0, ..options }, "tolerance_grad is -1"),
        (LbfgsOptions { tolerance_change: f64::NAN, ..options }, "tolerance_change is NaN"),
        (LbfgsOptions { history_size: 0, ..options }, "history_size is 0: a number from 1 on is expected"),
    ];
    for (options, expected) in cases {
        let mut optimizer = Lbfgs::new(pairs(Device::CPU), options);
        expect_error(optimizer.step(|| panic!("the closure is not called")), expected);
    }
}

#[test]
fn hyperparameters_out_of_range_are_refused() {
    fn refused(rule: impl Rule + 'static, expected: &str) {
        let parameters = parameters();
        set_gradients(&parameters, 0);
        let before = parameters[1].to_vec::<f32>().unwrap();
        expect_error(Optimizer::new(parameters.clone(), 0.1, rule).step(), expected);
        assert_eq!(parameters[1].to_vec::<f32>().unwrap(), before);
    }
    let rmsprop = RmsProp::default();
    refused(RmsProp { alpha: -0.1, ..rmsprop }, "alpha is -0.1: a number from 0 on is expected");
    refused(RmsProp { eps: f64::NAN, ..rmsprop }, "eps is NaN");
    refused(RmsProp { weight_decay: -1.0, ..rmsprop }, "weight_decay is -1");
    refused(RmsProp { momentum: -0.5, ..rmsprop }, "momentum is -0.5");
    let nadam = NAdam::default();
    refused(NAdam { betas: (0.9, 1.0), ..nadam }, "a beta is 1: a number from 0 to below 1 is expected");
    refused(NAdam { eps: -1.0, ..nadam }, "eps is -1");
    refused(NAdam { weight_decay: -1.0, ..nadam }, "weight_decay is -1");
    refused(NAdam { momentum_decay: -1.0, ..nadam }, "momentum_decay is -1");
    let adafactor = Adafactor::default();
    refused(Adafactor { beta2_decay: 0.1, ..adafactor }, "beta2_decay is 0.1: a number up to 0 is expected");
    refused(Adafactor { eps1: Some(-1.0), ..adafactor }, "eps1 is -1");
    refused(Adafactor { eps2: -1.0, ..adafactor }, "eps2 is -1");
    refused(Adafactor { d: 0.5, ..adafactor }, "d is 0.5: a number from 1 on is expected");
    refused(Adafactor { weight_decay: -1.0, ..adafactor }, "weight_decay is -1");
    let muon = Muon::default();
    refused(Muon { momentum: -0.1, ..muon }, "momentum is -0.1");
    refused(Muon { weight_decay: -1.0, ..muon }, "weight_decay is -1");
    refused(Muon { eps: -1.0, ..muon }, "eps is -1");
    refused(Muon { iterations: 100, ..muon }, "there are 100 iterations: a number below 100 is expected");
    refused(Muon { coefficients: [1.0, f64::NAN, 1.0], ..muon }, "finite numbers are expected");
}

#[test]
fn every_float_is_stepped() {
    for dtype in [DType::F16, DType::BF16, DType::F64] {
        let one = Tensor::ones(&[40_000], dtype, Device::CPU).unwrap();
        let parameter = Parameter::new("p", one.copy().unwrap()).unwrap();
        parameter.set_grad(Some(one)).unwrap();
        Optimizer::new(vec![parameter.clone()], 0.25, Adam::default()).step().unwrap();
        let stepped = parameter.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
        assert!(stepped.iter().all(|value| (value - 0.75).abs() < 1e-3), "{dtype}: {}", stepped[0]);
    }
}

#[test]
fn parameters_are_stepped_whatever_their_layout() {
    let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
    let dense = Tensor::from_slice(&values, &[2, 3]).unwrap();
    let transposed = Tensor::from_slice(&[0.0_f32, 3.0, 1.0, 4.0, 2.0, 5.0], &[3, 2]).unwrap();
    // Every other number of a tensor whose remaining numbers must not change.
    let wide = Tensor::zeros(&[2, 6], DType::F32, Device::CPU).unwrap();
    let strided = wide.slice(1, 0, 6, 2).unwrap();
    strided.copy_(&dense).unwrap();
    let layouts = [dense, transposed.transpose(0, 1).unwrap(), strided];
    let stepped = layouts.map(|layout| {
        let parameter = Parameter::new("p", layout).unwrap();
        let mut optimizer = Optimizer::new(vec![parameter.clone()], 0.1, Adam { weight_decay: 0.1, ..Adam::w() });
        for step in 0..3 {
            set_gradients(std::slice::from_ref(&parameter), step);
            let version = parameter.version();
            optimizer.step().unwrap();
            assert!(parameter.version() > version, "graphs notice");
        }
        parameter.to_vec::<f32>().unwrap()
    });
    assert_ne!(stepped[0], values);
    assert!(stepped.iter().all(|found| *found == stepped[0]), "{stepped:?}");
    assert!(wide.slice(1, 1, 6, 2).unwrap().to_vec::<f32>().unwrap().iter().all(|other| *other == 0.0));
}

#[test]
fn many_parameters_are_stepped_and_clipped_on_cuda_as_on_the_cpu() {
    /// Makes parameters of many sizes. Some have more than one chunk, and some are not a multiple of a vector or begin
    /// within one.
    fn make(device: Device, dtype: DType) -> Vec<Parameter> {
        let sizes = (0..80).map(|i| i % 13).chain([40_000, 16_384, 16_387, 9]);
        let make = |(number, size): (usize, usize)| {
            let values = |scale: f64| {
                let values: Vec<f64> = (0..size + 1).map(|i| scale * ((i * 7 + number * 3) as f64).sin()).collect();
                let all = Tensor::from_slice(&values, &[size + 1]).unwrap().to_dtype(dtype).unwrap();
                all.to_device(device).unwrap().narrow(0, number % 2, size).unwrap()
            };
            let parameter = Parameter::new(format!("p{number}"), values(1.0)).unwrap();
            if number != 5 {
                parameter.set_grad(Some(values(0.5))).unwrap();
            }
            parameter
        };
        sizes.enumerate().map(make).collect()
    }
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-12), (DType::BF16, 4e-3), (DType::F16, 5e-4)] {
        let [here, there] = [Device::CPU, cuda()].map(|device| {
            let parameters = make(device, dtype);
            let norms = [20.0, 1000.0].map(|norm| clip_grad_norm(&parameters, norm).unwrap().item::<f64>().unwrap());
            let mut optimizer = Optimizer::new(parameters.clone(), 0.1, Adam { weight_decay: 0.1, ..Adam::w() });
            (0..2).for_each(|_| optimizer.step().unwrap());
            let values = parameters.iter().map(|parameter| parameter.to_dtype(DType::F64).unwrap().to_vec::<f64>());
            (norms, values.flat_map(Result::unwrap).collect::<Vec<_>>())
        });
        assert!((here.0[0] - there.0[0]).abs() < 1e-9 * here.0[0] && (here.0[1] - 20.0).abs() < 0.1, "{:?}", here.0);
        assert!((here.0[1] - there.0[1]).abs() < tolerance * 20.0, "{:?} {:?}", here.0, there.0);
        for (here, there) in here.1.iter().zip(&there.1) {
            assert!((here - there).abs() <= tolerance * here.abs().max(1.0), "{dtype}: {here} {there}");
        }
    }
    // A norm that is not finite changes no gradient.
    let parameters = make(cuda(), DType::F32);
    parameters[20].set_grad(Some(parameters[20].full_like(f64::INFINITY).unwrap())).unwrap();
    let before = parameters[70].grad().unwrap().to_vec::<f32>().unwrap();
    let norm = clip_grad_norm(&parameters, 1.0).unwrap();
    assert_eq!(norm.item::<f64>().unwrap(), f64::INFINITY);
    assert_eq!(parameters[70].grad().unwrap().to_vec::<f32>().unwrap(), before);
}

#[test]
fn nesterov_without_momentum_is_refused() {
    let sgd = Sgd { nesterov: true, ..Sgd::default() };
    for rule in [sgd, Sgd { momentum: 0.9, dampening: 0.1, ..sgd }] {
        let parameters = parameters();
        set_gradients(&parameters, 0);
        expect_error(
            Optimizer::new(parameters, 0.1, rule).step(),
            "nesterov needs a momentum above 0 and a dampening of 0",
        );
    }
}

#[test]
fn a_parameter_that_is_given_twice_is_stepped_once() {
    let parameter = with_gradient("p", &[1.0]);
    let twice = vec![parameter.clone(), parameter.clone()];
    let optimizer = Optimizer::new(twice, 0.5, Sgd::default());
    optimizer.with_group(vec![parameter.clone()], 0.25, Sgd::default()).step().unwrap();
    assert_eq!(parameter.to_vec::<f32>().unwrap(), [-0.5]);
}

#[test]
fn the_state_of_another_rule_is_refused() {
    let parameters = parameters();
    let mut adam = Optimizer::new(parameters.clone(), 0.1, Adam::default());
    set_gradients(&parameters, 0);
    adam.step().unwrap();
    let state: BTreeMap<String, Tensor> = adam.state().unwrap().into_iter().collect();
    let error = Optimizer::new(parameters, 0.1, Adagrad::default()).load(&state).unwrap_err();
    assert!(matches!(error, Error::State(StateError::Names { .. })), "{error}");
    assert!(error.to_string().contains("p0.sum"), "{error}");
}

#[test]
fn a_step_is_a_write_that_graphs_notice() {
    let parameter = Parameter::new("p", Tensor::from_slice(&[2.0_f32], &[1]).unwrap()).unwrap();
    let square = parameter.mul(&*parameter).unwrap();
    parameter.set_grad(Some(Tensor::ones(&[1], DType::F32, Device::CPU).unwrap())).unwrap();
    Optimizer::new(vec![parameter], 0.1, Sgd::default()).step().unwrap();
    expect_error(square.backward(), "modified in place");
}

#[test]
fn schedules_are_pytorchs() {
    let schedules = [
        ("step", Schedule::Step { every: 4, gamma: 0.3 }),
        ("multi_step", Schedule::MultiStep { milestones: vec![3, 8], gamma: 0.2 }),
        ("cosine", Schedule::Cosine { steps: 12, end: 0.1 }),
        ("linear", Schedule::Linear { start: 0.25, end: 0.75, steps: 7 }),
        ("one_cycle", Schedule::OneCycle { steps: 13, up: 0.3, div_factor: 25.0, final_div_factor: 1e4 }),
    ];
    let one_step = Schedule::OneCycle { steps: 1, up: 0.3, div_factor: 25.0, final_div_factor: 1e4 };
    assert!((one_step.scale(0) - 4e-6).abs() < 1e-18, "{}", one_step.scale(0));
    for (name, schedule) in schedules {
        let expected: Vec<f64> = serde_json::from_value(golden("optimizers", "schedules")[name].clone()).unwrap();
        for (step, expected) in expected.into_iter().enumerate() {
            let found = schedule.scale(step as u64);
            assert!((found - expected).abs() <= 1e-12, "{name}, step {step}: {found}, expected {expected}");
        }
    }
}

#[test]
fn a_schedule_scales_every_group() {
    let [a, b] = ["a", "b"].map(|name| Parameter::new(name, Tensor::from_slice(&[1.0_f32], &[1]).unwrap()).unwrap());
    for parameter in [&a, &b] {
        parameter.set_grad(Some(Tensor::ones(&[1], DType::F32, Device::CPU).unwrap())).unwrap();
    }
    let mut optimizer =
        Optimizer::new(vec![a.clone()], 0.5, Sgd::default()).with_group(vec![b.clone()], 0.25, Sgd::default());
    optimizer.set_lr_scale(Schedule::Step { every: 1, gamma: 0.5 }.scale(1));
    optimizer.step().unwrap();
    assert_eq!((a.item::<f32>().unwrap(), b.item::<f32>().unwrap()), (0.75, 0.875));
}

fn with_gradient(name: &str, grad: &[f32]) -> Parameter {
    let parameter = Parameter::new(name, Tensor::zeros(&[grad.len()], DType::F32, Device::CPU).unwrap()).unwrap();
    parameter.set_grad(Some(Tensor::from_slice(grad, &[grad.len()]).unwrap())).unwrap();
    parameter
}

fn gradient(parameter: &Parameter) -> Vec<f32> {
    parameter.grad().unwrap().to_vec().unwrap()
}

#[test]
fn gradients_are_clipped_together() {
    let parameters = [with_gradient("a", &[3.0]), with_gradient("b", &[0.0, 4.0])];
    assert_eq!(clip_grad_norm(&parameters, 1.0).unwrap().item::<f64>().unwrap(), 5.0);
    assert!((gradient(&parameters[0])[0] - 0.6).abs() < 1e-6 && (gradient(&parameters[1])[1] - 0.8).abs() < 1e-6);
    let norm = clip_grad_norm(&parameters, 2.0).unwrap().item::<f64>().unwrap();
    assert!((norm - 1.0).abs() < 1e-6, "a small norm stays");
    assert!((gradient(&parameters[0])[0] - 0.6).abs() < 1e-6);
    clip_grad_value(&parameters, 0.7).unwrap();
    assert_eq!(gradient(&parameters[1]), [0.0, 0.7]);
}

#[test]
fn a_gradient_that_two_parameters_share_is_clipped_once() {
    let [a, b] = ["a", "b"].map(|name| Parameter::new(name, Tensor::from_slice(&[1.0_f32], &[]).unwrap()).unwrap());
    a.add(&*b).unwrap().backward().unwrap();
    clip_grad_norm([&a, &b], 0.5).unwrap();
    let expected = 0.5 / 2.0_f32.sqrt();
    assert!((gradient(&a)[0] - expected).abs() < 1e-6 && (gradient(&b)[0] - expected).abs() < 1e-6);
}

#[test]
fn a_step_with_infinite_gradients_is_left_out_and_the_scale_halved() {
    let parameter = with_gradient("a", &[f32::INFINITY]);
    let mut optimizer = Optimizer::new(vec![parameter.clone()], 0.1, Sgd::default());
    let mut scaler = GradScaler { growth_interval: 1, ..GradScaler::default() };
    assert!(!scaler.unscale(&mut optimizer).unwrap());
    assert!(!scaler.step(&mut optimizer).unwrap());
    assert_eq!((parameter.to_vec::<f32>().unwrap(), scaler.state.scale), (vec![0.0], 32_768.0));

    let loss = scaler.scale(&parameter.sum_all().unwrap()).unwrap();
    parameter.set_grad(None).unwrap();
    loss.backward().unwrap();
    assert_eq!(gradient(&parameter), [32_768.0]);
    // The step itself scales the gradients down.
    assert!(scaler.step(&mut optimizer).unwrap());
    assert_eq!((parameter.to_vec::<f32>().unwrap(), scaler.state.scale), (vec![-0.1], 65_536.0));
}

#[test]
fn gradients_are_scaled_down_once_for_each_step() {
    let parameter = with_gradient("a", &[65_536.0]);
    let mut optimizer = Optimizer::new(vec![parameter.clone()], 0.5, Sgd::default());
    let mut scaler = GradScaler::default();
    for value in [-0.5, -1.0] {
        parameter.set_grad(Some(Tensor::from_slice(&[65_536.0_f32], &[1]).unwrap())).unwrap();
        assert!(scaler.unscale(&mut optimizer).unwrap());
        expect_error(scaler.unscale(&mut optimizer), "the gradients were scaled down already");
        assert_eq!(gradient(&parameter), [1.0]);
        assert!(scaler.step(&mut optimizer).unwrap());
        assert_eq!(parameter.to_vec::<f32>().unwrap(), [value]);
    }
}

#[test]
fn a_step_that_is_left_out_leaves_nothing_for_the_next() {
    let parameter = Parameter::new("p", Tensor::from_slice(&[1.0_f32], &[1]).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![parameter.clone()], 0.1, Sgd::default());
    let mut scaler = GradScaler::default();
    let backward = |scaler: &GradScaler| {
        let square = parameter.mul(&*parameter).unwrap().sum_all().unwrap();
        scaler.scale(&square).unwrap().backward().unwrap();
    };
    backward(&scaler);
    scaler.unscale(&mut optimizer).unwrap();
    optimizer.zero_grad();
    backward(&scaler);
    assert!(scaler.step(&mut optimizer).unwrap());
    assert_eq!(parameter.to_vec::<f32>().unwrap(), [0.8]);
}

#[test]
fn numbers_that_make_no_sense_are_refused_and_nothing_is_stepped() {
    fn refused(lr: f64, rule: impl Rule + 'static, expected: &str) {
        let parameter = with_gradient("p", &[1.0]);
        let sound = Optimizer::new(vec![parameter.clone()], 0.1, Sgd::default());
        let other = with_gradient("other", &[1.0]);
        expect_error(sound.with_group(vec![other], lr, rule).step(), expected);
        assert_eq!(parameter.to_vec::<f32>().unwrap(), [0.0]);
    }
    let sgd = Sgd::default();
    let adam = Adam::default();
    let adagrad = Adagrad::default();
    for (lr, shown) in [(-1.0, "-1"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        refused(lr, sgd, &format!("the learning rate is {shown}: a number from 0 on is expected"));
    }
    refused(0.1, Sgd { momentum: -1.0, ..sgd }, "momentum is -1");
    refused(0.1, Sgd { weight_decay: -1.0, ..sgd }, "weight_decay is -1");
    refused(0.1, Adam { betas: (1.0, 0.9), ..adam }, "a beta is 1: a number from 0 to below 1 is expected");
    refused(0.1, Adam { betas: (0.9, -0.5), ..adam }, "a beta is -0.5");
    refused(0.1, Adam { eps: -1.0, ..adam }, "eps is -1");
    refused(0.1, Adam { weight_decay: f64::NAN, ..adam }, "weight_decay is NaN");
    refused(0.1, Adagrad { lr_decay: -1.0, ..adagrad }, "lr_decay is -1");
    refused(0.1, Adagrad { initial_accumulator_value: -1.0, ..adagrad }, "initial_accumulator_value is -1");

    let mut optimizer = Optimizer::new(vec![with_gradient("p", &[1.0])], 0.1, sgd);
    for scale in [0.0, -2.0, f64::INFINITY] {
        let mut scaler = GradScaler { state: ScalerState { scale, steps: 0 }, ..GradScaler::default() };
        let loss = Tensor::ones(&[], DType::F32, Device::CPU).unwrap();
        for error in [scaler.scale(&loss).unwrap_err(), scaler.step(&mut optimizer).unwrap_err()] {
            assert!(error.to_string().contains(&format!("the scale is {scale}")), "{error}");
        }
    }
}

#[test]
fn a_state_of_fewer_than_no_steps_is_refused() {
    let state: BTreeMap<_, _> = [("p.step".to_owned(), Tensor::from_slice(&[-1_i64], &[]).unwrap())].into();
    expect_error(
        Optimizer::new(vec![with_gradient("p", &[1.0])], 0.1, Sgd::default()).load(&state),
        "p.step is -1: no number of steps",
    );
}

#[test]
fn a_gradient_of_other_sizes_is_refused() {
    let parameter = Parameter::new("p", Tensor::from_slice(&[1.0_f32; 3], &[3]).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![parameter.clone()], 0.1, Sgd::default());
    for count in [2, 5] {
        let expected = format!("a gradient of float32 [{count}] on cpu was given for a tensor of float32 [3] on cpu");
        expect_error(parameter.set_grad(Some(Tensor::ones(&[count], DType::F32, Device::CPU).unwrap())), &expected);
        optimizer.step().unwrap();
    }
    assert_eq!(parameter.to_vec::<f32>().unwrap(), [1.0; 3]);
}

#[test]
fn a_group_ascends_its_gradients_if_it_maximizes() {
    let x = Parameter::new("x", Tensor::from_slice(&[4.0_f32], &[1]).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![x.clone()], 0.5, Sgd::default());
    optimizer.groups_mut()[0].set_maximize(true);
    x.set_grad(Some(Tensor::from_slice(&[2.0_f32], &[1]).unwrap())).unwrap();
    optimizer.step().unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [5.0]);
}

#[test]
fn slots_that_another_rule_adds_are_made_at_the_next_step() {
    let x = Parameter::new("x", Tensor::from_slice(&[4.0_f32], &[1]).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![x.clone()], 1.0, Sgd::default());
    x.set_grad(Some(Tensor::from_slice(&[1.0_f32], &[1]).unwrap())).unwrap();
    optimizer.step().unwrap();
    optimizer.groups_mut()[0].set_rule(Arc::new(Sgd { momentum: 0.5, ..Sgd::default() }));
    optimizer.step().unwrap();
    optimizer.step().unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [4.0 - 1.0 - 1.0 - 1.5]);
    let (steps, slots) = optimizer.groups()[0].state_of(0).unwrap();
    assert_eq!((steps, slots[0].0, slots[0].1.to_vec::<f32>().unwrap()), (3, "momentum_buffer", vec![1.5]));
}

#[test]
fn slots_of_the_same_names_keep_their_values_under_another_rule() {
    let x = Parameter::new("x", Tensor::from_slice(&[4.0_f32], &[1]).unwrap()).unwrap();
    let centered = RmsProp { momentum: 0.5, centered: true, ..RmsProp::default() };
    let mut optimizer = Optimizer::new(vec![x.clone()], 1.0, centered);
    x.set_grad(Some(Tensor::from_slice(&[1.0_f32], &[1]).unwrap())).unwrap();
    optimizer.step().unwrap();
    let slots = |optimizer: &Optimizer| {
        let (_, slots) = optimizer.groups()[0].state_of(0).unwrap();
        slots.into_iter().map(|(name, slot)| (name, slot.item::<f32>().unwrap())).collect::<Vec<_>>()
    };
    let before = slots(&optimizer);
    assert_eq!(before.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["square_avg", "grad_avg", "momentum_buffer"]);
    optimizer.groups_mut()[0].set_rule(Arc::new(RmsProp { centered: false, ..centered }));
    assert_eq!(slots(&optimizer), [before[0], before[2]]);
}
