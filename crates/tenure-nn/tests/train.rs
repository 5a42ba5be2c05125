//! Tests of the trainer: steps, their costs, and resuming.
#![expect(
    clippy::disallowed_methods,
    reason = "bounds a time that the code reports from above; polls a condition that no event tells of"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use fixtures::{Flaky, bytes, expect_error, go_on, path_in_folder};
use parking_lot::{Mutex, MutexGuard};
use tenure_core::Tag;
use tenure_nn::checkpoint::{Checkpoint, Progress};
use tenure_nn::data::{DataLoader, Dataset, LoaderOptions, Subset, TextWindows};
use tenure_nn::models::Gpt2;
use tenure_nn::optim::{Adam, Optimizer, Schedule};
use tenure_nn::train::{Classification, Recorder, Score, Task, TrainError, Trainer, TrainerOptions};
use tenure_nn::{Error, Module, Scope};
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{DType, Device, Tensor};

type Run = Trainer<Classification<Gpt2>, TextWindows>;
type Window = (Vec<i64>, Vec<i64>);

const STEPS: u64 = 14;
const WINDOW: usize = 8;

/// Locks the default generator and the memory counters, which belong to the process, for one test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

fn model() -> Gpt2 {
    Gpt2::new(&Scope::new(&Generator::new(1)), &fixtures::gpt2(5, WINDOW, 16, 2)).unwrap()
}

fn text(windows: usize) -> TextWindows {
    fixtures::text(windows, WINDOW, 5)
}

fn plan() -> TrainerOptions {
    let identity = [("--seed".to_owned(), "3".to_owned())].into();
    let schedule = Schedule::Cosine { steps: STEPS, end: 0.1 }.with_warmup(2);
    TrainerOptions { steps: STEPS, schedule, clip_norm: Some(1.0), identity, ..TrainerOptions::default() }
}

/// Makes a run with dropout, and with an epoch of six batches, the last of which is not full.
fn run(lr: f64, plan: TrainerOptions) -> Run {
    run_on(text(22), lr, plan)
}

fn run_on<D: Dataset<Item = Window> + 'static>(
    data: D,
    lr: f64,
    plan: TrainerOptions,
) -> Trainer<Classification<Gpt2>, D> {
    random::manual_seed(7);
    let model = model();
    let optimizer = Optimizer::new(model.parameters(), lr, Adam::w());
    let options = LoaderOptions { batch_size: 4, shuffle: Some(3), ..LoaderOptions::default() };
    Trainer::new(Classification(model), DataLoader::new(data, options), optimizer, plan)
}

fn losses(run: &Run) -> Vec<u32> {
    run.history().iter().map(|step| step.loss.to_bits()).collect()
}

#[test]
fn a_run_learns_and_tells_every_step() {
    let _alone = alone();
    let mut run = run(1e-2, plan());
    go_on(&mut run, usize::MAX);
    let history = run.history();
    assert_eq!(history.len() as u64, STEPS);
    assert!(history[13].loss < history[0].loss);
    assert_eq!(history.iter().map(|step| step.number).collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    assert_eq!(history.iter().map(|step| step.epoch).collect::<Vec<_>>()[5..7], [0, 1]);
    assert_eq!(history.iter().map(|step| step.examples).collect::<Vec<_>>()[4..7], [4, 2, 4]);
    assert_eq!([history[0].lr, history[1].lr], [5e-3, 1e-2]);
    assert!(history.iter().all(|step| step.elapsed_ms > 0.0 && step.examples_per_second() > 0.0));
}

#[test]
fn an_interrupted_run_goes_on_as_if_it_had_not_been() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let mut whole = run(1e-2, plan());
    go_on(&mut whole, usize::MAX);
    // Before the first step, within an epoch, at its end, and after the last step.
    for steps in [0, 4, 6, STEPS as usize] {
        let mut interrupted = run(1e-2, plan());
        go_on(&mut interrupted, steps);
        assert_eq!(interrupted.is_at_end_of_epoch(), steps == 6);
        interrupted.save(&path).unwrap();
        go_on(&mut interrupted, usize::MAX);

        // The learning rate comes from the checkpoint.
        let mut resumed = run(0.5, plan());
        go_on(&mut resumed, 1);
        resumed.resume(&path).unwrap();
        assert_eq!(resumed.history(), &interrupted.history()[..steps]);
        go_on(&mut resumed, usize::MAX);
        assert_eq!(losses(&resumed), losses(&whole), "interrupted after {steps}");
        assert_eq!(bytes(resumed.task().model()), bytes(whole.task().model()));
    }
}

#[test]
fn an_example_that_cannot_be_read_once_is_read_by_the_next_step() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let mut whole = run(1e-2, plan());
    go_on(&mut whole, usize::MAX);
    // In the third batch, and in the first batch of the second epoch.
    for left in [9, 23] {
        let mut flaky = run_on(Flaky { text: text(22), left: left.into() }, 1e-2, plan());
        let error = std::iter::from_fn(|| Some(flaky.step())).find_map(Result::err).unwrap();
        assert!(error.to_string().contains("the disk is away"), "{error}");
        flaky.save(&path).unwrap();
        while flaky.step().unwrap().is_some() {}
        assert_eq!(flaky.history().iter().map(|step| step.loss.to_bits()).collect::<Vec<_>>(), losses(&whole));
        let mut resumed = run(1e-2, plan());
        resumed.resume(&path).unwrap();
        go_on(&mut resumed, usize::MAX);
        assert_eq!(losses(&resumed), losses(&whole));
    }
}

#[test]
fn a_step_that_fails_leaves_no_gradients_and_can_be_made_again() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let mut run = run(1e-2, plan());
    go_on(&mut run, 2);
    run.optimizer_mut().groups_mut()[0].set_lr(-1.0);
    expect_error(run.step(), "the learning rate is -");
    assert!(run.optimizer().parameters().all(|parameter| parameter.grad().is_none()));
    run.optimizer_mut().groups_mut()[0].set_lr(1e-2);
    go_on(&mut run, 3);
    run.save(&path).unwrap();
    run.resume(&path).unwrap();
}

#[test]
fn a_checkpoint_of_another_run_is_refused_and_nothing_changes() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    run(1e-2, plan()).save(&path).unwrap();
    let mut other = run(1e-2, TrainerOptions { identity: [("--seed".to_owned(), "4".to_owned())].into(), ..plan() });
    go_on(&mut other, 1);
    let before = bytes(other.task().model());
    let error = other.resume(&path).unwrap_err();
    assert_eq!(error.to_string(), "the checkpoint is of a run with --seed 3, not 4");
    assert_eq!(bytes(other.task().model()), before);
    let mut other = run(1e-2, TrainerOptions { identity: [].into(), ..plan() });
    let error = other.resume(&path).unwrap_err();
    assert_eq!(error.to_string(), "the checkpoint is of a run with --seed 3, not none");
    let error = other.resume(Path::new("missing")).unwrap_err();
    assert!(error.to_string().starts_with("missing: "), "{error}");
    // If the property may differ, the run resumes, and its own checkpoints have its current properties.
    let may_differ: std::collections::BTreeSet<_> = ["--seed".to_owned()].into();
    let now = TrainerOptions { identity: [("--seed".to_owned(), "4".to_owned())].into(), may_differ, ..plan() };
    let mut other = run(1e-2, now.clone());
    other.resume(&path).unwrap();
    go_on(&mut other, 1);
    other.save(&path).unwrap();
    run(1e-2, TrainerOptions { may_differ: Default::default(), ..now }).resume(&path).unwrap();
}

#[test]
fn a_checkpoint_that_contradicts_itself_is_refused_and_nothing_changes() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let mut saved = run(1e-2, plan());
    go_on(&mut saved, 8);
    saved.save(&path).unwrap();
    let progress = Checkpoint::open(&path).unwrap().progress().clone();
    assert_eq!((progress.step, progress.epoch, progress.batch), (8, 1, 2));
    let mut other = run(1e-2, plan());
    let before = bytes(other.task().model());
    let mut refused = |change: &dyn Fn(&mut Progress), expected: &str| {
        let mut progress = progress.clone();
        change(&mut progress);
        Checkpoint::save(&path, saved.task().model(), saved.optimizer(), &progress).unwrap();
        let error = other.resume(&path).unwrap_err().to_string();
        assert!(error.contains("run.safetensors: ") && error.contains(expected), "{error}");
        assert_eq!(bytes(other.task().model()), before);
    };
    refused(&|progress| progress.step = 9, "it is of step 9, and tells of 8 steps");
    refused(&|progress| progress.batch = 3, "step 8, and of batch 3 in epoch 1");
    refused(&|progress| (progress.epoch, progress.batch) = (0, 8), "where an epoch has 6 batches");
    refused(&|progress| progress.epoch = u64::MAX, "do not go together");
    refused(&|progress| drop(progress.series.remove("loss")), "it does not tell loss");
    refused(&|progress| progress.series.get_mut("lr").unwrap().truncate(7), "of 8 steps, and another of 7");
}

#[test]
fn a_long_history_does_not_fill_the_header_of_a_checkpoint() {
    let _alone = alone();
    let (_folder, path) = path_in_folder("run.safetensors");
    let mut run = run(1e-2, plan());
    let [first, last] = [1, 14].map(|steps| {
        go_on(&mut run, steps);
        run.save(&path).unwrap();
        u64::from_le_bytes(fs::read(&path).unwrap()[..8].try_into().unwrap())
    });
    // Some numbers gain digits.
    assert!(last < first + 256);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let _alone = alone();
    let mut run = run(1e30, TrainerOptions { clip_norm: None, schedule: Schedule::Constant, ..plan() });
    let error = std::iter::from_fn(|| Some(run.step())).find_map(Result::err).unwrap();
    assert!(matches!(error, Error::Train(TrainError::Diverged { step: 2.., .. })), "{error}");
    assert!(error.to_string().contains("a smaller learning rate"), "{error}");
}

#[test]
fn too_few_examples_for_a_batch_are_an_error() {
    let model = model();
    let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
    let options = LoaderOptions { batch_size: 4, drop_last: true, ..LoaderOptions::default() };
    let mut run = Trainer::new(Classification(model), DataLoader::new(text(3), options), optimizer, plan());
    assert_eq!(run.step().unwrap_err().to_string(), "3 examples are too few for a batch");
}

#[test]
fn memory_is_told_by_what_it_is_for() {
    let _alone = alone();
    let mut run = run(1e-2, plan());
    let parameters = run.task().model().parameter_count() as u64 * 4;
    go_on(&mut run, 3);
    let memory = run.history()[2].memory;
    assert!(memory.tags.of(Tag::Weight) >= parameters);
    assert!(memory.tags.of(Tag::OptimizerState) >= 2 * parameters);
    assert!(memory.tags.of(Tag::Activation) > 0 && memory.tags.of(Tag::Input) > 0);
    assert!(memory.tag_peaks.of(Tag::Gradient) >= parameters);
    assert!(memory.peak_bytes >= memory.tags.total());
    assert!(Tag::ALL.iter().all(|tag| memory.tag_peaks.of(*tag) >= memory.tags.of(*tag)));
    assert_eq!(memory.tags.total(), Tag::ALL.iter().map(|tag| memory.tags.of(*tag)).sum::<u64>());
}

/// The system decides when a recorder's thread runs, so steps are made until it has sampled during a backward pass.
#[test]
fn a_recording_sees_what_is_held_only_within_a_step() {
    let _alone = alone();
    let begun = Instant::now();
    loop {
        let mut run = run(1e-2, plan());
        let recorder = Recorder::begin(Duration::from_micros(20), Device::CPU);
        go_on(&mut run, 3);
        let recording = recorder.finish();
        assert!(recording.windows(2).all(|pair| pair[0].at_us <= pair[1].at_us));
        if recording.iter().any(|moment| moment.tags.of(Tag::Gradient) > 0) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(300), "no gradient in {} moments", recording.len());
    }
}

#[test]
fn a_recording_begins_with_what_was_held_when_it_was_asked_for() {
    let _alone = alone();
    for _ in 0..20 {
        let held = Tensor::zeros(&[1 << 16], DType::F32, Device::CPU).unwrap();
        let before = tenure_nn::train::TagBytes::now(Device::CPU);
        let asked = Instant::now();
        let recorder = Recorder::begin(Duration::from_micros(10), Device::CPU);
        let began_us = asked.elapsed().as_micros() as u64;
        drop(held);
        let recording = recorder.finish();
        assert_eq!(recording[0].tags, before);
        assert!(recording[0].at_us <= began_us, "{} of {began_us} us", recording[0].at_us);
    }
}

#[test]
fn predictions_are_counted_as_in_use() {
    let _alone = alone();
    let mut run = run(1e-2, plan());
    go_on(&mut run, 2);
    let options = LoaderOptions { batch_size: 3, ..LoaderOptions::default() };
    let held_out = DataLoader::new(text(7), options);
    let before = random::default_generator(Device::CPU).state();
    let score = run.evaluate(&held_out, |_| true).unwrap().unwrap();
    assert_eq!(score.all, 7 * WINDOW as u64);
    assert_eq!(run.evaluate(&held_out, |_| true).unwrap(), Some(score));
    assert_eq!(random::default_generator(Device::CPU).state(), before, "nothing is dropped");
    run.step().unwrap();
    assert_ne!(random::default_generator(Device::CPU).state(), before, "training goes on");
    assert_eq!(run.evaluate(&held_out, |done| done < 2).unwrap(), None);
    let flaky = DataLoader::new(Flaky { text: text(7), left: 4.into() }, options);
    run.evaluate(&flaky, |_| true).unwrap_err();
    let before = random::default_generator(Device::CPU).state();
    run.step().unwrap();
    assert_ne!(random::default_generator(Device::CPU).state(), before, "training goes on after a failure too");

    let scores = Tensor::from_slice(&[0.1_f32, 0.9, 0.8, 0.2, 0.3, 0.7], &[3, 2]).unwrap();
    let target = Tensor::from_slice(&[1_i64, 0, 0], &[3]).unwrap();
    assert_eq!(Score::new(&scores, &target).unwrap(), Score { right: 2, all: 3 });
    assert_eq!(Score::default().accuracy(), None);
}

#[test]
fn a_subset_has_the_examples_that_were_named() {
    let all = std::sync::Arc::new(text(7));
    let subset = Subset::new(std::sync::Arc::clone(&all), [5, 0]);
    assert_eq!(subset.len(), 2);
    assert_eq!(subset.item(0).unwrap(), all.item(5).unwrap());
    assert!(subset.item(2).is_err());
}
