use std::process::ExitCode;

use tenure::bench::{Bench, Case, Figure};
use tenure::prelude::*;
use tenure::units::Count;

use crate::args::BenchAllocArgs;
use crate::files;
use crate::platform::device;
use crate::progress;
use crate::table::table;

pub(crate) fn run(args: &BenchAllocArgs) -> ExitCode {
    files::print(measure(args).and_then(|figures| {
        if args.json {
            return figures.iter().map(|figure| Ok(serde_json::to_string(figure)? + "\n")).collect();
        }
        Ok(describe(&figures))
    }))
}

fn measure(args: &BenchAllocArgs) -> anyhow::Result<Vec<Figure>> {
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

fn describe(figures: &[Figure]) -> String {
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
