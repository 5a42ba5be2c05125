//! Training runs: steps, their costs, and checkpoints from which to resume.

mod budget;
mod captured;
mod history;
mod in_backward;
mod memory;
mod parallel;
mod settle;
mod task;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tenure_offload::{Engine, OffloadError};
use tenure_tensor::autograd::{no_grad, rehearse};
use tenure_tensor::cuda::Captured;
use tenure_tensor::{Device, Tensor, TensorError, random};

use budget::Saving;
use captured::{BatchKind, CapturedStep};
use memory::Meter;
pub use memory::{Moment, Recorder, Recording, StepMemory, TagBytes};
use parallel::Rank;
pub use task::{Classification, Score, Task};

use crate::checkpoint::{Checkpoint, CheckpointError, Progress};
use crate::data::{Collate, DataLoader, Dataset, Epoch, Part};
use crate::optim::{Optimizer, Schedule, clip_grad_norm};
use crate::{Result, purpose};

pub use tenure_offload::{Budget, BudgetProgress, Pass, ProcessMeter, StepReport};

/// The name of the default generator in a checkpoint.
const GENERATOR: &str = "default";

/// Trains a [`Task`] on batches of a [`DataLoader`], one step per call. Between steps the caller can show them, save a
/// checkpoint, or stop.
///
/// ```
/// use tenure_nn::data::{DataLoader, LoaderOptions, TextWindows};
/// use tenure_nn::models::{Gpt2, Gpt2Config};
/// use tenure_nn::optim::{Adam, Optimizer, Schedule};
/// use tenure_nn::train::{Classification, Trainer, TrainerOptions};
/// use tenure_nn::{Module, Scope};
/// use tenure_tensor::random::Generator;
///
/// let config = Gpt2Config { vocab_size: 4, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2, ..Gpt2Config::default() };
/// let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
/// let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
/// let data = TextWindows::of_tokens((0..100).map(|index| index % 4).collect(), 8)?;
/// let loader = DataLoader::new(data, LoaderOptions { batch_size: 4, shuffle: Some(0), ..LoaderOptions::default() });
///
/// let schedule = Schedule::Constant;
/// let options = TrainerOptions { steps: 20, schedule, clip_norm: Some(1.0), ..TrainerOptions::default() };
/// let mut trainer = Trainer::new(Classification(model), loader, optimizer, options);
/// while let Some(step) = trainer.step()? {
///     println!("step {}: loss {:.3}, {} at the peak", step.number, step.loss, step.memory.peak_bytes);
/// }
/// assert!(trainer.history()[19].loss < trainer.history()[0].loss);
/// # Ok::<(), tenure_nn::Error>(())
/// ```
pub struct Trainer<T: Task, D: Dataset> {
    task: T,
    loader: DataLoader<D>,
    optimizer: Optimizer,
    options: TrainerOptions,
    step: u64,
    epoch: u64,
    /// The number of the next batch in the epoch.
    batch: u64,
    batches: Option<Epoch<D>>,
    history: Vec<Step>,
    /// The trainer's rank among several devices; `None` on one device.
    rank: Option<Rank>,
    /// The kind of the last batch that a step was made of, or of the captured batches: a first step has prepared
    /// everything for this kind.
    warm: BatchKind,
    captured: Option<CapturedStep<T::Batch>>,
    /// The engine that keeps steps within a memory budget.
    saving: Option<Saving>,
    /// Whether a step failed after some parameters were stepped.
    is_torn: bool,
}

/// The options of a [`Trainer`]: the length of its run, and the settings.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// The number of all steps.
    pub steps: u64,
    /// The schedule of the learning rates.
    pub schedule: Schedule,
    /// The largest norm of all gradients together, to which they are clipped.
    pub clip_norm: Option<f64>,
    /// Whether steps on a CUDA device are [captured](tenure_tensor::cuda::Captured) and replayed, after a first plain
    /// one. This holds for all batches with the captured sizes. The host's work in a step happens once, except for
    /// random numbers and the optimizer's numbers.
    pub is_captured: bool,
    /// Properties that distinguish this run from others, by name, such as the data. A checkpoint of a run with other
    /// properties is refused.
    pub identity: BTreeMap<String, String>,
    /// Names in `identity` whose values in a checkpoint may differ. If the number of batches of an epoch has changed,
    /// the run resumes at the epoch and batch that the same number of steps leads to.
    pub may_differ: BTreeSet<String>,
}

impl Default for TrainerOptions {
    /// A run of zero steps.
    fn default() -> Self {
        Self {
            steps: 0,
            schedule: Schedule::Constant,
            clip_norm: None,
            is_captured: false,
            identity: BTreeMap::new(),
            may_differ: BTreeSet::new(),
        }
    }
}

/// The figures of a step that was made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The step's number, from 1.
    pub number: u64,
    /// The epoch, from 0.
    pub epoch: u64,
    /// The loss of the batch before the step.
    pub loss: f32,
    /// The time in ms from requesting the batch to the end of the parameters' step.
    pub elapsed_ms: f64,
    /// The number of examples in the batch.
    pub examples: usize,
    /// The learning rate of the first group of parameters.
    pub lr: f64,
    /// The memory that tensors held.
    pub memory: StepMemory,
    /// The engine's report, if there is a budget.
    pub offload: Option<StepReport>,
}

/// A run's notes in a checkpoint, beside its progress and history.
#[derive(Serialize, Deserialize)]
struct RunNotes {
    identity: BTreeMap<String, String>,
}

/// The reason why a run does not continue.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss is not finite, so the parameters are useless from now on.
    #[error("the loss became {loss} in step {step}: a smaller learning rate, or a longer warm-up, may help")]
    Diverged {
        /// The step's number, from 1.
        step: u64,
        /// The loss: infinite or NaN.
        loss: f32,
    },
    /// The data set gives no batch.
    #[error("{examples} examples make no batch")]
    NoBatch {
        /// The number of examples in the data set.
        examples: usize,
    },
    /// The memory budget cannot be kept.
    #[error(transparent)]
    Budget(#[from] Arc<OffloadError>),
    /// The budget is too small, and so is every larger one that was tried.
    #[error(
        "a budget of {budget_bytes} bytes is too small, and so are larger ones, up to {tried_bytes} bytes: take a smaller \
         batch, or give it more room to spill to"
    )]
    NoBudget {
        /// The requested budget.
        budget_bytes: u64,
        /// The largest budget that was tried.
        tried_bytes: u64,
    },
    /// A step failed after some parameters were stepped. This happens only with a budget for which the optimizer's
    /// state leaves memory.
    #[error(
        "a step of the run failed when some of the parameters were stepped, and it cannot go on from here: go on from a \
         checkpoint"
    )]
    Torn,
    /// A device of a run on several failed, or its thread panicked.
    #[error("{device}: {message}")]
    OnDevice {
        /// The device. It is never the first one, whose errors are returned as they are.
        device: Device,
        /// The error's message.
        message: String,
    },
    /// Work on a thread of its own panicked.
    #[error("it panicked: {0}")]
    Panicked(String),
    /// The devices of a run no longer work together, since one failed.
    #[error("a device of the run failed, and the others no longer work with it: go on from a checkpoint, in a new run")]
    Apart,
    /// The checkpoint is of another run.
    #[error("the checkpoint is of a run with {name} {saved}, not {given}")]
    OtherRun {
        /// The property in which the runs differ.
        name: String,
        /// The checkpoint's, or `none`.
        saved: String,
        /// This run's, or `none`.
        given: String,
    },
}

impl Step {
    /// Returns the number of examples per second.
    pub fn examples_per_second(&self) -> f64 {
        self.examples as f64 / self.elapsed_ms.max(1e-3) * 1e3
    }
}

impl<T: Task, D: Dataset + 'static> Trainer<T, D>
where
    D::Item: Collate<Batch = T::Batch>,
{
    /// Makes a run that has not begun. The optimizer must have the task's parameters.
    pub fn new(task: T, loader: DataLoader<D>, optimizer: Optimizer, options: TrainerOptions) -> Self {
        Self {
            task,
            loader,
            optimizer,
            options,
            step: 0,
            epoch: 0,
            batch: 0,
            batches: None,
            history: Vec::new(),
            warm: BatchKind::new(),
            captured: None,
            rank: None,
            saving: None,
            is_torn: false,
        }
    }

    /// Keeps steps within an engine's budget, which is set at once or after a [rehearsal](Self::rehearse). For programs
    /// that do the work of [`within`](Self::within) by themselves.
    ///
    /// # Errors
    /// Steps are to be captured or made on several devices; the engine is not for the model's device.
    pub fn with_engine(mut self, engine: Engine) -> Result<Self> {
        const OP: &str = "Trainer::with_engine";
        self.check_budget(OP)?;
        let device = self.device();
        let given = engine.memory().device().map_or(Device::CPU, |memory| memory.device());
        if device != given {
            return Err(
                TensorError::argument(OP, format!("the model is on {device}, and the budget is of {given}")).into()
            );
        }
        self.saving = Some(Saving::new(engine, self.task.model()));
        Ok(self)
    }

    /// Refuses settings that do not work with a budget.
    fn check_budget(&self, op: &'static str) -> Result<()> {
        if self.options.is_captured || self.rank.is_some() {
            return Err(
                TensorError::argument(op, "a budget is kept on one device, by steps that are not captured").into()
            );
        }
        Ok(())
    }

    /// Returns the engine that keeps the run within a budget.
    pub fn engine(&self) -> Option<&Engine> {
        self.saving.as_ref().map(Saving::engine)
    }

    /// Rehearses the step of the next batch: the engine measures it, and neither parameters nor progress change. With
    /// [`Pass::Plain`] it measures the memory of a step without a budget; otherwise it checks that [the
    /// engine's](Self::with_engine) budget can be kept. Later steps use the measurements.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step); there is no [engine](Self::with_engine); no plan keeps to the budget.
    pub fn rehearse(&mut self, pass: Pass) -> Result<StepReport> {
        if pass == Pass::Plain {
            return self.pass(pass);
        }
        // First without spilling the optimizer's state, which is the last resort since it comes and goes in each step.
        if let Some(saving) = &self.saving
            && !saving.spills_state()
            && saving.engine().budget_bytes().is_none_or(|budget| self.stays_bytes() <= budget)
        {
            match self.pass(pass) {
                Err(error) if budget::is_too_small(&error) => {}
                rehearsed => return rehearsed,
            }
        }
        self.spill_state()?;
        self.pass(pass)
    }

    /// Lets the optimizer's state leave memory too, from now on. Returns whether this is new.
    fn spill_state(&mut self) -> Result<bool> {
        let stays_bytes = self.stays_bytes();
        match &mut self.saving {
            Some(saving) if !saving.spills_state() => {
                saving.spill_state(&mut self.optimizer, stays_bytes)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the bytes in memory at the end of backward if nothing of them may leave: parameters, gradients, and the
    /// optimizer's state.
    fn stays_bytes(&self) -> u64 {
        let parameters = self.optimizer.parameters().map(|parameter| parameter.numel() * parameter.dtype().size());
        let bytes = 2 * parameters.sum::<usize>() + self.optimizer.state_bytes();
        bytes as u64
    }

    /// Measures the step of the next batch.
    fn pass(&mut self, pass: Pass) -> Result<StepReport> {
        // The first pass compiles kernels and touches memory, so its times are useless.
        self.forget_measured();
        self.rehearse_once(pass)?;
        self.forget_measured();
        self.rehearse_once(pass)
    }

    fn forget_measured(&self) {
        self.engine().into_iter().for_each(Engine::forget);
    }

    /// Makes one pass over the next batch without lasting effects. It measures, or follows the plan of earlier
    /// measurements.
    fn rehearse_once(&mut self, pass: Pass) -> Result<StepReport> {
        let mut batch = self.next_part()?.whole()?;
        self.optimizer.prepare()?;
        let Some(saving) = &self.saving else {
            return Err(TensorError::argument("Trainer::rehearse", "there is no budget: call within() before").into());
        };
        let task = &self.task;
        let optimizer = &mut self.optimizer;
        let clip_norm = self.options.clip_norm;
        let rehearsed = saving.step(&mut batch, pass, |batch| {
            rehearse(|| {
                let loss = purpose::forward(|| task.loss(batch))?;
                if saving.spills_state() {
                    return in_backward::step(optimizer, saving.engine(), clip_norm, &loss);
                }
                purpose::backward(&loss)?;
                // In a rehearsal, the update takes memory and changes no parameter.
                update(optimizer, clip_norm)
            })
        });
        self.optimizer.parameters().for_each(|parameter| drop(parameter.set_grad(None)));
        // The batch stays the next one. Until here the loader prepared the batches after it, as in a step.
        self.batches = None;
        Ok(rehearsed?.1)
    }

    /// Returns the task.
    pub fn task(&self) -> &T {
        &self.task
    }

    /// Returns the optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// Returns the optimizer to change it, such as its learning rate.
    pub fn optimizer_mut(&mut self) -> &mut Optimizer {
        &mut self.optimizer
    }

    /// Returns the options.
    pub fn options(&self) -> &TrainerOptions {
        &self.options
    }

    /// Returns all steps made, also those before an interruption of the run.
    pub fn history(&self) -> &[Step] {
        &self.history
    }

    /// Returns whether the last step was the last of an epoch.
    pub fn is_at_end_of_epoch(&self) -> bool {
        self.batch == self.loader.batches() as u64
    }

    /// Makes a step. Returns `None` after the last step.
    ///
    /// # Errors
    /// [`TrainError::NoBatch`], [`TrainError::Diverged`]; the data cannot be read; no memory. The next call begins with
    /// the same batch, and no gradients. If the data could not be read, nothing has changed; after other errors batch
    /// normalisation may have seen the batch, and the random generator may have advanced.
    pub fn step(&mut self) -> Result<Option<Step>> {
        if self.step >= self.options.steps {
            return Ok(None);
        }
        if self.is_torn {
            return Err(TrainError::Torn.into());
        }
        let made = match &self.rank {
            Some(rank) if rank.leads() => self.make_step_of_all(),
            _ => self.make_step(),
        };
        if made.is_err() {
            self.batches = None;
            self.forget_capture();
            self.optimizer.zero_grad();
        }
        made.map(Some)
    }

    /// Counts the right predictions for `loader`'s batches, with the model in evaluation mode. `go_on` gets the number
    /// of finished batches; if it returns `false`, the result is `None`.
    ///
    /// # Errors
    /// The data cannot be read; no memory.
    pub fn evaluate<E: Dataset + 'static>(
        &mut self,
        loader: &DataLoader<E>,
        go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Score>>
    where
        E::Item: Collate<Batch = T::Batch>,
    {
        self.task.model_mut().eval();
        let score = self.score(loader, go_on);
        self.task.model_mut().train();
        score
    }

    /// Writes a checkpoint atomically.
    ///
    /// # Errors
    /// [`CheckpointError`]. `path` is unchanged then.
    pub fn save(&self, path: &Path) -> Result<()> {
        let notes = RunNotes { identity: self.options.identity.clone() };
        let notes = serde_json::to_value(notes).map_err(|error| CheckpointError::format(path, error))?;
        let series = history::to_series(&self.history);
        let step = self.step;
        let epoch = self.epoch;
        let batch = self.batch;
        let mut progress = Progress { step, epoch, batch, notes, series, ..Progress::default() };
        progress.set_random(GENERATOR, random::default_generator().state());
        Checkpoint::save(path, self.task.model(), &self.optimizer, &progress)
    }

    /// Resumes from a checkpoint of the same run, as if it had not been interrupted, with the checkpoint's learning
    /// rates. The options may ask for more steps than they did.
    ///
    /// # Errors
    /// [`TrainError::OtherRun`]; [`CheckpointError`], also if the checkpoint contradicts itself;
    /// [`StateError`](crate::StateError). Nothing has changed then.
    pub fn resume(&mut self, path: &Path) -> Result<()> {
        let checkpoint = Checkpoint::open(path)?;
        let progress = checkpoint.progress();
        let wrong = |reason: String| CheckpointError::format(path, reason);
        let notes = RunNotes::deserialize(&progress.notes);
        let notes = notes.map_err(|error| wrong(format!("not of a trainer: {error}")))?;
        same_run(&notes.identity, &self.options)?;
        let history = history::from_series(&progress.series).map_err(wrong)?;
        let (epoch, batch) = self.place(progress, &notes, history.len() as u64).map_err(wrong)?;
        checkpoint.load(self.task.model(), &mut self.optimizer)?;
        if let Some(state) = progress.random(GENERATOR) {
            random::default_generator().set_state(state);
        }
        (self.step, self.epoch, self.batch) = (progress.step, epoch, batch);
        (self.history, self.batches, self.is_torn) = (history, None, false);
        self.forget_capture();
        self.resume_others(path)
    }

    /// Returns the epoch, and the batch in it, at which a run resumes, or the contradiction in a checkpoint's progress.
    fn place(&self, progress: &Progress, notes: &RunNotes, told: u64) -> Result<(u64, u64), String> {
        let Progress { step, epoch, batch, .. } = *progress;
        let batches = self.loader.batches() as u64;
        if step != told {
            return Err(format!("it is of step {step}, and tells of {told} steps"));
        }
        if batches > 0 && notes.identity != self.options.identity {
            return Ok((step / batches, step % batches));
        }
        let made = epoch.checked_mul(batches).and_then(|made| made.checked_add(batch));
        if batch > batches || made != Some(step) {
            return Err(format!(
                "it is of step {step}, and of batch {batch} in epoch {epoch}, which do not go together where an epoch has \
                 {batches} batches"
            ));
        }
        Ok((epoch, batch))
    }

    /// Returns the model's device.
    fn device(&self) -> Device {
        self.optimizer.parameters().next().map_or(Device::CPU, |parameter| parameter.device())
    }

    fn make_step(&mut self) -> Result<Step> {
        let began = Instant::now();
        let meter = Meter::begin(self.device());
        let part = self.next_part();
        let (loss, memory, examples, offload) = match &self.rank {
            Some(rank) => {
                let part = rank.agree(part)?;
                let (loss, memory) = self.learn_part(&part, meter)?;
                (loss, memory, part.of, None)
            }
            None => {
                let batch = part?.whole()?;
                let examples = self.task.examples(&batch);
                let (loss, memory, offload) = self.learn(batch, meter)?;
                (loss, memory, examples, offload)
            }
        };
        self.step += 1;
        self.batch += 1;
        let step = Step {
            number: self.step,
            epoch: self.epoch,
            loss,
            // Whole µs take less space.
            elapsed_ms: (began.elapsed().as_secs_f64() * 1e6).round() / 1e3,
            examples,
            lr: self.optimizer.groups().first().map_or(0.0, |group| group.lr()) * self.optimizer.lr_scale(),
            memory,
            offload,
        };
        self.history.push(step);
        Ok(step)
    }

    /// Returns the next batch, from the next epoch if this one has no more.
    fn next_part(&mut self) -> Result<Part<T::Batch>> {
        if self.loader.batches() == 0 {
            return Err(TrainError::NoBatch { examples: self.loader.dataset().len() }.into());
        }
        loop {
            let batches = self.batches.get_or_insert_with(|| self.loader.epoch(self.epoch, self.batch as usize));
            if let Some(part) = batches.next_part() {
                return Ok(part?);
            }
            (self.epoch, self.batch, self.batches) = (self.epoch + 1, 0, None);
        }
    }

    /// Makes the step of a batch. Returns the loss, the memory of tensors, and the engine's report if there is a
    /// budget.
    fn learn(&mut self, mut batch: T::Batch, mut meter: Meter) -> Result<(f32, StepMemory, Option<StepReport>)> {
        self.optimizer.set_lr_scale(self.options.schedule.scale(self.step));
        if let Some(saving) = self.saving.take() {
            let spills_state = saving.spills_state().then(|| saving.engine());
            let made = saving.step(&mut batch, Pass::Budgeted, |batch| {
                let (loss, known) = self.work(batch, &mut meter, spills_state)?;
                known.map_or_else(|| self.value(&loss), Ok)
            });
            self.saving = Some(saving);
            let (loss, report) = made?;
            return Ok((loss, meter.finish().with_peak(report.peak_bytes), Some(report)));
        }
        if !self.options.is_captured || !self.is_warm(&mut batch)? {
            let (loss, known) = self.work(&batch, &mut meter, None)?;
            let value = known.map_or_else(|| self.value(&loss), Ok)?;
            let memory = meter.finish();
            if self.captured.is_some() {
                // The step is made, so an error is ignored: the memory is released after the next step.
                let _ = captured::give_back(self.device());
            }
            return Ok((value, memory, None));
        }
        let step = match self.captured.take() {
            Some(mut step) => {
                step.bring(&mut batch)?;
                step
            }
            None => {
                let (captured, (loss, _)) = Captured::new(self.device(), || self.work(&batch, &mut meter, None))?;
                CapturedStep { captured, batch, loss, memory: meter.finish() }
            }
        };
        let step = self.captured.insert(step);
        step.captured.replay()?;
        let loss = step.loss.clone();
        let memory = step.memory;
        Ok((self.value(&loss)?, memory, None))
    }

    /// Returns whether the step of a batch is captured or can be captured: a plain step of its kind must have prepared
    /// everything that first uses prepare.
    fn is_warm(&mut self, batch: &mut T::Batch) -> Result<bool> {
        if self.device().is_cpu() {
            let reason = "steps are captured on a CUDA device, and the model is on the CPU";
            return Err(TensorError::argument("Trainer::step", reason).into());
        }
        let kind = captured::kind(batch)?;
        let is_warm = self.warm == kind;
        if self.captured.is_none() {
            self.warm = kind;
        }
        Ok(is_warm)
    }

    /// Drops the capture, so that the next step is a plain one.
    fn forget_capture(&mut self) {
        (self.warm, self.captured) = (BatchKind::new(), None);
    }

    /// Runs the forward pass, the backward pass, and the parameters' step, after backward or during it. Returns the
    /// loss, and its value if that is known early.
    fn work(
        &mut self,
        batch: &T::Batch,
        meter: &mut Meter,
        spills_state: Option<&Engine>,
    ) -> Result<(Tensor, Option<f32>)> {
        let loss = purpose::forward(|| self.task.loss(batch))?;
        meter.look();
        // A device's loss is read after all work is on its stream: the only wait of a step.
        let known = if loss.device().is_cpu() { Some(self.value(&loss)?) } else { None };
        if let Some(engine) = spills_state {
            self.is_torn = true;
            in_backward::step(&mut self.optimizer, engine, self.options.clip_norm, &loss)?;
            self.is_torn = false;
        } else {
            purpose::backward(&loss)?;
            meter.look();
            update(&mut self.optimizer, self.options.clip_norm)?;
        }
        let loss = loss.detach();
        meter.look();
        self.optimizer.zero_grad();
        Ok((loss, known))
    }

    /// Returns a loss as a number, which must be finite.
    fn value(&self, loss: &Tensor) -> Result<f32> {
        let loss = loss.item_scalar()?.to_f64() as f32;
        if loss.is_finite() { Ok(loss) } else { Err(TrainError::Diverged { step: self.step + 1, loss }.into()) }
    }

    fn score<E: Dataset + 'static>(
        &self,
        loader: &DataLoader<E>,
        mut go_on: impl FnMut(usize) -> bool,
    ) -> Result<Option<Score>>
    where
        E::Item: Collate<Batch = T::Batch>,
    {
        let mut score = Score::default();
        for (done, batch) in loader.epoch(0, 0).enumerate() {
            if !go_on(done) {
                return Ok(None);
            }
            score = score + no_grad(|| purpose::forward(|| self.task.score(&batch?)))?;
        }
        Ok(Some(score))
    }
}

/// Clips the gradients if there is a norm, and steps the parameters.
fn update(optimizer: &mut Optimizer, clip_norm: Option<f64>) -> Result<()> {
    if let Some(norm) = clip_norm {
        clip_grad_norm(optimizer.parameters().collect::<Vec<_>>(), norm)?;
    }
    optimizer.step()
}

/// Fails if a saved run and a planned one differ in a property that may not differ.
fn same_run(saved: &BTreeMap<String, String>, options: &TrainerOptions) -> Result<(), TrainError> {
    let given = &options.identity;
    let other = given
        .keys()
        .chain(saved.keys())
        .find(|name: &&String| saved.get(*name) != given.get(*name) && !options.may_differ.contains(*name));
    let Some(name) = other else { return Ok(()) };
    let value = |of: &BTreeMap<String, String>| of.get(name).map_or("none", String::as_str).to_owned();
    Err(TrainError::OtherRun { name: name.clone(), saved: value(saved), given: value(given) })
}
