//! Packs buffers: finds the lowest packing, or one that fits into a capacity.

use std::ops::ControlFlow;
use std::time::Duration;

use super::control::Control;
use super::search::{self, SearchResult};
use super::{Order, Packing, PackingProblem, PackingProgress, best_fit};

/// Places tried for each capacity in the first round.
const FIRST_ROUND: u64 = 1 << 12;
/// The factor from the limit of one round to that of the next.
const GROWTH: u64 = 4;
/// The most buffers of a problem that is searched, each counted once for each of its sections. With more, trying one
/// place takes a tenth of a second.
const MOST_SEARCHED: u64 = 1 << 26;

/// Settings of a search: its goal and its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingOptions {
    /// The size of the range; any packing that fits is an answer. `None` asks for the lowest packing.
    pub capacity_bytes: Option<u64>,
    /// The longest time to search. `None` searches until there is an answer, which may never come.
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
    /// Looks for a packing that fits, or for the lowest: first by best fit in every [`Order`], then by a complete
    /// search, which, given time, finds a packing or proves that there is none. Problems with some hundred thousand
    /// long-lived buffers are not searched. The same problem, capacity and node limit always give the same answer,
    /// unless time runs out.
    ///
    /// Calls `observe` about once a millisecond of the search; the search ends if it returns `Break`.
    pub fn pack(
        &self,
        options: &PackingOptions,
        mut observe: impl FnMut(&PackingProgress) -> ControlFlow<()>,
    ) -> PackingOutcome {
        let mut control = Control::new(options.time_limit, options.node_limit, &mut observe);
        let mut run = PackingSearch::new(self, options.capacity_bytes, &mut control);
        if run.is_open() && self.sections.total_length() <= MOST_SEARCHED {
            match options.capacity_bytes {
                Some(capacity) => run.try_capacity(capacity, u64::MAX),
                None => run.narrow(),
            }
        }
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
    lower_bound: u64,
}

impl<'a, 'b> PackingSearch<'a, 'b> {
    fn new(problem: &'a PackingProblem, capacity: Option<u64>, control: &'a mut Control<'b>) -> Self {
        let lower_bound = problem.lower_bound_bytes();
        // This order takes little time, however many buffers there are.
        let best = problem.best_fit(Order::Start);
        let mut run = Self { problem, control, step: height_step(problem), capacity, best, lower_bound };
        run.report();
        run.control.check();
        for order in Order::ALL.into_iter().filter(|&order| order != Order::Start) {
            if !run.is_open() {
                break;
            }
            let Some(offsets) = best_fit::place(&problem.buffers, order, |work| run.control.count_work(work)) else {
                break;
            };
            run.keep_if_lower(offsets);
        }
        run
    }

    /// Returns whether a better packing or bound may still be found.
    fn is_open(&self) -> bool {
        let height = self.best.height_bytes;
        let bound = self.lower_bound;
        let is_answered = self.capacity.is_some_and(|capacity| height <= capacity || bound > capacity);
        !is_answered && height > bound && !self.control.is_over()
    }

    /// Narrows the range between the bound and the best packing, in rounds: the time that a capacity takes is not known
    /// before.
    fn narrow(&mut self) {
        let mut nodes = FIRST_ROUND;
        while self.is_open() {
            // Try the bound, the middle, and just below the best. A capacity without spare room leaves few choices to
            // try.
            for half in 0..=2 {
                let steps = (self.best.height_bytes - self.lower_bound) / self.step;
                if self.is_open() && (half == 0 || steps > 1) {
                    self.try_capacity(self.lower_bound + self.step * ((steps - 1) * half / 2), nodes);
                }
            }
            nodes = nodes.saturating_mul(GROWTH);
        }
    }

    /// Searches for a packing within a capacity by trying at most `nodes` places. Raises the lower bound if there is
    /// none.
    fn try_capacity(&mut self, capacity: u64, nodes: u64) {
        let capacity = capacity - capacity % self.step;
        match search::run(self.problem, capacity, &self.best, nodes, self.control) {
            SearchResult::Found(offsets) => self.keep_if_lower(offsets),
            SearchResult::Exhausted => self.lower_bound = capacity + self.step,
            SearchResult::OutOfNodes => {}
        }
        self.report();
    }

    /// Keeps a packing if it is lower than the best so far.
    fn keep_if_lower(&mut self, offsets: Vec<u64>) {
        let packing = Packing::new(offsets, &self.problem.buffers);
        if packing.height_bytes < self.best.height_bytes {
            self.best = packing;
            self.report();
        }
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
