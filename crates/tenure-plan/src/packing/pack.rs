//! Packs buffers: finds the lowest packing, or one that fits into a capacity.

use std::ops::ControlFlow;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus as Random;

use super::best_fit::{Fit, Placer};
use super::control::Control;
use super::improve::{Candidate, Candidates};
use super::order::{LARGEST_FIRST, OTHER_ORDERS, SortKeys, Sorter};
use super::search::{self, SearchResult};
use super::{Order, Packing, PackingProblem, PackingProgress};

/// Places tried for each capacity in the first round.
const FIRST_ROUND: u64 = 1 << 12;
/// The factor from the limit of one round to that of the next.
const GROWTH: u64 = 4;
/// The most work of a part that is searched completely: buffers times all their sections. With more, one descent to a
/// packing takes seconds, and changes at the bottom are out of reach.
const MOST_SEARCHED: u64 = 1 << 32;
/// How often a problem with a capacity is placed again before it is searched.
const CHANGES_BEFORE_SEARCH: u64 = 16;
/// The seed of the random numbers, the same each time.
const SEED: u64 = 0;

/// Settings of a search: its goal and its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingOptions {
    /// The size of the range; any packing that fits is an answer. `None` asks for the lowest packing.
    pub capacity_bytes: Option<u64>,
    /// The longest time to search; best fit of the largest first is done even if it takes longer. `None` searches until
    /// there is an answer, which may never come.
    pub time_limit: Option<Duration>,
    /// The most places to try. It means the same work, and the same answer, on every machine.
    pub node_limit: Option<u64>,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackingOutcome {
    /// The lowest packing that was found; it may be higher than the requested capacity.
    pub packing: Packing,
    /// A proven lower bound: no packing is lower.
    pub lower_bound_bytes: u64,
    /// The number of places tried.
    pub nodes: u64,
    /// The time that the search took.
    pub elapsed: Duration,
}

impl PackingOutcome {
    /// Returns whether the buffers fit into `capacity_bytes`; `None` if that is not known.
    pub fn is_feasible(&self, capacity_bytes: u64) -> Option<bool> {
        if self.packing.height_bytes <= capacity_bytes {
            Some(true)
        } else if self.lower_bound_bytes > capacity_bytes {
            Some(false)
        } else {
            None
        }
    }

    /// Returns whether the packing is proven to be the lowest.
    pub fn is_optimal(&self) -> bool {
        self.packing.height_bytes <= self.lower_bound_bytes
    }
}

impl PackingProblem {
    /// Looks for a packing that fits, or for the lowest: first by best fit and first fit in many orders, every [`Order`]
    /// among them; then by changing the orders that gave the lowest packings, and by a complete search, which, given
    /// time, finds a packing or proves that there is none. The complete search is left out if a part of the problem has
    /// too many buffers for it: some thousand that live long. The same problem, capacity and node limit always give the
    /// same answer, unless time runs out. The node limit does not count the greedy orders, so with it alone no packing
    /// is higher than that of [`best_fit`](Self::best_fit) in any order. The time limit does not end best fit of the
    /// largest first, so no packing is higher than that of [`Order::Size`] unless `observe` ends the search.
    ///
    /// Calls `observe` about once a millisecond of the search; the search ends if it returns `Break`.
    pub fn pack(
        &self,
        options: &PackingOptions,
        mut observe: impl FnMut(&PackingProgress) -> ControlFlow<()>,
    ) -> PackingOutcome {
        let mut control = Control::new(options.node_limit, &mut observe);
        let mut run = PackingSearch::new(self, options.capacity_bytes, &mut control);
        run.pack_greedily(&LARGEST_FIRST, Fit::Best);
        run.control.limit_time(options.time_limit);
        run.pack_greedily(&OTHER_ORDERS, Fit::Best);
        run.pack_greedily(&LARGEST_FIRST, Fit::First);
        run.pack_greedily(&OTHER_ORDERS, Fit::First);
        run.improve_and_search();
        let packing = run.best;
        let lower_bound_bytes = run.lower_bound;
        control.check();
        PackingOutcome { packing, lower_bound_bytes, nodes: control.progress.nodes, elapsed: control.progress.elapsed }
    }
}

/// A search for a packing: a proven lower bound and the best packing so far.
struct PackingSearch<'a, 'b> {
    problem: &'a PackingProblem,
    control: &'a mut Control<'b>,
    /// All heights worth trying are multiples of this.
    step: u64,
    /// A packing of this height or lower is an answer.
    capacity: Option<u64>,
    best: Packing,
    parts: Vec<Part>,
    lower_bound: u64,
    random: Random,
}

impl<'a, 'b> PackingSearch<'a, 'b> {
    fn new(problem: &'a PackingProblem, capacity: Option<u64>, control: &'a mut Control<'b>) -> Self {
        let best = problem.best_fit(Order::Start);
        let parts = problem.sections.connected_buffers().into_iter();
        let mut run = Self {
            problem,
            control,
            step: height_step(problem),
            capacity,
            parts: parts.map(|buffers| Part::new(problem, buffers, &best.offsets)).collect(),
            best,
            lower_bound: problem.lower_bound_bytes(),
            random: Random::seed_from_u64(SEED),
        };
        run.report();
        run.control.check();
        run
    }

    /// Returns whether a better packing or bound may still be found.
    fn is_open(&self) -> bool {
        let is_hopeless = self.capacity.is_some_and(|capacity| self.lower_bound > capacity);
        !is_hopeless && self.best.height_bytes > self.goal() && !self.control.is_over()
    }

    /// Returns the height that is an answer.
    fn goal(&self) -> u64 {
        self.lower_bound.max(self.capacity.unwrap_or(0))
    }

    /// Packs in every one of `orders`.
    fn pack_greedily(&mut self, orders: &[SortKeys], fit: Fit) {
        if !self.is_open() {
            return;
        }
        let problem = self.problem;
        let sorter = Sorter::new(problem);
        for &keys in orders {
            for number in 0..self.parts.len() {
                if self.parts[number].height <= self.goal() {
                    continue;
                }
                let sequence = sorter.sequence(&self.parts[number].buffers, keys);
                let mut placer = Placer::new(problem, &self.parts[number].buffers);
                let control = &mut *self.control;
                let Some(offsets) = placer.place(&sequence, fit, |work, _| control.count_work(work)) else {
                    return;
                };
                let candidate = self.keep_if_lower(number, sequence, fit, offsets);
                self.parts[number].candidates.add(candidate);
            }
        }
    }

    /// Improves the packing and searches, in rounds: the time that a capacity takes is not known before.
    fn improve_and_search(&mut self) {
        let mut nodes = FIRST_ROUND;
        while self.is_open() {
            let goal = self.goal();
            let mut open = self.parts.iter().filter(|part| part.height > goal);
            if open.any(|part| part.search_work > MOST_SEARCHED) {
                self.improve(nodes);
            } else if let Some(capacity) = self.capacity {
                self.improve(CHANGES_BEFORE_SEARCH * self.problem.buffers.len() as u64);
                if self.is_open() {
                    self.try_capacity(capacity, u64::MAX);
                }
            } else {
                self.improve(nodes);
                self.narrow(nodes);
            }
            nodes = nodes.saturating_mul(GROWTH);
        }
    }

    /// Changes the highest part, again and again, until `nodes` places were tried.
    fn improve(&mut self, nodes: u64) {
        let end = self.control.progress.nodes.saturating_add(nodes);
        let mut placer: Option<(usize, Placer<'a>)> = None;
        while self.is_open() && self.control.progress.nodes < end {
            let goal = self.goal();
            let Some(number) = (0..self.parts.len()).max_by_key(|&number| self.parts[number].height) else { return };
            let changed = self.parts[number].candidates.change(self.problem, goal, &mut self.random);
            let Some((candidate, height, sequence, fit)) = changed else { return };
            let (_, placer) = match &mut placer {
                Some(kept) if kept.0 == number => kept,
                _ => placer.insert((number, Placer::new(self.problem, &self.parts[number].buffers))),
            };
            let control = &mut *self.control;
            // A higher packing is of no use, so its rest need not be placed.
            let Some(offsets) = placer.place(&sequence, fit, |work, end| control.count_node(work) && end <= height)
            else {
                continue;
            };
            let changed = self.keep_if_lower(number, sequence, fit, offsets);
            if changed.height <= height {
                self.parts[number].candidates.replace(candidate, changed);
            }
        }
    }

    /// Narrows the range between the bound and the best packing: searches at the bound, in the middle, and just below the
    /// best. A capacity without spare room leaves few choices to try.
    fn narrow(&mut self, nodes: u64) {
        for half in 0..=2 {
            let steps = (self.best.height_bytes - self.lower_bound) / self.step;
            if self.is_open() && (half == 0 || steps > 1) {
                self.try_capacity(self.lower_bound + self.step * ((steps - 1) * half / 2), nodes);
            }
        }
    }

    /// Searches for a packing within a capacity by trying at most `nodes` places. Raises the lower bound if there is
    /// none.
    fn try_capacity(&mut self, capacity: u64, nodes: u64) {
        let capacity = capacity - capacity % self.step;
        match search::run(self.problem, capacity, &self.best, nodes, self.control) {
            SearchResult::Found(offsets) => {
                for part in &mut self.parts {
                    part.height = height_of(self.problem, &part.buffers, &offsets);
                }
                self.best = Packing::new(offsets, &self.problem.buffers);
            }
            SearchResult::Exhausted => self.lower_bound = capacity + self.step,
            SearchResult::OutOfNodes => {}
        }
        self.report();
    }

    /// Makes a candidate of a part. Keeps its packing if it is the part's lowest so far.
    fn keep_if_lower(&mut self, number: usize, sequence: Vec<usize>, fit: Fit, offsets: Vec<u64>) -> Candidate {
        let buffers = &self.problem.buffers;
        let part = &mut self.parts[number];
        let fixed = part.buffers.iter().filter_map(|&index| buffers[index].fixed()).map(|bytes| bytes.end);
        let placed = sequence.iter().zip(&offsets).map(|(&index, offset)| offset + buffers[index].size_bytes);
        let height = placed.chain(fixed).max().unwrap_or(0);
        if height < part.height {
            let was_highest = part.height == self.best.height_bytes;
            part.height = height;
            for (&index, &offset) in sequence.iter().zip(&offsets) {
                self.best.offsets[index] = offset;
            }
            if was_highest {
                self.best.height_bytes = self.parts.iter().map(|part| part.height).max().unwrap_or(0);
                self.report();
            }
        }
        Candidate { sequence, fit, offsets, height }
    }

    /// Copies the bound and the best height to the progress that the caller sees.
    fn report(&mut self) {
        self.control.progress.height_bytes = self.best.height_bytes;
        self.control.progress.lower_bound_bytes = self.lower_bound;
    }
}

/// Returns the greatest common divisor of every size, alignment and fixed offset. It divides every offset and the
/// height of a packing in which no buffer can be moved lower.
fn height_step(problem: &PackingProblem) -> u64 {
    let buffers = problem.buffers().iter().filter(|buffer| buffer.size_bytes > 0);
    // An alignment of 1 is no constraint.
    let numbers = buffers.flat_map(|buffer| {
        let alignment = if buffer.alignment == 1 { 0 } else { buffer.alignment };
        [buffer.size_bytes, alignment, buffer.offset.unwrap_or(0)]
    });
    numbers.fold(0, gcd).max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Buffers of which no lifetime overlaps with one of another part, so each part is packed by itself.
struct Part {
    buffers: Vec<usize>,
    /// The height of the lowest packing of the part so far.
    height: u64,
    candidates: Candidates,
    /// The number of its buffers times their sections: a measure of the time that one descent of the complete search takes.
    search_work: u64,
}

impl Part {
    fn new(problem: &PackingProblem, buffers: Vec<usize>, offsets: &[u64]) -> Self {
        let sections: u64 = buffers.iter().map(|&index| problem.sections.range(index).len() as u64).sum();
        let search_work = sections.saturating_mul(buffers.len() as u64);
        let height = height_of(problem, &buffers, offsets);
        Self { buffers, height, candidates: Candidates::default(), search_work }
    }
}

/// Returns the height of a packing of `buffers`; `offsets` has those of all buffers of the problem.
fn height_of(problem: &PackingProblem, buffers: &[usize], offsets: &[u64]) -> u64 {
    let with_bytes = buffers.iter().filter(|&&index| problem.buffers[index].size_bytes > 0);
    with_bytes.map(|&index| offsets[index] + problem.buffers[index].size_bytes).max().unwrap_or(0)
}
