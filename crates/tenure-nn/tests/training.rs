//! Tests of a whole run: data, model, optimizer, schedule, clipping, checkpoint.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod fixtures;

use std::path::Path;

use fixtures::path_in_folder;
use tenure_nn::checkpoint::{Checkpoint, Progress};
use tenure_nn::data::{DataLoader, Dataset, LoaderOptions};
use tenure_nn::layers::{Activation, BatchNorm1d, Dropout, Layer, Linear, Sequential};
use tenure_nn::optim::{Adam, Optimizer, Schedule, clip_grad_norm};
use tenure_nn::{Module, Scope};
use tenure_tensor::random::{self, Generator};
use tenure_tensor::{Device, Tensor, threads};

/// A data set of points and their distances from the middle.
struct Points;

impl Dataset for Points {
    type Item = (Tensor, Tensor);

    fn len(&self) -> usize {
        50
    }

    fn item(&self, index: usize) -> tenure_nn::data::Result<(Tensor, Tensor)> {
        let x = (index as f32 * 0.7).sin();
        let y = (index as f32 * 1.3).cos();
        Ok((Tensor::from_slice(&[x, y], &[2])?, Tensor::from_slice(&[x.hypot(y)], &[1])?))
    }
}

struct Run {
    model: Sequential,
    optimizer: Optimizer,
    loader: DataLoader<Points>,
    progress: Progress,
    losses: Vec<u32>,
}

const EPOCHS: u64 = 3;

impl Run {
    fn new(workers: usize) -> Self {
        random::manual_seed(7);
        let scope = Scope::new(&Generator::new(1));
        let model = Sequential::default()
            .then(&scope, |at| Linear::new(at, 2, 16))
            .and_then(|model| model.then(&scope, |at| BatchNorm1d::new(at, 16)))
            .and_then(|model| model.then(&scope, |_| Ok(Activation::Relu)))
            .and_then(|model| model.then(&scope, |_| Dropout::new(0.1)))
            .and_then(|model| model.then(&scope, |at| Linear::new(at, 16, 1)))
            .unwrap();
        let optimizer = Optimizer::new(model.parameters(), 0.05, Adam::w());
        let options = LoaderOptions { batch_size: 8, shuffle: Some(3), workers, ..LoaderOptions::default() };
        let schedule = Some(Schedule::Cosine { steps: 21, end: 0.1 }.with_warmup(3));
        let progress = Progress { schedule, ..Progress::default() };
        Self { model, optimizer, loader: DataLoader::new(Points, options), progress, losses: Vec::new() }
    }

    /// Trains to the end, or to the step `until`.
    fn train(&mut self, until: u64) {
        while self.progress.epoch < EPOCHS {
            let first = self.progress.batch as usize;
            for batch in self.loader.epoch(self.progress.epoch, first) {
                let (x, y) = batch.unwrap();
                self.step(&x, &y);
                if self.progress.step == until {
                    return;
                }
            }
            (self.progress.epoch, self.progress.batch) = (self.progress.epoch + 1, 0);
        }
    }

    fn step(&mut self, x: &Tensor, y: &Tensor) {
        let error = self.model.forward(x).unwrap().sub(y).unwrap();
        let loss = error.mul(&error).unwrap().mean_all().unwrap();
        self.optimizer.zero_grad();
        loss.backward().unwrap();
        clip_grad_norm(&self.model.parameters(), 1.0).unwrap();
        let schedule = self.progress.schedule.as_ref().unwrap();
        self.optimizer.set_lr_scale(schedule.scale(self.progress.step));
        self.optimizer.step().unwrap();
        self.progress.step += 1;
        self.progress.batch += 1;
        self.losses.push(loss.item::<f32>().unwrap().to_bits());
    }

    fn save(&mut self, path: &Path) {
        self.progress.set_random("dropout", random::default_generator(Device::CPU).state());
        Checkpoint::save(path, &self.model, &self.optimizer, &self.progress).unwrap();
    }

    fn resume(path: &Path, workers: usize) -> Self {
        let mut run = Self::new(workers);
        let checkpoint = Checkpoint::open(path).unwrap();
        checkpoint.load(&run.model, &mut run.optimizer).unwrap();
        run.progress = checkpoint.progress().clone();
        random::default_generator(Device::CPU).set_state(run.progress.random("dropout").unwrap());
        run
    }
}

/// There is one test, because the generator and the threads belong to the process.
#[test]
fn a_run_is_the_same_for_any_threads_and_workers_and_when_it_was_interrupted() {
    let mut whole = Run::new(0);
    whole.train(u64::MAX);
    assert_eq!(whole.losses.len(), 21);
    let loss = |index: usize| f32::from_bits(whole.losses[index]);
    assert!(loss(20) < loss(0) / 2.0, "it learns: {} at first, {} at last", loss(0), loss(20));

    threads::set_threads(3).unwrap();
    let mut other = Run::new(3);
    other.train(u64::MAX);
    assert_eq!(other.losses, whole.losses);

    let (_folder, path) = path_in_folder("run.safetensors");
    let mut interrupted = Run::new(2);
    interrupted.train(10);
    interrupted.save(&path);
    let mut resumed = Run::resume(&path, 1);
    resumed.train(u64::MAX);
    assert_eq!([interrupted.losses, resumed.losses].concat(), whole.losses);
    for ((name, left), (_, right)) in resumed.model.state().into_iter().zip(whole.model.state()) {
        assert_eq!(left.to_bytes().unwrap(), right.to_bytes().unwrap(), "{name}");
    }
}
