//! Turns a solution of the joint problem into a plan.

use super::joint::{GapColumns, JointProblem};
use crate::Problem;
use crate::plan::{Plan, PlanAction, PlanStep};
use crate::uses::Use;

/// Returns the plan that the columns' values describe. A tensor leaves as soon as it may, in the order of last uses,
/// and returns as late as its link allows, in the order of next uses. Returns `None` if no link leads where a tensor
/// would have to go.
pub(super) fn decode(problem: &Problem, uses: &[Vec<Use>], joint: &JointProblem, values: &[f64]) -> Option<Plan> {
    let is = |column: highs::Col| values[column.index()] > 0.5;
    let decoder = SolutionDecoder::new(problem, joint, values);
    let mut places = vec![0; problem.tensors().len()];
    let (mut steps, mut returns) = (Vec::new(), Vec::new());
    for (tensor, columns) in joint.tensors.iter().enumerate() {
        let slow = slow_tier(problem, &uses[tensor]);
        let place = |index: usize| if is(columns.is_fast[index]) { Some(0) } else { slow };
        let is_ever_fast = columns.is_fast.iter().any(|is_fast| is(*is_fast));
        let mut at = match (columns.begins_fast, columns.is_fast.first()) {
            (Some(begins_fast), _) if is(begins_fast) => Some(0),
            (Some(_), _) if is_ever_fast => decoder.away(slow),
            (None, Some(_)) => place(0),
            _ => slow.or(Some(0)),
        }?;
        places[tensor] = at;
        for gap in &columns.gaps {
            let GapColumns { before, after, .. } = *gap;
            let next = match after {
                Some((_, index)) => place(index)?,
                // It ends in the tier where it begins.
                None => places[tensor],
            };
            let step = |kernel, action| PlanStep { tensor, kernel, action };
            let begin = |kernel: usize| decoder.begins[kernel];
            if let (Some((from, _)), Some((to, _)), true) = (before, after, gap.again.is_some_and(is)) {
                steps.push((begin(from), step(from, PlanAction::Drop)));
                steps.push((begin(to), step(to, PlanAction::Recompute { to: next })));
                at = next;
                continue;
            }
            let from = before.map_or(0, |(kernel, _)| kernel);
            let to = after.map_or(decoder.begins.len() - 1, |(kernel, _)| kernel);
            // A gap without a kernel in between gains nothing.
            let is_brief = next == 0 && before.is_some() && to == from + 1;
            if at == 0 && !is(gap.stays) && !is_brief {
                let tier = if next == 0 { decoder.away(slow)? } else { next };
                decoder.link(0, tier)?;
                steps.push((begin(from), step(from, PlanAction::Move { to: tier })));
                at = tier;
            }
            if at != next {
                let link = decoder.link(at, next)?;
                returns.push(Return { link, from, to, step: step(from, PlanAction::Move { to: next }) });
                at = next;
            }
        }
    }
    decoder.schedule(&mut steps, returns);
    // Tensors that are recomputed before the same kernel come in the order in which they were first created.
    let born = |step: &PlanStep| problem.lifetime(step.tensor).map(|life| *life.start());
    steps.sort_by(|(left, a), (right, b)| left.total_cmp(right).then_with(|| born(a).cmp(&born(b))));
    Some(Plan { places, steps: steps.into_iter().map(|(_, step)| step).collect() })
}

/// A move that must be done when a kernel begins.
struct Return {
    link: usize,
    /// The kernel at which the move may begin at the earliest, and then the kernel that needs it.
    from: usize,
    to: usize,
    step: PlanStep,
}

struct SolutionDecoder<'a> {
    problem: &'a Problem,
    /// The time at which each kernel begins, and the time at which the last ends.
    begins: Vec<f64>,
}

impl<'a> SolutionDecoder<'a> {
    fn new(problem: &'a Problem, joint: &JointProblem, values: &[f64]) -> Self {
        let mut now = 0.0;
        let ends = joint.times.iter().map(|time| {
            now += values[time.index()] * joint.ns_unit;
            now
        });
        Self { problem, begins: std::iter::once(0.0).chain(ends).collect() }
    }

    /// Returns the tier to which returning tensors go: the slow tier, if there are links there and back.
    fn away(&self, slow: Option<usize>) -> Option<usize> {
        let others = slow.into_iter().chain(1..self.problem.tiers().len());
        others.into_iter().find(|tier| self.link(0, *tier).is_some() && self.link(*tier, 0).is_some())
    }

    fn link(&self, from: usize, to: usize) -> Option<usize> {
        self.problem.link(from, to)
    }

    /// Finds when each return begins, the last first: in time for its kernel, and before its link is needed for the
    /// next return.
    fn schedule(&self, steps: &mut Vec<(f64, PlanStep)>, mut returns: Vec<Return>) {
        returns.sort_by_key(|it| std::cmp::Reverse(it.to));
        let mut free_until = vec![f64::INFINITY; self.problem.links().len()];
        for Return { link, from, to, step } in returns {
            let bytes = self.problem.moved_bytes(step.tensor, link) as f64;
            let takes_ns = bytes * 1e9 / self.problem.links()[link].bandwidth as f64;
            let end = self.begins[to].min(free_until[link]);
            let begin = end - takes_ns;
            free_until[link] = begin;
            let kernel = self.begins.partition_point(|at| *at <= begin).saturating_sub(1).clamp(from, to - 1);
            steps.push((begin.max(self.begins[from]), PlanStep { kernel, ..step }));
        }
    }
}

/// Returns the tier where kernels use a tensor that is not in the first tier; any other tier if no kernel uses it.
pub(super) fn slow_tier(problem: &Problem, uses: &[Use]) -> Option<usize> {
    let all_ns = |tier: usize| uses.iter().map(|a_use| a_use.extra_ns[tier]).sum::<f64>();
    (1..problem.tiers().len())
        .filter(|tier| uses.is_empty() || problem.tiers()[*tier].is_reachable)
        .min_by(|left, right| all_ns(*left).total_cmp(&all_ns(*right)))
}
