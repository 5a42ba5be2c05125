//! Figures that compare the learned planner with others:
//! `cargo run --release -p tenure-agent --features milp --example evidence -- CURVES.tsv [PROBLEM.json|TRACE.pickle.xz ...]`.
//!
//! [Placements](placements) counts, on problems that no policy was trained on, how many evaluations each policy needs
//! to get close to the optimum, which a solver finds. [Schedules](schedules) compares plans made from estimated costs
//! by their true times: how much faster those of marl are than others' at equal evaluations. Programs are made up here
//! or come from the given files; missing files are left out. Nothing was tuned on the seeds below.
//! `scripts/evidence.py` draws the curves.

mod placements;
mod schedules;

use std::error::Error;
use std::fs::File;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use tenure_plan::planner::{Evaluator, Objective, PlannerError, PlannerOptions, PlannerProgress};
use tenure_plan::{Problem, Trace};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The first seed of made-up problems. Training draws its own from all 64-bit numbers, and manual tuning used others.
const SEEDS: u64 = 7_000_000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut curves = Curves::create(arguments.next().ok_or("give the file that the curves are written to")?)?;
    let mut programs = Vec::new();
    for file in arguments {
        match Path::new(&file).exists() {
            true => programs.push(program(&file)?),
            false => println!("left out: there is no {file}"),
        }
    }
    placements::compare(&programs, &mut curves)?;
    schedules::compare(&programs, &mut curves)
}

/// Reads a problem, or makes one from a trace.
fn program(file: &str) -> Result<Problem> {
    if file.ends_with(".json") {
        return Ok(Problem::read(file)?);
    }
    let mut parts = Problem::of_trace(&Trace::read(file)?)?.into_parts();
    // A trace does not name kernels. Those that allocate as many bytes get the same name.
    for kernel in &mut parts.kernels {
        kernel.name = format!("allocation of {} bytes", kernel.writes.first().map_or(0, |write| write.bytes));
    }
    Ok(Problem::new(parts)?)
}

fn options(objective: Objective, evaluations: u64, seed: u64) -> PlannerOptions {
    PlannerOptions { objective, time_limit: Duration::from_secs(600), evaluations: Some(evaluations), seed }
}

/// Returns the best value so far after each evaluation of a search.
fn curve(
    judge: &Problem,
    options: &PlannerOptions,
    search: impl FnOnce(&mut Evaluator<'_, '_>) -> std::result::Result<(), PlannerError>,
) -> Result<Vec<f64>> {
    let mut curve = Vec::new();
    let mut watch = |progress: &PlannerProgress| {
        curve.push(progress.best.unwrap_or(f64::NAN));
        ControlFlow::Continue(())
    };
    search(&mut Evaluator::new(judge, options, &mut watch))?;
    Ok(curve)
}

/// Returns a curve's value after `evaluations`: its last one if the search ended before, at the best there is.
fn after(curve: &[f64], evaluations: u64) -> f64 {
    curve.get(evaluations as usize - 1).or(curve.last()).copied().unwrap_or(f64::NAN)
}

/// The file of the curves' points, tab separated.
struct Curves(File);

impl Curves {
    fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut file = File::create(path)?;
        writeln!(file, "figure\tline\tevaluations\tmean\tleast\tmost")?;
        Ok(Self(file))
    }

    fn add(&mut self, figure: &str, line: &str, evaluations: u64, values: &Spread) -> io::Result<()> {
        let Spread { mean, least, most } = values;
        writeln!(self.0, "{figure}\t{line}\t{evaluations}\t{mean:.5}\t{least:.5}\t{most:.5}")
    }
}

/// The mean and the range of several values.
struct Spread {
    mean: f64,
    least: f64,
    most: f64,
}

impl Spread {
    fn of(values: &[f64]) -> Self {
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}
