//! Training on several devices, each with the batch of one.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::time::Instant;

use anyhow::Result;
use serde_json::json;
use tenure_nn::data::{DataLoader, LoaderOptions};
use tenure_nn::train::{Trainer, TrainerOptions};
use tenure_tensor::Device;

use crate::Arguments;
use crate::workloads::{self, Numbers, Trained};

/// Measures steps of a trainer, which reads the loss of each.
pub(crate) fn run(arguments: &Arguments, trained: Trained, count: u8) -> Result<()> {
    let devices: Vec<Device> = (0..count).map(Device::cuda).collect();
    let (task, optimizer) = workloads::training(trained, devices[0])?;
    let examples = task.examples() * devices.len();
    let loader = DataLoader::new(Numbers, LoaderOptions { batch_size: devices.len(), ..LoaderOptions::default() });
    let plan = TrainerOptions { steps: u64::MAX, ..TrainerOptions::default() };
    let run = Trainer::new(task, loader, optimizer, plan);
    let mut run = run.on_devices(&devices, move |device| workloads::training(trained, device))?;
    let loss = run.step()?.map(|step| step.loss);
    for _ in 0..4 {
        run.step()?;
    }
    let mut milliseconds = Vec::new();
    for _ in 0..arguments.repeats {
        let began = Instant::now();
        for _ in 0..arguments.steps {
            run.step()?;
        }
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3 / arguments.steps as f64);
    }
    let best = milliseconds.iter().copied().fold(f64::INFINITY, f64::min);
    let peak = run.history().iter().map(|step| step.memory.peak_bytes).max();
    let figures = json!({
        "devices": count,
        "ms": milliseconds,
        "examples_per_second": examples as f64 / best * 1e3,
        "loss": loss,
        "allocated_bytes": peak,
    });
    println!("{figures}");
    Ok(())
}
