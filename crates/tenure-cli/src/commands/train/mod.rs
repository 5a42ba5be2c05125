//! Training runs.

mod args;
mod data;
mod models;
mod outcome;
mod recipe;
mod watch;

use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use tenure::nn::data::{Collate, DataLoader, Dataset, LoaderOptions};
use tenure::nn::train::{Plan, Trainer};
use tenure::nn::{self, Scope};
use tenure::tensor::random::{self, Generator};
use tenure::tensor::threads;

pub(crate) use args::TrainArgs;

use crate::{files, output};
use args::ComputeDevice;
use data::{Data, Parts};
use models::{AnyTask, Batch};
use outcome::Outcome;
use recipe::{Length, Recipe};
use watch::Watch;

pub(crate) fn run(args: &TrainArgs) -> ExitCode {
    output::note_interrupts();
    let (printed, end) = match train(args) {
        Ok(outcome) => (outcome.show(args.json), outcome.exit_code()),
        Err(error) => (Err(error), ExitCode::SUCCESS),
    };
    let code = files::print(printed);
    if code == ExitCode::SUCCESS { end } else { code }
}

fn train(args: &TrainArgs) -> anyhow::Result<Outcome> {
    anyhow::ensure!(
        args.device == ComputeDevice::Cpu,
        "--device cuda: there is no training on a GPU yet; leave --device out to train on the CPU"
    );
    args.model.check(&args.data)?;
    [&args.checkpoint, &args.report].into_iter().flatten().try_for_each(|path| check_place(path))?;
    if let Some(path) = args.checkpoint.as_ref().filter(|path| path.exists() && !path.is_file()) {
        anyhow::bail!("--checkpoint {}: it is no file that can be replaced", path.display());
    }
    if let Some(threads) = args.threads {
        threads::set_threads(threads.get())?;
    }
    random::manual_seed(args.seed);
    let scope = Scope::new(&Generator::new(args.seed));
    match args.data.open(args.model)? {
        Data::Images(parts, kind) => train_on(args, args.model.for_images(&scope, kind)?, parts),
        Data::Text(parts) => train_on(args, args.model.for_text(&scope)?, parts),
    }
}

/// That a file cannot be written at the end is said at the beginning.
fn check_place(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let is_possible = folder.is_none_or(Path::is_dir) && !path.is_dir();
    anyhow::ensure!(is_possible, "{}: expected a file's name, in a folder that is there", path.display());
    Ok(())
}

fn train_on<D: Dataset + 'static>(args: &TrainArgs, task: AnyTask, parts: Parts<D>) -> anyhow::Result<Outcome>
where
    D::Item: Collate<Batch = Batch>,
{
    let recipe = Recipe::new(args.model, &args.data);
    let batch_size = args.batch_size.map_or(recipe.batch_size, NonZeroUsize::get);
    let loader =
        |dataset, shuffle| DataLoader::new(dataset, LoaderOptions { batch_size, shuffle, ..LoaderOptions::default() });
    let (training, held_out) = (loader(parts.training, Some(args.seed)), loader(parts.held_out, None));
    let plan = plan(args, &recipe, batch_size, &training);
    let optimizer = recipe.optimizer(task.model().parameters(), args.lr.unwrap_or(recipe.lr));
    let mut run = Trainer::new(task, training, optimizer, plan);
    if let Some(path) = &args.resume {
        run.resume(path).map_err(|error| about_checkpoint(path, error))?;
    }

    let mut watch = Watch::new(args, run.history().len() as u64, run.plan().steps)?;
    while !output::is_interrupted() {
        let Some(step) = run.step()? else { break };
        watch.step(&step)?;
        if let Some(path) = &args.checkpoint
            && run.is_at_end_of_epoch()
            && step.number < run.plan().steps
        {
            run.save(path)?;
        }
    }
    if let Some(path) = &args.checkpoint {
        run.save(path)?;
    }
    let accuracy = accuracy(&mut run, &held_out, &watch)?;
    let interrupted = output::is_interrupted().then(|| args.checkpoint_when_interrupted(run.history().len()));
    if let (Some(path), None) = (&interrupted, &args.checkpoint) {
        run.save(path)?;
    }
    let outcome = Outcome::new(args, &run, accuracy, interrupted);
    watch.finish(&outcome, run.history())?;
    Ok(outcome)
}

fn plan<D: Dataset + 'static>(args: &TrainArgs, recipe: &Recipe, batch_size: usize, training: &DataLoader<D>) -> Plan {
    let length = match (args.steps, args.epochs) {
        (Some(steps), _) => Length::Steps(steps.get()),
        (_, Some(epochs)) => Length::Epochs(epochs.get()),
        (None, None) => recipe.length,
    };
    let steps = match length {
        Length::Steps(steps) => steps,
        Length::Epochs(epochs) => epochs.saturating_mul(training.batches() as u64),
    };
    let identity = [
        ("--model", args.model.name()),
        ("--data", args.data.to_string()),
        ("--batch-size", batch_size.to_string()),
        ("--seed", args.seed.to_string()),
        ("examples to train on", training.dataset().len().to_string()),
    ];
    Plan {
        steps,
        schedule: recipe.schedule(steps),
        clip_norm: recipe.clip_norm,
        identity: identity.map(|(name, value)| (name.to_owned(), value)).into(),
    }
}

/// The share of predictions on what was held out that are right; `None` if there is nothing, or nobody waits for it.
fn accuracy<D: Dataset + 'static>(
    run: &mut Trainer<AnyTask, D>,
    held_out: &DataLoader<D>,
    watch: &Watch,
) -> anyhow::Result<Option<f64>>
where
    D::Item: Collate<Batch = Batch>,
{
    if output::is_interrupted() {
        return Ok(None);
    }
    watch.tests(held_out.batches());
    let score = run.evaluate(held_out, |_| {
        watch.test();
        !output::is_interrupted()
    })?;
    Ok(score.and_then(nn::train::Score::accuracy))
}

/// What is wrong with a file that was given to go on from.
fn about_checkpoint(path: &Path, error: nn::Error) -> anyhow::Error {
    match error {
        // It names the file.
        nn::Error::Checkpoint(_) => error.into(),
        _ => files::about(path, error),
    }
}
