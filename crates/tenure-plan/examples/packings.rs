//! Compares packings with the lower bound and best fit of the largest first, and fails if one is higher than best fit:
//! `cargo run --release -p tenure-plan --example packings -- [--seconds S] [--threads N] [--random COUNT] [--json] PATH...`.
//!
//! It packs CSV files, those of folders, and COUNT random problems of up to 50,000 buffers: N at once, each for S
//! seconds. Best fit is the simple code of the tests, which uses none of the library's, with its best order of equal
//! sizes. The lower bound is the most bytes that are alive at once. `--json` prints all figures as one object.

use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use packings::{KINDS, Kind, check, drawn, lowest_largest_first};
use serde::Serialize;
use tenure_plan::packing::{PackingOptions, PackingProblem};

#[path = "../tests/suite/packings/mod.rs"]
mod packings;

/// The buffers of the largest random problem.
const MOST_BUFFERS: u64 = 50_000;
/// Problems with more buffers are large.
const LARGE: usize = 10_000;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments = Arguments::parse()?;
    let instances = arguments.instances()?;
    let mut figures = measure(&instances, &arguments);
    figures.sort_by_key(|(number, _)| *number);
    let report = Report::of(figures.into_iter().map(|(_, figures)| figures).collect());
    if arguments.is_json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.print();
    }
    Ok(if report.above_best_fit > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

struct Arguments {
    seconds: u64,
    threads: usize,
    random: u64,
    is_json: bool,
    paths: Vec<PathBuf>,
}

impl Arguments {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut parsed = Self { seconds: 30, threads: 1, random: 0, is_json: false, paths: Vec::new() };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut number =
                || args.next().ok_or(format!("{arg} needs a number"))?.parse().map_err(Box::<dyn Error>::from);
            match &*arg {
                "--seconds" => parsed.seconds = number()?,
                "--threads" => parsed.threads = usize::try_from(number()?)?.max(1),
                "--random" => parsed.random = number()?,
                "--json" => parsed.is_json = true,
                _ if arg.starts_with('-') => return Err(format!("unknown option {arg}").into()),
                _ => parsed.paths.push(PathBuf::from(arg)),
            }
        }
        Ok(parsed)
    }

    /// Reads the files; random problems are drawn when their turn comes.
    fn instances(&self) -> Result<Vec<Instance>, Box<dyn Error>> {
        let mut instances = Vec::new();
        for path in &self.paths {
            for file in csv_files(path)? {
                let problem = PackingProblem::read(&file)?;
                instances.push(Instance::File(file.display().to_string(), problem));
            }
        }
        // Sizes are spread evenly.
        instances.extend((0..self.random).zip(KINDS.into_iter().cycle()).map(|(seed, kind)| Instance::Random {
            kind,
            count: MOST_BUFFERS * (seed + 1) / self.random,
            seed,
        }));
        if instances.is_empty() {
            return Err("there is nothing to pack: give CSV files, folders of them, or --random COUNT".into());
        }
        Ok(instances)
    }
}

fn csv_files(path: &Path) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>, Box<dyn Error>>>()?;
    files.retain(|file| file.extension().is_some_and(|extension| extension == "csv"));
    files.sort();
    Ok(files)
}

enum Instance {
    File(String, PackingProblem),
    Random { kind: Kind, count: u64, seed: u64 },
}

impl Instance {
    fn measure(&self, seconds: u64) -> Figures {
        match self {
            Self::File(name, problem) => Figures::measure(name.clone(), problem, seconds),
            &Self::Random { kind, count, seed } => {
                Figures::measure(format!("random {seed} ({kind:?})"), &drawn(kind, count, seed), seconds)
            }
        }
    }
}

/// The figures of a packing.
#[derive(Serialize)]
struct Figures {
    name: String,
    buffers: usize,
    /// The most bytes that are alive at once.
    lower_bound_bytes: u64,
    best_fit_bytes: u64,
    height_bytes: u64,
    ratio: f64,
    /// Whether the search has proven that no packing is lower.
    is_optimal: bool,
    /// The time until the search had found the packing.
    found_after_seconds: f64,
    /// The time of the whole search, which ends early if the packing is proven to be the lowest.
    seconds: f64,
}

impl Figures {
    /// Packs a problem, and checks that the packing is valid.
    fn measure(name: String, problem: &PackingProblem, seconds: u64) -> Self {
        let mut lowest = u64::MAX;
        let mut found_after = Duration::ZERO;
        let options = PackingOptions { time_limit: Some(Duration::from_secs(seconds)), ..PackingOptions::default() };
        let outcome = problem.pack(&options, |progress| {
            if progress.height_bytes < lowest {
                lowest = progress.height_bytes;
                found_after = progress.elapsed;
            }
            ControlFlow::Continue(())
        });
        let height_bytes = outcome.packing.height_bytes();
        check(problem, outcome.packing.offsets(), height_bytes);
        let lower_bound_bytes = problem.lower_bound_bytes();
        Self {
            name,
            buffers: problem.buffers().len(),
            lower_bound_bytes,
            best_fit_bytes: lowest_largest_first(problem),
            height_bytes,
            ratio: height_bytes as f64 / lower_bound_bytes.max(1) as f64,
            is_optimal: outcome.is_optimal(),
            found_after_seconds: found_after.as_secs_f64(),
            seconds: outcome.elapsed.as_secs_f64(),
        }
    }

    fn is_above_best_fit(&self) -> bool {
        self.height_bytes > self.best_fit_bytes
    }

    fn print(&self) {
        println!(
            "{:7} {:15} {:15} {:15} {:8.5} {:8.2} {:8.2}  {}{}{}",
            self.buffers,
            self.lower_bound_bytes,
            self.best_fit_bytes,
            self.height_bytes,
            self.ratio,
            self.found_after_seconds,
            self.seconds,
            self.name,
            if self.is_optimal { ", optimal" } else { "" },
            if self.is_above_best_fit() { ", ABOVE BEST FIT" } else { "" },
        );
    }
}

/// Packs `instances`, and returns the figures of each with its number, in the order in which they are done.
fn measure(instances: &[Instance], arguments: &Arguments) -> Vec<(usize, Figures)> {
    if !arguments.is_json {
        println!(
            "{:>7} {:>15} {:>15} {:>15} {:>8} {:>8} {:>8}  instance",
            "buffers", "bound", "best fit", "height", "ratio", "found s", "all s"
        );
    }
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        for sender in vec![sender; arguments.threads] {
            scope.spawn(|| {
                // Moved, so that the channel ends with the last thread.
                let sender = sender;
                while let Some((number, instance)) = take(instances, &next)
                    && sender.send((number, instance.measure(arguments.seconds))).is_ok()
                {}
            });
        }
        let shown = receiver.into_iter().inspect(|(_, figures)| {
            if !arguments.is_json {
                figures.print();
            }
        });
        shown.collect()
    })
}

/// Takes the next instance.
fn take<'a>(instances: &'a [Instance], next: &AtomicUsize) -> Option<(usize, &'a Instance)> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    Some((number, instances.get(number)?))
}

/// The figures of all packings.
#[derive(Serialize)]
struct Report {
    above_best_fit: usize,
    optimal: usize,
    /// The highest ratio to the lower bound.
    worst_ratio: f64,
    /// The same of large problems; 0 if there are none.
    worst_ratio_of_large: f64,
    packings: Vec<Figures>,
}

impl Report {
    fn of(packings: Vec<Figures>) -> Self {
        let large = packings.iter().filter(|figures| figures.buffers > LARGE);
        Self {
            above_best_fit: packings.iter().filter(|figures| figures.is_above_best_fit()).count(),
            optimal: packings.iter().filter(|figures| figures.is_optimal).count(),
            worst_ratio: packings.iter().map(|figures| figures.ratio).fold(0.0, f64::max),
            worst_ratio_of_large: large.map(|figures| figures.ratio).fold(0.0, f64::max),
            packings,
        }
    }

    fn print(&self) {
        let Self { above_best_fit, optimal, worst_ratio, worst_ratio_of_large, packings } = self;
        println!("{} packings, {above_best_fit} above best fit, {optimal} proven optimal", packings.len());
        println!(
            "worst ratio to the lower bound {worst_ratio:.5}, with more than {LARGE} buffers {worst_ratio_of_large:.5}"
        );
    }
}
