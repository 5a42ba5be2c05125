//! `tenure bench alloc`: measures allocations and frees.

use std::process::ExitCode;

use tenure::bench::{Bench, BenchFigure, Case};

use tenure::units::{Count, Micros};

use crate::figures::table;
use crate::files;
use crate::platform::device;
use crate::progress;
use crate::values::{Allocators, DriverKind};

/// Measure the time of an allocation and a free that need no driver call
#[derive(clap::Args)]
#[command(after_help = "\
Cases: a block is allocated and freed at once (pair); a random one of many live blocks of 257 bytes to 1 MiB is \
replaced (churn), also on several threads with a stream each (threads), and after use on a second stream \
(record_stream). Times are those of a pair of an allocation and a free, on one thread.

Examples:
  tenure bench alloc
  tenure bench alloc --driver cuda --allocator paged --threads 1,16 --json")]
pub(crate) struct BenchAllocArgs {
    /// The driver to use
    #[arg(long, value_enum, default_value_t = DriverKind::Sim, value_name = "NAME")]
    pub(crate) driver: DriverKind,
    /// The number of the device to measure on, with --driver cuda
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) device: u8,
    /// The allocators to measure, one or several
    #[arg(long, value_enum, value_delimiter = ',', default_value = "paged,native", value_name = "NAMES")]
    pub(crate) allocator: Vec<Allocators>,
    /// Numbers of threads to measure with
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "1,4,16",
        value_parser = clap::value_parser!(u8).range(1..),
        value_name = "NUMBERS"
    )]
    pub(crate) threads: Vec<u8>,
    /// Print one JSON object per line for each case and allocator
    #[arg(long)]
    pub(crate) json: bool,
}

pub(crate) fn run(args: &BenchAllocArgs) -> ExitCode {
    files::print(measure(args).and_then(|figures| {
        if args.json {
            return figures.iter().map(|figure| Ok(serde_json::to_string(figure)? + "\n")).collect();
        }
        Ok(describe(&figures))
    }))
}

fn measure(args: &BenchAllocArgs) -> anyhow::Result<Vec<BenchFigure>> {
    let device = device(args.driver, args.device)?;
    let allocators: Vec<_> = args.allocator.iter().flat_map(|allocators| allocators.kinds()).collect();
    let threads: Vec<_> = args.threads.iter().copied().map(usize::from).collect();
    let cases = Case::all(&threads);
    let bar = progress::cases((cases.len() * allocators.len()) as u64);
    let mut figures = Vec::new();
    for &case in &cases {
        for &allocator in &allocators {
            bar.set_message(format!("{case} on {allocator}"));
            let figure = Bench::default().run(case, allocator, &device);
            figures.push(figure.map_err(|error| anyhow::anyhow!("{case} on {allocator}: {error}"))?);
            bar.inc(1);
        }
    }
    Ok(figures)
}

fn describe(figures: &[BenchFigure]) -> String {
    let rows: Vec<_> = figures
        .iter()
        .map(|figure| {
            let [median, fastest, slowest] =
                [figure.median_ns, figure.fastest_ns, figure.slowest_ns].map(|ns| Micros(ns / 1e3).to_string());
            let pairs = Count(figure.pairs * u64::from(figure.repeats));
            [figure.case.to_string(), figure.allocator.to_string(), median, fastest, slowest, pairs.to_string()]
        })
        .collect();
    let heads = ["a pair in", "allocator", "median", "fastest", "slowest", "pairs"];
    table(&heads, &rows)
}
