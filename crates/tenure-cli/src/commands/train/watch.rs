//! What is shown and written while a run goes on.

use std::path::PathBuf;
use std::time::Duration;

use indicatif::ProgressBar;
use tenure::nn::train::{Recorder, Recording, Step};
use tenure::prelude::Tag;
use tenure::report::TrainingReport;
use tenure::tensorboard::EventWriter;
use tenure::units::Bytes;

use super::args::TrainArgs;
use super::outcome::Outcome;
use crate::{files, output, progress};

/// The step, of those that this process makes, in which memory is recorded: the optimizer has its state by then.
const RECORDED: u64 = 3;
/// Looks at memory in that step.
const LOOKS: f64 = 500.0;
/// How much of the loss that is shown stays from step to step: those of single batches differ by chance.
const SMOOTH: f64 = 0.9;

pub(super) struct Watch {
    bar: ProgressBar,
    /// Steps made by this process.
    steps: u64,
    smooth_loss: Option<f64>,
    events: Option<EventWriter>,
    report: Option<PathBuf>,
    recorder: Option<Recorder>,
    recording: Option<(u64, Recording)>,
}

impl Watch {
    pub(super) fn new(args: &TrainArgs, done: u64, steps: u64) -> anyhow::Result<Self> {
        let create = |folder: &PathBuf| EventWriter::create(folder).map_err(|error| files::about(folder, error));
        Ok(Self {
            bar: progress::steps(done, steps),
            steps: 0,
            smooth_loss: None,
            events: args.tensorboard.as_ref().map(create).transpose()?,
            report: args.report.clone(),
            recorder: None,
            recording: None,
        })
    }

    /// A step was made.
    pub(super) fn step(&mut self, step: &Step) -> anyhow::Result<()> {
        self.steps += 1;
        let loss = self
            .smooth_loss
            .map_or(f64::from(step.loss), |before| SMOOTH * before + (1.0 - SMOOTH) * f64::from(step.loss));
        self.smooth_loss = Some(loss);
        let rate = step.examples_per_second();
        self.bar.set_message(format!("loss {loss:.3}, {rate:.1}/s, {}", Bytes(step.memory.peak_bytes)));
        self.bar.inc(1);
        if let Some(events) = &mut self.events {
            write(events, step).map_err(|error| files::about(events.path(), error))?;
        }
        if let Some(recorder) = self.recorder.take() {
            self.recording = Some((step.number, recorder.finish()));
        }
        if self.report.is_some() && self.steps + 1 == RECORDED {
            self.recorder = Some(Recorder::begin(Duration::from_secs_f64(step.elapsed_ms / 1e3 / LOOKS)));
        }
        Ok(())
    }

    /// Accuracy is found on so many batches.
    pub(super) fn tests(&self, batches: usize) {
        self.bar.set_length(batches as u64);
        self.bar.set_position(0);
        self.bar.set_message("finding the accuracy");
    }

    /// On one more.
    pub(super) fn test(&self) {
        self.bar.inc(1);
    }

    /// The run is over.
    pub(super) fn finish(self, outcome: &Outcome, history: &[Step]) -> anyhow::Result<()> {
        self.bar.finish_and_clear();
        if let (Some(mut events), Some(accuracy), Some(last)) = (self.events, outcome.accuracy, history.last()) {
            let written = events.scalars(last.number, &[("accuracy", accuracy)]);
            written.map_err(|error| files::about(events.path(), error))?;
        }
        let Some(path) = &self.report else { return Ok(()) };
        let mut report = TrainingReport::new(outcome.title(), &outcome.facts, history);
        if let Some((step, recording)) = self.recording {
            report = report.with_step(step, recording);
        }
        let html = report.html();
        output::write(path, |out| out.write_all(html.as_bytes())).map_err(|error| files::about(path, error))
    }
}

fn write(events: &mut EventWriter, step: &Step) -> std::io::Result<()> {
    let memory = Tag::ALL.map(|tag| (format!("memory/{tag}"), step.memory.tag_peaks.of(tag) as f64));
    let mut scalars = vec![
        ("loss", f64::from(step.loss)),
        ("learning_rate", step.lr),
        ("examples_per_second", step.examples_per_second()),
        ("memory/peak", step.memory.peak_bytes as f64),
    ];
    scalars.extend(memory.iter().map(|(name, bytes)| (name.as_str(), *bytes)));
    events.scalars(step.number, &scalars)
}
