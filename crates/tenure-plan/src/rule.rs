//! Rules: orders of tensors that need no search.

use tenure_core::Tag;

use crate::{FixedPlacement, Problem};

/// A rule: the order in which tensors get room in the fast tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// The order in which tensors are created.
    FirstTouch,
    /// Weights first, then the others in the order in which they are created.
    WeightsFirst,
    /// The others in the order in which they are created, then weights.
    ActivationsFirst,
    /// Descending by accessed bytes per byte of the tensor.
    Hotness,
    /// Descending by accessed bytes per byte of the tensor and per kernel of its lifetime.
    Density,
}

impl Rule {
    /// Every rule, in the order in which reports list them.
    pub const ALL: [Self; 5] =
        [Self::FirstTouch, Self::WeightsFirst, Self::ActivationsFirst, Self::Hotness, Self::Density];

    /// Returns its name in the program.
    pub fn name(self) -> &'static str {
        match self {
            Self::FirstTouch => "first-touch",
            Self::WeightsFirst => "weights-first",
            Self::ActivationsFirst => "activations-first",
            Self::Hotness => "hotness",
            Self::Density => "density",
        }
    }

    /// Returns all tensors that ever exist, in the rule's order; of equal ones, the earlier in the problem first.
    pub fn order(self, problem: &Problem) -> Vec<usize> {
        let tensors = problem.tensors();
        let users = problem.users();
        let first_use = |tensor: usize| users[tensor].first().copied().unwrap_or(usize::MAX);
        let is_weight = |tensor: usize| tensors[tensor].tag == Tag::Weight;
        let mut order: Vec<usize> = (0..tensors.len()).filter(|tensor| problem.lifetime(*tensor).is_some()).collect();
        match self {
            Self::FirstTouch => {
                order.sort_by_key(|tensor| problem.lifetime(*tensor).map_or(0, |life| *life.start()));
            }
            Self::WeightsFirst => order.sort_by_key(|tensor| (!is_weight(*tensor), first_use(*tensor))),
            Self::ActivationsFirst => order.sort_by_key(|tensor| (is_weight(*tensor), first_use(*tensor))),
            Self::Hotness | Self::Density => {
                let value = |tensor: &usize| {
                    let kernels = match self {
                        Self::Hotness => 1,
                        _ => problem.lifetime(*tensor).map_or(1, Iterator::count),
                    };
                    accessed_for_each(problem, *tensor, kernels)
                };
                order.sort_by(|left, right| value(right).total_cmp(&value(left)));
            }
        }
        order
    }

    /// Returns the placement of the rule for a fast tier of `capacity_bytes`.
    pub fn place(self, problem: &Problem, capacity_bytes: u64) -> FixedPlacement {
        FixedPlacement::first_fit(problem, self.order(problem), capacity_bytes)
    }
}

/// Returns the accessed bytes per byte of a tensor and per kernel, for `kernels` kernels; infinite for an empty tensor.
fn accessed_for_each(problem: &Problem, tensor: usize, kernels: usize) -> f64 {
    let held = problem.tensors()[tensor].bytes as f64 * kernels as f64;
    if held == 0.0 { f64::INFINITY } else { problem.accessed_bytes(tensor) as f64 / held }
}
