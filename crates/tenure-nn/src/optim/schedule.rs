//! Learning rates over time.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// What a learning rate is multiplied by, as a function of the step alone, so that a run that goes on needs no more
/// than its step. The learning rate itself is the largest, but where a factor above 1 is given.
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
    /// `gamma` times as much after every `every` steps. PyTorch's `StepLR`.
    Step {
        /// Steps between.
        every: u64,
        /// The factor.
        gamma: f64,
    },
    /// `gamma` times as much after each of the milestones. PyTorch's `MultiStepLR`.
    MultiStep {
        /// Steps, ascending.
        milestones: Vec<u64>,
        /// The factor.
        gamma: f64,
    },
    /// Along half a cosine from 1 to `end`, and there for ever. PyTorch's `CosineAnnealingLR` (without its way back
    /// up), where `end` is `eta_min` divided by the learning rate.
    Cosine {
        /// Steps until `end`.
        steps: u64,
        /// The last factor.
        end: f64,
    },
    /// Along a line from `start` to `end`, and there for ever. PyTorch's `LinearLR`.
    Linear {
        /// The first factor.
        start: f64,
        /// The last factor.
        end: f64,
        /// Steps until `end`.
        steps: u64,
    },
    /// Up along half a cosine, and down to almost nothing (Smith and Topin, 2018). PyTorch's `OneCycleLR` with its
    /// defaults, where `max_lr` is the learning rate; momentum is left as it is.
    OneCycle {
        /// Steps in all.
        steps: u64,
        /// The part of them that goes up: 0.3.
        up: f64,
        /// The first factor is 1 / this: 25.
        div_factor: f64,
        /// The last factor is the first / this: 10,000.
        final_div_factor: f64,
    },
    /// Along a line up to 1 in `steps` steps, then another from its beginning.
    Warmup {
        /// Steps.
        steps: u64,
        /// What follows.
        then: Box<Schedule>,
    },
}

impl Schedule {
    /// The factor for the step `step`, from 0.
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
                let (first, last) = (1.0 / div_factor, 1.0 / (div_factor * final_div_factor));
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

    /// This one, after `steps` steps along a line up to 1.
    #[must_use]
    pub fn with_warmup(self, steps: u64) -> Self {
        Self::Warmup { steps, then: Box::new(self) }
    }
}

fn power(base: f64, exponent: u64) -> f64 {
    base.powf(exponent as f64)
}

/// How much of `steps` steps is over.
fn part(step: u64, steps: f64) -> f64 {
    if steps > 0.0 { (step as f64 / steps).min(1.0) } else { 1.0 }
}

fn cosine(start: f64, end: f64, part: f64) -> f64 {
    end + (start - end) * (1.0 + (PI * part).cos()) / 2.0
}
