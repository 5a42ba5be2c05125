//! Tests of steps within a budget of the host's memory. They run in a process of their own, because the limit is the
//! process's.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::path::Path;

use fixtures::{engine_of, gpt2};
use parking_lot::Mutex;
use tenure_device::host::HostMemory;
use tenure_nn::checkpoint::{Checkpoint, Weights};
use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
use tenure_nn::models::{Gpt2, Gpt2Config};
use tenure_nn::optim::{Adam, Optimizer, Schedule};
use tenure_nn::train::{Classification, Pass, Step, TrainError, Trainer, TrainerOptions};
use tenure_nn::{Error, Module, Scope, Source};
use tenure_offload::{Engine, OffloadError, ProfileError, SpillLink};
use tenure_tensor::random::{self, Generator};
use tenure_tier::{Destination, Disk, DiskOptions, Mover, MoverOptions};

static ONE: Mutex<()> = Mutex::new(());

fn engine() -> Engine {
    engine_over(SpillLink::of)
}

fn engine_over(links: impl Fn(&Mover) -> Vec<(SpillLink, Destination)>) -> Engine {
    let disk = Disk::open(&[std::env::temp_dir()], DiskOptions::new(256 << 20)).unwrap();
    let mover = Mover::new(None, MoverOptions { disk: Some(disk), ..MoverOptions::new(1 << 30) }).unwrap();
    mover.probe().unwrap();
    let links = links(&mover);
    engine_of(mover, links)
}

type Run = Trainer<Classification<Gpt2>, TextWindows>;

/// Makes a run whose model has dropout, so that random numbers are drawn.
fn trainer(steps: u64) -> Run {
    trainer_of(gpt2(64, 64, 64, 3), 16, Some(1.0), steps)
}

fn trainer_of(config: Gpt2Config, batch_size: usize, clip_norm: Option<f64>, steps: u64) -> Run {
    random::manual_seed(0);
    let config = Gpt2Config { resid_pdrop: 0.1, ..config };
    let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config).unwrap();
    let optimizer = Optimizer::new(model.parameters(), 1e-3, Adam::w());
    let tokens = (0..20_000).map(|index| index * 7 % 61).collect();
    let data = TextWindows::of_tokens(tokens, config.n_positions).unwrap();
    let loader = DataLoader::new(data, LoaderOptions { batch_size, shuffle: Some(0), ..LoaderOptions::default() });
    let plan = TrainerOptions { steps, schedule: Schedule::Constant, clip_norm, ..TrainerOptions::default() };
    Trainer::new(Classification(model), loader, optimizer, plan)
}

fn losses(run: &mut Run) -> Vec<f32> {
    let mut losses = Vec::new();
    while let Some(Step { loss, .. }) = run.step().unwrap() {
        losses.push(loss);
    }
    losses
}

#[test]
fn losses_within_a_budget_are_those_without() {
    let _one = ONE.lock();
    let plain = losses(&mut trainer(3));
    for percent in [75, 50] {
        let mut run = trainer(3).with_engine(engine()).unwrap();
        let peak = run.rehearse(Pass::Plain).unwrap().peak_bytes.unwrap();
        let budget = peak * percent / 100;
        run.engine().unwrap().set_budget(budget);
        assert_eq!(losses(&mut run), plain, "{percent}%");
        for step in run.history() {
            let report = step.offload.unwrap();
            assert!(report.is_planned && report.spilled_bytes > 0, "{report:?}");
            assert!(step.memory.peak_bytes <= budget, "{percent}%: {} of {budget}, {peak}", step.memory.peak_bytes);
        }
    }
    assert_eq!(HostMemory::installed().unwrap().limit(), None);
}

#[test]
fn tensors_that_are_slow_to_move_are_computed_again_with_the_same_losses() {
    let _one = ONE.lock();
    let plain = losses(&mut trainer(3));
    let mut run = trainer(3)
        .with_engine(engine_over(|_| {
            let bandwidth = 1 << 20;
            let link = SpillLink {
                name: "slow".into(),
                capacity: None,
                out_bandwidth: bandwidth,
                back_bandwidth: bandwidth,
                shared_bandwidth: None,
            };
            vec![(link, Destination::Disk)]
        }))
        .unwrap();
    let peak = run.rehearse(Pass::Plain).unwrap().peak_bytes.unwrap();
    run.engine().unwrap().set_budget(peak * 60 / 100);
    assert_eq!(losses(&mut run), plain);
    for step in run.history() {
        let report = step.offload.unwrap();
        assert!(report.is_planned && report.recomputed_bytes > 0 && !report.recomputed.is_zero(), "{report:?}");
        assert!(step.memory.peak_bytes <= peak * 60 / 100);
    }
}

/// With a clip norm, all gradients must be known before any is used.
#[test]
fn where_activations_are_not_enough_gradients_and_the_optimizers_state_leave_with_the_same_losses() {
    let _one = ONE.lock();
    for clip_norm in [None, Some(1.0)] {
        // Weights, gradients and Adam's two moments are nearly all of the memory.
        let trainer = |steps| trainer_of(gpt2(64, 8, 256, 4), 1, clip_norm, steps);
        let folder = tempfile::tempdir().unwrap();
        let within = folder.path().join("within");
        let without = folder.path().join("without");
        let expected = {
            let mut plain = trainer(6);
            let mut losses: Vec<f32> = (0..4).map(|_| plain.step().unwrap().unwrap().loss).collect();
            plain.save(&without).unwrap();
            losses.extend(self::losses(&mut plain));
            losses
        };
        let mut run = trainer(4).with_engine(engine()).unwrap();
        let peak = run.rehearse(Pass::Plain).unwrap().peak_bytes.unwrap();
        let weights: usize = run.optimizer().parameters().map(|weight| weight.numel() * 4).sum();
        let budget = weights as u64 * 3 / 2 + (4 << 20);
        assert!(budget < peak / 2, "{budget} of {peak}, of which {weights} are weights");
        run.engine().unwrap().set_budget(budget);
        run.rehearse(Pass::Budgeted).unwrap();
        assert_eq!(losses(&mut run), expected[..4], "{clip_norm:?}");
        for step in run.history() {
            let report = step.offload.unwrap();
            assert!(report.is_planned && report.spilled_bytes > weights as u64, "{report:?}");
            assert!(step.memory.peak_bytes <= budget, "{} of {budget}, {peak}", step.memory.peak_bytes);
        }
        // A checkpoint equals that of a run without a budget, and a run within a budget resumes from it.
        run.save(&within).unwrap();
        assert!(Checkpoint::open(&within).unwrap().progress().step == 4);
        assert_eq!(weights_of(&within), weights_of(&without));
        drop(run);
        let mut run = trainer(6).with_engine(engine()).unwrap();
        run.engine().unwrap().set_budget(budget);
        run.rehearse(Pass::Budgeted).unwrap();
        run.resume(&within).unwrap();
        assert_eq!(losses(&mut run), expected[4..], "{clip_norm:?}");
        assert!(run.history()[5].memory.peak_bytes <= budget);
    }
}

/// Reads all tensors of a file, by name, without the series.
fn weights_of(path: &Path) -> Vec<(Vec<u8>, String)> {
    let weights = Weights::open(path).unwrap();
    let names = weights.names().into_iter().filter(|name| !name.starts_with("series."));
    names.map(|name| (weights.tensor(&name).unwrap().to_bytes().unwrap(), name)).collect()
}

#[test]
fn a_budget_that_is_too_small_is_refused_before_the_first_step() {
    let _one = ONE.lock();
    let mut run = trainer(2).with_engine(engine()).unwrap();
    run.engine().unwrap().set_budget(4 << 20);
    let error = run.rehearse(Pass::Budgeted).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("a budget of 4194304 bytes is too small"), "{words}");
    assert!(words.contains("weight ") && words.contains("what is being computed "), "{words}");
    let Error::Train(TrainError::Budget(refused)) = error else { panic!("{words}") };
    let OffloadError::Profile(ProfileError::TooSmall { least_bytes, .. }) = *refused else { panic!("{words}") };
    run.engine().unwrap().set_budget(least_bytes);
    let within = losses(&mut run);
    drop(run);
    assert_eq!(within, losses(&mut trainer(2)));
}
