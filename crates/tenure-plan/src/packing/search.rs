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
//! - where a buffer that nothing left meets is placed, nothing else need be tried in its turn;
//! - of buffers that are alike, the first is the lowest.

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus as Random;

use super::control::Control;
use super::ranking::RANKINGS;
use super::state::{Part, State};
use super::{Packing, PackingProblem};

/// Places tried in the shortest run.
const RUN: u64 = 1 << 13;
/// Where chance begins, the same each time.
const SEED: u64 = 0;

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

/// Takes rankings in turn and begins again and again, since a search that went wrong early may never come back from it.
/// After a turn of each, chance changes them. Runs are as long as Luby, Sinclair and Zuckerman say (*Optimal speedup of
/// Las Vegas algorithms*, 1993), so one of them is long enough to try everything.
fn solve(
    problem: &PackingProblem,
    capacity: u64,
    buffers: &[usize],
    nodes: &mut u64,
    control: &mut Control<'_>,
) -> Verdict<Vec<(usize, u64)>> {
    let mut state = State::new(problem, capacity, buffers);
    let mut random = Random::seed_from_u64(SEED);
    let mut run = 0;
    loop {
        let ranking = RANKINGS[run % RANKINGS.len()];
        state.restart(ranking, (run >= RANKINGS.len()).then_some(&mut random));
        run += 1;
        let limit = RUN.saturating_mul(luby(run as u64)).min(*nodes);
        let mut left = limit;
        let verdict = descend(&mut state, &mut left, control);
        *nodes -= limit - left;
        match verdict {
            Verdict::Found(()) => return Verdict::Found(state.offsets()),
            Verdict::Exhausted => return Verdict::Exhausted,
            Verdict::OutOfNodes if *nodes == 0 || control.is_over() => return Verdict::OutOfNodes,
            Verdict::OutOfNodes => {}
        }
    }
}

/// The sequence 1, 1, 2, 1, 1, 2, 4, 1, ..., from its first term on, which is number 1.
fn luby(number: u64) -> u64 {
    let next_power = (number + 1).next_power_of_two();
    if next_power == number + 1 { next_power / 2 } else { luby(number + 1 - next_power / 2) }
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
        let left = state.place(item, &branch.part);
        if state.is_alone(item) {
            // It lies where it always would, so the others have no better chance without it.
            branch.candidates.clear();
        }
        let Some(left) = left else { continue };
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
