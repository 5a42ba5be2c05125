use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure::packing::{PackingOptions, PackingOutcome, PackingProblem, PackingProgress};
use tenure::prelude::*;
use tenure::units::{Count, Percent};

use crate::{files, output, progress};

/// Place buffers with known lifetimes in one range of memory
#[derive(clap::Args)]
#[command(after_help = "\
FILE.csv has a line for each buffer, and a first line that names the columns, as MiniMalloc has it:

  id,lower,upper,size,alignment
  a,0,3,4096,512

From the moment `lower` to the moment before `upper`, buffer a needs 4096 bytes at a multiple of
512; `alignment` may be left out. Buffers that are alive at once share no byte.

The search is complete: given time, it fits the buffers into the capacity, or proves that nobody
can. Ctrl-C ends it with what it has found.

--json prints feasible (true, false, or null if it is not known), height (of the lowest packing
found), seconds, buffers, capacity, lower_bound (proven) and nodes (places tried).

Examples:
  tenure plan buffers.csv
  tenure plan buffers.csv --capacity 1048576 -o offsets.csv
  tenure plan buffers.csv --capacity 1048576 --seconds 10 --json")]
pub(crate) struct PlanArgs {
    /// The buffers
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// The range's size in bytes [default: as small as can be found]
    #[arg(long, value_name = "N")]
    capacity: Option<u64>,
    /// How long to search, in seconds
    #[arg(long, default_value_t = 60.0, value_parser = parse_seconds, value_name = "S")]
    seconds: f64,
    /// Where to write the buffers with their offsets, if they fit
    #[arg(short, long, value_name = "OUT.csv")]
    output: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What is printed for machines.
#[derive(Serialize)]
struct Answer {
    feasible: Option<bool>,
    height: u64,
    seconds: f64,
    buffers: usize,
    capacity: Option<u64>,
    lower_bound: u64,
    nodes: u64,
}

pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    output::note_interrupts("answers with the best so far");
    let (problem, outcome) = match pack(args) {
        Ok(packed) => packed,
        Err(error) => return files::print(Err(error)),
    };
    let answer = Answer {
        feasible: args.capacity.map_or(Some(true), |capacity| outcome.is_feasible(capacity)),
        height: outcome.packing.height_bytes(),
        seconds: outcome.elapsed.as_secs_f64(),
        buffers: problem.buffers().len(),
        capacity: args.capacity,
        lower_bound: outcome.lower_bound_bytes,
        nodes: outcome.nodes,
    };
    let printed = files::print(text(args, &answer, &outcome));
    let written = args.output.as_deref().map_or(Ok(()), |path| {
        let fits = answer.feasible == Some(true);
        anyhow::ensure!(fits, "{}: not written: no packing that fits was found", path.display());
        output::write(path, |out| outcome.packing.write_csv(&problem, out))
    });
    if let Err(error) = written {
        files::complain(&error.to_string());
        return ExitCode::from(files::BAD_INPUT);
    }
    if printed == ExitCode::SUCCESS && output::is_interrupted() {
        return ExitCode::from(output::INTERRUPTED);
    }
    printed
}

fn pack(args: &PlanArgs) -> anyhow::Result<(PackingProblem, PackingOutcome)> {
    let problem = PackingProblem::read(&args.file)?;
    // That it cannot be written at the end is said at the beginning.
    args.output.as_deref().map_or(Ok(()), output::check)?;
    let options = PackingOptions {
        capacity_bytes: args.capacity,
        time_limit: Some(Duration::from_secs_f64(args.seconds)),
        ..PackingOptions::default()
    };
    let line = progress::line();
    let outcome = problem.pack(&options, |progress| {
        line.set_message(describe_progress(progress));
        line.tick();
        if output::is_interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    line.finish_and_clear();
    Ok((problem, outcome))
}

fn describe_progress(progress: &PackingProgress) -> String {
    let &PackingProgress { nodes, height_bytes, lower_bound_bytes, .. } = progress;
    format!("{} places tried, {} found, {} needed", Count(nodes), Bytes(height_bytes), Bytes(lower_bound_bytes))
}

fn text(args: &PlanArgs, answer: &Answer, outcome: &PackingOutcome) -> anyhow::Result<String> {
    if args.json {
        return Ok(serde_json::to_string(answer)? + "\n");
    }
    let bytes = |bytes: u64| format!("{} ({} bytes)", Bytes(bytes), Count(bytes));
    let mut facts = vec![("buffers", Count(answer.buffers as u64).to_string())];
    if let Some(capacity) = answer.capacity {
        facts.push(("capacity", bytes(capacity)));
        let fits = match answer.feasible {
            Some(true) => "yes",
            Some(false) => "no: it is proven that no packing does",
            None => "not known: more --seconds may tell",
        };
        facts.push(("fits", fits.into()));
    }
    let above = answer.height.saturating_sub(answer.lower_bound) as f64 / answer.lower_bound.max(1) as f64;
    let above =
        if outcome.is_optimal() { "the lowest there is".into() } else { format!("{} above the bound", Percent(above)) };
    facts.push(("height", format!("{}, {above}", bytes(answer.height))));
    facts.push(("lower bound", bytes(answer.lower_bound)));
    facts.push(("search", format!("{} places in {}", Count(answer.nodes), Micros(answer.seconds * 1e6))));
    let facts: String = facts.iter().map(|(name, value)| format!("  {name:<12} {value}\n")).collect();
    Ok(format!("{}\n{facts}", args.file.display()))
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    // Some thirty years.
    if (0.0..1e9).contains(&seconds) { Ok(seconds) } else { Err("expected from 0 to 1e9 seconds".into()) }
}
