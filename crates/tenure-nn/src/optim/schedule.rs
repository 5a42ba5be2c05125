//! Schedules of learning rates.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// A schedule: the factor of a learning rate as a function of the step alone, so that a resumed run needs no more than
/// its step. The factor is at most 1, so the learning rate itself is the largest, unless a greater factor is given.
///
/// ```
/// use tenure_nn::optim::Schedule;
///
/// let schedule = Schedule::Cosine { steps: 100, end: 0.0 }.with_warmup(10);
/// assert_eq!(schedule.scale(0), 0.1);
/// assert_eq!(schedule.scale(10), 1.0);
/// assert!((schedule.scale(60) - 0.5).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Schedule {
    /// Always 1.
    Constant,
    /// Multiplied by `gamma` after every `every` steps. PyTorch's `StepLR`.
    Step {
        /// The number of steps between two changes.
        every: u64,
        /// The factor of each change.
        gamma: f64,
    },
    /// Multiplied by `gamma` after each of the milestones. PyTorch's `MultiStepLR`.
    MultiStep {
        /// The steps of the changes, ascending.
        milestones: Vec<u64>,
        /// The factor of each change.
        gamma: f64,
    },
    /// Half a cosine from 1 to `end`, then constant. PyTorch's `CosineAnnealingLR` without its way back up; `end` is
    /// `eta_min` divided by the learning rate.
    Cosine {
        /// The number of steps until `end`.
        steps: u64,
        /// The last factor.
        end: f64,
    },
    /// A line from `start` to `end`, then constant. PyTorch's `LinearLR`.
    Linear {
        /// The first factor.
        start: f64,
        /// The last factor.
        end: f64,
        /// The number of steps until `end`.
        steps: u64,
    },
    /// Half a cosine up, and half a cosine down to almost nothing (Smith and Topin, 2018). PyTorch's `OneCycleLR` with
    /// its defaults; `max_lr` is the learning rate, and the momentum does not change.
    OneCycle {
        /// The number of all steps.
        steps: u64,
        /// The share of the steps that goes up: 0.3 in PyTorch.
        up: f64,
        /// The ratio of 1 and the first factor: 25 in PyTorch.
        div_factor: f64,
        /// The ratio of the first and the last factor: 10,000 in PyTorch.
        final_div_factor: f64,
    },
    /// A line up to 1 in `steps` steps, then another schedule from its beginning.
    Warmup {
        /// The number of steps of the line.
        steps: u64,
        /// The schedule that follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// Returns the factor for the step `step`, from 0.
    pub fn scale(&self, step: u64) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Step { every, gamma } => power(*gamma, step / (*every).max(1)),
            Self::MultiStep { milestones, gamma } => {
                power(*gamma, milestones.iter().filter(|milestone| **milestone <= step).count() as u64)
            }
            Self::Cosine { steps, end } => cosine(1.0, *end, part(step, *steps as f64)),
            Self::Linear { start, end, steps } => start + (end - start) * part(step, *steps as f64),
            Self::OneCycle { steps, up, div_factor, final_div_factor } => {
                let first = 1.0 / div_factor;
                let last = 1.0 / (div_factor * final_div_factor);
                let top = up * *steps as f64 - 1.0;
                let step = step as f64;
                if step <= top {
                    cosine(first, 1.0, if top > 0.0 { step / top } else { 1.0 })
                } else {
                    let down = *steps as f64 - 1.0 - top;
                    cosine(1.0, last, if down > 0.0 { ((step - top) / down).min(1.0) } else { 1.0 })
                }
            }
            Self::Warmup { steps, .. } if step < *steps => (step + 1) as f64 / *steps as f64,
            Self::Warmup { steps, then } => then.scale(step - steps),
        }
    }

    /// Puts a warm-up before this schedule: a line up to 1 in `steps` steps.
    #[must_use]
    pub fn with_warmup(self, steps: u64) -> Self {
        Self::Warmup { steps, then: Box::new(self) }
    }
}

fn power(base: f64, exponent: u64) -> f64 {
    base.powf(exponent as f64)
}

/// Returns the share of `steps` steps that are over.
fn part(step: u64, steps: f64) -> f64 {
    if steps > 0.0 { (step as f64 / steps).min(1.0) } else { 1.0 }
}

fn cosine(start: f64, end: f64, part: f64) -> f64 {
    end + (start - end) * (1.0 + (PI * part).cos()) / 2.0
}
