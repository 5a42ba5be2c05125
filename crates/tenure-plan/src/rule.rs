//! Rules: orders of tensors that need no search.

use tenure_core::Tag;

use crate::{Placement, Problem};

/// In which order tensors are given room in the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// As they come to be.
    FirstTouch,
    /// Weights, then what comes first.
    WeightsFirst,
    /// What is no weight, as it comes first, then weights.
    ActivationsFirst,
    /// Those first of which most bytes are accessed for each byte of theirs.
    Hotness,
    /// Those first of which most bytes are accessed for each byte of theirs and each kernel of their life.
    Density,
}

impl Rule {
    /// Every rule, in the order of reports.
    pub const ALL: [Self; 5] =
        [Self::FirstTouch, Self::WeightsFirst, Self::ActivationsFirst, Self::Hotness, Self::Density];

    /// Its name in the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::WeightsFirst => "weights-first",
            Self::ActivationsFirst => "activations-first",
            Self::Hotness => "hotness",
            Self::Density => "density",
        }
    }

    /// All tensors that are ever there, in the rule's order; of equals, the earlier in the problem first.
    pub fn order(self, problem: &Problem) -> Vec<usize> {
        let tensors = problem.tensors();
        let users = problem.users();
        let first_use = |tensor: usize| users[tensor].first().copied().unwrap_or(usize::MAX);
        let born = |tensor: usize| problem.lifetime(tensor).map_or(0, |life| *life.start());
        let is_weight = |tensor: usize| tensors[tensor].tag == Tag::Weight;
        let mut order: Vec<usize> = (0..tensors.len()).filter(|tensor| problem.lifetime(*tensor).is_some()).collect();
        match self {
            Self::FirstTouch => order.sort_by_key(|tensor| born(*tensor)),
            Self::WeightsFirst => order.sort_by_key(|tensor| (!is_weight(*tensor), first_use(*tensor))),
            Self::ActivationsFirst => order.sort_by_key(|tensor| (is_weight(*tensor), first_use(*tensor))),
            Self::Hotness | Self::Density => {
                let kernels = |tensor: usize| match self {
                    Self::Hotness => 1,
                    _ => problem.lifetime(tensor).map_or(1, Iterator::count),
                };
                let value = |tensor: &usize| accessed_for_each(problem, *tensor, kernels(*tensor));
                order.sort_by(|left, right| value(right).total_cmp(&value(left)));
            }
        }
        order
    }

    /// What the rule puts into a fast tier of so many bytes.
    pub fn place(self, problem: &Problem, capacity_bytes: u64) -> Placement {
        Placement::first_fit(problem, self.order(problem), capacity_bytes)
    }
}

/// Bytes accessed for each byte of a tensor and each of so many kernels; infinite for one of no bytes.
fn accessed_for_each(problem: &Problem, tensor: usize, kernels: usize) -> f64 {
    let held = problem.tensors()[tensor].bytes as f64 * kernels as f64;
    if held == 0.0 { f64::INFINITY } else { problem.accessed_bytes(tensor) as f64 / held }
}
