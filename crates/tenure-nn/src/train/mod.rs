//! Training runs: steps, their costs, and checkpoints from which to resume.

mod budget;
mod budget_setup;
mod captured;
mod history;
mod in_backward;
mod memory;
mod parallel;
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

use budget::OffloadedSteps;
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

/// The name, in a checkpoint, of the default generator of the trainer's device.
const GENERATOR: &str = "default";
/// The name, in a checkpoint, of the CPU's default generator, if the trainer's device is another.
const CPU_GENERATOR: &str = "cpu";

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
/// let data = TextWindows::of_tokens((0..100).map(|index| index % 4).collect(), 8)?;
/// let loader = DataLoader::new(data, LoaderOptions { batch_size: 4, shuffle: Some(0), ..LoaderOptions::default() });
/// let config = Gpt2Config { vocab_size: 4, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2, ..Gpt2Config::default() };
/// let model = Gpt2::new(&Scope::new(&Generator::new(0)), &config)?;
/// let optimizer = Optimizer::new(model.parameters(), 1e-2, Adam::w());
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
    /// The kind of the captured step's batches, or, before a capture, of the last step's. A plain step of this kind has
    /// run, so all that is prepared at first use is ready.
    prepared_kind: BatchKind,
    captured: Option<CapturedStep<T::Batch>>,
    /// The connection to the engine that keeps steps within a memory budget; `None` without a budget.
    offload: Option<OffloadedSteps>,
    /// Whether a step failed after it had updated some of the parameters.
    is_partly_updated: bool,
}

/// The options of a [`Trainer`].
#[derive(Clone, Debug, PartialEq)]
pub struct TrainerOptions {
    /// The total number of steps of the run, including those before an interruption.
    pub steps: u64,
    /// The schedule of the learning rates.
    pub schedule: Schedule,
    /// The norm of all gradients together to which they are clipped if it is larger; `None` clips nothing.
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

/// The data of a run in a checkpoint in addition to its progress and history.
#[derive(Serialize, Deserialize)]
struct RunNotes {
    identity: BTreeMap<String, String>,
}

/// An error of a training run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// The loss is infinite or NaN, so training cannot continue from these parameters.
    #[error("the loss became {loss} in step {step}: a smaller learning rate, or a longer warm-up, may help")]
    Diverged {
        /// The step's number, from 1.
        step: u64,
        /// The loss: infinite or NaN.
        loss: f32,
    },
    /// The data set gives no batch.
    #[error("{examples} examples are too few for a batch")]
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
    /// A step failed after it had updated some of the parameters. This happens only with a budget for which the
    /// optimizer's state is offloaded.
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
    /// A worker thread panicked.
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
            prepared_kind: BatchKind::new(),
            captured: None,
            rank: None,
            offload: None,
            is_partly_updated: false,
        }
    }

    /// Lets `engine` offload the tensors that steps save for backward, to keep within its budget. The caller sets the
    /// budget now, or after a [rehearsal](Self::rehearse). This is for programs that do the work of
    /// [`within`](Self::within) themselves.
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
        self.offload = Some(OffloadedSteps::new(engine, self.task.model()));
        Ok(self)
    }

    /// Returns an error if the run's settings do not work with a budget.
    fn check_budget(&self, op: &'static str) -> Result<()> {
        if self.options.is_captured || self.rank.is_some() {
            return Err(
                TensorError::argument(op, "a budget is kept on one device, by steps that are not captured").into()
            );
        }
        Ok(())
    }

    /// Returns the engine that keeps the run within a budget, if there is one.
    pub fn engine(&self) -> Option<&Engine> {
        self.offload.as_ref().map(OffloadedSteps::engine)
    }

    /// Runs the step of the next batch without its effects: the engine measures it, and neither parameters nor progress
    /// change. With
    /// [`Pass::Plain`] it measures the memory of a step without a budget; otherwise it checks that [the
    /// engine's](Self::with_engine) budget can be kept. Later steps use the measurements.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step); there is no [engine](Self::with_engine); no plan keeps to the budget.
    pub fn rehearse(&mut self, pass: Pass) -> Result<StepReport> {
        if pass == Pass::Plain {
            return self.measure(pass);
        }
        // First without spilling the optimizer's state, which is the last resort since it is moved in and out in each
        // step.
        if let Some(offload) = &self.offload
            && !offload.spills_state()
            && offload.engine().budget_bytes().is_none_or(|budget| self.resident_bytes() <= budget)
        {
            match self.measure(pass) {
                Err(error) if budget::is_too_small(&error) => {}
                rehearsed => return rehearsed,
            }
        }
        self.spill_state()?;
        self.measure(pass)
    }

    /// Offloads the optimizer's state too, from now on. Returns `false` if it is offloaded already.
    fn spill_state(&mut self) -> Result<bool> {
        let resident_bytes = self.resident_bytes();
        match &mut self.offload {
            Some(offload) if !offload.spills_state() => {
                offload.spill_state(&mut self.optimizer, resident_bytes)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Returns the bytes of parameters, gradients and the optimizer's state, which are all in memory at the end of
    /// backward if none are offloaded.
    fn resident_bytes(&self) -> u64 {
        let parameters = self.optimizer.parameters().map(|parameter| parameter.numel() * parameter.dtype().size());
        let bytes = 2 * parameters.sum::<usize>() + self.optimizer.state_bytes();
        bytes as u64
    }

    /// Measures the step of the next batch, in two rehearsals.
    fn measure(&mut self, pass: Pass) -> Result<StepReport> {
        // The first rehearsal also compiles kernels and first touches memory, so its times are discarded.
        self.forget_measured();
        self.rehearse_once(pass)?;
        self.forget_measured();
        self.rehearse_once(pass)
    }

    /// Discards the engine's measurements.
    fn forget_measured(&self) {
        self.engine().into_iter().for_each(Engine::forget);
    }

    /// Runs the step of the next batch once, without its effects. The engine measures it, or follows its plan from
    /// earlier measurements.
    fn rehearse_once(&mut self, pass: Pass) -> Result<StepReport> {
        let mut batch = self.next_part()?.whole()?;
        self.optimizer.prepare()?;
        let Some(offload) = &self.offload else {
            return Err(TensorError::argument("Trainer::rehearse", "no budget is set: call within() before").into());
        };
        let task = &self.task;
        let optimizer = &mut self.optimizer;
        let clip_norm = self.options.clip_norm;
        let rehearsed = offload.step(&mut batch, pass, |batch| {
            rehearse(|| {
                let loss = purpose::forward(|| task.loss(batch))?;
                if offload.spills_state() {
                    return in_backward::step(optimizer, offload.engine(), clip_norm, &loss);
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

    /// Returns the optimizer, to change for example its learning rate.
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

    /// Trains on the next batch: runs the forward and backward passes and updates the parameters. Returns `None` after
    /// the last step.
    ///
    /// # Errors
    /// [`TrainError::NoBatch`], [`TrainError::Diverged`]; the data cannot be read; no memory. The next call begins with
    /// the same batch, and no gradients. If the data could not be read, nothing has changed; after other errors batch
    /// normalisation may have seen the batch, and the random generator may have advanced.
    pub fn step(&mut self) -> Result<Option<Step>> {
        if self.step >= self.options.steps {
            return Ok(None);
        }
        if self.is_partly_updated {
            return Err(TrainError::Torn.into());
        }
        let made = match &self.rank {
            Some(rank) if rank.leads() => self.make_step_of_all(),
            _ => self.make_step(),
        };
        if made.is_err() {
            self.batches = None;
            self.drop_capture();
            self.optimizer.zero_grad();
        }
        made.map(Some)
    }

    /// Counts the correct predictions for `loader`'s batches, with the model in evaluation mode. `go_on` gets the
    /// number of finished batches; if it returns `false`, the result is `None`.
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
        for (name, device) in self.generators() {
            progress.set_random(name, random::default_generator(device).state());
        }
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
        check_same_run(&notes.identity, &self.options)?;
        let history = history::from_series(&progress.series).map_err(wrong)?;
        let (epoch, batch) = self.resume_position(progress, &notes, history.len() as u64).map_err(wrong)?;
        checkpoint.load(self.task.model(), &mut self.optimizer)?;
        for (name, device) in self.generators() {
            if let Some(state) = progress.random(name) {
                random::default_generator(device).set_state(state);
            }
        }
        (self.step, self.epoch, self.batch) = (progress.step, epoch, batch);
        (self.history, self.batches, self.is_partly_updated) = (history, None, false);
        self.drop_capture();
        self.resume_others(path)
    }

    /// Returns the devices whose default generators a checkpoint stores, with their names there.
    fn generators(&self) -> impl Iterator<Item = (&'static str, Device)> + use<T, D> {
        let device = self.device();
        let cpu = (!device.is_cpu()).then_some((CPU_GENERATOR, Device::CPU));
        [(GENERATOR, device)].into_iter().chain(cpu)
    }

    /// Returns the epoch, and the batch in it, at which a run resumes, or a description of the contradiction in a
    /// checkpoint's progress.
    fn resume_position(
        &self,
        progress: &Progress,
        notes: &RunNotes,
        steps_in_history: u64,
    ) -> Result<(u64, u64), String> {
        let Progress { step, epoch, batch, .. } = *progress;
        let batches = self.loader.batches() as u64;
        if step != steps_in_history {
            return Err(format!("it is of step {step}, and tells of {steps_in_history} steps"));
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

    /// Makes the step of the next batch on this device, and records it in the history.
    fn make_step(&mut self) -> Result<Step> {
        let began = Instant::now();
        let meter = Meter::begin(self.device());
        let part = self.next_part();
        let (loss, memory, examples, offload) = match &self.rank {
            Some(rank) => {
                let part = rank.begin_pass(part)?;
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

    /// Returns this device's part of the next batch, from the next epoch if this one has no more.
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
        if let Some(offload) = self.offload.take() {
            let spills_state = offload.spills_state().then(|| offload.engine());
            let made = offload.step(&mut batch, Pass::Budgeted, |batch| {
                let (loss, early_value) = self.work(batch, &mut meter, spills_state)?;
                early_value.map_or_else(|| self.value(&loss), Ok)
            });
            self.offload = Some(offload);
            let (loss, report) = made?;
            return Ok((loss, meter.finish().with_peak(report.peak_bytes), Some(report)));
        }
        if !self.options.is_captured || !self.can_capture(&mut batch)? {
            let (loss, early_value) = self.work(&batch, &mut meter, None)?;
            let value = early_value.map_or_else(|| self.value(&loss), Ok)?;
            let memory = meter.finish();
            if self.captured.is_some() {
                // The step is made, so an error is ignored: the memory is released after the next step.
                let _ = captured::release_cached_memory(self.device());
            }
            return Ok((value, memory, None));
        }
        let step = match self.captured.take() {
            Some(mut step) => {
                step.set_batch(&mut batch)?;
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

    /// Returns whether the step of a batch can be captured or replayed: a plain step for a batch of its kind must have
    /// run before, since things that are prepared at first use cannot be captured.
    fn can_capture(&mut self, batch: &mut T::Batch) -> Result<bool> {
        if self.device().is_cpu() {
            let reason = "steps are captured on a CUDA device, and the model is on the CPU";
            return Err(TensorError::argument("Trainer::step", reason).into());
        }
        let kind = captured::kind(batch)?;
        let is_prepared = self.prepared_kind == kind;
        if self.captured.is_none() {
            self.prepared_kind = kind;
        }
        Ok(is_prepared)
    }

    /// Drops the captured step, so that the next step is a plain one.
    fn drop_capture(&mut self) {
        (self.prepared_kind, self.captured) = (BatchKind::new(), None);
    }

    /// Runs the forward pass, the backward pass, and the update of parameters: during backward if `spills_state` has an
    /// engine, else after it. Returns the loss, and its value if the loss is on the CPU.
    fn work(
        &mut self,
        batch: &T::Batch,
        meter: &mut Meter,
        spills_state: Option<&Engine>,
    ) -> Result<(Tensor, Option<f32>)> {
        let loss = purpose::forward(|| self.task.loss(batch))?;
        meter.sample();
        // The loss of another device is read after all work was submitted to its stream: the only wait of a step.
        let early_value = if loss.device().is_cpu() { Some(self.value(&loss)?) } else { None };
        if let Some(engine) = spills_state {
            self.is_partly_updated = true;
            in_backward::step(&mut self.optimizer, engine, self.options.clip_norm, &loss)?;
            self.is_partly_updated = false;
        } else {
            purpose::backward(&loss)?;
            meter.sample();
            update(&mut self.optimizer, self.options.clip_norm)?;
        }
        let loss = loss.detach();
        meter.sample();
        self.optimizer.zero_grad();
        Ok((loss, early_value))
    }

    /// Returns a loss as a number, which must be finite.
    fn value(&self, loss: &Tensor) -> Result<f32> {
        let loss = loss.item_scalar()?.to_f64() as f32;
        if loss.is_finite() { Ok(loss) } else { Err(TrainError::Diverged { step: self.step + 1, loss }.into()) }
    }

    /// Does the work of [`evaluate`](Self::evaluate), in the model's present mode.
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

/// Clips the gradients if there is a norm, and updates the parameters.
fn update(optimizer: &mut Optimizer, clip_norm: Option<f64>) -> Result<()> {
    if let Some(norm) = clip_norm {
        clip_grad_norm(optimizer.parameters().collect::<Vec<_>>(), norm)?;
    }
    optimizer.step()
}

/// Returns an error if a saved run and this one differ in a property that may not differ.
fn check_same_run(saved: &BTreeMap<String, String>, options: &TrainerOptions) -> Result<(), TrainError> {
    let given = &options.identity;
    let other = given
        .keys()
        .chain(saved.keys())
        .find(|name: &&String| saved.get(*name) != given.get(*name) && !options.may_differ.contains(*name));
    let Some(name) = other else { return Ok(()) };
    let [saved, given] = [saved, given].map(|of| of.get(name).map_or("none", String::as_str).to_owned());
    Err(TrainError::OtherRun { name: name.clone(), saved, given })
}
