//! The complete search: whether buffers fit into a capacity.
//!
//! Only packings in which no buffer can be lower, but for those with fixed offsets, are looked at, for any other can be
//! turned into one of these. Buffers are placed in the order of their offsets, each as low as those placed before let it. Then
//!
//! - a buffer that would go above where another could still lie whole is not placed: the other could be lower;
//! - a buffer that was passed over has to be raised by one that is still to be placed, or there is no such packing;
//! - in each section, what is left to be placed must fit above the lowest offsets that are left to it: one machine, and
//!   jobs with release dates;
//! - what is left is cut where no lifetime crosses, and the parts are solved one by one: if one has no packing, no
//!   other need be looked at again;
//! - of buffers that are alike, the first is the lowest.

use super::control::Control;
use super::state::{Part, State};
use super::{Packing, PackingProblem};

/// Places tried in each order in a first round.
const FIRST_ROUND: u64 = 1 << 10;

/// What a search says.
pub(super) enum Verdict<T> {
    /// It fits.
    Found(T),
    /// It does not.
    Exhausted,
    /// Nothing yet.
    OutOfNodes,
}

/// Looks for offsets within `capacity`, by trying so many places. Parts of `known`, some packing, that are within it are
/// kept.
pub(super) fn run(
    problem: &PackingProblem,
    capacity: u64,
    known: &Packing,
    mut nodes: u64,
    control: &mut Control<'_>,
) -> Verdict<Vec<u64>> {
    let mut offsets = known.offsets().to_vec();
    let is_within = |&index: &usize| offsets[index] + problem.buffers[index].size_bytes <= capacity;
    let parts: Vec<Vec<usize>> =
        problem.sections.parts().into_iter().filter(|part| !part.iter().all(is_within)).collect();
    for part in parts {
        match solve(problem, capacity, &part, &mut nodes, control) {
            Verdict::Found(found) => {
                for (buffer, offset) in found {
                    offsets[buffer] = offset;
                }
            }
            Verdict::Exhausted => return Verdict::Exhausted,
            Verdict::OutOfNodes => return Verdict::OutOfNodes,
        }
    }
    Verdict::Found(offsets)
}

/// Takes orders in turn, for which is good is not known before, and gives each more nodes in each round.
fn solve(
    problem: &PackingProblem,
    capacity: u64,
    buffers: &[usize],
    nodes: &mut u64,
    control: &mut Control<'_>,
) -> Verdict<Vec<(usize, u64)>> {
    let mut states: Vec<State> =
        Priority::ALL.iter().map(|priority| State::new(problem, capacity, &priority.sort(problem, buffers))).collect();
    let mut round = FIRST_ROUND;
    loop {
        for state in &mut states {
            let mut left = round.min(*nodes);
            *nodes -= left;
            let verdict = descend(state, &mut left, control);
            *nodes += left;
            match verdict {
                Verdict::Found(()) => return Verdict::Found(state.offsets()),
                Verdict::Exhausted => return Verdict::Exhausted,
                Verdict::OutOfNodes if *nodes == 0 || control.is_over() => return Verdict::OutOfNodes,
                Verdict::OutOfNodes => state.undo(0),
            }
        }
        round = round.saturating_mul(2);
    }
}

/// A place where the search can turn another way.
struct Branch {
    part: Part,
    /// How far to undo before the next candidate.
    mark: usize,
    /// Buffers that may be placed next, the last first.
    candidates: Vec<usize>,
    /// What the candidate placed now has left to do.
    left: Vec<Part>,
}

impl Branch {
    fn new(part: Part, state: &State) -> Self {
        let candidates = state.candidates(&part);
        Self { part, mark: state.mark(), candidates, left: Vec::new() }
    }
}

/// Depth first.
fn descend(state: &mut State, nodes: &mut u64, control: &mut Control<'_>) -> Verdict<()> {
    let Some(whole) = state.whole() else { return Verdict::Exhausted };
    let mut branches = vec![Branch::new(whole, state)];
    loop {
        let Some(branch) = branches.last_mut() else { return Verdict::Exhausted };
        state.undo(branch.mark);
        let Some(item) = branch.candidates.pop() else {
            branches.pop();
            continue;
        };
        if *nodes == 0 || !control.spend(branch.part.len()) {
            return Verdict::OutOfNodes;
        }
        *nodes -= 1;
        let Some(left) = state.place(item, &branch.part) else { continue };
        branch.left = left;
        // On with the next part that is left. The branches of a part that is solved are not turned to again.
        loop {
            let Some(branch) = branches.last_mut() else { return Verdict::Found(()) };
            if let Some(part) = branch.left.pop() {
                branches.push(Branch::new(part, state));
                break;
            }
            branches.pop();
        }
    }
}

/// Which buffers are tried first, where several can have the same offset.
#[derive(Clone, Copy)]
enum Priority {
    /// Those in most sections, then the largest area, then those in the fullest section.
    Width,
    /// Those in the fullest section, then the largest area, then those in most sections.
    Fullness,
    /// Those in the fullest section, then those in most sections, then the largest area.
    FullnessWidth,
}

impl Priority {
    const ALL: [Self; 3] = [Self::Width, Self::Fullness, Self::FullnessWidth];

    fn sort(self, problem: &PackingProblem, buffers: &[usize]) -> Vec<usize> {
        let totals = problem.sections.totals(&problem.buffers);
        let key = |&index: &usize| {
            let buffer = &problem.buffers[index];
            let range = problem.sections.range(index);
            let width = range.len() as u128;
            let area = u128::from(buffer.size_bytes) * u128::from(buffer.end - buffer.start);
            let fullness = totals[range].iter().max().copied().unwrap_or(0).into();
            match self {
                Self::Width => [width, area, fullness],
                Self::Fullness => [fullness, area, width],
                Self::FullnessWidth => [fullness, width, area],
            }
        };
        let mut sorted: Vec<usize> =
            buffers.iter().copied().filter(|&index| problem.buffers[index].size_bytes > 0).collect();
        sorted.sort_by_cached_key(|index| std::cmp::Reverse(key(index)));
        sorted
    }
}
