//! The history of a run's steps as a checkpoint stores it: one series of numbers for each figure, which is compact.

use std::array;
use std::collections::BTreeMap;

use tenure_core::Tag;

use super::{Step, StepMemory, TagBytes};

const TAGS: usize = Tag::ALL.len();
const FIGURES: usize = 6 + 2 * TAGS;

/// Converts steps to series, by the figures' names.
pub(super) fn to_series(history: &[Step]) -> BTreeMap<String, Vec<f64>> {
    let rows: Vec<[f64; FIGURES]> = history.iter().map(to_row).collect();
    let names = names().into_iter().enumerate();
    names.map(|(figure, name)| (name, rows.iter().map(|row| row[figure]).collect())).collect()
}

/// Converts series back to steps, or returns the reason why they do not fit together.
pub(super) fn from_series(series: &BTreeMap<String, Vec<f64>>) -> Result<Vec<Step>, String> {
    let of = |name: &String| series.get(name).ok_or_else(|| format!("it does not tell {name} of the steps"));
    let columns = names().iter().map(of).collect::<Result<Vec<_>, _>>()?;
    let steps = columns[0].len();
    if let Some(other) = columns.iter().find(|column| column.len() != steps) {
        return Err(format!("it tells one thing of {steps} steps, and another of {}", other.len()));
    }
    Ok((0..steps).map(|step| from_row(step as u64 + 1, array::from_fn(|figure| columns[figure][step]))).collect())
}

fn names() -> Vec<String> {
    let of_steps = ["epoch", "loss", "elapsed_ms", "examples", "lr", "peak_bytes"].map(str::to_owned).into_iter();
    let tags = Tag::ALL.map(|tag| format!("bytes.{tag}"));
    let peaks = Tag::ALL.map(|tag| format!("peak_bytes.{tag}"));
    of_steps.chain(tags).chain(peaks).collect()
}

/// Returns a step's figures, in the order of their names. A whole number is exact below 2^53.
fn to_row(step: &Step) -> [f64; FIGURES] {
    let Step { number: _, epoch, loss, elapsed_ms, examples, lr, memory, offload: _ } = *step;
    let of_steps = [epoch as f64, loss.into(), elapsed_ms, examples as f64, lr, memory.peak_bytes as f64];
    let tags = [memory.tags, memory.tag_peaks].map(|bytes| Tag::ALL.map(|tag| bytes.of(tag) as f64));
    let mut figures = of_steps.into_iter().chain(tags.into_iter().flatten());
    array::from_fn(|_| figures.next().unwrap_or_default())
}

fn from_row(number: u64, row: [f64; FIGURES]) -> Step {
    let [epoch, loss, elapsed_ms, examples, lr, peak_bytes, tags @ ..] = row;
    let bytes = |from: usize| TagBytes(array::from_fn(|tag| tags[from + tag] as u64));
    let memory = StepMemory { peak_bytes: peak_bytes as u64, tags: bytes(0), tag_peaks: bytes(TAGS) };
    let epoch = epoch as u64;
    let loss = loss as f32;
    let examples = examples as usize;
    let offload = None;
    Step { number, epoch, loss, elapsed_ms, examples, lr, memory, offload }
}
