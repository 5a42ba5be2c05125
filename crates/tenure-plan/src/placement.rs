//! Placements: in which tier each tensor lives, all its life.

use std::ops::RangeInclusive;

use crate::{Plan, Problem};

/// Which tensors of a problem live in the fast tier as long as they are there. The others live in slower ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The number of each tensor's tier.
    places: Vec<usize>,
}

impl Placement {
    /// As many tensors of `order` in the fast tier as fit, each if it does when its turn comes: during every kernel of its
    /// life, those before it leave room. The others, in the same order, then what `order` leaves out, are each in the next
    /// tier that kernels reach and that has room; where there is none, in the second, which the plan says when it is played.
    ///
    /// # Panics
    /// If `order` names a tensor that the problem has not.
    pub fn first_fit(problem: &Problem, order: impl IntoIterator<Item = usize>, capacity_bytes: u64) -> Self {
        let (tensors, kernels) = (problem.tensors().len(), problem.kernels().len());
        let order: Vec<usize> = order.into_iter().collect();
        let mut places = vec![None; tensors];
        let mut fill = |order: &mut dyn Iterator<Item = usize>, tiers: &mut [Room]| {
            for tensor in order {
                let Some(life) = problem.lifetime(tensor).filter(|_| places[tensor].is_none()) else { continue };
                let bytes = problem.tensors()[tensor].bytes;
                places[tensor] = tiers.iter_mut().find_map(|room| room.holds(life.clone(), bytes).then_some(room.tier));
            }
        };
        fill(&mut order.iter().copied(), &mut [Room::new(0, Some(capacity_bytes), kernels)]);
        let slower = problem.tiers().iter().enumerate().skip(1).filter(|(_, tier)| tier.is_reachable);
        let mut slower: Vec<Room> = slower.map(|(number, tier)| Room::new(number, tier.capacity, kernels)).collect();
        fill(&mut order.iter().copied().chain(0..tensors), &mut slower);
        // Where there is no other tier, all are in this one.
        let next = slower.first().map_or(usize::from(problem.tiers().len() != 1), |room| room.tier);
        Self { places: places.into_iter().map(|place| place.unwrap_or(next)).collect() }
    }

    /// Whether a tensor is in the fast tier.
    pub fn is_fast(&self, tensor: usize) -> bool {
        self.places[tensor] == 0
    }

    /// The share of the bytes that kernels read and write that the fast tier serves, 0 to 1; 1 if there are none.
    pub fn score(&self, problem: &Problem) -> f64 {
        let all = problem.all_accessed_bytes();
        let fast = (0..self.places.len()).filter(|tensor| self.is_fast(*tensor));
        let fast: u64 = fast.map(|tensor| problem.accessed_bytes(tensor)).sum();
        if all == 0 { 1.0 } else { fast as f64 / all as f64 }
    }

    /// The plan that it is.
    pub fn plan(&self) -> Plan {
        Plan { places: self.places.clone(), steps: Vec::new() }
    }

    /// Bytes in the fast tier at once, at most.
    pub fn peak_bytes(&self, problem: &Problem) -> u64 {
        problem.live_bytes(|tensor| self.is_fast(tensor)).into_iter().max().unwrap_or(0)
    }
}

/// What is left of a tier.
struct Room {
    tier: usize,
    capacity: Option<u64>,
    /// Bytes taken during each kernel.
    used: Vec<u64>,
}

impl Room {
    fn new(tier: usize, capacity: Option<u64>, kernels: usize) -> Self {
        Self { tier, capacity, used: vec![0; kernels] }
    }

    /// Takes so many bytes during some kernels, if there are enough.
    fn holds(&mut self, kernels: RangeInclusive<usize>, bytes: u64) -> bool {
        let Some(capacity) = self.capacity else { return true };
        let used = &mut self.used[kernels];
        let fits = capacity.checked_sub(bytes).is_some_and(|most| used.iter().all(|used| *used <= most));
        if fits {
            used.iter_mut().for_each(|used| *used += bytes);
        }
        fits
    }
}
