//! The mixed-integer problem of tensors that stay where they are.

use std::ops::ControlFlow;

use highs::{Col, RowProblem, Sense};

use super::solver::{self, Limits};
use crate::planner::PlannerError;
use crate::{FixedPlacement, Problem, Rule};

/// A column for each tensor that may be in the fast tier or not, and a row for each maximal set of these tensors that
/// exist at once.
pub(super) struct Fixed<'a> {
    problem: &'a Problem,
    capacity_bytes: u64,
    rows: RowProblem,
    /// The tensor of each column.
    tensors: Vec<usize>,
    /// The worth of tensors that need no room.
    free: f64,
}

/// Whether a tensor is in one tier as a whole, or may be split.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Columns {
    Whole,
    Parts,
}

/// The result of a search.
pub(super) struct Found {
    pub(super) placement: FixedPlacement,
    /// An upper bound on the worth of the tensors in the fast tier.
    pub(super) bound: f64,
}

/// The unit of the objective: with it, the solver's absolute and integer tolerances do not matter.
const SCALE: f64 = 1e6;

impl<'a> Fixed<'a> {
    /// Makes the problem. `worth` is a tensor's worth in the fast tier, about 1 for all together; a tensor of infinite
    /// worth must be there.
    pub(super) fn new(problem: &'a Problem, capacity_bytes: u64, worth: impl Fn(usize) -> f64, kind: Columns) -> Self {
        let bytes = |tensor: usize| problem.tensors()[tensor].bytes;
        let (free, others): (Vec<usize>, Vec<usize>) = (0..problem.tensors().len())
            .filter(|tensor| problem.lifetime(*tensor).is_some())
            .partition(|tensor| bytes(*tensor) == 0);
        let tensors: Vec<usize> = others
            .into_iter()
            .filter(|tensor| bytes(*tensor) <= capacity_bytes || worth(*tensor).is_infinite())
            .collect();
        // Whole numbers, as far as they are exact: the tolerances of a millionth are then below one unit.
        let divisor = tensors.iter().map(|tensor| bytes(*tensor)).fold(0, greatest_common_divisor).max(1);
        let unit = ((capacity_bytes.min(problem.peak_bytes()) / divisor) as f64 / 1e9).max(1.0);
        let mut rows = RowProblem::new();
        let columns: Vec<Col> = tensors
            .iter()
            .map(|tensor| match worth(*tensor) {
                f64::INFINITY => rows.add_column(0.0, 1..=1),
                worth => rows.add_column_with_integrality(worth * SCALE, 0..=1, kind == Columns::Whole),
            })
            .collect();
        for set in largest_sets(problem, &tensors) {
            let all: u128 = set.iter().map(|index| u128::from(bytes(tensors[*index]))).sum();
            if all > u128::from(capacity_bytes) {
                let sizes = set.iter().map(|index| (columns[*index], (bytes(tensors[*index]) / divisor) as f64 / unit));
                rows.add_row(..=(capacity_bytes / divisor) as f64 / unit, sizes);
            }
        }
        let free = free.into_iter().map(worth).filter(|worth| worth.is_finite()).sum();
        Self { problem, capacity_bytes, rows, tensors, free }
    }

    /// Searches, starting from the densest tensors. `watch` gets the worth of the best solution.
    pub(super) fn solve(
        self,
        limits: &Limits,
        mut watch: impl FnMut(Option<f64>) -> ControlFlow<()>,
    ) -> Result<Found, PlannerError> {
        let density = Rule::Density.order(self.problem);
        let greedy = FixedPlacement::first_fit(self.problem, density.iter().copied(), self.capacity_bytes);
        let start: Vec<f64> = self.tensors.iter().map(|tensor| f64::from(u8::from(greedy.is_fast(*tensor)))).collect();
        let worth = |objective: f64| self.free + objective / SCALE;
        let solved = solver::solve(self.rows, Sense::Maximise, Some(&start), limits, |best| watch(best.map(worth)))?;
        let columns = solved.columns.unwrap_or(start);
        let mut is_chosen = vec![false; self.problem.tensors().len()];
        for (tensor, column) in self.tensors.iter().zip(columns) {
            is_chosen[*tensor] = column > 0.5;
        }
        // Leave out what rounding made too much, and add what still has room.
        let (chosen, others): (Vec<usize>, Vec<usize>) = density.into_iter().partition(|tensor| is_chosen[*tensor]);
        let placement = FixedPlacement::first_fit(self.problem, chosen.into_iter().chain(others), self.capacity_bytes);
        Ok(Found { placement, bound: worth(solved.bound) })
    }
}

/// Returns the maximal sets of tensors that exist at once, by their places in the list.
fn largest_sets(problem: &Problem, tensors: &[usize]) -> Vec<Vec<usize>> {
    let mut born: Vec<Vec<usize>> = vec![Vec::new(); problem.kernels().len()];
    let mut last = vec![0; tensors.len()];
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(life) = problem.lifetime(*tensor) {
            born[*life.start()].push(index);
            last[index] = *life.end();
        }
    }
    let (mut sets, mut live, mut has_grown) = (Vec::new(), Vec::new(), false);
    for (kernel, born) in born.into_iter().enumerate() {
        has_grown |= !born.is_empty();
        live.extend(born);
        // The first end after a start: no tensor can be added to this set.
        if has_grown && live.iter().any(|index| last[*index] == kernel) {
            sets.push(live.clone());
            has_grown = false;
        }
        live.retain(|index| last[*index] > kernel);
    }
    sets
}

fn greatest_common_divisor(mut left: u64, mut right: u64) -> u64 {
    while right != 0 {
        (left, right) = (right, left % right);
    }
    left
}
