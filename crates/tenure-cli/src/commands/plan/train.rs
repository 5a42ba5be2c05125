//! `tenure plan train`: trains the policy of the planner marl.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use tenure::agent::train::{Stage, TrainEvent, TrainOptions, TrainProgress, Trained, train};
use tenure::report::LearningReport;
use tenure::units::{Count, Micros};

use crate::{files, output, progress, signals};

/// Train the policy of the planner marl on synthetic problems
#[derive(clap::Args)]
#[command(after_help = "\
First the policy learns prices of room, which place tensors that stay where they are; then it learns the treatment of \
tensors that may move or be recomputed. The same options give the same policy. The default takes one to two minutes \
on two processors.

Ctrl-C ends the training and writes what was learned until then. Before the first step it writes nothing.

--json prints policy, seconds, and the learning curve: stage (prices or leanings), step, and validation on problems \
that were not trained on: for prices, the best known bound divided by theirs; for leanings, the factor by which a \
plan is faster than the density rule's.

Examples:
  tenure plan train -o policy.safetensors --report curve.html
  tenure plan bert.json --fast-bytes 20% --planner marl \\
    --policy policy.safetensors")]
pub(super) struct PlanTrainArgs {
    /// The file to write the policy to
    #[arg(short, long, value_name = "OUT.safetensors")]
    output: PathBuf,
    /// The file to write the learning curve to, as one HTML page
    #[arg(long, value_name = "OUT.html")]
    report: Option<PathBuf>,
    /// The number of problems to generate for each stage
    #[arg(long, default_value_t = TrainOptions::default().problems, value_name = "N")]
    problems: u64,
    /// The number of steps in which prices are learned
    #[arg(long, default_value_t = TrainOptions::default().price_steps, value_name = "N")]
    price_steps: u64,
    /// The number of steps in which the treatments of tensors are learned
    #[arg(long, default_value_t = TrainOptions::default().leaning_steps, value_name = "N")]
    leaning_steps: u64,
    /// The seed of the random numbers
    #[arg(long, default_value_t = TrainOptions::default().seed, value_name = "N")]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The JSON output.
#[derive(Serialize)]
struct PolicyAnswer {
    policy: String,
    seconds: f64,
    curve: Vec<CurvePoint>,
}

#[derive(Serialize)]
struct CurvePoint {
    stage: &'static str,
    step: u64,
    validation: f64,
}

pub(super) fn run(args: &PlanTrainArgs) -> ExitCode {
    signals::note("writes what was learned until now");
    let printed = files::print(learn(args));
    if printed == ExitCode::SUCCESS { signals::exit_code_or(printed) } else { printed }
}

fn learn(args: &PlanTrainArgs) -> anyhow::Result<String> {
    let &PlanTrainArgs { problems, price_steps, leaning_steps, seed, .. } = args;
    // Report outputs that cannot be written before the work, not after it.
    for path in std::iter::once(&args.output).chain(&args.report) {
        output::check(path)?;
    }
    let begun = Instant::now();
    let bar = progress::steps(0, price_steps + leaning_steps);
    let options = TrainOptions { problems, price_steps, leaning_steps, seed };
    let Trained { policy, curve } = train(&options, &mut |event| {
        match event {
            TrainEvent::Problem => {}
            TrainEvent::Step { stage: Stage::Prices, step } => bar.set_position(step),
            TrainEvent::Step { stage: Stage::Leanings, step } => bar.set_position(price_steps + step),
            TrainEvent::Point(point) => bar.set_message(describe(point)),
        }
        signals::going_on()
    })?;
    let made = bar.position();
    bar.finish_and_clear();
    if signals::was_received() && made == 0 {
        files::complain(&format!("{}: it was not written, as no step was made yet", args.output.display()));
        return Ok(String::new());
    }
    policy.write(&args.output)?;
    let elapsed = begun.elapsed();
    let facts = facts(&options, &curve, elapsed.as_secs_f64());
    if let Some(path) = &args.report {
        let html = LearningReport::new("The policy of marl", &facts, &curve).html();
        output::write(path, |out| out.write_all(html.as_bytes()))?;
    }
    if args.json {
        let point =
            |point: &TrainProgress| CurvePoint { stage: name(point.stage), step: point.step, validation: shown(point) };
        let policy = args.output.display().to_string();
        let answer = PolicyAnswer { policy, seconds: elapsed.as_secs_f64(), curve: curve.iter().map(point).collect() };
        return Ok(serde_json::to_string(&answer)? + "\n");
    }
    let facts: String = facts.iter().map(|(name, value)| format!("  {name:<12} {value}\n")).collect();
    Ok(format!("{}\n{facts}", args.output.display()))
}

fn facts(options: &TrainOptions, curve: &[TrainProgress], seconds: f64) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("problems", Count(options.problems).to_string()),
        ("seed", options.seed.to_string()),
        ("time", Micros(seconds * 1e6).to_string()),
    ];
    for stage in [Stage::Prices, Stage::Leanings] {
        facts.extend(curve.iter().rfind(|point| point.stage == stage).map(|point| (name(stage), describe(point))));
    }
    facts
}

fn describe(point: &TrainProgress) -> String {
    let shown = shown(point);
    match point.stage {
        Stage::Prices => format!("the best bound is {shown:.4} of theirs"),
        Stage::Leanings => format!("{shown:.3} times as fast as density"),
    }
}

/// Converts the logarithm of the time to a factor.
fn shown(point: &TrainProgress) -> f64 {
    match point.stage {
        Stage::Prices => point.validation,
        Stage::Leanings => point.validation.exp(),
    }
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Prices => "prices",
        Stage::Leanings => "leanings",
    }
}
