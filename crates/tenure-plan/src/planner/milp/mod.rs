//! The planner that solves mixed-integer problems.
//!
//! *Tensors that stay where they are* (the score, and the makespan where nothing can move): a column for each tensor
//! says whether it is in the first tier, and a row for each maximal set of tensors that exist at once limits their
//! bytes. With integer columns this is exactly the problem, if the other tiers have room, and the bound holds for all
//! such plans.
//!
//! *Everything together* (the makespan): for each use, a column says whether the tensor is in the first tier; for each
//! gap between two uses, columns say whether it stays there or is recomputed. If it does neither, it crosses a link at
//! each end of the gap at which it is in the first tier. For each kernel, columns hold the time until the next begins,
//! and the bytes that leave and return meanwhile. The solver minimises the sum of times, where
//! - a kernel takes as long as in the simulator with no transfer in progress, and recomputation adds to the sum;
//! - links take no more than their bandwidth in each kernel's time, which is why kernels wait;
//! - a tensor leaves after its use, except for the part already on the link; a returning tensor is back before the next
//!   use;
//! - the tensors in the first tier fit there when a kernel begins: those used there, staying there, still to leave, or
//!   back.
//!
//! A tensor that always exists begins in the tier of its first use, and ends there.
//!
//! Bytes on links are summed over tensors (of about the same compression) to keep columns few, and tensors may cross in
//! part. The problem so contains all moves of every plan, and its optimum is a bound on *every* plan. These effects are
//! not modelled, and may make a plan take longer: a tensor moves as a whole, one after the other, and takes room in
//! both tiers meanwhile; moves slow kernels down; other tiers have a limited capacity; several tiers count as the
//! fastest of them; the inputs of recomputation must exist. A plan that follows the columns may therefore wait, or find
//! no room. So the problem is solved again with rows for inputs and with larger and larger reserves, and the simulator
//! judges the plans.

mod decode;
mod fixed;
mod joint;
#[allow(unsafe_code, reason = "HiGHS calls unsafe functions")]
mod solver;

use std::ops::ControlFlow;
use std::time::Duration;

use highs::Sense;

use super::{
    Decisions, Decoder, Evaluator, Objective, Planned, Planner, PlannerError, PlannerOptions, PlannerResult, Watch,
    begin,
};
use crate::bound::{joined_score_bound, makespan_bound_ns};
use crate::uses::{Use, uses};
use crate::{Plan, Problem, Rule};
use fixed::{Columns, Fixed};
use joint::{JointProblem, Margins};
use solver::Limits;

/// Solves mixed-integer problems with HiGHS, on one thread: the best plan, and a bound that shows how good it is.
///
/// The bound of a score holds for all plans in which tensors stay where they are; the bound of a makespan holds for all
/// plans. Both hold to the solver's tolerance of a millionth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Milp;

impl Planner for Milp {
    fn name(&self) -> &str {
        "milp"
    }

    fn plan(&self, problem: &Problem, options: &PlannerOptions, watch: &mut Watch<'_>) -> PlannerResult {
        let evaluator = begin(problem, options, watch)?;
        let capacity_bytes = problem.tiers()[0].capacity.unwrap_or(u64::MAX);
        let mut search = Search { problem, capacity_bytes, seed: options.seed, uses: uses(problem), evaluator };
        let bound = match options.objective {
            Objective::Score => search.score()?,
            Objective::Makespan if search.nothing_moves() => search.makespan_of_fixed()?,
            Objective::Makespan => search.makespan()?,
        };
        Ok(Planned { bound: Some(bound), ..search.evaluator.finish()? })
    }
}

/// The relative gap to the bound at which the search stops.
const GAP: f64 = 1e-5;
/// The same for the joint problem, whose plans must be played anyway.
const JOINT_GAP: f64 = 1e-4;

/// Problems whose lifetimes add up to more kernels than this are not relaxed just for a bound.
const RELAXED_SIZE: usize = 4_000_000;
/// The longest time to wait for a relaxed bound.
const RELAXED_TIME: Duration = Duration::from_secs(10);

/// The reserves that are tried one after the other: room of the first tier in multiples of the largest tensor, the
/// share of the links' time, and the cost of moves, which keeps their number low.
const MARGINS: [(f64, f64, f64); 7] = [
    (0.0, 0.0, 0.001),
    (0.5, 0.1, 0.01),
    (1.0, 0.1, 0.01),
    (1.0, 0.2, 0.01),
    (2.0, 0.2, 0.01),
    (3.0, 0.3, 0.01),
    (4.0, 0.4, 0.01),
];

/// Returns an upper bound on the score: its optimum if tensors may be split between the first tier and the others.
/// `None` if the solver does not finish in time.
pub(crate) fn relaxed_score(problem: &Problem, capacity_bytes: u64) -> Option<f64> {
    // Without accesses, the score is 1. The sum of all lifetimes measures the size of the problem.
    let lives = (0..problem.tensors().len()).filter_map(|tensor| problem.lifetime(tensor));
    if problem.all_accessed_bytes() == 0 || lives.map(Iterator::count).sum::<usize>() > RELAXED_SIZE {
        return None;
    }
    let fixed = Fixed::new(problem, capacity_bytes, share(problem), Columns::Parts);
    let limits = Limits { time: RELAXED_TIME, gap: None, seed: 0 };
    let found = fixed.solve(&limits, |_| ControlFlow::Continue(())).ok()?;
    Some(found.bound).filter(|bound| bound.is_finite())
}

/// Returns a function that gives a tensor's share of all accessed bytes.
fn share(problem: &Problem) -> impl Fn(usize) -> f64 {
    let all = problem.all_accessed_bytes().max(1) as f64;
    move |tensor| problem.accessed_bytes(tensor) as f64 / all
}

struct Search<'a, 'w> {
    problem: &'a Problem,
    capacity_bytes: u64,
    seed: u64,
    uses: Vec<Vec<Use>>,
    evaluator: Evaluator<'a, 'w>,
}

impl Search<'_, '_> {
    fn limits(&self, gap: f64) -> Limits {
        Limits { time: self.evaluator.time_left(), gap: Some(gap), seed: self.seed }
    }

    /// Returns whether plans consist of places only.
    fn nothing_moves(&self) -> bool {
        let has_links = self.problem.links().iter().any(|link| link.from == 0 || link.to == 0);
        !has_links && self.problem.tensors().iter().all(|tensor| tensor.recompute.is_none())
    }

    fn score(&mut self) -> Result<f64, PlannerError> {
        let fixed = Fixed::new(self.problem, self.capacity_bytes, share(self.problem), Columns::Whole);
        let limits = self.limits(GAP);
        let evaluator = &mut self.evaluator;
        let found = fixed.solve(&limits, |worth| evaluator.report_progress(worth))?;
        self.evaluator.cost(&found.placement.plan());
        let score = found.placement.score(self.problem);
        Ok(found.bound.min(joined_score_bound(self.problem, self.capacity_bytes)).max(score))
    }

    fn makespan_of_fixed(&mut self) -> Result<f64, PlannerError> {
        let least_ns = self.problem.kernels_ns() as f64 + self.uses.iter().flatten().map(Use::least_ns).sum::<f64>();
        let penalty_ns = |tensor: usize| self.uses[tensor].iter().map(Use::penalty_ns).sum::<f64>();
        let most_ns = least_ns
            + (0..self.uses.len())
                .filter_map(|tensor| Some(penalty_ns(tensor)).filter(|ns| ns.is_finite()))
                .sum::<f64>();
        let unit = most_ns.max(1.0);
        let fixed = Fixed::new(self.problem, self.capacity_bytes, |tensor| penalty_ns(tensor) / unit, Columns::Whole);
        let limits = self.limits(GAP);
        let evaluator = &mut self.evaluator;
        let found =
            fixed.solve(&limits, |worth| evaluator.report_progress(worth.map(|worth| most_ns - worth * unit)))?;
        let slow = |tensor: usize| decode::slow_tier(self.problem, &self.uses[tensor]).unwrap_or(0);
        let places = (0..self.uses.len()).map(|tensor| if found.placement.is_fast(tensor) { 0 } else { slow(tensor) });
        let cost = self.evaluator.cost(&Plan { places: places.collect(), steps: Vec::new() });
        Ok((most_ns - found.bound * unit).max(makespan_bound_ns(self.problem)).min(cost))
    }

    fn makespan(&mut self) -> Result<f64, PlannerError> {
        // In any case there is a plan that keeps the most used tensors.
        let density = Decisions::keep(self.problem.tensors().len(), &Rule::Density.order(self.problem));
        let decoder = Decoder::new(self.problem, Objective::Makespan);
        let mut best = self.evaluator.cost(&decoder.decode(&density));
        let mut bound = makespan_bound_ns(self.problem);
        let largest = self.problem.tensors().iter().map(|tensor| tensor.bytes).max().unwrap_or(0) as f64;
        let margins =
            MARGINS.iter().map(|&(room, links, moves)| Margins { room_bytes: (largest * room) as u64, links, moves });
        for margins in std::iter::once(Margins::NONE).chain(margins) {
            if best <= bound * (1.0 + JOINT_GAP) || !self.evaluator.may_go_on() {
                break;
            }
            let joint = JointProblem::new(self.problem, self.capacity_bytes, &self.uses, bound, margins);
            // Each problem may take a third of the time left, so that there is time for the others.
            let limits = self.limits(JOINT_GAP);
            let limits = Limits { time: limits.time / 3, ..limits };
            let evaluator = &mut self.evaluator;
            let solved =
                solver::solve(joint.rows.clone(), Sense::Minimise, None, &limits, |_| evaluator.report_progress(None))?;
            if margins == Margins::NONE {
                bound = bound.max(solved.bound * joint.ns_unit);
            }
            let plan = solved.columns.and_then(|values| decode::decode(self.problem, &self.uses, &joint, &values));
            if let Some(plan) = plan {
                best = best.min(self.evaluator.cost(&plan));
            }
        }
        Ok(bound.min(best))
    }
}
