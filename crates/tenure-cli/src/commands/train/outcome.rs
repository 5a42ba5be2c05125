//! The outcome of a training run.

use std::env;
use std::path::Path;

use serde::{Serialize, Serializer};
use tenure::nn::train::Trainer;
use tenure::tensor::profile::Average;
use tenure::tensor::{Device, threads};
use tenure::tier::{Report, TierReport};
use tenure::units::{Bytes, Count, Micros, Percent};

use super::args::TrainArgs;
use super::budget::Offloaded;
use super::data::Examples;
use super::models::AnyTask;
use crate::figures::median;

/// The number of steps at the end whose losses are averaged, since losses of single batches vary by chance.
const LAST: usize = 20;

#[derive(Serialize)]
pub(super) struct RunOutcome {
    model: String,
    device: String,
    devices: usize,
    steps: usize,
    losses: Vec<f32>,
    step_ms_median: f64,
    peak_bytes: u64,
    pub(super) accuracy: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<Report>,
    #[serde(flatten)]
    offloaded: Option<Offloaded>,
    /// The sums of a profile by name, and the same as a table.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "rows")]
    pub(super) profile: Option<(Vec<Average>, String)>,
    /// The settings and results of the run, in words.
    #[serde(skip)]
    pub(super) facts: Vec<(&'static str, String)>,
    /// A sentence on how the run ended, if it ended early.
    #[serde(skip)]
    pub(super) unfinished: Option<String>,
}

impl RunOutcome {
    pub(super) fn new<D: Examples>(
        args: &TrainArgs,
        run: &Trainer<AnyTask, D>,
        accuracy: Option<f64>,
        placement: Option<Report>,
        offloaded: Option<Offloaded>,
    ) -> Self {
        let history = run.history();
        let step_ms_median = median(history.iter().map(|step| step.elapsed_ms));
        let elapsed_ms: f64 = history.iter().map(|step| step.elapsed_ms).sum();
        let losses: Vec<f32> = history.iter().map(|step| step.loss).collect();
        let peaks = run.device_peaks();
        let peak_bytes = history.iter().map(|step| step.memory.peak_bytes).max().unwrap_or(0);
        let peak_bytes = peaks.iter().map(|(_, peak)| *peak).fold(peak_bytes, u64::max);
        let sizes = || history.iter().map(|step| step.examples);
        let batch_size = sizes().max().unwrap_or(0);
        let each = if sizes().all(|size| size == batch_size) { "" } else { "up to " };
        let steps = Count(history.len() as u64);
        let threads = threads::threads();
        let mut facts = vec![
            ("Data", args.data.to_string()),
            ("Parameters", Count(run.task().model().parameter_count() as u64).to_string()),
            (
                "Computed on",
                match args.compute.device.is_cpu() {
                    true => format!("cpu, {threads} thread{}, seed {}", if threads == 1 { "" } else { "s" }, args.seed),
                    false if peaks.is_empty() => format!("{}, seed {}", args.compute.device, args.seed),
                    false => {
                        let devices: Vec<String> = peaks.iter().map(|(device, _)| device.to_string()).collect();
                        format!("{}, seed {}", devices.join(", "), args.seed)
                    }
                },
            ),
            ("Steps", format!("{steps}, of {each}{batch_size} examples each, in {}", Micros(elapsed_ms * 1e3))),
        ];
        if step_ms_median > 0.0 {
            let rate = batch_size as f64 / step_ms_median * 1e3;
            facts.push(("Median step", format!("{}, {rate:.1} examples/s", Micros(step_ms_median * 1e3))));
        }
        facts.extend(loss(&losses).map(|loss| ("Loss", loss)));
        if let Some(accuracy) = accuracy {
            facts.push(("Accuracy", format!("{:.2}% of what was held out", accuracy * 100.0)));
        }
        facts.push(match peaks {
            [] => ("Peak memory", Bytes(peak_bytes).to_string()),
            peaks => (
                "Peak memory",
                peaks
                    .iter()
                    .map(|(device, peak): &(Device, u64)| format!("{} on {device}", Bytes(*peak)))
                    .collect::<Vec<_>>()
                    .join(", "),
            ),
        });
        facts.extend(offloaded.iter().flat_map(Offloaded::facts));
        facts.extend(placement.iter().map(|report| ("Placement", placed(report))));
        let model = args.model.name().to_owned();
        Self {
            model,
            device: args.compute.device.to_string(),
            devices: peaks.len().max(1),
            steps: losses.len(),
            losses,
            step_ms_median,
            peak_bytes,
            accuracy,
            placement,
            offloaded,
            profile: None,
            facts,
            unfinished: None,
        }
    }

    pub(super) fn title(&self) -> &str {
        &self.model
    }

    /// Returns the text to print.
    pub(super) fn text(&self, as_json: bool) -> anyhow::Result<String> {
        if as_json {
            return Ok(serde_json::to_string(self)? + "\n");
        }
        let facts: String =
            self.facts.iter().map(|(name, value)| format!("  {:<16} {value}\n", name.to_lowercase())).collect();
        let table = self.profile.as_ref().map(|(_, table)| format!("\n{table}")).unwrap_or_default();
        Ok(format!("{}\n{facts}{table}", self.model))
    }
}

/// Writes the rows of a profile.
fn rows<S: Serializer>(profile: &Option<(Vec<Average>, String)>, to: S) -> Result<S::Ok, S::Error> {
    profile.as_ref().map(|(rows, _)| rows).serialize(to)
}

/// Says how far a run came before `error` stopped it.
pub(super) fn stopped(steps: u64, planned: u64, error: &str) -> String {
    format!("Stopped by an error after {} of {} steps: {error}.", Count(steps), Count(planned))
}

/// Says how far an interrupted run came that has no accuracy; `None` if nothing is missing, because it made every step
/// and has no held-out examples.
pub(super) fn interrupted(steps: u64, planned: u64, has_held_out: bool) -> Option<String> {
    if steps < planned {
        return Some(format!("Interrupted after {} of {} steps.", Count(steps), Count(planned)));
    }
    has_held_out.then(|| {
        let steps = Count(steps);
        format!("All {steps} steps were made; the accuracy was not found, because the run was interrupted.")
    })
}

/// Describes the loss of the first step, that of the last, and the mean of the last few.
fn loss(losses: &[f32]) -> Option<String> {
    let first = losses.first()?;
    let last = losses.last()?;
    if losses.len() == 1 {
        return Some(format!("{first:.3} in the only step"));
    }
    let averaged = &losses[losses.len().saturating_sub(LAST)..];
    let count = averaged.len();
    let mean = averaged.iter().sum::<f32>() / averaged.len() as f32;
    Some(format!("{first:.3} in the first step, {last:.3} in the last, {mean:.3} on average over the last {count}"))
}

/// Describes the contents of each tier.
fn placed(report: &Report) -> String {
    let tiers: String = report
        .tiers
        .iter()
        .map(|tier: &TierReport| {
            let bytes = tier.tags.values().map(|tag| tag.bytes).sum();
            format!("; {} in {} ({})", Bytes(bytes), tier.name, tier.nature)
        })
        .collect();
    let unmapped = report.keys.unmapped.len();
    let never_came = report.keys.never_came.len();
    let keys = match (unmapped, never_came) {
        (0, 0) => String::new(),
        _ => format!("; {unmapped} keys have no place in the mapping, {never_came} of its keys never came"),
    };
    format!("{} verified{tiers}{keys}", Percent(report.verified_share))
}

/// Returns this program's command line, with another checkpoint to resume from.
pub(super) fn command_to_resume(path: &Path) -> String {
    let mut words = vec!["tenure".to_owned()];
    let mut given = env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = given.next() {
        match word.as_str() {
            "--resume" => drop(given.next()),
            word if word.starts_with("--resume=") => {}
            _ => words.push(quoted(&word)),
        }
    }
    words.push(format!("--resume {}", quoted(&path.display().to_string())));
    words.join(" ")
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    if !word.is_empty() && word.chars().all(|c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c)) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    #[test]
    fn an_interrupted_run_says_after_how_many_steps_of_how_many() {
        assert_eq!(interrupted(3, 4000, true).as_deref(), Some("Interrupted after 3 of 4,000 steps."));
    }

    #[test]
    fn a_run_interrupted_after_its_last_step_lacks_its_accuracy_alone() {
        let said = "All 4,000 steps were made; the accuracy was not found, because the run was interrupted.";
        assert_eq!(interrupted(4000, 4000, true).as_deref(), Some(said));
        assert_eq!(interrupted(4000, 4000, false), None);
    }

    #[test]
    fn a_mean_of_losses_is_named_as_one() {
        let losses: Vec<f32> = (0..30).map(|step| 30.0 - step as f32).collect();
        let said = "30.000 in the first step, 1.000 in the last, 10.500 on average over the last 20";
        assert_eq!(loss(&losses).as_deref(), Some(said));
        assert!(loss(&losses[28..]).unwrap().ends_with("1.000 in the last, 1.500 on average over the last 2"));
        assert_eq!((loss(&losses[..1]).as_deref(), loss(&[])), (Some("30.000 in the only step"), None));
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(["a-b.c", "", "a b", "it's"].map(quoted), ["a-b.c", "''", "'a b'", r"'it'\''s'"]);
    }
}
