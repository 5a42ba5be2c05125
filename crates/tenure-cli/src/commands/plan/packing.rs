//! Packs buffers with known lifetimes into one range of memory.

use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure::plan::packing::{PackingOptions, PackingOutcome, PackingProblem, PackingProgress};
use tenure::units::{Bytes, Count, Micros, Percent};

use super::args::PlanArgs;
use crate::{files, output, progress, signals};

/// The JSON output.
#[derive(Serialize)]
struct PackingAnswer {
    feasible: Option<bool>,
    height: u64,
    seconds: f64,
    buffers: usize,
    capacity: Option<u64>,
    lower_bound: u64,
    nodes: u64,
}

pub(crate) fn run(args: &PlanArgs) -> ExitCode {
    let (problem, outcome) = match pack(args) {
        Ok(packed) => packed,
        Err(error) => return files::print(Err(error)),
    };
    let answer = PackingAnswer {
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
    if printed == ExitCode::SUCCESS { signals::exit_code_or(printed) } else { printed }
}

fn pack(args: &PlanArgs) -> anyhow::Result<(PackingProblem, PackingOutcome)> {
    let problem = PackingProblem::read(args.file())?;
    // Report an output that cannot be written before the work, not after it.
    args.output.as_deref().map_or(Ok(()), output::check)?;
    let options = PackingOptions {
        capacity_bytes: args.capacity,
        time_limit: Some(Duration::from_secs_f64(args.seconds)),
        ..PackingOptions::default()
    };
    signals::note("answers with the best so far");
    let line = progress::line();
    let outcome = problem.pack(&options, |progress| {
        line.set_message(describe_progress(progress));
        line.tick();
        signals::going_on()
    });
    line.finish_and_clear();
    Ok((problem, outcome))
}

fn describe_progress(progress: &PackingProgress) -> String {
    let &PackingProgress { nodes, height_bytes, lower_bound_bytes, .. } = progress;
    format!("{} places tried, {} found, {} needed", Count(nodes), Bytes(height_bytes), Bytes(lower_bound_bytes))
}

fn text(args: &PlanArgs, answer: &PackingAnswer, outcome: &PackingOutcome) -> anyhow::Result<String> {
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
    Ok(format!("{}\n{facts}", args.file().display()))
}
