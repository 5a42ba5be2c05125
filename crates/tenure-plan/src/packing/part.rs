//! Parts of a problem: buffers whose lifetimes are connected.

use super::PackingProblem;
use super::improve::Candidates;

/// Buffers of which no lifetime overlaps with one of another part, so each part is packed by itself.
pub(super) struct Part {
    pub(super) buffers: Vec<usize>,
    /// The height of the lowest packing of the part so far.
    pub(super) height: u64,
    pub(super) candidates: Candidates,
    /// The number of its buffers times their sections: a measure of the time that one descent of the complete search takes.
    pub(super) search_work: u64,
}

impl Part {
    pub(super) fn new(problem: &PackingProblem, buffers: Vec<usize>, offsets: &[u64]) -> Self {
        let sections: u64 = buffers.iter().map(|&index| problem.sections.range(index).len() as u64).sum();
        let search_work = sections.saturating_mul(buffers.len() as u64);
        let height = height(problem, &buffers, offsets);
        Self { buffers, height, candidates: Candidates::default(), search_work }
    }
}

/// Returns the height of a packing of `buffers`; `offsets` has those of all buffers of the problem.
pub(super) fn height(problem: &PackingProblem, buffers: &[usize], offsets: &[u64]) -> u64 {
    let with_bytes = buffers.iter().filter(|&&index| problem.buffers[index].size_bytes > 0);
    with_bytes.map(|&index| offsets[index] + problem.buffers[index].size_bytes).max().unwrap_or(0)
}
