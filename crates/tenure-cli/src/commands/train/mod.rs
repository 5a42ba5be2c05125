//! `tenure train`: runs a training.

mod args;
mod budget;
mod data;
mod digest;
mod models;
mod outcome;
mod placement;
mod profile;
mod recipe;

mod watch;

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;

use tenure::nn::checkpoint::{self, Checkpoint};
use tenure::nn::data::{DataLoader, Dataset, LoaderOptions};
use tenure::nn::train::{TrainError, Trainer, TrainerOptions};
use tenure::nn::{self, Scope};
use tenure::tensor::random::{self, Generator};
use tenure::tensor::{Device, TensorError, threads};

pub(crate) use args::TrainArgs;

use crate::{files, output, signals};
use budget::RunBudget;
use data::{Data, DataSplit, Examples};
use models::AnyTask;
use outcome::RunOutcome;
use placement::RunPlacement;
use profile::RunProfile;
use recipe::{Length, Recipe};
use watch::Watch;

/// The names of fields in a run's identity.
const DATA: &str = "--data";
const DIGEST: &str = "data of SHA-256";
const EXAMPLES: &str = "examples to train on";
const BATCHES: &str = "steps of an epoch";

pub(crate) fn run(args: &TrainArgs) -> ExitCode {
    train(args).unwrap_or_else(|error| files::print(Err(error)))
}

fn train(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    args.model.check(&args.data)?;
    args.check_files()?;
    if args.captured && args.compute.device.is_cpu() {
        anyhow::bail!("--captured: only the steps of a CUDA device are captured: add --device cuda");
    }
    if args.captured && args.devices.is_some_and(|devices| devices.get() > 1) {
        anyhow::bail!("--captured: steps are captured on one device: leave out --devices");
    }
    if args.budget.amount.is_some() && (args.captured || args.devices.is_some_and(|devices| devices.get() > 1)) {
        anyhow::bail!(
            "--budget: it is kept on one device, by steps that are not captured: leave out --captured and --devices"
        );
    }
    if !args.compute.device.is_cpu() && (args.problem.is_some() || args.mapping.is_some()) {
        anyhow::bail!("--problem and --mapping are of the CPU's memory: leave out --device {}", args.compute.device);
    }
    // Report an output that cannot be written before the work, not after it.
    args.problem.as_deref().map_or(Ok(()), output::check)?;
    args.report.as_deref().map_or(Ok(()), output::check)?;
    args.profile.as_deref().map_or(Ok(()), output::check)?;
    args.checkpoint.as_deref().map_or(Ok(()), checkpoint::check_writable)?;
    if let Some(threads) = args.threads {
        threads::set_threads(threads.get())?;
    }
    random::manual_seed(args.seed);
    let devices = args.devices()?;
    let model = args.model;
    let (data, digest) = data::open(&args.data, model, args.seed)?;
    match data {
        Data::Images(parts, kind) => {
            train_on(args, &devices, move |scope| model.for_images(scope, kind), parts, &digest)
        }
        Data::Text(parts) => train_on(args, &devices, move |scope| model.for_text(scope), parts, &digest),
    }
}

/// Trains on the data, whose contents have this digest. `model` makes a new model.
fn train_on<D: Examples>(
    args: &TrainArgs,
    devices: &[Device],
    model: impl Fn(&Scope) -> nn::Result<AnyTask> + Send + Sync + 'static,
    parts: DataSplit<D>,
    digest: &str,
) -> anyhow::Result<ExitCode> {
    let mut memory = RunPlacement::default();
    if let Some(path) = &args.problem {
        memory.record(path, args.model.name())?;
    }
    if let Some(mapping) = &args.mapping {
        memory.place(mapping, &args.tiers)?;
    }
    let mut budget = RunBudget::open(&args.budget, args.compute.device)?;
    let recipe = Recipe::new(args.model, &args.data);
    let batch_size = args.batch_size.map_or(recipe.batch_size, NonZeroUsize::get);
    let options = LoaderOptions { batch_size, device: args.compute.device, ..LoaderOptions::default() };
    let examples = parts.training.len();
    anyhow::ensure!(
        batch_size >= devices.len(),
        "--batch-size {batch_size}: a batch is divided among {0} devices: give each an example, by --batch-size {0} or \
         more, or take fewer --devices",
        devices.len()
    );
    // With one image on a device, batch normalisation has nothing to normalise over.
    let is_too_small = (1..2 * devices.len()).contains(&(examples % batch_size));
    let drop_last = !args.model.is_for_text() && examples > batch_size && is_too_small;
    let training = DataLoader::new(parts.training, LoaderOptions { shuffle: Some(args.seed), drop_last, ..options });
    let held_out = DataLoader::new(parts.held_out, options);
    let trainer_options = trainer_options(args, &recipe, batch_size, &training, digest)?;
    let seed = args.seed;
    let lr = args.lr.unwrap_or(recipe.lr);
    let watching = memory.watching();
    let replica = move |device| {
        let task = watching(model(&Scope::new(&Generator::new(seed)).with_device(device))?);
        let optimizer = recipe.optimizer(task.model().parameters(), lr);
        Ok((task, optimizer))
    };
    let (task, optimizer) = replica(args.compute.device)?;
    let mut run = Trainer::new(task, training, optimizer, trainer_options).on_devices(devices, replica)?;
    if let Some(path) = &args.resume {
        resume(&mut run, path, args.lr)?;
    }
    let before = run.history().len();
    let steps = run.options().steps;
    let to_make = steps.saturating_sub(before as u64);
    anyhow::ensure!(
        args.problem.is_none() || to_make >= placement::STEP as u64,
        "--problem: it records step {} of this run, by which the optimizer has its state, and the run makes {to_make}: \
         add --steps {} or more",
        placement::STEP,
        before + placement::STEP
    );
    if let Some(budget) = &mut budget {
        run = budget.enter(&args.budget, args.seed, run)?;
    }

    if before as u64 > steps {
        let _ = writeln!(io::stderr(), "tenure: the checkpoint is of step {before}, of {steps} to make: none is made");
    }
    let mut watch =
        Watch::new((before as u64, steps), args.compute.device, args.tensorboard.as_deref(), args.report.as_deref())?;
    let mut profile = RunProfile::new(args.profile.as_deref(), to_make);
    // Until here a signal ends the program at once, whatever it waits for.
    signals::note("ends after this step");
    match make_steps(args.checkpoint.as_deref(), &mut run, &mut watch, (&mut memory, &mut profile)) {
        // No step was made, so there is nothing to report.
        Err(error) if run.history().len() == before => Err(explain(error, &run, batch_size)),
        made => Ok(finish(args, run, watch, (memory, budget, profile), &held_out, made.err(), batch_size)),
    }
}

/// Makes steps until all planned ones are done, or the user interrupts.
fn make_steps<D: Examples>(
    checkpoint: Option<&Path>,
    run: &mut Trainer<AnyTask, D>,
    watch: &mut Watch,
    (memory, profile): (&mut RunPlacement, &mut RunProfile),
) -> nn::Result<()> {
    while !signals::was_received() {
        let Some(step) = profile.step(|| run.step())? else { break };
        watch.step(&step, run.engine());
        if let Err(error) = memory.step() {
            watch.complain(&error);
        }
        if let Some(path) = checkpoint
            && run.is_at_end_of_epoch()
            && step.number < run.options().steps
        {
            watch.save(run, path);
        }
    }
    Ok(())
}

/// Shows and writes the results of the steps, even if an error `stopped` them; writes as many of the outputs as
/// possible.
fn finish<D: Examples>(
    args: &TrainArgs,
    mut run: Trainer<AnyTask, D>,
    mut watch: Watch,
    (memory, budget, mut profile): (RunPlacement, Option<RunBudget>, RunProfile),
    held_out: &DataLoader<D>,
    stopped: Option<nn::Error>,
    batch_size: usize,
) -> ExitCode {
    let steps = run.history().len();
    profile.finish();
    if let Err(error) = profile.write() {
        watch.complain(&error);
    }
    // The current parameters are useless: the checkpoint before is better.
    let is_lost = matches!(stopped, Some(nn::Error::Train(TrainError::Diverged { .. })));
    if let Some(path) = args.checkpoint.as_ref().filter(|_| !is_lost) {
        watch.save(&run, path);
    }
    let stopped = stopped.map(|error| {
        let kept = args.checkpoint.as_ref().zip(watch.saved).filter(|_| is_lost);
        let kept = kept.map_or(String::new(), |(path, step)| format!("; {} is of step {step}", path.display()));
        format!("{}{kept}", explain(error, &run, batch_size))
    });
    let accuracy = if stopped.is_none() { accuracy(&mut run, held_out, &mut watch) } else { None };
    let is_interrupted = signals::was_received();
    let can_go_on = (is_interrupted || stopped.is_some()) && !is_lost;
    let left = can_go_on.then(|| args.checkpoint_when_interrupted(steps));
    if let (Some(path), None) = (&left, &args.checkpoint) {
        watch.save(&run, path);
    }

    watch.clear();
    let offloaded = budget.zip(run.engine()).map(|(budget, engine)| budget.offloaded(engine, run.history()));
    let mut outcome = RunOutcome::new(args, &run, accuracy, memory.report(), offloaded);
    outcome.unfinished = match &stopped {
        Some(error) => Some(outcome::stopped(steps as u64, run.options().steps, error)),
        // An interrupt after everything was done ended nothing.
        None if is_interrupted && accuracy.is_none() => {
            outcome::interrupted(steps as u64, run.options().steps, held_out.batches() > 0)
        }
        None => None,
    };
    outcome.profile = profile.sums();
    if let Some(path) = memory.unrecorded() {
        let step = placement::STEP;
        files::complain(&format!(
            "{}: no problem was written, as the run ended before its step {step}",
            path.display()
        ));
    }
    let printed = files::print(outcome.text(args.json));
    watch.write(&outcome, run.history());
    if let Some(error) = stopped {
        watch.complain(&anyhow::anyhow!("{error}"));
    }
    if let Some(path) = left.filter(|_| watch.saved == Some(steps)) {
        let how = if is_interrupted { "interrupted" } else { "stopped" };
        let command = outcome::command_to_resume(&path);
        // A failure to write to stderr cannot be reported.
        let _ = writeln!(io::stderr(), "tenure: {how} after step {steps}; to go on:\n  {command}");
    }
    if printed != ExitCode::SUCCESS {
        printed
    } else if watch.has_failed {
        ExitCode::from(files::BAD_INPUT)
    } else {
        signals::exit_code_or(printed)
    }
}

/// Continues from a checkpoint, with its learning rate or the requested one.
fn resume<D: Examples>(run: &mut Trainer<AnyTask, D>, path: &Path, lr: Option<f64>) -> anyhow::Result<()> {
    run.resume(path).map_err(|error| about_checkpoint(path, error))?;
    let Some(lr) = lr else { return Ok(()) };
    for group in run.optimizer_mut().groups_mut() {
        if group.lr() != lr {
            let _ = writeln!(io::stderr(), "tenure: goes on with --lr {lr:?}; it was {:?} before", group.lr());
        }
        group.set_lr(lr);
    }
    Ok(())
}

fn trainer_options<D: Dataset + 'static>(
    args: &TrainArgs,
    recipe: &Recipe,
    batch_size: usize,
    training: &DataLoader<D>,
    digest: &str,
) -> anyhow::Result<TrainerOptions> {
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
        ("--model", args.model.name().to_owned()),
        // For messages: the digest decides whether the data is the same.
        (DATA, args.data.to_string()),
        (DIGEST, digest.to_owned()),
        ("--batch-size", batch_size.to_string()),
        ("--seed", args.seed.to_string()),
        (EXAMPLES, training.dataset().len().to_string()),
        // The number of devices decides whether a small last batch is left out.
        (BATCHES, training.batches().to_string()),
    ];
    let mut may_differ = vec![DATA];
    if args.changed_data {
        may_differ.extend([DIGEST, EXAMPLES, BATCHES]);
    } else if let Some(path) = &args.resume
        && !has_digest(path)?
    {
        may_differ.push(DIGEST);
        files::complain(&format!(
            "{}: this checkpoint of an older version has no digest of its data, so that only the number of examples is \
             compared",
            path.display()
        ));
    }
    Ok(TrainerOptions {
        steps,
        schedule: recipe.schedule(steps),
        clip_norm: recipe.clip_norm,
        is_captured: args.captured,
        identity: identity.map(|(name, value)| (name.to_owned(), value)).into(),
        may_differ: may_differ.into_iter().map(str::to_owned).collect(),
    })
}

/// Returns whether a checkpoint has a digest of its data.
fn has_digest(path: &Path) -> anyhow::Result<bool> {
    let checkpoint = Checkpoint::open(path).map_err(|error| about_checkpoint(path, error))?;
    Ok(checkpoint.progress().notes["identity"].get(DIGEST).is_some())
}

/// Returns the share of correct predictions on held-out examples; `None` if there are none, or the user interrupts.
fn accuracy<D: Examples>(run: &mut Trainer<AnyTask, D>, held_out: &DataLoader<D>, watch: &mut Watch) -> Option<f64> {
    if signals::was_received() {
        return None;
    }
    watch.tests(held_out.batches());
    let score = run.evaluate(held_out, |_| {
        watch.test();
        !signals::was_received()
    });
    match score {
        Ok(score) => score.and_then(nn::train::Score::accuracy),
        Err(error) => {
            watch.complain(&error.into());
            None
        }
    }
}

/// Explains why a run cannot continue, with the options that may help.
fn explain<D: Examples>(error: nn::Error, run: &Trainer<AnyTask, D>, batch_size: usize) -> anyhow::Error {
    match error {
        nn::Error::Train(TrainError::Diverged { .. }) => {
            let lr = run.optimizer().groups().first().map_or(0.0, |group| group.lr());
            anyhow::anyhow!("{error}: --lr is {lr:?}")
        }
        nn::Error::Tensor(TensorError::Shape { op: "batch_norm", .. }) => too_small(&error, run, batch_size),
        // A device's part of a batch may be smaller than the first device's.
        nn::Error::Train(TrainError::OnDevice { ref message, .. }) if message.starts_with("batch_norm") => {
            too_small(&error, run, batch_size)
        }
        _ => error.into(),
    }
}

/// Returns the error for a batch, or a device's part of it, of one image.
fn too_small<D: Examples>(error: &nn::Error, run: &Trainer<AnyTask, D>, batch_size: usize) -> anyhow::Error {
    let least = 2 * run.device_peaks().len().max(1);
    let examples = run.options().identity.get(EXAMPLES).map_or("", String::as_str);
    if batch_size < least {
        return anyhow::anyhow!(
            "{error}: images of this size are normalised over the batch, which takes two for each device: a larger \
             --batch-size than {batch_size} is needed, {least} or more"
        );
    }
    anyhow::anyhow!(
        "{error}: images of this size are normalised over the batch, which takes two for each device, {least} in all: \
         add images to train on, of which there are {examples}"
    )
}

/// Explains an error of the checkpoint to resume from.
fn about_checkpoint(path: &Path, error: nn::Error) -> anyhow::Error {
    match error {
        // The error names the file.
        nn::Error::Checkpoint(_) => error.into(),
        nn::Error::Train(TrainError::OtherRun { ref name, .. }) if name == EXAMPLES => {
            let to_do = "put the data back as it was, or add --changed-data to go on with it as it is now \
                         (the order of the examples is then another, and without a folder of its own, which are held out)";
            files::about(path, format!("{error}: {to_do}"))
        }
        nn::Error::Train(TrainError::OtherRun { ref name, .. }) if name == DIGEST => files::about(
            path,
            "the contents of --data are not those that the run was trained on: put the data back as it was, or add \
             --changed-data to go on with it as it is now",
        ),
        _ => files::about(path, error),
    }
}
