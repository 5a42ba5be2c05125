//! The decoder: turns decisions about tensors into a plan. Each tensor in turn gets the room and link time that the
//! tensors before it left, in a [schedule](super::schedule).
//!
//! Times are those of kernels that never wait. At each of its uses a tensor is where it is needed; in the gaps between
//! uses it stays, moves away and back, or is dropped and recomputed. If a tensor fits, its moves cause no waits, as
//! long as links reach their nominal speed. If nothing fits, it still moves away and back, and kernels wait. Among the
//! slower tiers, each tensor gets the first one with room.

use std::ops::Range;

use super::Objective;
use crate::problem::Problem;
use crate::uses::{Use, uses};

/// The treatment that is tried first with a tensor. If it is impossible, the others are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It stays in the first tier.
    Keep,
    /// It moves away in the gaps between its uses, and back.
    Away,
    /// It is dropped, and recomputed before it is needed.
    Recompute,
    /// It is in a slower tier that kernels reach, for its whole lifetime.
    Slow,
}

impl Treatment {
    /// All treatments.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Away, Self::Recompute, Self::Slow];
}

/// The decisions about the tensors of a problem.
#[derive(Clone, Debug)]
pub struct Decisions {
    /// A priority for each tensor: the highest is treated first, and of equal ones the earlier in the problem.
    pub priorities: Vec<f64>,
    /// The treatment that is tried first with each tensor.
    pub treatments: Vec<Treatment>,
}

impl Decisions {
    /// Decides to keep all tensors as far as there is room, first the tensors of `order` in their order, last the
    /// others.
    pub fn keep(tensors: usize, order: &[usize]) -> Self {
        let mut priorities = vec![0.0; tensors];
        for (rank, tensor) in order.iter().enumerate() {
            priorities[*tensor] = 1.0 - rank as f64 / tensors as f64;
        }
        Self { priorities, treatments: vec![Treatment::Keep; tensors] }
    }
}

/// Makes plans from decisions about a problem's tensors.
pub struct Decoder<'a> {
    pub(super) problem: &'a Problem,
    /// The time at which each kernel begins, and the time at which the last ends, in nanoseconds.
    pub(super) begins: Vec<f64>,
    /// The kernels that need each tensor, in their order. A tensor that always exists is needed at both ends of the
    /// iteration or at neither.
    pub(super) uses: Vec<Vec<usize>>,
    /// For each tensor, the tensors that can be recomputed from it and are first used after it.
    pub(super) recomputed_from: Vec<Vec<usize>>,
    /// The tiers that tensors move away to; each tensor takes the first with room.
    pub(super) away_tiers: Vec<AwayTier>,
    /// The tiers other than the first that kernels reach.
    pub(super) slow_tiers: Vec<usize>,
    /// The nanoseconds by which kernels take longer if a tensor is in the first of `slow_tiers`.
    slower_ns: Vec<f64>,
    /// Whether plans may have steps: tensors may move or be recomputed.
    pub(super) allows_steps: bool,
}

/// A tier other than the first, with the links there and back.
#[derive(Clone, Copy)]
pub(super) struct AwayTier {
    pub(super) tier: usize,
    /// The link from the first tier to this one.
    pub(super) out: usize,
    /// The link from this tier to the first.
    pub(super) back: usize,
}

/// The kernels between two uses of a tensor. A tensor that always exists may be away from the end of an iteration to
/// the beginning of the next: then `to` comes before `from`.
#[derive(Clone, Copy)]
pub(super) struct Gap {
    /// Its first kernel.
    pub(super) from: usize,
    /// The kernel after its last.
    pub(super) to: usize,
}

impl Gap {
    /// Returns whether it is a gap between kernels of one iteration with at least one kernel in it.
    fn is_wide(self) -> bool {
        self.to > self.from
    }

    /// Returns whether it reaches from the end of an iteration into the beginning of the next.
    pub(super) fn wraps_around(self) -> bool {
        self.to < self.from
    }

    /// Returns the gap as ranges of kernels, out of `all` kernels.
    pub(super) fn kernels(self, all: usize) -> [Range<usize>; 2] {
        if self.wraps_around() { [self.from..all, 0..self.to] } else { [self.from..self.to, 0..0] }
    }

    /// Returns whether a kernel lies in the gap.
    pub(super) fn contains(self, kernel: usize) -> bool {
        if self.wraps_around() {
            kernel >= self.from || kernel < self.to
        } else {
            (self.from..self.to).contains(&kernel)
        }
    }
}

impl<'a> Decoder<'a> {
    /// Makes a decoder for a problem that has tiers. If the objective is the score, tensors stay where they are.
    pub fn new(problem: &'a Problem, objective: Objective) -> Self {
        let others = 1..problem.tiers().len();
        let slow_tiers: Vec<usize> = others.clone().filter(|tier| problem.tiers()[*tier].is_reachable).collect();
        let costs = uses(problem);
        let slower_ns = |uses: &Vec<Use>| match slow_tiers.first() {
            Some(slow) => uses.iter().map(|a_use| a_use.extra_ns[*slow]).sum(),
            None => f64::INFINITY,
        };
        let slower_ns = costs.iter().map(slower_ns).collect();
        let mut uses = problem.users();
        let last = problem.kernels().len().saturating_sub(1);
        for (uses, tensor) in uses.iter_mut().zip(problem.tensors()) {
            match (tensor.is_always_there(), uses.first(), uses.last()) {
                (true, Some(0), Some(end)) if *end < last => uses.push(last),
                (true, Some(first), Some(end)) if *first > 0 && *end == last => uses.insert(0, 0),
                _ => {}
            }
        }
        let allows_steps = objective == Objective::Makespan;
        let away_tiers = others
            .filter(|_| allows_steps)
            .filter_map(|tier| Some(AwayTier { tier, out: problem.link(0, tier)?, back: problem.link(tier, 0)? }))
            .collect();
        let mut recomputed_from = vec![Vec::new(); problem.tensors().len()];
        for (number, tensor) in problem.tensors().iter().enumerate() {
            let inputs = tensor.recompute.iter().flat_map(|recompute| &recompute.inputs);
            inputs
                .filter(|input| uses[**input].first() < uses[number].first())
                .for_each(|input| recomputed_from[*input].push(number));
        }
        Self {
            problem,
            begins: problem.begins_ns(),
            uses,
            recomputed_from,
            away_tiers,
            slow_tiers,
            slower_ns,
            allows_steps,
        }
    }

    /// Returns whether a treatment can be applied to a tensor. Keeping a tensor is always possible.
    pub fn is_possible(&self, tensor: usize, treatment: Treatment) -> bool {
        match treatment {
            Treatment::Keep => true,
            Treatment::Away => !self.away_tiers.is_empty() && !self.gaps(tensor, &[]).is_empty(),
            Treatment::Recompute => {
                let again = &self.problem.tensors()[tensor].recompute;
                self.allows_steps && again.is_some() && self.gaps(tensor, &[]).iter().any(|gap| !gap.wraps_around())
            }
            Treatment::Slow => !self.slow_tiers.is_empty(),
        }
    }

    /// Returns the cost of moving a tensor away in all gaps that are long enough: nanoseconds on each link, and the
    /// kernels during which it is in the first tier.
    pub(super) fn move_costs(&self, tensor: usize) -> (Vec<(usize, f64)>, Vec<Range<usize>>) {
        let mut links = Vec::new();
        let mut room = self.resident_kernels(tensor);
        let Some(away) = self.away_tiers.first() else { return (links, room) };
        let out_ns = self.transfer_ns(tensor, away.out);
        let back_ns = self.transfer_ns(tensor, away.back);
        let all = self.problem.kernels().len();
        for gap in self.gaps(tensor, &[]) {
            let gone = self.last_resident_kernel(gap, self.begins[gap.from] + out_ns).min(all - 1);
            let comes = self.kernel_at((self.begins[gap.to] - back_ns).max(0.0)).min(gap.to - 1);
            if !gap.wraps_around() && gone >= comes {
                room.push(gap.from..gap.to);
                continue;
            }
            room.extend([gap.from..gone + 1, comes..gap.to]);
            links.extend([(self.timeline_of(away.out), out_ns), (self.timeline_of(away.back), back_ns)]);
        }
        (links, room)
    }

    /// Returns the cost of recomputing a tensor after each gap: nanoseconds, and the kernels during which it is in the
    /// first tier.
    pub(super) fn recompute_costs(&self, tensor: usize) -> (f64, Vec<Range<usize>>) {
        let gaps = self.gaps(tensor, &[]).len();
        let once = self.problem.tensors()[tensor].recompute.as_ref().map_or(0, |again| again.time_ns);
        (once as f64 * gaps as f64, self.resident_kernels(tensor))
    }

    /// Returns the nanoseconds by which kernels take longer if a tensor is in the next tier that they reach; infinite
    /// if there is none.
    pub fn slower_ns(&self, tensor: usize) -> f64 {
        self.slower_ns[tensor]
    }

    /// Returns the nanoseconds that a link takes to move a tensor.
    pub(super) fn transfer_ns(&self, tensor: usize, link: usize) -> f64 {
        self.problem.moved_bytes(tensor, link) as f64 * 1e9 / self.problem.links()[link].bandwidth as f64
    }

    /// Returns the index of the timeline on which moves over a link are scheduled; links that share their bandwidth
    /// share it.
    pub(super) fn timeline_of(&self, link: usize) -> usize {
        let links = self.problem.links();
        (0..link)
            .find(|other| links[link].shared_with == Some(*other) || links[*other].shared_with == Some(link))
            .unwrap_or(link)
    }

    /// Returns whether `input` exists before a kernel, with the content from which `tensor` was computed.
    pub(super) fn has_same_content(&self, input: usize, tensor: usize, kernel: usize) -> bool {
        let uses = &self.uses[input];
        let computed = self.uses[tensor][0];
        // A tensor that no kernel uses may be in any tier. An input that was created before can be recomputed before.
        let is_there = uses.first().zip(uses.last()).is_some_and(|(first, last)| {
            let input = &self.problem.tensors()[input];
            input.is_always_there()
                || (*first < computed || *first == computed && input.recompute.is_none()) && kernel <= *last
        });
        is_there
            && !uses
                .iter()
                .filter(|use_of| (computed + 1..kernel).contains(use_of))
                .any(|kernel| self.problem.kernels()[*kernel].writes.iter().any(|access| access.tensor == input))
    }

    /// Returns the gaps between the uses of a tensor and `others`, further kernels that need it.
    pub(super) fn gaps(&self, tensor: usize, others: &[usize]) -> Vec<Gap> {
        let mut uses = self.uses[tensor].clone();
        uses.extend(others);
        uses.sort_unstable();
        let inner = uses.windows(2).map(|uses| Gap { from: uses[0] + 1, to: uses[1] });
        let mut gaps: Vec<Gap> = inner.filter(|gap| gap.is_wide()).collect();
        if let (Some(&first @ 1..), Some(last)) = (uses.first(), uses.last())
            && self.problem.tensors()[tensor].is_always_there()
        {
            gaps.push(Gap { from: last + 1, to: first });
        }
        gaps
    }

    /// Returns the kernels during which a tensor must be in the first tier if it is used there: the kernels that need
    /// it, and those between them that form no gap.
    pub(super) fn resident_kernels(&self, tensor: usize) -> Vec<Range<usize>> {
        let mut stays: Vec<Range<usize>> = Vec::new();
        for kernel in self.uses[tensor].iter().copied() {
            match stays.last_mut() {
                Some(before) if !(Gap { from: before.end, to: kernel }).is_wide() => before.end = kernel + 1,
                _ => stays.push(kernel..kernel + 1),
            }
        }
        stays
    }

    /// Returns the kernel that runs at a time.
    pub(super) fn kernel_at(&self, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin <= ns).saturating_sub(1)
    }

    /// Returns the last kernel during which a tensor that has left by a time still exists in the first tier: at least
    /// the last before the gap, since kernels and transfers may take no time.
    pub(super) fn last_resident_kernel(&self, gap: Gap, ns: f64) -> usize {
        self.begins.partition_point(|begin| *begin < ns).max(gap.from) - 1
    }
}
