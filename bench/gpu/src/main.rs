//! One workload on Tenure, on the first CUDA device; prints what `pytorch.py` does, and what the driver was asked for.

mod workloads;

use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::json;
use tenure_device::cuda::CudaDriver;
use tenure_device::graph::Graph;
use tenure_device::memory::{self, DeviceMemory};
use tenure_device::{Driver, Executor};
use tenure_tensor::{MemoryFormat, Tensor, TensorError};

use workloads::Workload;

/// What is measured, and how.
#[derive(Parser)]
struct Arguments {
    #[arg(value_enum)]
    workload: Workload,
    /// Captured
    #[arg(long)]
    graph: bool,
    /// Convolutional inference with channels last
    #[arg(long)]
    channels_last: bool,
    /// In a row, without a wait between
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Of those
    #[arg(long, default_value_t = 5)]
    repeats: usize,
}

/// What a training step or an inference gives, on the device: a loss, or the outputs.
type Step = Box<dyn FnMut() -> tenure_nn::Result<Tensor>>;

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let memory = memory::device(0)?;
    let Executor::Cuda(driver) = memory.driver().executor() else { bail!("a real device is needed") };
    let format = if arguments.channels_last { MemoryFormat::ChannelsLast2d } else { MemoryFormat::Contiguous };
    let mut step = workloads::step(arguments.workload, format).context("the workload cannot be set up")?;
    let first = step()?;
    let loss = if first.numel() == 1 {
        Some(first.to_device(tenure_tensor::Device::CPU)?.item_scalar()?.to_f64())
    } else {
        None
    };
    drop(first);
    for _ in 0..4 {
        step()?;
    }
    driver.synchronize()?;
    let statistics = memory.allocator().statistics();
    let peak = statistics.all.allocated_bytes.peak;
    let counts = counts(driver, memory, &mut step)?;
    let mut run: Box<dyn FnMut() -> Result<()>> = if arguments.graph {
        let (graph, _out) = Graph::capture(memory, |_| {
            step().map_err(|error| TensorError::Argument { op: "step", reason: error.to_string() })
        })?;
        Box::new(move || {
            let _ = &_out;
            Ok(graph.launch()?)
        })
    } else {
        Box::new(move || step().map(drop).map_err(Into::into))
    };
    let mut milliseconds = Vec::new();
    for _ in 0..arguments.repeats {
        driver.synchronize()?;
        let began = Instant::now();
        for _ in 0..arguments.steps {
            run()?;
        }
        driver.synchronize()?;
        milliseconds.push(began.elapsed().as_secs_f64() * 1e3 / arguments.steps as f64);
    }
    let reserved = memory.allocator().statistics().all.reserved_bytes.peak;
    let figures = json!({
        "ms": milliseconds,
        "loss": loss,
        "allocated_bytes": peak,
        "reserved_bytes": reserved,
        "counts": counts,
    });
    println!("{figures}");
    Ok(())
}

/// What one step asks of the driver.
fn counts(driver: &CudaDriver, memory: &DeviceMemory, step: &mut Step) -> Result<serde_json::Value> {
    let launches = || driver.launches().recent(1).first().map_or(0, |launch| launch.number + 1);
    let calls = || driver.timings().iter().map(|timing| timing.count).sum::<u64>();
    let allocations = || memory.allocator().statistics().all.allocation.allocated;
    let before = (launches(), calls(), allocations());
    step()?;
    let after = (launches(), calls(), allocations());
    Ok(json!({
        "launches": after.0 - before.0,
        "driver_memory_calls": after.1 - before.1,
        "allocations": after.2 - before.2,
    }))
}
