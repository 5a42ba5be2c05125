//! Improves greedy packings: changes the order of the buffers and places them again.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus as Random;

use super::PackingProblem;
use super::best_fit::Fit;

/// The most candidates that are kept: chance and the orders that begin differently lead to different packings.
const MOST_CANDIDATES: usize = 4;

/// A sequence of the buffers of a part, and the packing that it gives.
pub(super) struct Candidate {
    pub(super) sequence: Vec<usize>,
    pub(super) fit: Fit,
    /// The offset of each buffer, in the order of the sequence.
    pub(super) offsets: Vec<u64>,
    pub(super) height: u64,
}

impl Candidate {
    /// Returns a changed sequence and the fit to place it with. `goal` is the height that is wanted.
    fn change(&self, problem: &PackingProblem, goal: u64, random: &mut Random) -> (Vec<usize>, Fit) {
        let count = self.sequence.len() as f64;
        let fit = if random.random_bool(0.125) { Fit::ALL[random.random_range(0..2)] } else { self.fit };
        // Where each buffer stands in the new sequence.
        let mut places: Vec<f64> = (0..self.sequence.len()).map(|place| place as f64).collect();
        match random.random_range(0..8) {
            0..=3 => {
                // Buffers that lie too high come earlier.
                let share = random.random_range(0.0..1.0_f64).powi(2);
                let limit = goal + ((self.height - goal) as f64 * share) as u64;
                let factor = random.random_range(0.0..1.0);
                for ((place, &index), &offset) in places.iter_mut().zip(&self.sequence).zip(&self.offsets) {
                    if offset + problem.buffers[index].size_bytes > limit {
                        *place *= factor;
                    }
                }
            }
            4 => {
                // All buffers, a little.
                let most = count * 10_f64.powf(random.random_range(-3.0..-0.5));
                for place in &mut places {
                    *place += random.random_range(-most..=most);
                }
            }
            5 => {
                // A few buffers, anywhere.
                for _ in 0..random.random_range(1..=8) {
                    places[random.random_range(0..self.sequence.len())] = random.random_range(0.0..=count);
                }
            }
            6 => {
                // Neighbours together.
                let first = random.random_range(0..self.sequence.len());
                let length = random.random_range(1..=1 + self.sequence.len() / 16);
                let shift = random.random_range(-count..=count);
                places.iter_mut().skip(first).take(length).for_each(|place| *place += shift);
            }
            _ => {
                // From the bottom to the top: in this order, first fit places no buffer higher than it lies now.
                let most = self.height as f64 * 10_f64.powf(random.random_range(-4.0..-1.0));
                for (place, &offset) in places.iter_mut().zip(&self.offsets) {
                    *place = offset as f64 + random.random_range(0.0..=most);
                }
                return (self.sorted(&places), Fit::First);
            }
        }
        (self.sorted(&places), fit)
    }

    /// Returns the sequence, sorted by `places`.
    fn sorted(&self, places: &[f64]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|&a, &b| places[a].total_cmp(&places[b]));
        order.into_iter().map(|place| self.sequence[place]).collect()
    }
}

/// The best candidates of a part, the best first.
#[derive(Default)]
pub(super) struct Candidates {
    best: Vec<Candidate>,
}

impl Candidates {
    /// Keeps a greedy candidate if it is one of the best.
    pub(super) fn add(&mut self, candidate: Candidate) {
        let at = self.best.partition_point(|other| other.height <= candidate.height);
        self.best.insert(at, candidate);
        self.best.truncate(MOST_CANDIDATES);
    }

    /// Chooses a candidate, the better ones more often, and changes it. Returns its number and height, the new sequence,
    /// and the fit to place it with. `None` if there are no candidates.
    pub(super) fn change(
        &self,
        problem: &PackingProblem,
        goal: u64,
        random: &mut Random,
    ) -> Option<(usize, u64, Vec<usize>, Fit)> {
        if self.best.is_empty() {
            return None;
        }
        let number = random.random_range(0..self.best.len()).min(random.random_range(0..self.best.len()));
        let candidate = &self.best[number];
        let (sequence, fit) = candidate.change(problem, goal.min(candidate.height), random);
        Some((number, candidate.height, sequence, fit))
    }

    /// Replaces the candidate with a number by one that is as low or lower.
    pub(super) fn replace(&mut self, number: usize, candidate: Candidate) {
        self.best.remove(number);
        self.add(candidate);
    }
}
