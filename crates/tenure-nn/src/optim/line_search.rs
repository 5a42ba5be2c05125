//! A line search for steps that fulfil the strong Wolfe conditions, by cubic interpolation (Nocedal and Wright, 2006,
//! algorithms 3.5 and 3.6).

use tenure_tensor::Tensor;

use crate::Result;

/// The share of the slope that a step must at least gain.
const SUFFICIENT_DECREASE: f64 = 1e-4;
/// The share of the slope that may remain after a step.
const CURVATURE: f64 = 0.9;
/// The change of an element below which an interval is not divided further.
const LEAST_CHANGE: f64 = 1e-9;

/// The function at a place on the line.
#[derive(Clone)]
pub(super) struct Trial {
    /// The distance from the start, in directions.
    pub(super) at: f64,
    /// The function's value.
    pub(super) loss: f64,
    /// The derivative along the direction.
    pub(super) slope: f64,
    /// The gradient.
    pub(super) grad: Tensor,
}

/// The two ends of an interval that contains a step to take, or that step alone.
enum Bracket {
    Found(Trial),
    Between([Trial; 2]),
}

/// Searches from `start` on for a step; `step` is the first try. Returns the trial to move to, and the number of
/// evaluations. `reach` is the largest absolute element of the direction. PyTorch's `_strong_wolfe`.
pub(super) fn strong_wolfe(
    mut evaluate: impl FnMut(f64) -> Result<Trial>,
    start: &Trial,
    step: f64,
    reach: f64,
    most: usize,
) -> Result<(Trial, usize)> {
    let mut tries = 0;
    let ends = match bracket(&mut evaluate, start, step, most, &mut tries)? {
        Bracket::Found(trial) => return Ok((trial, tries + 1)),
        Bracket::Between(ends) => ends,
    };
    let found = zoom(&mut evaluate, start, ends, reach, most, &mut tries)?;
    Ok((found, tries + 1))
}

/// Makes steps longer until one fulfils the conditions or has passed one that does. Counts evaluations after the first.
fn bracket(
    evaluate: &mut impl FnMut(f64) -> Result<Trial>,
    start: &Trial,
    step: f64,
    most: usize,
    tries: &mut usize,
) -> Result<Bracket> {
    let mut previous = start.clone();
    let mut trial = evaluate(step)?;
    while *tries < most {
        if !trial.decreases_enough(start) || (*tries > 1 && trial.loss >= previous.loss) {
            return Ok(Bracket::Between([previous, trial]));
        }
        if trial.is_flat_enough(start) {
            return Ok(Bracket::Found(trial));
        }
        if trial.slope >= 0.0 {
            return Ok(Bracket::Between([previous, trial]));
        }
        let limits = [trial.at + 0.01 * (trial.at - previous.at), trial.at * 10.0];
        let next = interpolated(&previous, &trial, limits);
        previous = trial;
        trial = evaluate(next)?;
        *tries += 1;
    }
    Ok(Bracket::Between([start.clone(), trial]))
}

/// Divides an interval until an end fulfils the conditions, and returns the lower end.
fn zoom(
    evaluate: &mut impl FnMut(f64) -> Result<Trial>,
    start: &Trial,
    mut ends: [Trial; 2],
    reach: f64,
    most: usize,
    tries: &mut usize,
) -> Result<Trial> {
    let mut low = lower(&ends);
    let mut was_near_end = false;
    while *tries < most && (ends[1].at - ends[0].at).abs() * reach >= LEAST_CHANGE {
        let left = ends[0].at.min(ends[1].at);
        let right = ends[0].at.max(ends[1].at);
        let mut at = interpolated(&ends[0], &ends[1], [left, right]);
        let margin = 0.1 * (right - left);
        let is_near_end = (right - at).min(at - left) < margin;
        let moves = is_near_end && (was_near_end || at >= right || at <= left);
        if moves {
            at = if (at - right).abs() < (at - left).abs() { right - margin } else { left + margin };
        }
        was_near_end = is_near_end && !moves;

        let trial = evaluate(at)?;
        *tries += 1;
        if !trial.decreases_enough(start) || trial.loss >= ends[low].loss {
            ends[1 - low] = trial;
            low = lower(&ends);
            continue;
        }
        let is_found = trial.is_flat_enough(start);
        if !is_found && trial.slope * (ends[1 - low].at - ends[low].at) >= 0.0 {
            ends[1 - low] = ends[low].clone();
        }
        ends[low] = trial;
        if is_found {
            break;
        }
    }
    let [first, second] = ends;
    Ok(if low == 0 { first } else { second })
}

impl Trial {
    fn decreases_enough(&self, start: &Self) -> bool {
        self.loss <= start.loss + SUFFICIENT_DECREASE * self.at * start.slope
    }

    fn is_flat_enough(&self, start: &Self) -> bool {
        self.slope.abs() <= -CURVATURE * start.slope
    }
}

/// Returns the index of the end with the lower value.
fn lower(ends: &[Trial; 2]) -> usize {
    usize::from(ends[0].loss > ends[1].loss)
}

/// Returns the minimum, within limits, of the cubic polynomial with two trials' values and slopes, or the middle if it
/// has none.
fn interpolated(first: &Trial, second: &Trial, [least, most]: [f64; 2]) -> f64 {
    let (left, right) = if first.at <= second.at { (first, second) } else { (second, first) };
    let mean = left.slope + right.slope - 3.0 * (left.loss - right.loss) / (left.at - right.at);
    let square = mean * mean - left.slope * right.slope;
    if square < 0.0 || square.is_nan() {
        return (least + most) / 2.0;
    }
    let root = square.sqrt();
    let share = (right.slope + root - mean) / (right.slope - left.slope + 2.0 * root);
    (right.at - (right.at - left.at) * share).max(least).min(most)
}
