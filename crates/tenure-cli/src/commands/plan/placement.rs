//! Plans in which tier each tensor of a problem lives, and reports the plans' outcomes.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::Serialize;
use tenure::plan::bound;
use tenure::plan::planner::{Objective, Planned, PlannerOptions};
use tenure::plan::simulator::Outcome;
use tenure::plan::{Mapping, Planner, Problem, simulate};
use tenure::units::{Bytes, Count, Micros, Percent};

use super::args::PlanArgs;
use crate::figures::table;
use crate::values::{ObjectiveName, PlannerName};
use crate::{files, output, planners, progress, signals};

/// The JSON output.
#[derive(Serialize)]
struct PlacementAnswer {
    problem: String,
    planner: String,
    capacity_bytes: Option<u64>,
    peak_fast_bytes: u64,
    score: f64,
    bound: f64,
    gap: f64,
    makespan_us: f64,
    bound_makespan_us: f64,
    seconds: f64,
    evaluations: u64,
}

/// Plans for the problem that `read` reads.
pub(super) fn run(args: &PlanArgs, read: impl FnOnce(&Path) -> anyhow::Result<Problem>) -> ExitCode {
    let printed = match prepare(args, read) {
        Ok((problem, objective)) => print(args, &problem, objective),
        Err(error) => files::print(Err(error)),
    };
    if printed == ExitCode::SUCCESS { signals::exit_code_or(printed) } else { printed }
}

/// Returns the problem with the tiers to plan for, and the objective.
fn prepare(
    args: &PlanArgs,
    read: impl FnOnce(&Path) -> anyhow::Result<Problem>,
) -> anyhow::Result<(Problem, Objective)> {
    let problem = read(args.file())?;
    // Report an output that cannot be written before the work, not after it.
    args.output.as_deref().map_or(Ok(()), output::check)?;
    let objective = match args.objective {
        Some(ObjectiveName::Score) => Objective::Score,
        Some(ObjectiveName::Time) => Objective::Makespan,
        None if problem.tiers().is_empty() => Objective::Score,
        None => Objective::Makespan,
    };
    if args.output.is_some() && objective == Objective::Makespan {
        anyhow::bail!("a mapping cannot say that tensors move: plan with --objective score")
    }
    let problem = match args.fast_bytes {
        Some(fast_bytes) => {
            let capacity_bytes = fast_bytes.of(problem.peak_bytes());
            problem.with_fast_bytes(capacity_bytes)
        }
        None if problem.tiers().is_empty() => {
            anyhow::bail!("{}: it names no tiers: say with --fast-bytes how large the first is", args.file().display())
        }
        None => problem,
    };
    Ok((problem, objective))
}

fn print(args: &PlanArgs, problem: &Problem, objective: Objective) -> ExitCode {
    signals::note("answers with the best so far");
    let mut bounds = Bounds::of(problem);
    let mut all_found = Vec::new();
    let planners = match planners::named(args.planner.unwrap_or(PlannerName::Scheduled), args.policy.as_deref()) {
        Ok(planners) => planners,
        Err(error) => return files::print(Err(error)),
    };
    for planner in planners {
        if signals::was_received() {
            break;
        }
        match plan(args, problem, objective, &*planner) {
            Ok(found) => {
                bounds.add(objective, found.0.bound);
                all_found.push((planner, found));
            }
            Err(error) => files::complain(&format!("{}: {}: {error}", args.file().display(), planner.name())),
        }
    }
    if all_found.is_empty() {
        return ExitCode::from(files::BAD_INPUT);
    }
    let answers =
        all_found.iter().map(|(planner, found)| PlacementAnswer::new(problem, planner.name(), found, &bounds));
    let answers: Vec<PlacementAnswer> = answers.collect();
    if args.json {
        return files::print_each(answers.iter().map(|answer| Ok(serde_json::to_string(answer)? + "\n")));
    }
    files::print(Ok(text(problem, &answers)))
}

/// Makes a plan and describes its outcome; writes the mapping if `output` asks for it.
fn plan(
    args: &PlanArgs,
    problem: &Problem,
    objective: Objective,
    planner: &dyn Planner,
) -> anyhow::Result<(Planned, Outcome)> {
    let time_limit = Duration::from_secs_f64(args.seconds);
    let options = PlannerOptions { objective, time_limit, evaluations: None, seed: args.seed.unwrap_or(0) };
    let line = progress::line();
    let planned = planner.plan(problem, &options, &mut |progress| {
        let best = progress.best.map_or_else(String::new, |best| match objective {
            Objective::Score => format!(", score {best:.4}"),
            Objective::Makespan => format!(", {}", Micros(best / 1e3)),
        });
        line.set_message(format!("{}: {} plans tried{best}", planner.name(), Count(progress.evaluations)));
        line.tick();
        signals::going_on()
    });
    line.finish_and_clear();
    let planned = planned?;
    let outcome = simulate(problem, &planned.plan)?;
    if let Some(path) = &args.output {
        Mapping::of_plan(problem, &planned.plan)?.write(path)?;
    }
    Ok((planned, outcome))
}

/// The best proven bounds, which no plan surpasses.
struct Bounds {
    /// The bound for plans in which tensors stay where they are.
    fixed_score: f64,
    score: f64,
    makespan_ns: f64,
}

impl Bounds {
    fn of(problem: &Problem) -> Self {
        Self {
            fixed_score: bound::static_score_bound(problem),
            score: bound::score_bound(problem),
            makespan_ns: bound::makespan_bound_ns(problem),
        }
    }

    /// Adds a bound that a planner has proven.
    fn add(&mut self, objective: Objective, proven: Option<f64>) {
        match (objective, proven) {
            (_, None) => {}
            (Objective::Score, Some(score)) => self.fixed_score = self.fixed_score.min(score),
            (Objective::Makespan, Some(ns)) => self.makespan_ns = self.makespan_ns.max(ns),
        }
    }
}

impl PlacementAnswer {
    fn new(problem: &Problem, planner: &str, (planned, outcome): &(Planned, Outcome), bounds: &Bounds) -> Self {
        let score = outcome.score();
        let bound = if planned.plan.steps.is_empty() { bounds.fixed_score } else { bounds.score };
        // Solvers have tolerances.
        let bound = bound.max(score);
        Self {
            problem: problem.name().to_owned(),
            planner: planner.to_owned(),
            capacity_bytes: problem.tiers()[0].capacity,
            peak_fast_bytes: outcome.peak_bytes[0],
            score,
            bound,
            gap: if bound > 0.0 { (bound - score) / bound } else { 0.0 },
            makespan_us: outcome.makespan_ns / 1e3,
            bound_makespan_us: bounds.makespan_ns.min(outcome.makespan_ns) / 1e3,
            seconds: planned.elapsed.as_secs_f64(),
            evaluations: planned.evaluations,
        }
    }
}

fn text(problem: &Problem, answers: &[PlacementAnswer]) -> String {
    let ideal_us = problem.kernels_ns() as f64 / 1e3;
    let capacity = problem.tiers()[0].capacity.map_or_else(|| "no limit".into(), |bytes| Bytes(bytes).to_string());
    let bound_us = answers.iter().map(|answer| answer.bound_makespan_us).fold(0.0, f64::max);
    let facts = [
        ("tensors", Count(problem.tensors().len() as u64).to_string()),
        (
            "kernels",
            format!("{}, {} with all in the first tier", Count(problem.kernels().len() as u64), Micros(ideal_us)),
        ),
        ("peak", Bytes(problem.peak_bytes()).to_string()),
        (problem.tiers()[0].name.as_str(), capacity),
        ("no plan takes less than", Micros(bound_us).to_string()),
    ];
    let facts: String = facts.iter().map(|(name, value)| format!("  {name:<24} {value}\n")).collect();
    let rows: Vec<_> = answers
        .iter()
        .map(|answer| {
            [
                answer.planner.clone(),
                format!("{:.4}", answer.score),
                Percent(answer.gap).to_string(),
                Micros(answer.makespan_us).to_string(),
                Bytes(answer.peak_fast_bytes).to_string(),
                Count(answer.evaluations).to_string(),
                Micros(answer.seconds * 1e6).to_string(),
            ]
        })
        .collect();
    let heads = ["planner", "score", "below bound", "takes", "peak", "plans tried", "in"];
    format!("{}\n{facts}\n{}", problem.name(), table(&heads, &rows))
}
