//! Programs, and the measured times of their steps.

use std::collections::VecDeque;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tenure_plan::Problem;

use super::error::ReportError;

/// The number of placements of a program whose times are remembered: the fastest ones.
const OBSERVATIONS: usize = 32;
/// The number of reports on a placement that are remembered: the last ones. Their medians count.
const REPORTS: usize = 5;
/// The longest time that is accepted: an hour, in ns.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A program, its recent mappings and its measured times.
#[derive(Debug, PartialEq)]
pub(super) struct Program {
    pub(super) problem: Problem,
    pub(super) given: VecDeque<Given>,
    pub(super) observations: Vec<Observation>,
    pub(super) reports: u64,
}

/// A mapping that was given: its file, and each tensor's tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Given {
    pub(super) mapping: PathBuf,
    pub(super) places: Vec<usize>,
}

/// The last reports on one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Observation {
    pub(super) places: Vec<usize>,
    pub(super) times: VecDeque<Times>,
}

/// The times of one report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Times {
    pub(super) step_ns: u64,
    pub(super) kernels_ns: Vec<u64>,
}

impl Program {
    /// Adds times to those of the same placement.
    pub(super) fn learn(&mut self, places: Vec<usize>, times: Times) {
        self.reports += 1;
        if let Some(known) = self.observations.iter_mut().find(|known| known.places == places) {
            known.times.push_front(times);
            known.times.truncate(REPORTS);
            return;
        }
        if self.observations.len() == OBSERVATIONS {
            let times = self.observations.iter().map(Observation::step_ns).enumerate();
            let slowest = times.max_by(|(_, left), (_, right)| left.total_cmp(right));
            if let Some((number, _)) = slowest {
                self.observations.remove(number);
            }
        }
        self.observations.push(Observation { places, times: [times].into() });
    }
}

impl Observation {
    /// Returns the median time of a step in ns.
    pub(super) fn step_ns(&self) -> f64 {
        median(self.times.iter().map(|times| times.step_ns))
    }

    /// Returns the median time of a kernel in ns.
    pub(super) fn kernel_ns(&self, kernel: usize) -> f64 {
        median(self.times.iter().map(|times| times.kernels_ns[kernel]))
    }
}

impl Times {
    /// Checks that times can be true for a problem with `kernels` kernels.
    pub(super) fn check(&self, kernels: usize) -> Result<(), ReportError> {
        let step_ns = self.step_ns;
        let found = self.kernels_ns.len();
        if found != kernels {
            return Err(ReportError::Kernels { found, kernels });
        }
        let longest_ns = self.kernels_ns.iter().copied().max();
        if step_ns == 0 || longest_ns == Some(0) {
            return Err(ReportError::NoTime);
        }
        let kernel_ns = longest_ns.unwrap_or(0);
        let ns = step_ns.max(kernel_ns);
        if ns > LONGEST_NS {
            return Err(ReportError::TooLong { ns });
        }
        if step_ns < kernel_ns {
            return Err(ReportError::ShortStep { step_ns, kernel_ns });
        }
        Ok(())
    }
}

/// Returns the median of at least one time. For an even number of times it is the mean of the middle two.
fn median(times_ns: impl Iterator<Item = u64>) -> f64 {
    let mut times_ns: Vec<u64> = times_ns.collect();
    times_ns.sort_unstable();
    let middle = times_ns.len() / 2;
    let upper = times_ns[middle] as f64;
    if times_ns.len() % 2 == 1 { upper } else { 0.5 * (times_ns[middle - 1] as f64 + upper) }
}

/// Returns whether two problems are of one program.
pub(super) fn is_same(left: &Problem, right: &Problem) -> bool {
    let [left_tiers, right_tiers] = [left, right].map(|problem| problem.tiers().iter().map(|tier| &tier.name));
    let is_same_program = left.name() == right.name() && left_tiers.eq(right_tiers);
    let tensors = left.tensors().iter().zip(right.tensors());
    let kernels = left.kernels().iter().zip(right.kernels());
    is_same_program
        && (left.tensors().len(), left.kernels().len()) == (right.tensors().len(), right.kernels().len())
        && tensors
            .into_iter()
            .all(|(left, right)| (&left.key, left.bytes, left.tag) == (&right.key, right.bytes, right.tag))
        && kernels
            .into_iter()
            .all(|(left, right)| (&left.name, &left.reads, &left.writes) == (&right.name, &right.reads, &right.writes))
}
