//! Training within a memory budget.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Value, json};
use tenure_core::Amount;
use tenure_device::Executor;
use tenure_device::cuda::Timing;
use tenure_device::memory::DeviceMemory;
use tenure_nn::data::{DataLoader, LoaderOptions};
use tenure_nn::train::{Budget, StepReport, Trainer, TrainerOptions};
use tenure_offload::SpillLink;

use crate::Arguments;
use crate::workloads::{self, Numbers, Trained};

/// The options of a budget.
#[derive(Args)]
pub(crate) struct BudgetArguments {
    /// Train within this much device memory: a size, or a share of a plain step's peak
    #[arg(long, conflicts_with_all = ["graph", "devices"], value_name = "SIZE|P%")]
    pub(crate) budget: Option<Amount>,
    /// GiB of pinned memory to spill to
    #[arg(long, default_value_t = 90)]
    host_gib: u64,
    /// A folder to spill to as well
    #[arg(long)]
    spill: Option<PathBuf>,
    /// GiB of that folder's disk
    #[arg(long, default_value_t = 48)]
    spill_gib: u64,
    /// A file for the problem that the planner solves
    #[arg(long)]
    problem: Option<PathBuf>,
}

/// Measures steps of a trainer, which reads the loss of each.
pub(crate) fn run(
    arguments: &Arguments,
    trained: Trained,
    memory: &'static DeviceMemory,
    budget: Amount,
) -> Result<()> {
    let options = &arguments.budget;
    let (task, optimizer) = workloads::training(trained, memory.device())?;
    let loader = DataLoader::new(Numbers, LoaderOptions { batch_size: 1, ..LoaderOptions::default() });
    let plan = TrainerOptions { steps: u64::MAX, ..TrainerOptions::default() };
    let budget = Budget::new(budget).spill_bytes(options.spill_gib << 30).pinned_bytes(options.host_gib << 30);
    let budget = options.spill.iter().fold(budget, Budget::spill);
    let began = Instant::now();
    let mut run = Trainer::new(task, loader, optimizer, plan).within(budget)?;
    let rehearsed = began.elapsed();
    let engine = run.engine().context("it has one")?.clone();
    let mut losses = Vec::new();
    for _ in 0..arguments.warm {
        losses.extend(run.step()?.map(|step| step.loss));
    }
    memory.allocator().reset_peak_statistics();
    let before = timings(memory);
    let (mut milliseconds, mut reports) = (Vec::new(), Vec::new());
    for _ in 0..arguments.repeats {
        let began = Instant::now();
        for _ in 0..arguments.steps {
            let step = run.step()?.context("the plan has more")?;
            losses.push(step.loss);
            reports.extend(step.offload.map(told));
        }
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3 / arguments.steps as f64);
    }
    let peaks = memory.allocator().statistics().all;
    let info = memory.driver().memory_info()?;
    if let (Some(path), Some(problem)) = (&options.problem, engine.problem()?) {
        problem.write(path)?;
    }
    let figures = json!({
        "ms": milliseconds,
        "losses": losses,
        "rehearsed_ms": rehearsed.as_secs_f64() * 1e3,
        "allocated_bytes": peaks.allocated_bytes.peak,
        "reserved_bytes": peaks.reserved_bytes.peak,
        "device_bytes": info.total - info.free,
        "report": reports.last(),
        "unplanned": reports.iter().filter_map(|report| report["unplanned"].as_u64()).sum::<u64>(),
        "driver_ms": driver_ms(&before, &timings(memory)),
        "links": SpillLink::of(engine.mover()).iter().map(|(link, _)| link_told(link)).collect::<Vec<_>>(),
    });
    println!("{figures}");
    Ok(())
}

/// Returns the times of the driver's calls so far.
fn timings(memory: &DeviceMemory) -> Vec<Timing> {
    if let Executor::Cuda(driver) = memory.driver().executor() { driver.timings() } else { Vec::new() }
}

/// Returns the driver's time since `before` in ms, with the number of chunks or waits.
fn driver_ms(before: &[Timing], after: &[Timing]) -> Value {
    let of = |(before, after): (&Timing, &Timing)| {
        let count = after.count - before.count;
        let ms = (after.elapsed_us - before.elapsed_us) / 1e3;
        (after.call.name().to_owned(), json!({ "count": count, "ms": ms }))
    };
    Value::Object(before.iter().zip(after).filter(|(before, after)| after.count > before.count).map(of).collect())
}

fn told(report: StepReport) -> Value {
    json!({
        "spilled_bytes": report.spilled_bytes,
        "fetched_bytes": report.fetched_bytes,
        "recomputed_bytes": report.recomputed_bytes,
        "recomputed_us": report.recomputed.as_micros() as u64,
        "stalled_us": report.stalled.as_micros() as u64,
        "unplanned": report.unplanned,
        "predicted_us": report.predicted.map(|predicted| predicted.as_micros() as u64),
    })
}

fn link_told(link: &SpillLink) -> Value {
    json!({ "name": link.name, "out": link.out_bandwidth, "back": link.back_bandwidth })
}
