//! The complete search: finds out whether buffers fit into a capacity.
//!
//! The search visits only packings in which no buffer can be moved lower, except those with fixed offsets: every other
//! packing can be turned into one of these. Buffers are placed in the order of their offsets, each as low as the
//! buffers placed before allow. These rules cut the search:
//!
//! - a buffer is not placed above a gap in which another one still fits whole: the other could be lower;
//! - a buffer that was passed over must be raised by a buffer that is still to be placed, or there is no such packing;
//! - in each section, the unplaced buffers must fit above their lowest possible offsets: a single-machine schedule with
//!   release dates;
//! - the unplaced buffers are split where no lifetime crosses, and the parts are solved one by one: if one has no
//!   packing, the others are not searched again;
//! - if no unplaced buffer overlaps a placed one in time, no other buffer is tried in its turn;
//! - of identical buffers, the first is the lowest.

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus as Random;

use super::control::Control;
use super::ranking::RANKINGS;
use super::state::{PackingState, UnplacedItems};
use super::{Packing, PackingProblem};

/// Places tried in the shortest run.
const SHORTEST_RUN: u64 = 1 << 13;
/// The seed of the random numbers, the same each time.
const SEED: u64 = 0;

/// The result of a search.
pub(super) enum SearchResult<T> {
    /// The buffers fit, with these offsets.
    Found(T),
    /// The buffers do not fit.
    Exhausted,
    /// The limit was reached before there was an answer.
    OutOfNodes,
}

/// Looks for offsets within `capacity` by trying at most `nodes` places. Parts of `packing`, an existing packing, that
/// lie within the capacity are kept.
pub(super) fn run(
    problem: &PackingProblem,
    capacity: u64,
    packing: &Packing,
    mut nodes: u64,
    control: &mut Control<'_>,
) -> SearchResult<Vec<u64>> {
    let mut offsets = packing.offsets().to_vec();
    // A buffer without bytes lies within every capacity, whatever its offset.
    let is_within = |&index: &usize| {
        let size = problem.buffers[index].size_bytes;
        size == 0 || offsets[index] + size <= capacity
    };
    let parts: Vec<Vec<usize>> =
        problem.sections.connected_buffers().into_iter().filter(|part| !part.iter().all(is_within)).collect();
    for part in parts {
        match solve(problem, capacity, &part, &mut nodes, control) {
            SearchResult::Found(found) => {
                for (buffer, offset) in found {
                    offsets[buffer] = offset;
                }
            }
            SearchResult::Exhausted => return SearchResult::Exhausted,
            SearchResult::OutOfNodes => return SearchResult::OutOfNodes,
        }
    }
    SearchResult::Found(offsets)
}

/// Finds offsets for buffers whose lifetimes are connected. Takes the rankings in turn and restarts again and again,
/// since a search that went wrong early may never recover. After each ranking had its turn, chance changes the
/// rankings. The lengths of the runs follow Luby, Sinclair and Zuckerman (*Optimal speedup of Las Vegas algorithms*,
/// 1993), so one of them is long enough to try everything.
fn solve(
    problem: &PackingProblem,
    capacity: u64,
    buffers: &[usize],
    nodes: &mut u64,
    control: &mut Control<'_>,
) -> SearchResult<Vec<(usize, u64)>> {
    let mut state = PackingState::new(problem, capacity, buffers);
    let mut random = Random::seed_from_u64(SEED);
    let mut run = 0;
    loop {
        let ranking = RANKINGS[run % RANKINGS.len()];
        state.restart(ranking, (run >= RANKINGS.len()).then_some(&mut random));
        run += 1;
        let limit = SHORTEST_RUN.saturating_mul(luby_term(run as u64)).min(*nodes);
        let mut left = limit;
        let verdict = search_depth_first(&mut state, &mut left, control);
        *nodes -= limit - left;
        match verdict {
            SearchResult::Found(()) => return SearchResult::Found(state.offsets()),
            SearchResult::Exhausted => return SearchResult::Exhausted,
            SearchResult::OutOfNodes if *nodes == 0 || control.is_over() => return SearchResult::OutOfNodes,
            SearchResult::OutOfNodes => {}
        }
    }
}

/// Returns a term of the Luby sequence 1, 1, 2, 1, 1, 2, 4, 1, ...; the first term is number 1.
fn luby_term(number: u64) -> u64 {
    let next_power = (number + 1).next_power_of_two();
    if next_power == number + 1 { next_power / 2 } else { luby_term(number + 1 - next_power / 2) }
}

/// A node at which the search can take another branch.
struct Branch {
    part: UnplacedItems,
    /// The mark to undo to before the next candidate.
    mark: usize,
    /// Buffers that may be placed next, the last first.
    candidates: Vec<usize>,
    /// The parts that are still to be solved with the current candidate.
    left: Vec<UnplacedItems>,
}

impl Branch {
    fn new(part: UnplacedItems, state: &PackingState) -> Self {
        let candidates = state.candidates(&part);
        Self { part, mark: state.mark(), candidates, left: Vec::new() }
    }
}

/// Searches depth first, until the buffers are placed, every branch was tried, or `nodes` places were tried.
fn search_depth_first(state: &mut PackingState, nodes: &mut u64, control: &mut Control<'_>) -> SearchResult<()> {
    let Some(whole) = state.whole() else { return SearchResult::Exhausted };
    let mut branches = vec![Branch::new(whole, state)];
    loop {
        let Some(branch) = branches.last_mut() else { return SearchResult::Exhausted };
        state.undo(branch.mark);
        let Some(item) = branch.candidates.pop() else {
            branches.pop();
            continue;
        };
        if *nodes == 0 || !control.count_node(branch.part.len()) {
            return SearchResult::OutOfNodes;
        }
        *nodes -= 1;
        let left = state.place(item, &branch.part);
        if state.has_no_unplaced_neighbour(item) {
            // It lies where it would lie in any case, so the other candidates have no better chance.
            branch.candidates.clear();
        }
        let Some(left) = left else { continue };
        branch.left = left;
        // Go on with the next unsolved part. The branches of a solved part are not visited again.
        loop {
            let Some(branch) = branches.last_mut() else { return SearchResult::Found(()) };
            if let Some(part) = branch.left.pop() {
                branches.push(Branch::new(part, state));
                break;
            }
            branches.pop();
        }
    }
}
