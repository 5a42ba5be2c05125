//! Tests that captured steps equal the same steps one by one. The device is simulated, unless `TENURE_TEST_DRIVER` is
//! `cuda`.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use fixtures::{alone_with_device, bytes, expect_error, go_on, gpt2, path_in_folder, text};
use parking_lot::MutexGuard;
use tenure_device::memory::DeviceMemory;
use tenure_device::sim::{Failure, SimConfig};
use tenure_device::{Call, Executor};
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::layers::{BatchNorm, BatchNormOptions, Layer};
use tenure_nn::models::{Gpt2, ResNet, ResNetConfig};
use tenure_nn::optim::{
    Adafactor, Adagrad, Adam, GradScaler, NAdam, Optimizer, RmsProp, Rule, Schedule, Sgd, clip_grad_norm,
};
use tenure_nn::train::{Classification, Task, Trainer, TrainerOptions};
use tenure_nn::{Module, Parameter, Scope};
use tenure_tensor::autocast::Autocast;
use tenure_tensor::cuda::Captured;
use tenure_tensor::ops::CrossEntropy;
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, MemoryFormat, Tensor};

type Run = Trainer<Classification<Gpt2>, TextWindows>;

const DEVICE: Device = Device::cuda(0);
const STEPS: u64 = 14;
const WINDOW: usize = 8;

fn alone() -> (MutexGuard<'static, ()>, &'static DeviceMemory) {
    alone_with_device(SimConfig::default())
}

/// Makes a run with dropout, and with an epoch of six batches, the last of which is not full.
fn run(rule: impl Rule + 'static, is_captured: bool) -> Run {
    random::manual_seed(7);
    let config = gpt2(5, WINDOW, 16, 2);
    let model = Gpt2::new(&Scope::new(&Generator::new(1)).with_device(DEVICE), &config).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 1e-2, rule);
    let options = LoaderOptions { batch_size: 4, shuffle: Some(3), device: DEVICE, ..LoaderOptions::default() };
    let loader = DataLoader::new(text(22, WINDOW, 5), options);
    let schedule = Schedule::Cosine { steps: STEPS, end: 0.1 }.with_warmup(2);
    let plan =
        TrainerOptions { steps: STEPS, schedule, clip_norm: Some(1.0), is_captured, ..TrainerOptions::default() };
    Trainer::new(Classification(model), loader, optimizer, plan)
}

/// Returns the states of the generators of the device and of the CPU.
fn states() -> [random::GeneratorState; 2] {
    [DEVICE, Device::CPU].map(|device| random::default_generator(device).state())
}

/// Returns the results of a run, bit for bit.
fn outcome(run: &Run) -> (Vec<(u32, u64)>, Vec<Vec<u8>>, random::GeneratorState) {
    let losses = run.history().iter().map(|step| (step.loss.to_bits(), step.lr.to_bits())).collect();
    let mut bytes = bytes(run.task().model());
    bytes.extend(run.optimizer().state().unwrap().into_iter().map(|(_, tensor)| tensor.to_bytes().unwrap()));
    (losses, bytes, random::default_generator(DEVICE).state())
}

fn whole(rule: impl Rule + 'static, is_captured: bool) -> (Vec<(u32, u64)>, Vec<Vec<u8>>, random::GeneratorState) {
    let mut run = run(rule, is_captured);
    go_on(&mut run, usize::MAX);
    outcome(&run)
}

fn expect_same(rule: impl Rule + Copy + 'static) {
    assert_eq!(whole(rule, true), whole(rule, false));
}

#[test]
fn a_captured_run_is_the_run() {
    let _alone = alone();
    let sgd = Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
    let adagrad = Adagrad { lr_decay: 0.1, ..Adagrad::default() };
    expect_same(Adam::w());
    expect_same(sgd);
    expect_same(Sgd::default());
    expect_same(adagrad);
    expect_same(RmsProp { momentum: 0.9, centered: true, ..RmsProp::default() });
    expect_same(NAdam::default());
}

#[test]
fn a_captured_run_in_autocast_is_evaluated_with_the_weights_that_it_has() {
    let _alone = alone();
    let evaluated = |is_captured| {
        let mut run = run(Adam::w(), is_captured);
        let options = LoaderOptions { batch_size: 4, device: DEVICE, ..LoaderOptions::default() };
        let held = DataLoader::new(text(22, WINDOW, 5), options);
        let _autocast = Autocast::enter(DType::BF16);
        let mut right = Vec::new();
        for steps in (3..=STEPS as usize).step_by(3) {
            go_on(&mut run, steps);
            right.push(run.evaluate(&held, |_| true).unwrap().unwrap().right);
        }
        (right, run.history().last().unwrap().loss.to_bits())
    };
    assert_eq!(evaluated(true), evaluated(false));
}

#[test]
fn a_captured_run_goes_on_after_an_interruption_and_an_evaluation() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let expected = whole(Adam::w(), false);
    let mut interrupted = run(Adam::w(), true);
    go_on(&mut interrupted, 4);
    interrupted.save(&path).unwrap();
    let mut resumed = run(Adam::w(), true);
    // Its own steps until then have no effect, captured or not.
    go_on(&mut resumed, 3);
    resumed.resume(&path).unwrap();
    go_on(&mut resumed, 9);
    let data = TextWindows::of_tokens(vec![1; 4 * WINDOW + 1], WINDOW).unwrap();
    let held_out = DataLoader::new(data, LoaderOptions { batch_size: 4, device: DEVICE, ..LoaderOptions::default() });
    assert_eq!(resumed.evaluate(&held_out, |_| true).unwrap().unwrap().all, 4 * WINDOW as u64);
    go_on(&mut resumed, usize::MAX);
    assert_eq!(outcome(&resumed), expected);
}

#[test]
fn a_checkpoint_restores_the_generators_of_the_device_and_of_the_cpu() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("checkpoint");
    let mut run = run(Adam::w(), false);
    go_on(&mut run, 1);
    random::default_generator(Device::CPU).manual_seed(11);
    let saved = states();
    run.save(&path).unwrap();
    go_on(&mut run, 2);
    random::default_generator(Device::CPU).manual_seed(12);
    assert!(states()[0] != saved[0] && states()[1] != saved[1]);
    run.resume(&path).unwrap();
    assert_eq!(states(), saved);
}

#[test]
fn a_replay_asks_for_no_memory_and_reports_that_of_the_step() {
    let (_alone, memory) = alone();
    let eager = {
        let mut run = run(Adam::w(), false);
        go_on(&mut run, 4);
        run.history()[3].memory
    };
    let mut run = run(Adam::w(), true);
    go_on(&mut run, 3);
    let statistics = || memory.allocator().statistics().all;
    let waits = || match memory.driver().executor() {
        Executor::Sim(sim) => Some(sim.counters().host_syncs),
        Executor::Cuda(_) => None,
    };
    let before = statistics();
    let waited = waits();
    go_on(&mut run, 5);
    // One wait for each of the two losses.
    assert_eq!(waits(), waited.map(|waited| waited + 2));
    assert_eq!(statistics().reserved_bytes.current, before.reserved_bytes.current);
    // Two batches of two tensors each, and those that are read ahead.
    assert!(statistics().allocation.allocated - before.allocation.allocated <= 12);
    let captured = run.history()[3].memory;
    // Once a plain step was made after the capture, further ones reserve nothing more.
    go_on(&mut run, 6);
    let rest = statistics().reserved_bytes.current;
    go_on(&mut run, 12);
    assert_eq!(statistics().reserved_bytes.current, rest);
    assert!(captured.peak_bytes as f64 <= 1.2 * eager.peak_bytes as f64 + 1e6, "{captured:?} {eager:?}");
    assert_eq!(captured.tags.of(tenure_core::Tag::Weight), eager.tags.of(tenure_core::Tag::Weight));
}

#[test]
fn learning_rates_count_when_a_step_is_replayed() {
    let _alone = alone();
    let x = Parameter::new("x", Tensor::full(&[3], 4, DType::F64, DEVICE).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![x.clone()], 0.25, Sgd::default());
    let loss = || Ok::<_, tenure_nn::Error>(x.sum_all()?);
    let mut step = || {
        loss()?.backward()?;
        clip_grad_norm([&x], 100.0)?;
        optimizer.step()?;
        optimizer.zero_grad();
        // Two steps in one replay.
        loss()?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok::<_, tenure_nn::Error>(())
    };
    step().unwrap();
    let (mut captured, ()) = Captured::new(DEVICE, step).unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [3.5; 3]);
    captured.replay().unwrap();
    optimizer.groups_mut()[0].set_lr(0.5);
    captured.replay().unwrap();
    optimizer.set_lr_scale(0.5);
    captured.replay().unwrap();
    assert_eq!(x.to_vec::<f64>().unwrap(), [1.5; 3]);
    assert_eq!(optimizer.state().unwrap()[0].1.item::<i64>().unwrap(), 8);
    optimizer.groups_mut()[0].set_lr(-1.0);
    expect_error(captured.replay(), "learning rate is -0.5");
    optimizer.groups_mut()[0].set_lr(0.5);
    drop(optimizer);
    expect_error(captured.replay(), "or is gone");
}

#[test]
fn a_replay_that_fails_counts_no_step() {
    let (_alone, memory) = alone();
    let [x, y] =
        ["x", "y"].map(|name| Parameter::new(name, Tensor::full(&[3], 4, DType::F64, DEVICE).unwrap()).unwrap());
    let groups = Optimizer::new(vec![x.clone()], 0.25, Sgd::default());
    let mut optimizer = groups.with_group(vec![y.clone()], 0.25, Sgd::default());
    let step = || {
        x.mul(&y)?.sum_all()?.backward()?;
        // Two steps in one replay.
        optimizer.step()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok::<_, tenure_nn::Error>(())
    };
    let (mut captured, ()) = Captured::new(DEVICE, step).unwrap();
    captured.replay().unwrap();
    let outcome = |optimizer: &Optimizer| {
        let state = optimizer.state().unwrap().into_iter().map(|(_, tensor)| tensor);
        state.chain([x.detach(), y.detach()]).map(|tensor| tensor.to_bytes().unwrap()).collect::<Vec<_>>()
    };
    let before = outcome(&optimizer);
    optimizer.groups_mut()[1].set_lr(-1.0);
    expect_error(captured.replay(), "learning rate is -1");
    assert!(outcome(&optimizer) == before);
    optimizer.groups_mut()[1].set_lr(0.25);
    if let Executor::Sim(sim) = memory.driver().executor() {
        sim.inject(Failure::of(Call::LaunchGraph, 1));
        assert!(captured.replay().is_err());
        assert!(outcome(&optimizer) == before);
    }
    captured.replay().unwrap();
    assert_eq!(optimizer.state().unwrap()[0].1.item::<i64>().unwrap(), 4);
}

#[test]
fn a_step_that_cannot_be_captured_is_refused() {
    let _alone = alone();
    let x = Parameter::new("x", Tensor::full(&[3], 4, DType::F32, DEVICE).unwrap()).unwrap();
    let mut optimizer = Optimizer::new(vec![x.clone()], 0.25, Adam::default());
    let mut step = |scaler: Option<&mut GradScaler>| {
        x.sum_all()?.backward()?;
        match scaler {
            Some(scaler) => scaler.step(&mut optimizer).map(drop),
            None => optimizer.step(),
        }
    };
    expect_error(Captured::new(DEVICE, || step(None)).map(drop), "the first step of x");
    x.set_grad(None).unwrap();
    step(None).unwrap();
    x.set_grad(None).unwrap();
    expect_error(Captured::new(DEVICE, || step(Some(&mut GradScaler::default()))).map(drop), "cannot be captured");
    x.set_grad(None).unwrap();
    // The failed captures changed nothing.
    step(None).unwrap();
    assert_eq!(x.to_vec::<f32>().unwrap(), [3.5; 3]);

    let mut whole = Optimizer::new(vec![x.clone()], 0.25, Adafactor::default());
    x.sum_all().unwrap().backward().unwrap();
    expect_error(Captured::new(DEVICE, || whole.step()).map(drop), "a step of adafactor cannot be captured");

    let mut run = run(Adam::w(), true);
    run.step().unwrap();
    let y = Parameter::new("y", Tensor::ones(&[2], DType::F32, Device::CPU).unwrap()).unwrap();
    let mut on_cpu = Optimizer::new(vec![y.clone()], 0.25, Sgd::default());
    y.sum_all().unwrap().backward().unwrap();
    expect_error(Captured::new(DEVICE, || on_cpu.step()).map(drop), "on the CPU");
}

#[test]
fn statistics_of_batch_norm_count_in_replays() {
    let _alone = alone();
    let images = Tensor::randn(&[2, 3, 8, 8], DType::F32, Device::CPU, &Generator::new(2)).unwrap();
    let images = images.to_device(DEVICE).unwrap();
    let after = |momentum: Option<f64>, replays: usize| {
        let scope = Scope::new(&Generator::new(1));
        let options = BatchNormOptions { momentum, ..Default::default() };
        let model = BatchNorm::<2>::with_options(&scope.with_device(DEVICE), 3, options).unwrap();
        let mut optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
        let mut step = || {
            model.forward(&images)?.square()?.mul(&images)?.sum_all()?.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            Ok::<_, tenure_nn::Error>(())
        };
        (0..4 - replays).for_each(|_| step().unwrap());
        let (mut captured, ()) = Captured::new(DEVICE, step).unwrap();
        (0..replays).for_each(|_| captured.replay().unwrap());
        bytes(&model)
    };
    for momentum in [Some(0.1), None] {
        assert!(after(momentum, 3) == after(momentum, 0), "the states differ, momentum {momentum:?}");
    }
}

#[test]
fn a_captured_step_of_a_large_model_reserves_little_more_than_it_uses() {
    let (_alone, memory) = alone();
    let scope = Scope::new(&Generator::new(0)).with_device(DEVICE).with_dtype(DType::BF16).zeroed();
    let mut model = ResNet::new(&scope, ResNetConfig::RESNET50).unwrap();
    model.to_format(MemoryFormat::ChannelsLast2d).unwrap();
    let mut optimizer = Optimizer::new(model.parameters(), 0.01, Sgd { momentum: 0.9, ..Sgd::default() });
    let mut step = |batch: usize, side: usize| {
        let images = Tensor::zeros(&[batch, 3, side, side], DType::BF16, DEVICE)?;
        let labels = Tensor::zeros(&[batch], DType::I64, DEVICE)?;
        let scores = model.forward(&images.contiguous_in(MemoryFormat::ChannelsLast2d)?)?;
        scores.cross_entropy(&labels, &CrossEntropy::default())?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        Ok::<_, tenure_nn::Error>(())
    };
    step(2, 32).unwrap();
    memory.allocator().release_cached().unwrap();
    memory.allocator().reset_peak_statistics();
    // A capture executes none of the work.
    let (captured, ()) = Captured::new(DEVICE, || step(128, 224)).unwrap();
    let all = memory.allocator().statistics().all;
    let reserved = all.reserved_bytes.peak;
    let used = all.allocated_bytes.peak;
    assert!(used > 5 << 30 && reserved - used <= used / 50, "{reserved} reserved, {used} used");
    drop(captured);
}
