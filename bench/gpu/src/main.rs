//! Runs one workload on Tenure, on the first CUDA device; prints the same figures as `pytorch.py`, and the driver
//! calls.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

mod budget;
mod parallel;
mod workloads;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use tenure_device::cuda::CudaDriver;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Call, Driver, Executor};
use tenure_tensor::cuda::Captured;
use tenure_tensor::{MemoryFormat, Tensor, tuning};

use workloads::{Kind, Trained, Workload};

/// The workload, and the options of its measurement.
#[derive(Parser)]
struct Arguments {
    #[arg(value_enum)]
    workload: Workload,
    /// Capture the steps as a graph
    #[arg(long)]
    graph: bool,
    /// Convolutional inference with channels last
    #[arg(long)]
    channels_last: bool,
    /// GPT-2 with the dropouts that it has by default
    #[arg(long)]
    dropout: bool,
    /// The fastest algorithms for products and convolutions, found by trying them
    #[arg(long)]
    measure: bool,
    /// Allow sums in any order, as PyTorch does
    #[arg(long)]
    any_order: bool,
    /// Train on so many devices at once, each with the batch of one; 1 to compare
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..), conflicts_with = "graph")]
    devices: Option<u8>,
    /// Train with this many examples at once
    #[arg(long)]
    batch: Option<usize>,
    #[command(flatten)]
    budget: budget::BudgetArguments,
    /// Steps before those that count
    #[arg(long, default_value_t = 4)]
    warm: usize,
    /// Steps in a row, without a wait between
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Rows of steps
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// A training step or an inference. Its result is on the device: a loss, or the outputs.
type Step = Box<dyn FnMut() -> tenure_nn::Result<Tensor>>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    tuning::measure_algorithms(arguments.measure);
    tuning::sum_in_any_order(arguments.any_order);
    let kind = arguments.workload.of(arguments.batch, arguments.dropout);
    if let Some(devices) = arguments.devices {
        return parallel::run(&arguments, trained(&kind)?, devices);
    }
    let memory = memory::device(0)?;
    if let Some(budget) = arguments.budget.budget {
        return budget::run(&arguments, trained(&kind)?, memory, budget);
    }
    let Executor::Cuda(driver) = memory.driver().executor() else { bail!("a real device is needed") };
    let format = if arguments.channels_last { MemoryFormat::ChannelsLast2d } else { MemoryFormat::Contiguous };
    let step = match kind {
        Kind::Trained(trained) => workloads::train(trained),
        Kind::Inferred(model) => workloads::inference(model, format),
    };
    let mut step = step.context("the workload cannot be set up")?;
    let first = step()?;
    let loss = if first.numel() == 1 {
        Some(first.to_device(tenure_tensor::Device::CPU)?.item_scalar()?.to_f64())
    } else {
        None
    };
    drop(first);
    for _ in 0..arguments.warm {
        step()?;
    }
    driver.synchronize()?;
    let mut counts = counts(driver, memory, &mut step)?;
    // The peaks are those of the measured steps: captured, without the steps before.
    let mut captured = arguments.graph.then(|| captured(memory, &mut step)).transpose()?;
    let mut milliseconds = Vec::new();
    for _ in 0..arguments.repeats {
        driver.synchronize()?;
        let began = Instant::now();
        for _ in 0..arguments.steps {
            match &mut captured {
                Some(captured) => captured.replay()?,
                None => drop(step()?),
            }
        }
        driver.synchronize()?;
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3 / arguments.steps as f64);
    }
    let peaks = memory.allocator().statistics().all;
    // Libraries do not report their launches; a graph shows them.
    let captured = captured.map_or_else(|| self::captured(memory, &mut step), Ok)?;
    counts["kernels"] = json!(driver.kernels_of(captured.graph().id()));
    let figures = json!({
        "ms": milliseconds,
        "loss": loss,
        "allocated_bytes": peaks.allocated_bytes.peak,
        "reserved_bytes": peaks.reserved_bytes.peak,
        "counts": counts,
    });
    println!("{figures}");
    Ok(())
}

fn trained(kind: &Kind) -> Result<Trained> {
    let Kind::Trained(trained) = kind else { bail!("that is of training, and this model is used: give it a --batch") };
    Ok(*trained)
}

/// Captures a step as a graph, with peaks that begin before it.
fn captured(memory: &'static DeviceMemory, step: &mut Step) -> Result<Captured> {
    memory.allocator().release_cached()?;
    memory.allocator().reset_peak_statistics();
    Ok(Captured::new(memory.device(), step)?.0)
}

/// Counts the calls of one step to the driver and to the allocator.
fn counts(driver: &CudaDriver, memory: &DeviceMemory, step: &mut Step) -> Result<serde_json::Value> {
    let waits = |call: Call| {
        let is_copy = matches!(call, Call::CopyToDevice | Call::CopyFromDevice);
        is_copy || matches!(call, Call::Synchronize | Call::SynchronizeStream | Call::SynchronizeEvent)
    };
    let calls = |is_wait: bool| {
        let timings = driver.timings().into_iter().filter(|timing| waits(timing.call) == is_wait);
        timings.map(|timing| timing.count).sum::<u64>()
    };
    let allocations = || memory.allocator().statistics().all.allocation.allocated;
    let now = || [calls(true), calls(false), allocations()];
    let before = now();
    step()?;
    let after = now();
    let [waits, memory_calls, allocations] = std::array::from_fn(|what| after[what] - before[what]);
    Ok(json!({
        "waits": waits,
        "driver_memory_calls": memory_calls,
        "allocations": allocations,
    }))
}
