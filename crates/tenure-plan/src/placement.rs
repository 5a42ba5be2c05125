//! Placements: the tier in which each tensor lives, for its whole lifetime.

use std::ops::RangeInclusive;

use crate::{Plan, Problem};

/// A tier for every tensor of a problem, for the tensor's whole lifetime: the fast tier or a slower one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedPlacement {
    /// The number of each tensor's tier.
    places: Vec<usize>,
}

impl FixedPlacement {
    /// Puts the tensors of `order` into the fast tier, each if it fits in its turn: if the tensors before it leave room
    /// during every kernel of its lifetime. The others, in the same order and then those not in `order`, each go to the
    /// first slower tier that kernels reach and that has room. If none has room, they go to the second tier, and the
    /// simulator reports the error.
    ///
    /// # Panics
    /// Panics if `order` names a tensor that is not in the problem.
    pub fn first_fit(problem: &Problem, order: impl IntoIterator<Item = usize>, capacity_bytes: u64) -> Self {
        let tensors = problem.tensors().len();
        let kernels = problem.kernels().len();
        let order: Vec<usize> = order.into_iter().collect();
        let mut places = vec![None; tensors];
        let mut fill = |order: &mut dyn Iterator<Item = usize>, tiers: &mut [TierRoom]| {
            for tensor in order {
                let Some(life) = problem.lifetime(tensor).filter(|_| places[tensor].is_none()) else { continue };
                let bytes = problem.tensors()[tensor].bytes;
                places[tensor] =
                    tiers.iter_mut().find_map(|room| room.try_reserve(life.clone(), bytes).then_some(room.tier));
            }
        };
        fill(&mut order.iter().copied(), &mut [TierRoom::new(0, Some(capacity_bytes), kernels)]);
        let slower = problem.tiers().iter().enumerate().skip(1).filter(|(_, tier)| tier.is_reachable);
        let mut slower: Vec<TierRoom> =
            slower.map(|(number, tier)| TierRoom::new(number, tier.capacity, kernels)).collect();
        fill(&mut order.iter().copied().chain(0..tensors), &mut slower);
        // If there is no other tier, all tensors are in this one.
        let next = slower.first().map_or(usize::from(problem.tiers().len() != 1), |room| room.tier);
        Self { places: places.into_iter().map(|place| place.unwrap_or(next)).collect() }
    }

    /// Returns whether a tensor is in the fast tier.
    pub fn is_fast(&self, tensor: usize) -> bool {
        self.places[tensor] == 0
    }

    /// Returns the share of the bytes read and written by kernels that the fast tier serves, 0 to 1; 1 if there are
    /// none.
    pub fn score(&self, problem: &Problem) -> f64 {
        let all = problem.all_accessed_bytes();
        let fast = (0..self.places.len()).filter(|tensor| self.is_fast(*tensor));
        let fast: u64 = fast.map(|tensor| problem.accessed_bytes(tensor)).sum();
        if all == 0 { 1.0 } else { fast as f64 / all as f64 }
    }

    /// Returns the placement as a plan.
    pub fn plan(&self) -> Plan {
        Plan { places: self.places.clone(), steps: Vec::new() }
    }

    /// Returns the most bytes that are in the fast tier at once.
    pub fn peak_bytes(&self, problem: &Problem) -> u64 {
        problem.live_bytes(|tensor| self.is_fast(tensor)).into_iter().max().unwrap_or(0)
    }
}

/// The free room of a tier.
struct TierRoom {
    tier: usize,
    capacity: Option<u64>,
    /// Bytes taken during each kernel.
    used: Vec<u64>,
}

impl TierRoom {
    fn new(tier: usize, capacity: Option<u64>, kernels: usize) -> Self {
        Self { tier, capacity, used: vec![0; kernels] }
    }

    /// Takes `bytes` during `kernels` if there is room. Returns whether there was.
    fn try_reserve(&mut self, kernels: RangeInclusive<usize>, bytes: u64) -> bool {
        let Some(capacity) = self.capacity else { return true };
        let used = &mut self.used[kernels];
        let fits = capacity.checked_sub(bytes).is_some_and(|most| used.iter().all(|used| *used <= most));
        if fits {
            used.iter_mut().for_each(|used| *used += bytes);
        }
        fits
    }
}
