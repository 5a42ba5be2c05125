//! Runs one workload on Tenure or on candle. Prints a line of JSON with the milliseconds of each step and the bytes of
//! memory that the process held. `run.py` runs it beside PyTorch.
#![expect(clippy::disallowed_methods, reason = "it measures how long something takes")]

mod candle;
mod tenure;

use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

#[derive(Parser)]
struct Args {
    library: Library,
    workload: Workload,
    /// Timed steps, after one that is not timed.
    #[arg(long, default_value_t = 5)]
    steps: usize,
}

#[derive(Clone, Copy, ValueEnum)]
enum Library {
    Tenure,
    Candle,
}

#[derive(Clone, Copy, ValueEnum)]
enum Workload {
    /// A step of SGD, 16 images of 224 x 224.
    Resnet18Train,
    /// The same images, in evaluation mode.
    Resnet18Infer,
    /// BERT-base, 8 x 128 tokens.
    BertInfer,
    /// A step of AdamW on the model of 124 million parameters, 4 x 128 tokens, no dropout.
    Gpt2Train,
}

const IMAGES: usize = 16;
const SIDE: usize = 224;
const CLASSES: usize = 1000;
const BERT_TOKENS: (usize, usize) = (8, 128);
const GPT2_TOKENS: (usize, usize) = (4, 128);

fn main() -> Result<()> {
    let args = Args::parse();
    let start_bytes = memory("VmRSS")?;
    let mut step = match args.library {
        Library::Tenure => tenure::workload(args.workload)?,
        Library::Candle => candle::workload(args.workload)?,
    };
    step()?;
    let mut milliseconds = Vec::with_capacity(args.steps);
    for _ in 0..args.steps {
        let start = Instant::now();
        step()?;
        milliseconds.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let line = serde_json::json!({ "ms": milliseconds, "start_bytes": start_bytes, "peak_bytes": memory("VmHWM")? });
    println!("{line}");
    Ok(())
}

/// A step, with everything that it needs.
type Step = Box<dyn FnMut() -> Result<()>>;

/// Returns token numbers that are not all the same.
fn tokens((batch, length): (usize, usize), vocabulary: usize) -> Vec<i64> {
    (0..batch * length).map(|index| (index * 7919 % vocabulary) as i64).collect()
}

fn memory(field: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).context("no such field in the status")?;
    let kibibytes: u64 = line.trim_start_matches(':').trim().trim_end_matches(" kB").parse()?;
    Ok(kibibytes << 10)
}
