//! Progress and files that a run shows and writes while it goes on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;
use tenure::core::Tag;
use tenure::nn::train::{Recorder, Recording, Step, Trainer};
use tenure::offload::{Engine, StepRecord, StepRecorder};
use tenure::report::TrainingReport;
use tenure::tensor::Device;
use tenure::tensorboard::EventWriter;
use tenure::units::Bytes;

use super::data::Examples;
use super::models::AnyTask;
use super::outcome::RunOutcome;
use crate::{files, output, progress};

/// The step of this process in which memory is recorded: by then the optimizer has its state.
const RECORDED: u64 = 3;
/// The number of samples of memory in that step.
const LOOKS: f64 = 500.0;
/// The share of the displayed loss that stays from step to step, since losses of single batches vary by chance.
const SMOOTH: f64 = 0.9;

pub(super) struct Watch {
    bar: ProgressBar,
    /// The number of steps made by this process.
    steps: u64,
    smooth_loss: Option<f64>,
    events: Option<EventWriter>,
    report: Option<PathBuf>,
    device: Device,
    recorder: Option<Recorder>,
    recording: Option<(u64, Recording)>,
    /// The recorder of offloading in the same step, with a budget.
    offload_recorder: Option<StepRecorder>,
    offload: Option<(u64, StepRecord)>,
    /// The step of the last checkpoint that was written.
    pub(super) saved: Option<usize>,
    /// Whether something could not be written or measured. The run went on.
    pub(super) has_failed: bool,
}

impl Watch {
    /// Shows `steps` steps on `device`, of which `done` are made; writes events for TensorBoard into a folder, and a
    /// report at the end.
    pub(super) fn new(
        (done, steps): (u64, u64),
        device: Device,
        tensorboard: Option<&Path>,
        report: Option<&Path>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            bar: progress::steps(done, steps),
            steps: 0,
            smooth_loss: None,
            events: tensorboard
                .map(|folder| EventWriter::create(folder).map_err(|error| files::about(folder, error)))
                .transpose()?,
            report: report.map(Path::to_owned),
            device,
            recorder: None,
            recording: None,
            offload_recorder: None,
            offload: None,
            saved: None,
            has_failed: false,
        })
    }

    /// Records a step, within the budget of an engine if there is one.
    pub(super) fn step(&mut self, step: &Step, engine: Option<&Engine>) {
        self.steps += 1;
        let loss = self
            .smooth_loss
            .map_or(f64::from(step.loss), |before| SMOOTH * before + (1.0 - SMOOTH) * f64::from(step.loss));
        self.smooth_loss = Some(loss);
        let rate = step.examples_per_second();
        self.bar.set_message(format!("loss {loss:.3}, {rate:.1}/s, {}", Bytes(step.memory.peak_bytes)));
        self.bar.inc(1);
        self.scalars(step.number, &scalars(step));
        if let Some(recorder) = self.recorder.take() {
            self.recording = Some((step.number, recorder.finish()));
        }
        if let Some(recorder) = self.offload_recorder.take() {
            self.offload = Some((step.number, recorder.finish()));
        }
        if self.report.is_some() && self.steps + 1 == RECORDED {
            let interval = Duration::from_secs_f64(step.elapsed_ms / 1e3 / LOOKS);
            self.recorder = Some(Recorder::begin(interval, self.device));
            self.offload_recorder = engine.map(|engine| StepRecorder::begin(engine, interval));
        }
    }

    /// Writes a checkpoint.
    pub(super) fn save<D: Examples>(&mut self, run: &Trainer<AnyTask, D>, path: &Path) {
        match run.save(path) {
            Ok(()) => self.saved = Some(run.history().len()),
            Err(error) => self.complain(&error.into()),
        }
    }

    /// Reports at once a failure that does not end the run.
    pub(super) fn complain(&mut self, error: &anyhow::Error) {
        self.has_failed = true;
        self.bar.suspend(|| files::complain(&error.to_string()));
    }

    /// Shows that accuracy is measured on this many batches.
    pub(super) fn tests(&self, batches: usize) {
        self.bar.set_length(batches as u64);
        self.bar.set_position(0);
        self.bar.set_message("finding the accuracy");
    }

    /// Counts one more batch.
    pub(super) fn test(&self) {
        self.bar.inc(1);
    }

    /// Removes the progress display.
    pub(super) fn clear(&self) {
        self.bar.finish_and_clear();
    }

    /// Writes the results of the run.
    pub(super) fn write(&mut self, outcome: &RunOutcome, history: &[Step]) {
        if let (Some(accuracy), Some(last)) = (outcome.accuracy, history.last()) {
            self.scalars(last.number, &[("accuracy".to_owned(), accuracy)]);
        }
        let Some(path) = &self.report else { return };
        let mut report = TrainingReport::new(outcome.title(), &outcome.facts, history);
        if let Some(how) = &outcome.unfinished {
            report = report.unfinished(how);
        }
        if let Some((step, recording)) = self.recording.take() {
            report = report.with_step(step, recording);
        }
        if let Some((step, record)) = self.offload.take() {
            report = report.with_offload(step, record);
        }
        let html = report.html();
        if let Err(error) = output::write(path, |out| out.write_all(html.as_bytes())) {
            self.complain(&error);
        }
    }

    /// Writes figures for TensorBoard, up to the first that cannot be written.
    fn scalars(&mut self, step: u64, scalars: &[(String, f64)]) {
        let Some(events) = &mut self.events else { return };
        let scalars: Vec<(&str, f64)> = scalars.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        if let Err(error) = events.scalars(step, &scalars) {
            let error = files::about(events.path(), error);
            self.events = None;
            self.complain(&error);
        }
    }
}

fn scalars(step: &Step) -> Vec<(String, f64)> {
    let of_step = [
        ("loss", f64::from(step.loss)),
        ("learning_rate", step.lr),
        ("examples_per_second", step.examples_per_second()),
        ("memory/peak", step.memory.peak_bytes as f64),
    ];
    let memory = Tag::ALL.map(|tag| (format!("memory/{tag}"), step.memory.tag_peaks.of(tag) as f64));
    of_step.map(|(name, value)| (name.to_owned(), value)).into_iter().chain(memory).collect()
}
