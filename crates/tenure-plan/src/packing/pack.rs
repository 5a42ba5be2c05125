use std::ops::ControlFlow;
use std::time::Duration;

use super::control::Control;
use super::search::{self, Verdict};
use super::{Order, Packing, PackingProblem, PackingProgress, best_fit};

/// Places tried in a first round for each capacity.
const FIRST_ROUND: u64 = 1 << 12;
/// How many times as many in each round after it.
const GROWTH: u64 = 4;
/// The most buffers, counted in each section again, that are searched: to try one place takes a tenth of a second then.
const SEARCHED: u64 = 1 << 26;

/// What to look for, and for how long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingOptions {
    /// The range's size, which any packing that fits answers. `None` asks for the lowest packing.
    pub capacity_bytes: Option<u64>,
    /// How long to search. `None` is until there is an answer, which may take for ever.
    pub time_limit: Option<Duration>,
    /// How many places to try, which means the same work, and the same answer, on every machine.
    pub node_limit: Option<u64>,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackingOutcome {
    /// The lowest packing that was found; it may be higher than the capacity that was asked for.
    pub packing: Packing,
    /// No packing is lower than this, which is proven.
    pub lower_bound_bytes: u64,
    /// Places tried.
    pub nodes: u64,
    /// How long it took.
    pub elapsed: Duration,
}

impl PackingOutcome {
    /// Whether the buffers fit into `capacity_bytes`; `None` if it is not known.
    pub fn is_feasible(&self, capacity_bytes: u64) -> Option<bool> {
        if self.packing.height_bytes <= capacity_bytes {
            Some(true)
        } else if self.lower_bound_bytes > capacity_bytes {
            Some(false)
        } else {
            None
        }
    }

    /// Whether no packing is lower.
    pub fn is_optimal(&self) -> bool {
        self.packing.height_bytes <= self.lower_bound_bytes
    }
}

impl PackingProblem {
    /// Looks for a packing that fits, or for the lowest: by best fit in every [`Order`], then by a search that is
    /// complete, so that given time it finds one or proves that there is none. Only where some hundred thousand
    /// buffers live long there is no search. The same problem, capacity and node limit always have the same answer,
    /// unless time runs out.
    ///
    /// `observe` is called about once a millisecond of the search, and ends it by `Break`.
    pub fn pack(
        &self,
        options: &PackingOptions,
        mut observe: impl FnMut(&PackingProgress) -> ControlFlow<()>,
    ) -> PackingOutcome {
        let mut control = Control::new(options.time_limit, options.node_limit, &mut observe);
        let mut run = Run::new(self, options.capacity_bytes, &mut control);
        if run.is_open() && self.sections.crowd() <= SEARCHED {
            match options.capacity_bytes {
                Some(capacity) => run.attempt(capacity, u64::MAX),
                None => run.lower(),
            }
        }
        let (packing, lower_bound_bytes) = (run.best, run.lower_bound);
        control.look();
        PackingOutcome { packing, lower_bound_bytes, nodes: control.progress.nodes, elapsed: control.progress.elapsed }
    }
}

/// What is known between a proven bound and the best packing so far.
struct Run<'a, 'b> {
    problem: &'a PackingProblem,
    control: &'a mut Control<'b>,
    /// All heights worth trying are multiples of it.
    step: u64,
    /// What is low enough.
    capacity: Option<u64>,
    best: Packing,
    lower_bound: u64,
}

impl<'a, 'b> Run<'a, 'b> {
    fn new(problem: &'a PackingProblem, capacity: Option<u64>, control: &'a mut Control<'b>) -> Self {
        let lower_bound = problem.lower_bound_bytes();
        // The one that takes no long time, however many buffers there are.
        let best = problem.best_fit(Order::Start);
        let mut run = Self { problem, control, step: step(problem), capacity, best, lower_bound };
        run.tell();
        run.control.look();
        for order in Order::ALL.into_iter().filter(|&order| order != Order::Start) {
            if !run.is_open() {
                break;
            }
            let Some(offsets) = best_fit::place(&problem.buffers, order, |work| run.control.work(work)) else { break };
            run.found(offsets);
        }
        run
    }

    /// Whether there is something left to find out.
    fn is_open(&self) -> bool {
        let (height, bound) = (self.best.height_bytes, self.lower_bound);
        let is_answered = self.capacity.is_some_and(|capacity| height <= capacity || bound > capacity);
        !is_answered && height > bound && !self.control.is_over()
    }

    /// Closes in from both sides, in rounds: how long a capacity takes is not known before.
    fn lower(&mut self) {
        let mut nodes = FIRST_ROUND;
        while self.is_open() {
            // The bound itself, half way, and just below the best: where there is no room to spare, there is little to
            // try.
            for half in 0..=2 {
                let steps = (self.best.height_bytes - self.lower_bound) / self.step;
                if self.is_open() && (half == 0 || steps > 1) {
                    self.attempt(self.lower_bound + self.step * ((steps - 1) * half / 2), nodes);
                }
            }
            nodes = nodes.saturating_mul(GROWTH);
        }
    }

    /// Tries a capacity with so many nodes.
    fn attempt(&mut self, capacity: u64, nodes: u64) {
        let capacity = capacity - capacity % self.step;
        match search::run(self.problem, capacity, &self.best, nodes, self.control) {
            Verdict::Found(offsets) => self.found(offsets),
            Verdict::Exhausted => self.lower_bound = capacity + self.step,
            Verdict::OutOfNodes => {}
        }
        self.tell();
    }

    fn found(&mut self, offsets: Vec<u64>) {
        let packing = Packing::new(offsets, &self.problem.buffers);
        if packing.height_bytes < self.best.height_bytes {
            self.best = packing;
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.control.progress.height_bytes = self.best.height_bytes;
        self.control.progress.lower_bound_bytes = self.lower_bound;
    }
}

/// The greatest number that divides every size, alignment and fixed offset, and so every offset and height of a packing in
/// which nothing can be lower.
fn step(problem: &PackingProblem) -> u64 {
    let buffers = problem.buffers().iter().filter(|buffer| buffer.size_bytes > 0);
    // An alignment of 1 asks for nothing.
    let numbers = buffers.flat_map(|buffer| {
        let alignment = if buffer.alignment == 1 { 0 } else { buffer.alignment };
        [buffer.size_bytes, alignment, buffer.offset.unwrap_or(0)]
    });
    numbers.fold(0, gcd).max(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
