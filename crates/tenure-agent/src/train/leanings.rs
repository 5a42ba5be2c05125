//! Training of the leanings of groups of tensors.

use std::ops::ControlFlow;

use tenure_nn::Module;
use tenure_nn::optim::{Adam, Optimizer};
use tenure_plan::planner::{Decoder, Objective};
use tenure_plan::problem::generate::Uncertain;
use tenure_plan::{Rule, simulate};
use tenure_tensor::random::Generator;
use tenure_tensor::{Tensor, autograd};

use super::{Lessons, Stage, TrainError, TrainOptions, TrainRun};
use crate::choices::Choices;
use crate::policy::{LEANINGS, Policy};
use crate::random::normal;

const LEARNING_RATE: f64 = 1e-3;
/// The number of problems in a step.
const BATCH: usize = 4;
/// The number of plans of one problem that are compared in a step. Every second one is the mirror image of the one
/// before.
const SAMPLES: usize = 12;
/// The standard deviation of a group's offsets from the policy's leanings.
const SPREAD: f64 = 0.7;
/// A difference in gain below which differences count less. It is added to the standard deviation of a problem's gains.
const SCALE: f64 = 0.05;
/// The gain of a plan that cannot be simulated, because its moves wait for each other under the true times.
const UNPLAYABLE: f64 = -2.0;

/// A problem to train on.
struct LeaningLesson {
    problem: Uncertain,
    choices: Choices,
    /// The time in ns that the density rule's plan takes.
    density_ns: f64,
}

impl LeaningLesson {
    /// Returns the logarithm of the density rule's time over the plan's time, both by true times.
    fn gain(&self, decoder: &Decoder<'_>, leanings: &[f32], offsets: &[f64]) -> f64 {
        let plan = decoder.decode(&self.choices.decide(&self.choices.with_group_offsets(leanings, offsets)));
        simulate(&self.problem.truth, &plan).map_or(UNPLAYABLE, |played| (self.density_ns / played.makespan_ns).ln())
    }
}

/// Trains the network of leanings. Returns whether the caller wants training to go on.
pub(super) fn learn(run: &mut TrainRun<'_>, options: &TrainOptions) -> Result<ControlFlow<()>, TrainError> {
    let lessons = run.make_lessons(options, |policy, family, seed| {
        let problem = family.contended(seed)?;
        let capacity = problem.told.tiers()[0].capacity.unwrap_or(u64::MAX);
        let density = Rule::Density.place(&problem.told, capacity);
        let density_ns = simulate(&problem.truth, &density.plan())?.makespan_ns;
        let decoder = Decoder::new(&problem.told, Objective::Makespan);
        let choices = Choices::new(&problem.told, &decoder, policy)?;
        Ok(LeaningLesson { choices, density_ns, problem })
    })?;
    let ControlFlow::Continue(Lessons { validation, training }) = lessons else { return Ok(ControlFlow::Break(())) };
    let stage = (Stage::Leanings, options.leaning_steps);
    let optimizer = Optimizer::new(run.policy.leanings.parameters(), LEARNING_RATE, Adam::w());
    let generator = Generator::new(options.seed);
    run.make_steps(
        stage,
        optimizer,
        |policy| validate(policy, &validation),
        |policy| {
            for _ in 0..BATCH {
                let lesson = &training[(generator.next_u64() % training.len() as u64) as usize];
                loss(policy, lesson, &generator)?.backward()?;
            }
            Ok(())
        },
    )
}

/// Returns the mean gain of the plans that the policy's leanings give without a search.
fn validate(policy: &Policy, lessons: &[LeaningLesson]) -> Result<f64, TrainError> {
    let mut sum = 0.0;
    for lesson in lessons {
        let leanings = autograd::no_grad(|| policy.leanings(&lesson.choices.features)?.to_vec::<f32>())?;
        let decoder = Decoder::new(&lesson.problem.told, Objective::Makespan);
        sum += lesson.gain(&decoder, &leanings, &vec![0.0; lesson.choices.group_count() * LEANINGS]);
    }
    Ok(sum / lessons.len() as f64)
}

/// Returns a tensor whose gradient leads towards the better samples of a problem. The offsets of a group's leanings are
/// normally distributed, so the gradient of their log-probability is proportional to the offsets.
fn loss(policy: &Policy, lesson: &LeaningLesson, generator: &Generator) -> Result<Tensor, TrainError> {
    let choices = &lesson.choices;
    let leanings = policy.leanings(&choices.features)?;
    let values = leanings.detach().to_vec::<f32>()?;
    let decoder = Decoder::new(&lesson.problem.told, Objective::Makespan);
    let mut samples: Vec<(f64, Vec<f64>)> = Vec::new();
    for number in 0..SAMPLES {
        let offsets: Vec<f64> = match samples.last() {
            Some((_, before)) if number % 2 == 1 => before.iter().map(|offset| -offset).collect(),
            _ => (0..choices.group_count() * LEANINGS).map(|_| SPREAD * normal(generator)).collect(),
        };
        samples.push((lesson.gain(&decoder, &values, &offsets), offsets));
    }
    let count = samples.len() as f64;
    let mean = samples.iter().map(|(gain, _)| gain).sum::<f64>() / count;
    let deviation = (samples.iter().map(|(gain, _)| (gain - mean).powi(2)).sum::<f64>() / count).sqrt() + SCALE;
    let mut directions = vec![0.0; choices.group_count() * LEANINGS];
    for (gain, offsets) in &samples {
        let advantage = (gain - mean) / deviation;
        for (direction, offset) in directions.iter_mut().zip(offsets) {
            *direction -= advantage * offset / (SPREAD * SPREAD * count);
        }
    }
    let weights = choices.leaning_directions(&directions);
    let weights = Tensor::from_vec(weights, &[values.len() / LEANINGS, LEANINGS])?;
    Ok(leanings.mul(&weights)?.sum_all()?)
}
