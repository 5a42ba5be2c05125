//! Placements: which tensors live in the fast tier, all their life.

use crate::{Plan, Problem};

/// Which tensors of a problem live in the fast tier as long as they are there. The others live in the slow one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    is_fast: Vec<bool>,
}

impl Placement {
    /// As many tensors of `order` in the fast tier as fit, each if it does when its turn comes: during every kernel of its
    /// life, those before it leave room. Tensors that `order` leaves out are in the slow tier, and one that it names twice
    /// counts once.
    ///
    /// # Panics
    /// If `order` names a tensor that the problem has not.
    pub fn first_fit(problem: &Problem, order: impl IntoIterator<Item = usize>, capacity_bytes: u64) -> Self {
        let mut used = vec![0_u64; problem.kernels().len()];
        let mut is_fast = vec![false; problem.tensors().len()];
        for tensor in order {
            let bytes = problem.tensors()[tensor].bytes;
            let Some(life) = problem.lifetime(tensor).filter(|_| !is_fast[tensor]) else { continue };
            let Some(most) = capacity_bytes.checked_sub(bytes) else { continue };
            let used = &mut used[life];
            if used.iter().all(|used| *used <= most) {
                used.iter_mut().for_each(|used| *used += bytes);
                is_fast[tensor] = true;
            }
        }
        Self { is_fast }
    }

    /// Whether a tensor is in the fast tier.
    pub fn is_fast(&self, tensor: usize) -> bool {
        self.is_fast[tensor]
    }

    /// The share of the bytes that kernels read and write that the fast tier serves, 0 to 1; 1 if there are none.
    pub fn score(&self, problem: &Problem) -> f64 {
        let all = problem.all_accessed_bytes();
        let fast: u64 = (0..self.is_fast.len())
            .filter(|tensor| self.is_fast[*tensor])
            .map(|tensor| problem.accessed_bytes(tensor))
            .sum();
        if all == 0 { 1.0 } else { fast as f64 / all as f64 }
    }

    /// The plan that it is: the fast tier is the first, the slow one the second.
    pub fn plan(&self) -> Plan {
        Plan { places: self.is_fast.iter().map(|is_fast| usize::from(!is_fast)).collect(), steps: Vec::new() }
    }

    /// Bytes in the fast tier at once, at most.
    pub fn peak_bytes(&self, problem: &Problem) -> u64 {
        problem.live_bytes(|tensor| self.is_fast[tensor]).into_iter().max().unwrap_or(0)
    }
}
